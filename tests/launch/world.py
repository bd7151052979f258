"""A cloud with workers in simulated time, which executes the decisions of `decisions.decide` at once."""

import dataclasses

from launch import decisions, mailbox, spec, states
from launch.errors import LaunchError, UnknownError
from launch.states import OVER, Action, Observation, State

POLL = 15.0


def run(**changes) -> spec.Run:
  """Returns a run on four hosts."""
  args = ("--config=c.py", "--workdir=gs://bkt/a")
  words = {"backend": "qr", "tpu": "v3-32", "project": "project", "zones": ("europe-west4-a",)}
  return spec.check_and_complete(
    spec.Run("vit", module="vit_jax.train", args=args, workdir="gs://bkt/a", **words | changes)
  )


@dataclasses.dataclass
class Machines:
  """The machines of an attempt. `born` is the time of the request in seconds."""

  state: str
  born: float
  going: float = 0.0  # time of the delete request
  code: int = 0
  detail: str = ""


@dataclasses.dataclass
class World:
  """The cloud and the workers of a run.

  Args:
    run: the run.
    total: last step.
    saved: step of the newest checkpoint.
    every: steps between two checkpoints.
    pace: steps per second.
    queue: seconds in the queue.
    provision: seconds of provisioning.
    boot: seconds until workers start.
    removal: seconds of a deletion.
    crash: {worker: (exit code, step)} at which a worker ends in each try.
  """

  run: spec.Run
  total: int = 100
  saved: int = 0
  every: int = 10
  pace: float = 1.0
  queue: float = 30.0
  provision: float = 60.0
  boot: float = 30.0
  removal: float = 30.0
  crash: dict = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    self.now, self.state = 1e9, State()
    self.ahead = self.bucket = 0.0  # seconds by which the watcher's clock is ahead; time of the bucket, 0 if unknown
    self.machines, self.reports, self.orders = {}, {}, {}
    self.made, self.most, self.notes, self.output = [], 0, [], []
    self.asked = {"create": [], "delete": []}  # times of the requests
    self.silent, self.stuck, self.unreadable, self.hidden = set(), set(), set(), set()
    self.look_fails = self.create_fails = self.create_lost = self.delete_fails = self.delete_ignored = 0
    self.refusal = None

  # Actions of the cloud.

  def live(self):
    """Returns the attempts that exist and are not being deleted."""
    return [attempt for attempt, m in self.machines.items() if m.state != states.DELETING]

  def tick(self, seconds: float = POLL) -> None:
    """Advances time."""
    self.now += seconds
    for attempt, m in list(self.machines.items()):
      age = self.now - m.born
      if m.state == states.DELETING and self.now - m.going >= self.removal:
        del self.machines[attempt]
        self.reports.pop(attempt, None)
      elif m.state == states.QUEUED and age >= self.queue:
        m.state = states.STARTING
      elif m.state == states.STARTING and age >= self.queue + self.provision:
        m.state = states.READY
      if m.state in (states.READY, states.REPAIRING) and age >= self.queue + self.provision + self.boot:
        self._work(attempt, seconds)

  def _work(self, attempt, seconds):
    order = self.orders.get(attempt, mailbox.Order())
    rows = self.reports.setdefault(attempt, {})
    for worker in range(self.run.workers):
      report, _ = rows.get(worker, (None, 0.0))
      if report is None or (report.try_ < order.try_ and worker not in self.silent):
        rows[worker] = (
          mailbox.WorkerReport(worker, order.try_, mailbox.READY, host=f"h{worker}", clock=self.now),
          self.now,
        )
    if all(report.phase == mailbox.READY and report.try_ == order.try_ for report, _ in rows.values()):
      for worker, (report, _) in rows.items():
        changes = {"phase": mailbox.RUNNING, "step": self.saved, "began": self.saved}
        rows[worker] = (dataclasses.replace(report, **changes), self.now)
      return
    for worker, (report, _) in rows.items():
      if report.phase == mailbox.RUNNING and worker not in self.stuck:
        self._run(rows, worker, report, seconds, order)
      elif worker not in self.silent:
        rows[worker] = (report, self.now)
    codes = {report.exit for report, _ in rows.values() if report.phase == mailbox.EXITED}
    if codes and codes != {0}:  # the other workers end too
      for worker, (report, _) in rows.items():
        if report.phase == mailbox.RUNNING:
          rows[worker] = (dataclasses.replace(report, phase=mailbox.EXITED, exit=134, clock=self.now), self.now)

  def _run(self, rows, worker, report, seconds, order):
    step = min(self.total, report.step + int(seconds * self.pace))
    code, at = self.crash.get(worker, (None, 0))
    if order.stop:
      report = dataclasses.replace(report, phase=mailbox.EXITED, exit=42)
    elif code is not None and step >= at:
      report = dataclasses.replace(report, phase=mailbox.EXITED, exit=code, step=at, clock=self.now, tail="the log")
    elif step >= self.total:
      report = dataclasses.replace(report, phase=mailbox.EXITED, exit=0, step=step)
    else:
      report = dataclasses.replace(report, step=step)
    if worker not in self.silent:
      rows[worker] = (report, self.now)
    if all(r.phase == mailbox.RUNNING for r, _ in rows.values()):
      self.saved = max(self.saved, min(r.step for r, _ in rows.values()) // self.every * self.every)

  def preempt(self, notice: bool) -> None:
    """Preempts the machines. With notice, the programs save first."""
    for attempt in self.live():
      self.machines[attempt].state, self.machines[attempt].detail = states.LOST, "SUSPENDED"
      rows = self.reports.get(attempt, {})
      for worker, (report, _) in rows.items():
        if notice and report.phase == mailbox.RUNNING:
          self.saved = max(self.saved, report.step)
          rows[worker] = (dataclasses.replace(report, phase=mailbox.EXITED, exit=42, asked=True), self.now)

  # Observations and actions of the watcher.

  def observe(self) -> Observation:
    """Returns the present observation."""
    attempt, refusal = self.state.attempt, self.refusal
    self.refusal = None
    look = None
    if self.look_fails:
      self.look_fails -= 1
    else:
      m = self.machines.get(attempt)
      look = states.MachineStatus(m.state, m.detail, m.code) if m else states.MachineStatus(states.ABSENT)
    reports = {}
    for worker, (report, at) in self.reports.get(attempt, {}).items():
      changes = (
        {"clock": at} if report.phase == mailbox.RUNNING else {}
      )  # the time of each report of a running worker; otherwise the time of its end
      if worker not in self.hidden:
        reports[worker] = dataclasses.replace(report, **changes), self.now - at
    if attempt in self.unreadable:
      reports = None
    return Observation(
      self.now + self.ahead, look, reports, self.orders.get(attempt, mailbox.Order()), refusal, self.bucket
    )

  def act(self, action: Action, state: State) -> None:
    """Executes an action. Raises UnknownError if the cloud does not respond."""
    self.asked.get(action.verb, []).append(self.now)
    if action.verb == "create":
      if self.create_fails:
        self.create_fails -= 1
        raise UnknownError("503")
      if state.attempt not in self.machines:
        self.machines[state.attempt] = Machines(states.QUEUED, self.now)
        self.made.append(state.attempt)
      self.most = max(self.most, len(self.live()))
      if self.create_lost:
        self.create_lost -= 1
        raise UnknownError("the connection was cut")
    elif action.verb == "delete":
      if self.delete_fails:
        self.delete_fails -= 1
        raise UnknownError("500")
      if self.delete_ignored:
        self.delete_ignored -= 1
      elif (m := self.machines.get(state.attempt)) and m.state != states.DELETING:
        m.state, m.going = states.DELETING, self.now
    elif action.verb == "order":
      self.orders[state.attempt] = action.order
    else:
      self.notes.append(action.event)
      self.output.append(action.text)

  def step(self) -> None:
    """Observes, decides, acts, and advances time."""
    state, actions = decisions.decide(self.run, self.state, self.observe())
    try:
      for action in actions:
        try:
          self.act(action, state)
        except LaunchError as error:
          self.refusal = error
        except UnknownError:
          if action.verb == "order":
            raise
      self.state = state
    except UnknownError:
      pass
    self.tick()

  def until(self, condition, most: int = 5000) -> "World":
    """Steps until a condition is true."""
    for _ in range(most):
      if condition(self):
        return self
      self.step()
    raise AssertionError(f"never: {self.state}")

  def watch_to_end(self) -> "World":
    """Steps until the end of the run."""
    return self.until(lambda w: w.state.stage == OVER)


def running(world: World) -> bool:
  """Returns True if all workers run."""
  rows = world.reports.get(world.state.attempt, {})
  return bool(rows) and all(report.phase == mailbox.RUNNING for report, _ in rows.values())
