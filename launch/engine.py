"""What is known of an attempt and of a run, and the interface of the engines that make its machines."""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

from launch import mailbox
from launch.errors import LaunchError

# States of what an attempt runs on. Only what the cloud says is not there is ABSENT; a word that nobody knows is
# STARTING, which is waited for.
ABSENT = "absent"
QUEUED = "queued"  # for capacity: nothing is billed yet
STARTING = "starting"
READY = "ready"  # all hosts are there and healthy
REPAIRING = "repairing"  # was or may become ready by itself, as a node that is repaired
LOST = "lost"  # preempted, suspended, terminated: never ready again, until deleted
FAILED = "failed"  # refused: `detail` says why; a JobSet that has given up
DONE = "done"  # a JobSet that says that all of it succeeded
DELETING = "deleting"
STATES = (ABSENT, QUEUED, STARTING, READY, REPAIRING, LOST, FAILED, DONE, DELETING)


@dataclasses.dataclass(frozen=True)
class Look:
  """What is known of an attempt's resources at one time.

  Args:
    state: one of STATES.
    detail: the cloud's own words, for people.
    code: of FAILED, the exit code of `launch` that it means: NO_CAPACITY, DENIED, USAGE; 0 where the run's own counts.
    hosts: that are there.
    addresses: of the hosts, in their order, where the engine knows them.
    quota: it is FAILED as a quota is used up.
  """

  state: str
  detail: str = ""
  code: int = 0
  hosts: int = 0
  addresses: tuple = ()
  quota: bool = False


@dataclasses.dataclass(frozen=True)
class Resource:
  """Something in the cloud that carries our labels.

  Args:
    name: vit-b16-a1.
    location: its zone, or context and namespace.
    run, owner, attempt, expires: of its labels; expires in seconds since the epoch, 0 if it has none.
    state: one of STATES; `detail` the cloud's own word.
    created: seconds since the epoch, 0 if nobody knows.
    kind: v3-32.
    mark: of the run's folder, as spec.Run.mark; "" where nobody knows.
  """

  name: str
  location: str
  run: str
  owner: str
  attempt: int
  state: str
  detail: str = ""
  expires: int = 0
  created: float = 0.0
  kind: str = ""
  mark: str = ""


class Engine(Protocol):
  """Every call has a deadline of its own and may be repeated: it does what is not done yet.

  All raise UnknownError where the cloud gave no answer, LaunchError with DENIED where it refuses for good (credentials,
  permission, quota), NO_CAPACITY or USAGE (what it calls an invalid argument).
  """

  restarts: bool  # whether it starts a try that failed again by itself, as JobSets do

  def location(self, attempt: int) -> str:
    """Where the attempt is or will be: a zone, or whatever says it to people."""

  def request(self, attempt: int, expires: int) -> str:
    """Returns the commands of an attempt as a script of the shell; nothing is executed.

    The script contains the commands that create, inspect and delete the attempt, and that open a shell on a worker.
    """

  def create(self, attempt: int, expires: int) -> None:
    """Asks for what the attempt needs, and for it to end at `expires`, seconds since the epoch.

    One that is there already and has this run's labels is fine: an answer may have been lost.
    """

  def look(self, attempt: int) -> Look:
    """How it is."""

  def delete(self, attempt: int) -> None:
    """Asks for it to be deleted; what is absent or being deleted is fine. `look` says when it is gone."""

  def remove(self, resource: Resource) -> None:
    """Asks for something of the inventory to be deleted, if it is still what it was there."""

  def deletion(self, attempt: int) -> str:
    """The command with which a person deletes it by hand and looks whether it is gone."""

  def inventory(self, zones: tuple) -> tuple:
    """(resources of all runs that carry our labels, {location: why it could not be asked})."""

  def shell(self, attempt: int, worker: int, words: list) -> list:
    """The argument list of a command that runs `words` on a worker, or a shell for none; ends with its exit code."""


# Stages of a run. In IDLE nothing is alive; in DELETING what was the live attempt is being removed; OVER is the end.
IDLE, WATCHING, OVER = "idle", "watching", "over"


@dataclasses.dataclass(frozen=True)
class State:
  """Where a run stands. Times are in seconds.

  Args:
    attempt, try_: the numbers of the current ones, 0 before the first.
    expires: when the attempt ends itself; before it is ready, the latest time at which it may.
    answered: when the last request for it was answered. absent: answers in turn that it is not there.
    stage: one of the stages above; `since` when it began.
    look: the last known state of what the attempt runs on, and `look_since` when it became that.
    seen: it has been there. `ready`: when it was first ready, 0 before.
    trouble: when the first process of the try ended or fell silent, 0 if none.
    starting: when the try was ordered.
    continued: the latest step at which a try went on; `begun` whether the current one's is known.
    reached: the same, of the attempt's first try, -1 before it is known.
    failures: tries that failed since then; `lost`: attempts.
    hangs: of this attempt; `anew` how often one of its workers was started anew; `asked` how often its deletion was
      looked at.
    retries: how often its creation, or its deletion, was asked for; `retry` when it is to be asked for again.
    zone: how many zones in turn have had no capacity.
    used: seconds for which earlier attempts had machines.
    pause: until when nothing is made.
    end: (exit code, message) once it is known.
    unverified: attempts whose deletion was asked for and not seen, and one that is `kept`.
  """

  attempt: int = 0
  try_: int = 0
  expires: float = 0.0
  stage: str = IDLE
  since: float = 0.0
  look: str = ""
  look_since: float = 0.0
  seen: bool = False
  ready: float = 0.0
  answered: float = 0.0
  absent: int = 0
  trouble: float = 0.0
  starting: float = 0.0
  continued: int = 0
  begun: bool = False
  reached: int = -1
  failures: int = 0
  lost: int = 0
  hangs: int = 0
  anew: int = 0
  asked: int = 0
  retries: int = 0
  retry: float = 0.0
  zone: int = 0
  used: float = 0.0
  pause: float = 0.0
  end: tuple | None = None
  unverified: tuple = ()
  kept: bool = False

  def spent(self, now: float) -> float:
    """Returns the seconds for which all attempts have had machines."""
    live = (self.ready and self.stage in (WATCHING, DELETING)) or self.kept
    return self.used + (max(0.0, now - self.ready) if live and self.ready else 0.0)


def loads(values: Mapping) -> State:
  """Returns the state of an event in a journal. LaunchError for a field of another type.

  Fields that this version does not know are ignored, for a newer version may have written them.
  """
  fields = {field.name: field for field in dataclasses.fields(State)}
  known = {key: value for key, value in values.items() if key in fields}
  for key, value in known.items():
    kind = type(fields[key].default)
    if key in ("end", "unverified"):
      known[key] = tuple(value) if isinstance(value, list) else value
      fine = value is None if key == "end" and value is None else isinstance(known[key], tuple)
      fine = fine and (key != "unverified" or all(isinstance(each, int) for each in known[key]))
      fine = fine and (key != "end" or value is None or [type(each) for each in value] == [int, str])
    elif kind is float:
      fine = isinstance(value, (int, float)) and abs(value) < 1e12
    else:
      fine = isinstance(value, kind) and (kind is not int or abs(value) < 1e12)
    if not fine:
      raise LaunchError(f"its last line has {key}={str(value)[:40]!r}, which this version cannot use")
  return State(**known)


@dataclasses.dataclass(frozen=True)
class Seen:
  """What is known at a time, in seconds since the epoch; None for what gave no answer.

  Args:
    reports: {worker: (report, its age)}.
    order: the last that was given to the workers, perhaps by `launch stop`.
    refusal: with which the attempt could not be made.
    clock: the bucket's time, 0 where none answers.
  """

  now: float
  look: Look | None
  reports: Mapping | None = None
  order: mailbox.Order | None = None
  refusal: LaunchError | None = None
  clock: float = 0.0


@dataclasses.dataclass(frozen=True)
class Action:
  """One thing to do: "create" or "delete" the attempt, "order" its workers, or "note" an event in the journal."""

  verb: str
  order: mailbox.Order | None = None
  event: str = ""
  text: str = ""
  tail: str = ""  # of a log, to be shown
