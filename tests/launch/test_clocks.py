"""Tests of wrong and corrected clocks of the watcher: only expired machines are deleted, and in time."""

import pytest

from launch import errors, states
from tests.launch.world import World, run, running

DAY = 86_400.0


@pytest.mark.parametrize("stage", [states.IDLE, states.WATCHING, states.DELETING])
def test_corrected_clock_that_was_a_day_ahead_causes_no_delay(stage):
  """Compares with the same run under a correct clock. Repeated requests may take 30 s more."""

  def seconds(ahead):
    world = World(run(max_hours=20), total=10**9, boot=1e9)
    world.ahead, world.delete_fails = ahead, 3
    if stage == states.WATCHING:
      world.create_fails = 3
      world.until(lambda w: len(w.asked["create"]) == 2)
    else:
      world.until(lambda w: w.state.look == states.READY).preempt(False)
      world.until(lambda w: w.state.stage == stage and (stage == states.IDLE or len(w.asked["delete"]) == 2))
    world.ahead, before = 0.0, world.now
    world.until(lambda w: w.asked["create"][-1] >= before)
    limits = world.run.limits
    assert world.state.expires <= world.now + 20 * 3600 + limits.queue + limits.provision + limits.start
    return world.now - before

  assert seconds(DAY) <= seconds(0.0) + 30


def test_clock_that_is_set_back_does_not_delay_limits():
  world = World(run(), boot=1e9)
  world.ahead = DAY
  world.until(lambda w: w.state.look == states.READY)
  world.ahead, before = 0.0, world.now
  world.until(lambda w: w.state.stage == states.DELETING)
  assert world.now - before < run().limits.start + 60 and "no report within" in world.output[-1]


@pytest.mark.parametrize("bucket", [0.0, 1e9])
def test_clock_that_jumps_ahead_does_not_delete_healthy_machines(bucket):
  world = World(run(max_hours=20), total=3000).until(running)
  world.ahead, world.bucket = 2 * DAY, bucket
  assert (
    world.watch_to_end().state.end[0] == errors.DONE
    and not world.machines
    and world.made == [1]
    and "expired" not in world.notes
  )


@pytest.mark.parametrize("witness", ["a worker", "the bucket", "nobody"])
def test_expired_attempt_is_deleted_by_another_clock(witness):
  world = World(run(max_hours=1), total=10**9).until(running)
  world.bucket = 1e9 + DAY if witness == "the bucket" else 0.0
  world.unreadable = {1} if witness == "nobody" else set()
  world.until(lambda w: w.state.stage == states.DELETING)
  assert world.notes[-1] == "expired" and 0 <= world.now - world.state.expires - 120 <= 60
