"""A cloud, a bucket, two laptops and `gc` in virtual time, with the real watcher, event log, lease and removal.

Responses may be lost, delayed, duplicated or false. Clocks of laptops jump, and processes die at any call.
"""

import argparse
import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from unittest import mock

from launch import commands, errors, listing, mailbox, spec, states
from launch.errors import LaunchError, UnknownError
from launch.event_log import EventLog
from launch.mailbox import LeaseHeldError
from launch.states import OVER
from launch.storage import ServiceClock
from launch.watch import Watcher
from tests.launch.services import Engine, Killed, Machine, Memory

START = 1.8e9
ARRIVES = 200.0  # seconds until a request takes effect; the launcher assumes errors.IN_FLIGHT


class Universe:
  """The cloud, the bucket and the laptops. `check` raises AssertionError as soon as a guarantee is broken."""

  def __init__(self):
    self.now, self.generation, self.files, self.machines = START, 0, {}, {}
    self.arriving, self.answered, self.faults, self.away, self.lied = [], {}, {}, False, False
    self.workers_away = False  # whether the bucket does not answer the workers either
    self.delay, self.calls, self.kill_at, self.laptop = 10.0, 0, 0, 0
    self.queue, self.provision, self.removal = 30.0, 60.0, 30.0
    self.skews, self.clocks, self.watches = [0.0, 0.0], [ServiceClock(), ServiceClock()], [None, None]
    self._nested = False
    self.output, self.downs = "", False
    self._folder = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    args = ("--config=c.py", "--workdir=gs://bkt/a")
    self.run = spec.check_and_complete(
      spec.Run(
        "vit",
        "qr",
        "vit_jax.train",
        args,
        "gs://bkt/a",
        tpu="v3-8",
        project="project",
        zones=("europe-west4-a",),
        max_hours=4.0,
      )
    )
    self._stack = contextlib.ExitStack()
    for name, change in {
      "time.time": lambda: self.now + self.skews[self.laptop],
      "time.monotonic": lambda: self.now - START,
      "time.clock_gettime": lambda _: self.now - START,
      "time.sleep": self.tick,
      "launch.watch.open_storage": self.storage,
      "launch.commands.open_storage": self.storage,
      "launch.listing.open_storage": self.storage,
      "launch.commands.make_engine": lambda run: Engine(run, self),
      "launch.listing.make_engine": lambda run: Engine(run, self),
      "os.fsync": lambda _: None,
    }.items():
      self._stack.enter_context(mock.patch(name, change))
    self._stack.enter_context(mock.patch.dict(os.environ))

  def close(self) -> None:
    self._stack.close()
    shutil.rmtree(self._folder, ignore_errors=True)

  # Actions of the cloud.

  def storage(self, _: str) -> Memory:
    return Memory(self, self.clocks[self.laptop])

  def call(self) -> None:
    """Counts a call. The process may die at the call, or the other laptop may act."""
    if not self._nested and (what := self.take("other acts")):
      mine, kill, self.kill_at, self._nested = self.laptop, self.kill_at, 0, True
      if what != states.QUEUED:  # any word of ILL but one
        self.start(1 - mine, force=what == states.LOST)
      for _ in range(8):
        self.turn(1 - mine)
        self.tick(15)
      self.kill_at, self._nested = kill, False
      self._sit(mine)
    self.calls += 1
    if self.kill_at and self.calls >= self.kill_at:
      self.kill_at = 0
      raise Killed

  def take(self, fault: str) -> str:
    """Returns the next fault of a kind, or ""."""
    due = self.faults.get(fault)
    return due.pop() if due else ""

  def make(self, attempt: int, expires: int, seconds: int) -> None:
    if attempt not in self.machines:
      self.machines[attempt] = Machine(attempt, self.now, expires, seconds)
    self.check()

  def works(self, machine: Machine) -> bool:
    """Returns True if an attempt is really healthy."""
    return machine.state == states.READY and machine.worker == "running" and self.now - machine.ready > 60

  def remove(self, attempt: int) -> None:
    machine = self.machines.get(attempt)
    if not machine or machine.state == states.DELETING:
      return
    over = self.now >= min(machine.expires, machine.ready + machine.seconds if machine.ready else machine.expires)
    later = any(number > attempt for number in self.machines)
    assert not self.works(machine) or over or self.downs or later, f"the healthy attempt {attempt} is deleted"
    machine.state, machine.gone = states.DELETING, self.now + self.removal

  def tick(self, seconds: float) -> None:
    """Advances time in steps of at most ten seconds."""
    end = self.now + max(0.0, seconds)
    while self.now < end:
      self.now = min(end, self.now + 10.0)
      for due in [each for each in self.arriving if each[0] <= self.now]:
        self.arriving.remove(due)
        self.make(*due[1:])
      for attempt, m in list(self.machines.items()):
        self._move(attempt, m)
      self.check()

  def _move(self, attempt, m):
    age = self.now - m.born
    if m.state == states.DELETING:
      if self.now >= m.gone:
        del self.machines[attempt]
      return
    if self.now > m.expires or (m.ready and self.now > m.ready + m.seconds):  # the machine deletes itself
      m.state, m.gone = states.DELETING, self.now + 30
    elif m.state == states.QUEUED and age >= self.queue:
      m.state = states.STARTING
    elif m.state == states.STARTING and age >= self.queue + self.provision:
      m.state, m.ready = states.READY, self.now
    if m.state == states.READY and m.worker != "silent" and not (self.away and self.workers_away):
      self._report(m)

  def _report(self, m):
    order = mailbox.Mailbox(Memory(self, ServiceClock()), m.attempt)
    kept = self.away, self.kill_at, self.faults  # the worker is not a process of a laptop
    self.away, self.kill_at, self.faults = False, 0, {}
    try_ = order.read_order().try_
    if try_ > m.try_:
      m.try_, m.worker = try_, "running"
    m.step += m.worker == "running"
    phase = mailbox.RUNNING if m.worker == "running" else mailbox.EXITED
    code = {"running": None, "finished": 0, "crashed": 1}[m.worker]
    order.write_report(
      mailbox.WorkerReport(0, m.try_, phase, exit=code, step=m.step, began=0, clock=self.now, started=m.ready)
    )
    self.away, self.kill_at, self.faults = kept

  def live(self) -> list[int]:
    return [attempt for attempt, m in self.machines.items() if m.state != states.DELETING]

  def check(self) -> None:
    """Checks that two attempts are never alive, and that every resource expires."""
    assert len(self.live()) <= 1, f"attempts {self.live()} live at once"
    limits = self.run.limits
    most = limits.queue + limits.provision + limits.start + self.run.seconds + errors.IN_FLIGHT
    for m in self.machines.values():
      assert 0 < m.expires <= m.born + most and 0 < m.seconds <= self.run.seconds, f"{m} does not expire"

  # Actions of users and their laptops.

  def _sit(self, laptop):
    self.laptop = laptop
    os.environ["XDG_STATE_HOME"] = f"{self._folder}/{laptop}"

  @contextlib.contextmanager
  def on(self, laptop: int) -> Iterator[None]:
    """Runs the context on a laptop and adds its output to `output`."""
    self._sit(laptop)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
      try:
        yield
      finally:
        self.output += output.getvalue()
        self.kill_at = 0

  def attempt(self, laptop: int, act: Callable[[], object]) -> object:
    """Calls `act` on a laptop and returns its result, "killed", or the error that ended the process."""
    with self.on(laptop):
      try:
        return act()
      except Killed:
        self.watches[laptop] = None
        return "killed"
      except (UnknownError, LaunchError) as error:
        self.output += f"error: {error}\n"
        return error

  def start(self, laptop: int, force: bool = False, begin: bool = False) -> None:
    """Runs `launch run` or `launch adopt` on a laptop."""

    def act():
      book = EventLog("vit", self.storage(""))
      if not begin and (not book.events or not book.open):
        return
      commands.confirm_run(book, yes=True)
      watch = Watcher(self.run, book, Engine(self.run, self), force)
      watch.__enter__()
      if begin and not (book.open and watch.state.stage != OVER):
        watch.begin(None)
      elif not book.open:
        watch.__exit__()
        return
      self.watches[laptop] = watch

    if self.watches[laptop] is None:
      self.attempt(laptop, act)

  def turn(self, laptop: int) -> None:
    """Runs one turn of the watcher of a laptop, if it has a watcher."""

    def act():
      watch = self.watches[laptop]
      try:
        watch.turn()
        if watch.state.stage == OVER:
          self.end(watch)
          self.watches[laptop] = None
      except (LeaseHeldError, LaunchError):
        self.watches[laptop] = None
        raise

    if self.watches[laptop]:
      self.attempt(laptop, act)

  def end(self, watch: Watcher) -> None:
    """Ends a run and checks that live attempts are named."""
    watch.close()
    watch.__exit__()
    named = EventLog("vit", self.storage("")).state
    for attempt in self.live():
      assert attempt in named.unverified or watch.state.end[0] == errors.BILLING, f"attempt {attempt} is not named"

  def gc(self, laptop: int, force: bool = False) -> None:
    words = argparse.Namespace(yes=True, force=force, older_than="", project="project", zones=(), cluster="",
                               namespace="default", all_users=True)  # fmt: skip
    self.attempt(laptop, lambda: listing.gc(words))

  def down(self, laptop: int) -> object:
    """Runs `launch down` on a laptop and returns its result."""
    words = argparse.Namespace(name="vit", workdir="gs://bkt/a", yes=True, force=False)
    self.downs = True
    try:
      return self.attempt(laptop, lambda: commands.down(words))
    finally:
      self.downs = False

  def fault(self, kind: str, times: int = 1, word: str = "x") -> None:
    self.faults.setdefault(kind, []).extend([word] * times)
