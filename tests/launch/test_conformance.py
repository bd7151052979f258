"""Tests of the guarantees of `launch` for queued resources and for JobSets with the real kubectl.

The tests use a real bucket server.
"""

import contextlib
import dataclasses
import shutil

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from launch import errors, event_log
from launch.event_log import EventLog
from launch.mailbox import LeaseHeldError
from launch.states import OVER
from launch.storage import open_storage
from launch.watch import Watcher
from tests.launch.providers import Gke, Queued

pytestmark = [pytest.mark.heavy, pytest.mark.sample(2)]  # both backends
LONG = 10**6  # steps


@pytest.fixture(params=[Queued, Gke], ids=["qr", "gke"])
def kind(request):
  if request.param is Gke and not shutil.which("kubectl"):
    pytest.skip("kubectl is not installed")
  return request.param


@pytest.fixture
def make(kind, bucket_server, tmp_path, monkeypatch, request):
  """Returns a function that makes clouds of a kind."""
  monkeypatch.setattr(event_log, "IN_FLIGHT", 1.0)
  with contextlib.ExitStack() as stack:
    count = iter(range(10**6))

    def made(**changes):
      number = next(count)
      monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / f"state{number}"))
      name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)
      return stack.enter_context(kind(tmp_path / str(number), f"gs://bkt/{name}/{number}", **changes))

    yield made


@contextlib.contextmanager
def watching(cloud, **words):
  """Yields a watcher of the run, which is started if it is new."""
  book = EventLog("vit", open_storage(cloud.run.folder))
  with Watcher(cloud.run, book, **words) as watch:
    if not book.events:
      watch.begin(None)
    yield watch


def watch_to_end(cloud, **words):
  """Watches to the end, checks that two attempts are never alive, and returns the exit code."""
  with watching(cloud, **words) as watch:
    while watch.state.stage != OVER:
      watch.step()
      assert len(cloud.states()) <= 1
    return watch.watch_to_end()


def step_until(watch, condition, most=400):
  for _ in range(most):
    if condition():
      return
    watch.step()
  raise AssertionError(f"never: {watch.state}")


def test_run_is_created_once_and_removed_completely(make):
  cloud = make()
  cloud.crew(1)
  assert watch_to_end(cloud) == errors.DONE
  assert cloud.made() == ["vit-a1"] and not cloud.everything()


@pytest.mark.long
def test_attempt_is_recorded_before_it_is_requested(make):
  cloud = make()
  cloud.refuse(503)
  with watching(cloud) as watch:
    watch.step()
  assert EventLog("vit").list_remaining() == [1] and not cloud.everything()


@pytest.mark.long
def test_failed_deletion_ends_with_exit_code_13_and_the_command(make, capsys):
  cloud = make()
  cloud.crew(1)
  cloud.keep()
  assert watch_to_end(cloud) == errors.BILLING
  command, alternative = capsys.readouterr().out.split("vit-a1 may still be billed")[1].split("or with")
  assert "delete" in command and "vit-a1" in command and "python -m launch down vit" in alternative
  assert EventLog("vit").list_remaining() == [1]


def test_lost_response_does_not_create_a_second_attempt(make):
  cloud = make()
  cloud.crew(1)
  cloud.lose_answer()
  assert watch_to_end(cloud) == errors.DONE and set(cloud.made()) == {"vit-a1"} and not cloud.everything()


@pytest.mark.long
def test_cloud_without_responses_does_not_change_the_run(make):
  cloud = make()
  cloud.crew(1, steps=250)
  with watching(cloud) as watch:
    step_until(watch, cloud.crews[0].running.is_set)
    cloud.silence(8)
    step_until(watch, lambda: watch.state.stage == OVER)
    assert watch.watch_to_end() == errors.DONE
  assert cloud.made() == ["vit-a1"] and not cloud.everything()


@pytest.mark.long
def test_unknown_states_are_waited_for(make):
  cloud = make()
  cloud.crew(1, steps=20)
  with watching(cloud) as watch:
    watch.step()
    cloud.murmur("vit-a1")
    step_until(watch, lambda: watch.state.stage == OVER)
    assert watch.watch_to_end() == errors.DONE
  assert cloud.made() == ["vit-a1"] and not cloud.everything()


@pytest.mark.long
def test_run_without_capacity_leaves_no_resources(make):
  cloud = make()
  cloud.wait("vit-a1")
  assert watch_to_end(cloud) == errors.NO_CAPACITY and not cloud.everything()


@pytest.mark.long
def test_lingering_attempt_is_replaced_under_a_new_name_and_named(make, capsys):
  cloud = make()
  cloud.crew(1, steps=LONG)
  cloud.crew(2)
  with watching(cloud) as watch:
    step_until(watch, cloud.crews[0].running.is_set)
    cloud.linger()
    cloud.crews[0].close()
    cloud.take("vit-a1")
    while watch.state.stage != OVER:
      watch.step()
      assert len(cloud.states()) <= 1
    assert watch.watch_to_end() == errors.BILLING
  assert "vit-a1 may still be billed" in capsys.readouterr().out and cloud.made() == ["vit-a1", "vit-a2"]


def test_preemptions_do_not_count_as_failures(make):
  cloud = make(max_failures=1)
  cloud.crew(1, steps=LONG) if isinstance(cloud, Queued) else cloud.crew(1, codes=((42,), (42,), (0,)))
  cloud.crew(2, steps=LONG)
  cloud.crew(3)
  with watching(cloud) as watch:
    if isinstance(cloud, Queued):
      for number in (1, 2):
        step_until(
          watch, lambda number=number: watch.state.attempt == number and cloud.crews[number - 1].running.is_set()
        )
        cloud.crews[number - 1].close()
        cloud.preempt(f"vit-a{number}")
    step_until(watch, lambda: watch.state.stage == OVER)
    assert watch.watch_to_end() == errors.DONE
  assert not cloud.everything() and len(cloud.made()) == len(set(cloud.made()))


@pytest.mark.long
def test_crash_loop_ends_after_three_tries_and_names_its_first_cause(make, capsys):
  cloud = make()
  cloud.crew(1, codes=((134, 1),))
  assert watch_to_end(cloud) == errors.GAVE_UP
  assert cloud.crews[0].tries == [1, 2, 3] and not cloud.everything()
  output = capsys.readouterr().out
  assert "w01" in output and "the log of 1" in output and cloud.made() == ["vit-a1"]


@pytest.mark.long
@pytest.mark.parametrize("code", [2, 44, 45])
def test_permanent_failure_is_not_tried_again(make, code):
  cloud = make()
  cloud.crew(1, codes=((134, code),))
  assert watch_to_end(cloud) == code and cloud.crews[0].tries == [1] and not cloud.everything()


def test_another_watcher_continues_after_a_dead_one(make):
  cloud = make()
  cloud.crew(1, steps=30)
  book = EventLog("vit", open_storage(cloud.run.folder))
  watch = Watcher(cloud.run, book).__enter__()
  watch.begin(None)
  step_until(watch, cloud.crews[0].running.is_set)
  with pytest.raises(LeaseHeldError):
    watch_to_end(cloud)
  assert watch_to_end(cloud, force=True) == errors.DONE
  assert cloud.made() == ["vit-a1"] and not cloud.everything()
  with pytest.raises(LeaseHeldError):
    watch.watch_to_end()


@pytest.mark.long
def test_name_of_another_run_is_refused(make):
  cloud = make()
  cloud.crew(1, steps=LONG)
  with watching(cloud) as watch:
    step_until(watch, cloud.crews[0].running.is_set)
    other = dataclasses.replace(cloud.run, workdir=f"{cloud.run.workdir}-other")
    with Watcher(other, EventLog("vit-other", open_storage(other.folder))) as second:
      second.begin(None)
      assert second.watch_to_end() == errors.USAGE
    assert cloud.states()


FAULTS = st.lists(
  st.sampled_from(["lose_answer", "preempt", "silence", "crash", "die", "murmur", "keep", "linger", "wait"]), max_size=6
)


@pytest.mark.long
@settings(max_examples=settings.default.max_examples // 12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(["keep"])  # the log contained code 0, but the exit code was BILLING
@given(FAULTS)
def test_all_created_machines_are_deleted_or_named_after_faults(make, faults):
  cloud = make(max_failures=2)
  steady = {"codes": ((1,),), "steps": 4} if "crash" in faults else {"steps": 6}
  for number in range(1, 9):
    cloud.crew(number, **steady)
  if "lose_answer" in faults:
    cloud.lose_answer()
  with contextlib.suppress(LeaseHeldError):
    cause(cloud, faults)
  code = watch_to_end(cloud, force=True) if EventLog("vit").open else EventLog("vit").find_last_event("end")["code"]
  left = {f"vit-a{number}" for number in EventLog("vit").list_remaining()}
  assert cloud.states().keys() <= left
  assert not left or code == errors.BILLING


def cause(cloud, faults):
  """Causes faults one after the other during a watch."""
  with watching(cloud) as watch:
    for fault in faults:
      name = f"vit-a{max(1, watch.state.attempt)}"
      if fault == "silence":
        cloud.silence(8)
      elif fault in ("preempt", "murmur", "wait") and name in cloud.states():
        getattr(cloud, fault)(name)
      elif fault in ("keep", "linger"):
        getattr(cloud, fault)()
      elif fault == "die":
        return
      for _ in range(5):
        watch.step()
    while watch.state.stage != OVER:
      watch.step()
      assert len(cloud.states()) <= 1
    watch.watch_to_end()
