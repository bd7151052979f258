"""The cloud and the bucket of `tests.launch.universe` as one laptop sees them, with the current faults."""

import dataclasses

from launch import mailbox, spec, states
from launch.errors import QuotaError, UnknownError
from launch.storage import ServiceClock, StoredFile

FAULTS = (
  "other acts", "quota", "create refused", "create delayed", "create duplicated", "create lost", "look unknown",
  "look stale", "look absent", "look ill", "delete refused", "delete lost", "list unknown", "write lost",
)  # fmt: skip
ILL = (states.REPAIRING, states.LOST, states.STARTING, states.DELETING, states.QUEUED)


class Killed(BaseException):
  """Raised instead of a kill of the process between two instructions."""


@dataclasses.dataclass
class Machine:
  """The machine of an attempt. `expires` is its label, and `seconds` is its own limit from `ready` on."""

  attempt: int
  born: float
  expires: int
  seconds: int
  state: str = states.QUEUED
  ready: float = 0.0
  gone: float = 0.0
  worker: str = "running"  # or "finished", "crashed", "silent"
  try_: int = 1
  step: int = 0


class Memory:
  """The run's directory as one laptop sees it."""

  def __init__(self, universe, clock: ServiceClock):
    self._universe, self.clock = universe, clock

  def _answer(self):
    if self._universe.away:
      raise UnknownError("the bucket is away")
    self.clock.show(self._universe.now)

  def read(self, name: str) -> StoredFile | None:
    self._answer()
    if name not in self._universe.files:
      return None
    content, generation, written = self._universe.files[name]
    return StoredFile(content, self._universe.now - written, generation, self._universe.now)

  def write(self, name: str, content: bytes, generation: int | None = None) -> int:
    self._universe.call()
    self._answer()
    before = self._universe.files.get(name, (b"", 0, 0.0))[1]
    if generation not in (None, before):
      raise FileExistsError(name)
    self._universe.generation += 1
    self._universe.files[name] = content, self._universe.generation, self._universe.now
    self._universe.call()
    if self._universe.take("write lost"):
      raise UnknownError("the answer to a write is lost")
    return self._universe.generation

  def list_names(self, prefix: str = "") -> list[str]:
    self._answer()
    return sorted(name for name in self._universe.files if name.startswith(prefix))

  def delete(self, name: str) -> None:
    self._answer()
    self._universe.files.pop(name, None)


class Engine:
  """The engine of a laptop."""

  def __init__(self, run: spec.Run, universe):
    self._run, self._universe = run, universe

  def create(self, attempt: int, expires: int) -> None:
    u = self._universe
    u.call()
    seconds = mailbox.Mailbox(u.storage(""), attempt).read_attempt().seconds
    if u.take("quota"):
      raise QuotaError("Quota exceeded")
    if u.take("create refused"):
      raise UnknownError("503")
    if u.take("create delayed"):
      u.arriving.append((u.now + u.delay, attempt, expires, seconds))
      raise UnknownError("timed out")
    u.make(attempt, expires, seconds)
    if u.take("create duplicated"):  # assumption: the duplicate arrives before the machine can be deleted
      u.arriving.append((u.now + 1.0, attempt, expires, seconds))
    u.answered[attempt] = u.now
    u.call()
    if u.take("create lost"):
      raise UnknownError("the answer is lost")

  def look(self, attempt: int) -> states.MachineStatus:
    u = self._universe
    u.call()
    machine = u.machines.get(attempt)
    if u.take("look unknown"):
      raise UnknownError("500")
    if machine and u.now - u.answered.get(attempt, -1e9) < 25 and u.take("look stale"):
      return states.MachineStatus(states.ABSENT)
    false = u.take("look absent")
    if machine and false and not u.lied:
      u.lied = True  # assumption: not twice in a row together with a list that agrees
      return states.MachineStatus(states.ABSENT)
    u.lied = False
    if machine and machine.state == states.READY and u.works(machine) and (word := u.take("look ill")):
      return states.MachineStatus(word, "UNHEALTHY")
    return states.MachineStatus(machine.state if machine else states.ABSENT, "detail" if machine else "")

  def delete(self, target: int | states.Resource) -> None:
    u = self._universe
    u.call()
    if u.take("delete refused"):
      raise UnknownError("500")
    u.remove(target.attempt if isinstance(target, states.Resource) else target)
    u.call()
    if u.take("delete lost"):
      raise UnknownError("the answer is lost")

  def build_commands(self, target: int | states.Resource, expires: int = 0) -> states.Commands:
    name = target.name if isinstance(target, states.Resource) else self._run.get_attempt_name(target)
    return states.Commands("", f"remove {name}")

  def list_resources(self, zones: tuple) -> tuple:
    u = self._universe
    u.call()
    if u.take("list unknown"):
      return (), {"europe-west4-a": "500"}
    rows = [states.Resource(self._run.get_attempt_name(m.attempt), "europe-west4-a", "vit", self._run.owner, m.attempt,
                            m.state, "detail", m.expires, m.born, "v3-8", self._run.mark)
            for m in u.machines.values()]  # fmt: skip
    return tuple(rows), {}

  def build_shell_command(self, attempt: int, worker: int, words: list[str]) -> list[str]:
    return words
