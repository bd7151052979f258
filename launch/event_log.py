"""What was done for a run: a line for each event, on this machine before it is done, and copied to the run's folder.

Each line holds the state in which the event left the run, so that whoever reads the last one can go on: after a crash,
or on another machine. Lines are numbered; of two journals the longer one is the newer, as one at a time is written.

Whoever may write to the bucket can change the copy. What a laptop executes (backend, project, hosts, code and module)
is therefore taken from this machine's own file. A run that only the copy describes is used after `confirm`.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import sys
import time

from launch import mailbox, spec, states
from launch.assumptions import AT_HOME, IN_FLIGHT, boundary
from launch.errors import LaunchError, UnknownError
from launch.states import State
from launch.storage import regular

COPY = "journal.jsonl"  # in the run's folder
_KINDS = {"event": str, "time": (int, float), "attempt": int, "try": int, "state": dict}
_MOST = 2**28  # bytes of a journal


def folder() -> pathlib.Path:
  """Where journals are on this machine."""
  base = os.environ.get("XDG_STATE_HOME") or pathlib.Path.home() / ".local" / "state"
  return pathlib.Path(base) / "vit_jax" / "launch"


def names() -> list[str]:
  """Runs that have a journal on this machine."""
  with boundary(str(folder())):
    return sorted(path.stem for path in folder().glob("*.jsonl"))


class EventLog:
  """Of one run. `events` are dicts: time (seconds since the epoch), event, attempt, state, and what else it says."""

  def __init__(self, name: str, storage=None):
    """Reads the journal of this machine, or the copy in the run's folder where that is longer.

    Args:
      storage: the run's folder; None for none.
    """
    if not re.fullmatch(spec.NAME, name, re.ASCII):
      raise LaunchError(f"{name[:80]!r} is no name of a run; write a small letter, then letters, digits and dashes")
    self._path, self._storage = folder() / f"{name}.jsonl", storage
    # Attempts, with when they were asked for at the latest, and when a request was answered, by time.monotonic().
    self._asked, self._late, self._made = {}, {}, {}
    self._behind = False  # the file here lacks events, as the disk is full
    self.read()

  def read(self) -> None:
    """Reads it again, as another may have written to it. A disk that is full is said, and holds up nothing."""
    storage, self.silent = self._storage, ""
    self.events = self._own = self._read()
    self._copied = time.monotonic()  # nothing was asked for since, as each request is copied before it is made
    try:
      copy = storage.read(COPY) if storage else None
    except (UnknownError, LaunchError) as error:
      if not self.events:
        raise
      self.silent = str(error)
      _warn(f"the journal of this machine is used, as the run's directory gives no answer: {error}")
      self._note_answered()
      return
    self._copied -= copy.age if copy else 0.0  # by the folder's clock: whoever wrote may have a wrong one
    found = parsed(copy.content) if copy else []
    if not self._anothers(found) and len(found) > len(self.events):
      self._take(found)
    self._note_answered()

  def _read(self):
    """The events of this machine's file, which may be anything. UnknownError."""
    try:
      with boundary(str(self._path), (FileNotFoundError, NotADirectoryError)):
        return parsed(regular(self._path, _MOST)[0])
    except (FileNotFoundError, NotADirectoryError):
      return []

  def _note_answered(self):
    """Notes requests of others that were answered a short time ago, of machines that nobody has seen."""
    now, begun = self.now(), {each["attempt"] for each in self.events if each["state"].get("seen")}
    for attempt in set(self.remaining()) - begun:
      ages = [now - each["time"] for each in self.events if (each["event"], each["attempt"]) == ("created", attempt)]
      if ages:
        self._made.setdefault(attempt, time.monotonic() - max(0.0, ages[-1]))

  def now(self) -> float:
    """Returns the time of the run's directory, in seconds since the epoch."""
    return self._storage.clock.now() if self._storage else time.time()

  @property
  def unconfirmed(self) -> spec.Run | None:
    """Returns the run that only the run's directory describes; None if this machine's file describes the same run."""
    mine, theirs = _asked_for(self._own), _asked_for(self.events)
    return _run(self.events) if theirs != mine else None

  def confirm(self) -> None:
    """Takes over the run that the run's directory describes, which the user has confirmed."""
    self._own = self.events
    try:
      self._save(self.events)
    except LaunchError as error:
      self._say(f"{error}: what the run's directory contains is not written down here")

  def _anothers(self, found):
    """Whether the events of the run's folder are another run's, which is over. LaunchError where it is not."""
    run = _run(found)
    if not run or run.name == self._path.stem:
      return False
    if found[-1]["event"] != "end" or _remaining(found):
      raise LaunchError(
        f"--workdir: {run.workdir} is that of the run {run.name}, which is not over: python -m launch status {run.name}"
        f" shows it, python -m launch down {run.name} ends it; or give {self._path.stem} another --workdir"
      )
    return True

  def _take(self, found):
    """Goes on with the events of the run's folder, unless this machine's tell of another run that is not over."""
    mine, theirs, name = _run(self.events), _run(found), self._path.stem
    if self.remaining() and mine and theirs and mine.folder != theirs.folder:
      names = ", ".join(mine.attempt(attempt) for attempt in self.remaining())
      raise LaunchError(
        f"{name} is here the run of {mine.workdir}, of which {names} may still be there: python -m launch down {name} "
        f"first; or set XDG_STATE_HOME to another folder for that of {theirs.workdir}"
      )
    self.events = found
    if not mine or self.unconfirmed:  # only what the user confirms is written down here
      self._behind = True
      return
    try:
      self._save(found)
    except LaunchError as error:
      self._say(f"{error}: what the run's directory contains of {name} is not written down here")

  def _save(self, events):
    """Writes the whole file anew."""
    draft = self._path.with_suffix(".draft")
    try:
      self._write(_lines(events), "w", draft)
      os.replace(draft, self._path)
    except LaunchError:
      with contextlib.suppress(OSError):
        draft.unlink(missing_ok=True)
      raise
    self._behind = False

  def _say(self, text):
    """Says once that the file here falls behind."""
    if not self._behind:
      _warn(text)
    self._behind = True

  def append(self, event: str, state: State, **facts) -> None:
    """Writes an event; it is on the disk when this returns. A copy that cannot be made is said, and made later.

    "intent" is written before each request, and copied: whoever ends the run from elsewhere must know of it.
    UnknownError, LaunchError.
    """
    line = {"number": len(self.events), "time": self.now(), "event": event, "attempt": state.attempt} | facts
    line |= {"try": state.try_, "state": dataclasses.asdict(state)}
    text = json.dumps(line)
    line = json.loads(text)  # as it is read
    try:
      if self._behind:
        self._save([*self.events, line])
      else:
        self._write("\n" * self._torn() + text + "\n", "a")
    except LaunchError as error:
      if event == "intent":
        raise LaunchError(f"{error}; nothing is made that is not written down first") from None
      # What was made is known already, and is looked after.
      self._say(f"{error}: {event!r} of {self._path.stem}-a{line['attempt']} is not written down here")
    self.events = [*self.events, line]
    if "run" in line:
      self._own = self.events
    if event == "intent":
      self._asked[line["attempt"]] = time.monotonic()
    elif event in ("created", "refused"):
      self._asked.pop(line["attempt"], None)
    if event == "created" and not state.seen:
      self._made[line["attempt"]] = time.monotonic()
    elif event in ("refused", "deleted") or state.seen:
      self._made.pop(line["attempt"], None)
    try:
      self.copy()
    except (UnknownError, LaunchError) as error:
      if event == "intent":
        raise
      _warn(f"the journal's copy is late: {error}")

  def copy(self) -> None:
    """Copies it to the run's folder. UnknownError, LaunchError."""
    if self._storage:
      self._storage.write(COPY, _lines(self.events).encode())

  @property
  def run(self) -> spec.Run:
    """What was asked for last, as this machine's own file describes it. LaunchError where nothing was."""
    if not (run := _run(self._own) or _run(self.events)):
      name = self._path.stem
      if trials := [each for each in names() if re.fullmatch(rf"{name}-[tf]\d+", each)]:
        raise LaunchError(f"{name} is a sweep; its runs are {', '.join(trials)}")
      raise LaunchError(f"{name}: there is no such run on this machine; name its --workdir, or see python -m launch ls")
    return run

  @property
  def state(self) -> State:
    """In which the last event left the run."""
    try:
      return states.loads(self.events[-1]["state"]) if self.events else State()
    except LaunchError as error:
      raise LaunchError(
        f"{self._path}: {error}; python -m launch down {self._path.stem} deletes its machines"
      ) from None

  @property
  def code(self) -> str:
    """Returns the SHA-256 of the code of the run, as this machine's own file names it; "" if it names none."""
    return (_asked_for(self._own) or _asked_for(self.events) or ("", ""))[1]

  def last(self, event: str) -> dict | None:
    """The newest of a kind."""
    return next((each for each in reversed(self.events) if each["event"] == event), None)

  @property
  def open(self) -> bool:
    """Whether the run has not come to an end."""
    return bool(self.events) and self.events[-1]["event"] != "end"

  def remaining(self) -> list[int]:
    """Attempts that were to be made, and were not seen to be gone."""
    return _remaining(self.events)

  def attempts(self) -> list[int]:
    """All that were to be made."""
    return sorted({event["attempt"] for event in self.events if event["event"] == "intent"})

  def asked(self, attempt: int) -> bool:
    """Whether a request that this one has made for it had no answer."""
    return attempt in self._asked

  def settled(self, attempt: int) -> bool:
    """Whether what is absent stays so: no request for the attempt can still be on its way."""
    began = [times[attempt] for times in (self._asked, self._late) if attempt in times]
    return all(time.monotonic() > each + self._flight() for each in began) and not self.appears(attempt)

  def appears(self, attempt: int) -> float:
    """Returns the seconds for which "not found" may still precede the appearance of an attempt that was accepted."""
    run = _run(self._own) or _run(self.events)
    if attempt not in self._made or not run or not run.billed:
      return 0.0
    return max(0.0, self._made[attempt] + run.limits.appear - time.monotonic())

  def appeared(self, attempt: int) -> None:
    """Notes that an attempt was seen."""
    self._made.pop(attempt, None)

  def settles(self) -> float:
    """Seconds until no request of any attempt can be on its way; 0 where none is."""
    began = [*self._asked.values(), *self._late.values()]
    return max([0.0, *(each + self._flight() - time.monotonic() for each in began)])

  def _flight(self):
    run = _run(self._own) or _run(self.events)
    return min(IN_FLIGHT, AT_HOME) if run and run.backend == "local" else IN_FLIGHT

  def settle(self) -> bool:
    """Writes down of which attempts no request can be on its way any more; whether there are such."""
    passed = sorted(attempt for attempt in {*self._asked, *self._late} if self.settled(attempt))
    for attempt in passed:
      self._asked.pop(attempt, None), self._late.pop(attempt, None)
      self.append("settled", self.state, attempt=attempt)
    return bool(passed)

  def taken(self) -> None:
    """Another watches now. What the one before has asked for, and has no answer to, may be on its way still."""
    for attempt in _unsettled(self.events):
      self._late[attempt] = self._copied
      self.append("taken", self.state, attempt=attempt)
    self.settle()

  def _torn(self):
    """Whether a crash, or a full disk, has left half a line at the end."""
    with contextlib.suppress(OSError), open(self._path, "rb") as file:
      file.seek(-1, os.SEEK_END)
      return file.read() != b"\n"
    return False

  def _write(self, text, mode, path=None):
    target = path or self._path
    try:
      if os.path.lexists(target) and not os.path.isfile(target):  # a pipe would be waited for
        raise OSError(0, "it is no regular file")
      self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
      with open(path or self._path, f"{mode}b", opener=_private) as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
      raise LaunchError(f"{self._path}: {error.strerror}") from error


def proof(run: spec.Run) -> str:
  """Returns what a worker on a trusted machine must find in the directory of a run, which others may have changed.

  "" if no file of this machine names the code of the run.
  """
  with contextlib.suppress(UnknownError, LaunchError):
    if code := EventLog(run.name).code:
      return mailbox.Attempt(run, 1, code, 1).proof
  return ""


def _warn(text):
  """Prints a warning; nobody may read it any longer."""
  with contextlib.suppress(OSError, ValueError):
    print(text, file=sys.stderr)


def _asked_for(events):
  """(the run as JSON, the SHA-256 of its code) of the last event that describes one; None for none."""
  return next(((event["run"], event.get("sha", "")) for event in reversed(events) if "run" in event), None)


def _lines(events):
  return "".join(json.dumps(event) + "\n" for event in events)


def _run(events):
  """What was asked for last; None where nothing was."""
  text = next((event["run"] for event in reversed(events) if "run" in event), None)
  return None if text is None else spec.loads(text)


def _remaining(events):
  made, gone = ({each["attempt"] for each in events if each["event"] == word} for word in ("intent", "deleted"))
  return sorted(made - gone)


def _unsettled(events):
  """Attempts of which a request had no answer, or one of an earlier watcher was not waited for."""
  asked, late = set(), set()
  for event in events:
    kind, attempt = event["event"], event["attempt"]
    if kind in ("intent", "created", "refused", "taken", "settled"):
      (asked.add if kind == "intent" else asked.discard)(attempt)
    if kind in ("taken", "settled"):
      (late.add if kind == "taken" else late.discard)(attempt)
  return sorted(asked | late)


def _private(path, flags):
  """Opens a file that only its owner may read, for the variables of a run are in it."""
  return os.open(path, flags, 0o600)


def parsed(content: bytes) -> list[dict]:
  """The events of a journal's lines; what is none, as a line that a crash has torn, is left out."""
  events = []
  for line in content.split(b"\n"):
    with contextlib.suppress(ValueError, RecursionError):
      event = json.loads(line)
      whole = isinstance(event, dict) and all(isinstance(event.get(key), kind) for key, kind in _KINDS.items())
      whole = whole and all(isinstance(event.get(key, ""), str) for key in ("run", "sha", "location", "text"))
      whole = whole and (event["event"] != "end" or isinstance(event.get("code", 0), int))
      if whole and 0 <= event["time"] < 1e11:  # seconds, that a calendar has
        events.append(event)
  return events
