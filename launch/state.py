"""Where a run stands, what is seen of it, and what there is to do: the words of `supervise`."""

import dataclasses
from collections.abc import Mapping

from launch import board, engine
from launch.errors import LaunchError

# Stages. In IDLE nothing is alive; in DELETING what was the live attempt is being removed; OVER is the end.
IDLE, WATCHING, DELETING, OVER = "idle", "watching", "deleting", "over"


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
  look: engine.Look | None
  reports: Mapping | None = None
  order: board.Order | None = None
  refusal: LaunchError | None = None
  clock: float = 0.0


@dataclasses.dataclass(frozen=True)
class Action:
  """One thing to do: "create" or "delete" the attempt, "order" its workers, or "note" an event in the journal."""

  verb: str
  order: board.Order | None = None
  event: str = ""
  text: str = ""
  tail: str = ""  # of a log, to be shown
