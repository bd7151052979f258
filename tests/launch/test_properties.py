"""Tests that the launcher's guarantees hold under faults of the cloud, the clocks and the processes.

The long run is `python -m tests.campaigns.launcher [STEPS] [--seed S]`. Sequences that once failed are tests below.
"""

import os

import hypothesis
import pytest
from hypothesis import stateful
from hypothesis import strategies as st

from launch import errors, mailbox, states
from launch.event_log import EventLog
from tests.launch.services import FAULTS, ILL
from tests.launch.universe import ARRIVES, Universe

LAPTOPS = st.integers(0, 1)
EXAMPLES = int(os.environ.get("VITJAX_SEQUENCES", "0"))
STEPS = int(os.environ.get("VITJAX_STEPS", "30"))


class Launcher(stateful.RuleBasedStateMachine):
  """A run that one laptop has started, and its possible events."""

  def __init__(self):
    super().__init__()
    self.universe = Universe()
    self.universe.start(0, begin=True)
    for _ in range(3):
      self.universe.turn(0)
      self.universe.tick(15)

  @stateful.rule(seconds=st.sampled_from([1, 15, 60, 200, 600, 3000, 20000]))
  def laptops_sleep(self, seconds):
    self.universe.tick(seconds)

  @stateful.rule(first=LAPTOPS, turns=st.integers(1, 60), pause=st.sampled_from([1, 15, 40]))
  def watch(self, first, turns, pause):
    for _ in range(turns):
      self.universe.turn(first)
      self.universe.turn(1 - first)
      self.universe.tick(pause)

  @stateful.rule(laptop=LAPTOPS, force=st.booleans())
  def adopt(self, laptop, force):
    self.universe.start(laptop, force)

  @stateful.rule(laptop=LAPTOPS, calls=st.integers(1, 30), turns=st.integers(1, 10))
  def die(self, laptop, calls, turns):
    """Kills a process at any call."""
    for _ in range(turns):
      self.universe.kill_at = self.universe.calls + calls
      self.universe.turn(laptop)
      self.universe.tick(15)
    self.universe.kill_at, self.universe.watches[laptop] = 0, None

  @stateful.rule(laptop=LAPTOPS, meanwhile=st.booleans())
  def gc(self, laptop, meanwhile):
    """Runs `gc`, in which the other laptop may act between its calls."""
    if meanwhile:
      self.universe.fault("other acts", 2, states.LOST)
    self.universe.gc(laptop)

  @stateful.rule(laptop=LAPTOPS)
  def run_again(self, laptop):
    self.universe.start(laptop, begin=True)

  @stateful.rule(laptop=LAPTOPS, sure=st.integers(0, 4))
  def down(self, laptop, sure):
    if not sure:
      self.universe.down(laptop)

  @stateful.rule(laptop=LAPTOPS)
  def run_and_watch(self, laptop):
    """Starts and watches a run, so that most sequences have a watcher most of the time."""
    self.universe.start(laptop, begin=True)
    for _ in range(20):
      self.universe.turn(laptop)
      self.universe.tick(15)

  @stateful.rule(kind=st.sampled_from(FAULTS), times=st.integers(1, 4), word=st.sampled_from(ILL))
  def fault(self, kind, times, word):
    self.universe.fault(kind, times, word)

  @stateful.rule(away=st.booleans(), workers=st.booleans())
  def bucket(self, away, workers=False):
    self.universe.away, self.universe.workers_away = away, workers

  @stateful.rule(laptop=LAPTOPS, seconds=st.sampled_from([-86400.0, -3600.0, 0.0, 3600.0, 86400.0, 1e7]))
  def clock_jumps(self, laptop, seconds):
    self.universe.skews[laptop] = seconds

  @stateful.rule(
    delay=st.sampled_from([1.0, 30.0, ARRIVES]),
    queue=st.sampled_from([0.0, 600.0, 20000.0]),
    removal=st.sampled_from([1.0, 60.0, 800.0, 5000.0]),
  )
  def pace(self, delay, queue, removal):
    self.universe.delay, self.universe.queue, self.universe.removal = delay, queue, removal

  @stateful.rule(word=st.sampled_from([states.LOST, states.REPAIRING]))
  def preempt(self, word):
    for attempt in self.universe.live():
      self.universe.machines[attempt].state = word
      self.universe.machines[attempt].worker = "silent"

  @stateful.rule(what=st.sampled_from(["finished", "crashed", "silent"]))
  def program(self, what):
    for attempt in self.universe.live():
      self.universe.machines[attempt].worker = what

  def teardown(self):
    """Ends all watchers, restores the cloud, and checks that `down` leaves no machines."""
    u = self.universe
    try:
      u.watches, u.faults, u.away, u.removal = [None, None], {}, False, 30.0
      for machine in u.machines.values():
        machine.gone = min(machine.gone, u.now + 30)
      u.tick(1.0)
      code = u.down(0)
      u.tick(60)
      assert code == errors.DONE or isinstance(code, Exception), (code, u.output[-2000:])
      assert not u.live(), u.output[-2000:]
      with u.on(0):
        assert not EventLog("vit", u.storage("")).list_remaining()
    finally:
      u.close()


Launcher.TestCase.settings = hypothesis.settings(
  max_examples=EXAMPLES or 15, stateful_step_count=STEPS, deadline=None, database=None, derandomize=not EXAMPLES,
  suppress_health_check=list(hypothesis.HealthCheck),
)  # fmt: skip
TestLauncher = Launcher.TestCase


def run_sequence(*steps):
  """Runs a sequence of rules in the form that Hypothesis prints, and checks the guarantees at its end."""
  machine = Launcher()
  try:
    for name, words in steps:
      getattr(machine, name)(**words)
  finally:
    machine.teardown()


def test_lost_response_to_a_write_before_the_process_dies():
  run_sequence(
    ("fault", {"kind": "write lost", "times": 1, "word": "lost"}), ("die", {"calls": 1, "laptop": 0, "turns": 3})
  )


def test_deletion_longer_than_the_limit_is_finished_by_the_next_down():
  run_sequence(("pace", {"delay": 1.0, "queue": 0.0, "removal": 5000.0}), ("down", {"laptop": 0, "sure": 0}))


def test_delayed_request_of_a_dead_process_creates_no_second_attempt():
  preempted = [("preempt", {"word": states.LOST}), ("watch", {"first": 0, "turns": 10, "pause": 15})]
  run_sequence(
    ("run_and_watch", {"laptop": 0}), ("pace", {"delay": ARRIVES, "queue": 0.0, "removal": 1.0}),
    ("fault", {"kind": "create delayed", "times": 4, "word": "lost"}), *preempted,
    ("die", {"calls": 3, "laptop": 0, "turns": 2}), ("adopt", {"laptop": 1, "force": True}),
    ("watch", {"first": 1, "turns": 40, "pause": 15}), *preempted, ("run_and_watch", {"laptop": 1}),
  )  # fmt: skip


def test_gc_of_another_laptop_keeps_healthy_machines():
  run_sequence(
    ("run_and_watch", {"laptop": 0}), ("preempt", {"word": states.LOST}),
    ("watch", {"first": 0, "turns": 8, "pause": 15}), ("gc", {"laptop": 1, "meanwhile": True}),
    ("watch", {"first": 0, "turns": 30, "pause": 15}), ("gc", {"laptop": 1, "meanwhile": True}),
  )  # fmt: skip


def test_accepted_attempt_survives_false_absences():
  run_sequence(
    ("laptops_sleep", {"seconds": 20000}), ("fault", {"kind": "delete refused", "times": 4, "word": "repairing"}),
    ("run_again", {"laptop": 1}), ("pace", {"delay": 1.0, "queue": 20000.0, "removal": 60.0}),
    ("watch", {"first": 1, "pause": 40, "turns": 49}), ("laptops_sleep", {"seconds": 600}),
    ("run_again", {"laptop": 0}),
    ("pace", {"delay": 1.0, "queue": 600.0, "removal": 5000.0}),
    ("fault", {"kind": "look absent", "times": 3, "word": "deleting"}),
    ("watch", {"first": 0, "pause": 15, "turns": 31}),
  )  # fmt: skip


def test_one_false_loss_without_reports_deletes_no_healthy_attempt():
  run_sequence(
    ("watch", {"first": 0, "pause": 40, "turns": 3}), ("bucket", {"away": True}),
    ("fault", {"kind": "look ill", "times": 1, "word": "lost"}), ("run_and_watch", {"laptop": 0}),
  )  # fmt: skip


def test_one_false_loss_after_an_outage_deletes_no_healthy_attempt():
  run_sequence(
    ("watch", {"first": 0, "pause": 40, "turns": 3}), ("bucket", {"away": True, "workers": True}),
    ("laptops_sleep", {"seconds": 300}), ("fault", {"kind": "look ill", "times": 1, "word": "lost"}),
    ("bucket", {"away": False, "workers": True}), ("run_and_watch", {"laptop": 0}),
  )  # fmt: skip


@pytest.mark.parametrize("end", ["finished", "stopped"])
def test_damaged_order_neither_hides_reports_nor_restarts_a_stopped_run(end):
  universe = Universe()
  try:
    universe.start(0, begin=True)
    for _ in range(20):
      universe.turn(0)
      universe.tick(15)
    files = mailbox.Mailbox(universe.storage(""), 1)
    if end == "stopped":
      files.write_order(mailbox.Order(1, stop=True))  # which the watcher has not read
      universe.machines[1].worker = "silent"
      files.write_report(mailbox.WorkerReport(0, 1, mailbox.EXITED, exit=42, asked=True, began=0))
    else:
      universe.machines[1].worker = "finished"
      universe.tick(10)
      universe.machines[1].worker = "silent"  # its last report remains
    universe.files["a1/order.json"] = b'{"try_": "x"', 10**6, universe.now
    for _ in range(10):
      universe.turn(0)
      universe.tick(15)
    assert list(universe.answered) == [1]
    assert bool(universe.live()) == (end == "stopped")  # the machines of a stopped run are kept
    assert (universe.watches[0] is None) == (end == "finished")
    assert "a1/order.json in the run's directory is not in the format" in universe.output
  finally:
    universe.close()
