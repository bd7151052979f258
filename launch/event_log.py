"""The event log of a run: one line per event, written here before the event and copied to the directory of the run.

Each line contains the state of the run after the event, so that a reader of the last line can continue after a crash
or on another machine. Lines are numbered. The longer one of two logs is the newer one, because only one watcher writes.

Everybody who may write to the bucket can change the copy. Backend, project, hosts, code and module, which a laptop
executes, are therefore read from the file of this machine. A run that only the copy describes requires `confirm`.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from . import mailbox, spec, states
from .errors import AT_HOME, IN_FLIGHT, LaunchError, UnknownError, convert_unexpected
from .states import State
from .storage import Storage, read_regular_file

Event = dict[str, Any]
COPY = "journal.jsonl"  # in the run's directory
FIELDS: dict[str, Any] = {"event": str, "time": (int, float), "attempt": int, "try": int, "state": dict}
LARGEST = 2**28  # bytes of an event log
# Requests that may still create machines: without an answer, by this process or by an earlier watcher; or accepted,
# while the machines were not yet seen.
OWN, EARLIER, ACCEPTED = "own", "earlier", "accepted"


def get_log_directory() -> pathlib.Path:
  """Returns the directory of the event logs of this machine."""
  base = os.environ.get("XDG_STATE_HOME") or pathlib.Path.home() / ".local" / "state"
  return pathlib.Path(base) / "vit_jax" / "launch"


def list_runs() -> list[str]:
  """Returns the names of the runs with an event log on this machine."""
  with convert_unexpected(str(get_log_directory())):
    return sorted(path.stem for path in get_log_directory().glob("*.jsonl"))


class EventLog:
  """The event log of one run.

  `events` are dictionaries with time (seconds since the epoch), event, attempt, try, state and other values. `silent`
  is the reason why the run's directory did not answer, or "".
  """

  def __init__(self, name: str, storage: Storage | None = None) -> None:
    """Reads the file of this machine, or the copy in the run's directory if the copy is longer.

    Args:
      name: name of the run.
      storage: the run's directory, or None for no copy.
    """
    if not re.fullmatch(spec.NAME, name, re.ASCII):
      raise LaunchError(f"NAME: {name[:80]!r} is not allowed. Write a small letter, then letters, digits and dashes")
    self._path, self._storage = get_log_directory() / f"{name}.jsonl", storage
    self._requests: dict[
      tuple[int, str], float
    ] = {}  # {(attempt, OWN, EARLIER or ACCEPTED): its time by time.monotonic()}
    self._behind = False  # this machine's file lacks events, because the disk is full
    self.read()

  def read(self) -> None:
    """Reads the events again, because another process may have written."""
    self.silent, copy = "", None
    self.events = self._own = self._read()
    self._copied = time.monotonic()  # time of the last request at the latest, as a copy precedes each request
    try:
      copy = self._storage.read(COPY) if self._storage else None
    except (UnknownError, LaunchError) as error:
      if not self.events:
        raise
      self.silent = str(error)
      _print_warning(f"the run's directory does not answer, so the event log of this machine is used: {error}")
    self._copied -= copy.age if copy else 0.0  # by the directory's clock, because a laptop's clock may be wrong
    found = parse_events(copy.content) if copy else []
    if not self._belongs_to_ended_run(found) and len(found) > len(self.events):
      self._use_copy(found)
    self._find_accepted_requests()

  def _read(self) -> list[Event]:
    """Returns the events of this machine's file. Raises UnknownError if it cannot be read."""
    try:
      with convert_unexpected(str(self._path), (FileNotFoundError, NotADirectoryError)):
        return parse_events(read_regular_file(self._path, LARGEST)[0])
    except (FileNotFoundError, NotADirectoryError):
      return []

  def _belongs_to_ended_run(self, found: Sequence[Event]) -> bool:
    """Returns whether the copy belongs to another run, which has ended. Raises LaunchError if it has not ended."""
    run = _find_run(found)
    if not run or run.name == self._path.stem:
      return False
    if found[-1]["event"] != "end" or _find_remaining(found):
      raise LaunchError(
        f"--workdir: {run.workdir} belongs to the run {run.name}, which has not ended. python -m launch status "
        f"{run.name} shows it, python -m launch down {run.name} ends it. Or give {self._path.stem} another --workdir"
      )
    return True

  def _use_copy(self, found: list[Event]) -> None:
    """Continues with the events of the copy. Raises LaunchError if this machine has an open run of this name."""
    mine, theirs, name = _find_run(self.events), _find_run(found), self._path.stem
    if self.list_remaining() and mine and theirs and mine.folder != theirs.folder:
      attempts = ", ".join(mine.get_attempt_name(attempt) for attempt in self.list_remaining())
      raise LaunchError(
        f"{name} on this machine is the run of {mine.workdir}, and {attempts} may still exist. First run "
        f"python -m launch down {name}; or set XDG_STATE_HOME to another directory for the run of {theirs.workdir}"
      )
    self.events = found
    if not mine or self.unconfirmed:  # only a run that the user confirms is written here
      self._behind = True
      return
    self._try_save(found)

  def _find_accepted_requests(self) -> None:
    """Finds recent requests of other processes that have not led to visible machines yet."""
    unseen = {*self.list_remaining()} - {event["attempt"] for event in self.events if event["state"].get("seen")}
    for event in reversed(self.events):
      if event["event"] == "created" and event["attempt"] in unseen:
        age = max(0.0, self.now() - event["time"])
        self._requests.setdefault((event["attempt"], ACCEPTED), time.monotonic() - age)

  def now(self) -> float:
    """Returns the time of the run's directory, in seconds since the epoch."""
    return self._storage.clock.now() if self._storage else time.time()

  # The run that the log describes.

  @property
  def unconfirmed(self) -> spec.Run | None:
    """Returns the run that only its directory describes, or None if this machine's file describes the same run."""
    return _find_run(self.events) if _find_description(self.events) != _find_description(self._own) else None

  def confirm(self) -> None:
    """Accepts the run that the run's directory describes, after the user has confirmed it."""
    self._own = self.events
    self._try_save(self.events)

  @property
  def run(self) -> spec.Run:
    """Returns the newest run from the event log of this machine. Raises LaunchError if it does not exist."""
    if not (run := _find_run(self._own) or _find_run(self.events)):
      name = self._path.stem
      if trials := [each for each in list_runs() if re.fullmatch(rf"{name}-[tf]\d+", each)]:
        raise LaunchError(f"{name} is a sweep; its runs are {', '.join(trials)}")
      raise LaunchError(f"{name}: this machine has no such run. Add its --workdir, or see python -m launch ls")
    return run

  @property
  def code(self) -> str:
    """Returns the SHA-256 of the run's code from the event log of this machine, or ""."""
    return (_find_description(self._own) or _find_description(self.events) or ("", ""))[1]

  @property
  def state(self) -> State:
    """Returns the state after the last event."""
    try:
      return states.loads(self.events[-1]["state"]) if self.events else State()
    except LaunchError as error:
      advice = f"python -m launch down {self._path.stem} deletes its machines"
      raise LaunchError(f"{self._path}: {error}; {advice}") from None

  @property
  def open(self) -> bool:
    """Returns whether the run has not ended."""
    return bool(self.events) and self.events[-1]["event"] != "end"

  def find_last_event(self, event: str) -> dict[str, Any] | None:
    """Returns the newest event of this name."""
    return next((each for each in reversed(self.events) if each["event"] == event), None)

  def list_attempts(self) -> list[int]:
    """Returns all attempts that were requested."""
    return sorted({event["attempt"] for event in self.events if event["event"] == "intent"})

  def list_remaining(self) -> list[int]:
    """Returns the attempts that were requested, without those with a confirmed deletion."""
    return _find_remaining(self.events)

  # Writing.

  def append(self, event: str, state: State, **facts: object) -> None:
    """Writes an event to the disk, and copies it. If the copy fails, it is reported and repeated with the next event.

    "intent" is written and copied before each request, so that a process on another machine can delete the attempt.

    Raises:
      LaunchError, UnknownError: an "intent" could not be written or copied.
    """
    line = {"number": len(self.events), "time": self.now(), "event": event, "attempt": state.attempt} | facts
    text = json.dumps(line | {"try": state.try_, "state": dataclasses.asdict(state)})
    line = json.loads(text)  # as it is read
    try:
      if self._behind:
        self._save([*self.events, line])
      else:
        self._write("\n" * self._ends_within_line() + text + "\n", "a")
    except LaunchError as error:
      if event == "intent":
        raise LaunchError(f"{error}; machines are created only after they are recorded") from None
      self._report_once(f"{error}: {event!r} of {self._path.stem}-a{line['attempt']} is not recorded here")
    self.events = [*self.events, line]
    if "run" in line:
      self._own = self.events
    self._record_request(event, line["attempt"], state.seen)
    try:
      self.copy()
    except (UnknownError, LaunchError) as error:
      if event == "intent":
        raise
      _print_warning(f"the copy of the event log is late: {error}")

  def copy(self) -> None:
    """Copies the log to the run's directory. Raises UnknownError or LaunchError."""
    if self._storage:
      self._storage.write(COPY, _format_lines(self.events).encode())

  def _try_save(self, events: Sequence[Event]) -> None:
    """Writes the whole file, and reports a failure."""
    try:
      self._save(events)
    except LaunchError as error:
      self._report_once(f"{error}: the events of the run's directory are not recorded here")

  def _save(self, events: Sequence[Event]) -> None:
    """Replaces the whole file."""
    draft = self._path.with_suffix(".draft")
    try:
      self._write(_format_lines(events), "w", draft)
      os.replace(draft, self._path)
    except LaunchError:
      with contextlib.suppress(OSError):
        draft.unlink(missing_ok=True)
      raise
    self._behind = False

  def _report_once(self, text: str) -> None:
    """Reports once that the file of this machine lacks events."""
    if not self._behind:
      _print_warning(text)
    self._behind = True

  def _ends_within_line(self) -> bool:
    """Returns whether a crash, or a full disk, has left half a line at the end."""
    with contextlib.suppress(OSError), open(self._path, "rb") as file:
      file.seek(-1, os.SEEK_END)
      return file.read() != b"\n"
    return False

  def _write(self, text: str, mode: str, path: pathlib.Path | None = None) -> None:
    """Writes to a file that only its owner may read, because it contains the variables of the run."""
    target = path or self._path
    try:
      if os.path.lexists(target) and not os.path.isfile(target):  # opening a pipe would wait
        raise OSError(0, "it is not a regular file")
      self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
      with open(target, f"{mode}b", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
      raise LaunchError(f"{self._path}: {error.strerror}") from error

  # Requests that may still create machines.

  def _record_request(self, event: str, attempt: int, seen: bool) -> None:
    """Records a request to create an attempt, its answer, or the end of its attempt."""
    if event == "intent":
      self._requests[attempt, OWN] = time.monotonic()
    elif event in ("created", "refused"):
      self._requests.pop((attempt, OWN), None)
    if event == "created" and not seen:
      self._requests[attempt, ACCEPTED] = time.monotonic()
    elif event in ("refused", "deleted") or seen:
      self.record_appearance(attempt)

  def is_unanswered(self, attempt: int) -> bool:
    """Returns True if a request of this process for an attempt was not answered."""
    return (attempt, OWN) in self._requests

  def record_appearance(self, attempt: int) -> None:
    """Records that an attempt was seen. From then on, the answer "not found" is accepted."""
    self._requests.pop((attempt, ACCEPTED), None)

  def get_settling_seconds(self, attempt: int | None = None) -> float:
    """Returns the seconds for which a request may still create machines, or 0 if no request can take effect.

    Args:
      attempt: the attempt of the request, or None for all attempts.
    """
    run = _find_run(self._own) or _find_run(self.events)
    flight = min(IN_FLIGHT, AT_HOME) if run and run.backend == "local" else IN_FLIGHT
    appear = run.limits.appear if run and run.billed else -1e9
    ends = [
      start_time + (appear if kind == ACCEPTED else flight)
      for (number, kind), start_time in self._requests.items()
      if attempt in (None, number)
    ]
    return max(0.0, max(ends, default=0.0) - time.monotonic())

  def settle(self) -> bool:
    """Records attempts whose unanswered requests can no longer take effect. Returns True if there are new ones."""
    unanswered = {attempt for attempt, kind in self._requests if kind != ACCEPTED}
    settled = sorted(attempt for attempt in unanswered if not self.get_settling_seconds(attempt))
    for attempt in settled:
      self._requests = {
        key: start_time for key, start_time in self._requests.items() if key[0] != attempt or key[1] == ACCEPTED
      }
      self.append("settled", self.state, attempt=attempt)
    return bool(settled)

  def take_over(self) -> None:
    """Records a new watcher. Requests of the earlier watcher without an answer may still take effect."""
    for attempt in _find_unsettled(self.events):
      self._requests[attempt, EARLIER] = self._copied
      self.append("taken", self.state, attempt=attempt)
    self.settle()


def compute_proof(run: spec.Run) -> str:
  """Returns the digest that a worker on a trusted machine requires, because others may change the run's directory.

  Returns "" if this machine has no event log with the code of the run.
  """
  with contextlib.suppress(UnknownError, LaunchError):
    if code := EventLog(run.name).code:
      return mailbox.Attempt(run, 1, code, 1).proof
  return ""


def _print_warning(text: str) -> None:
  """Prints a warning. The terminal may be closed."""
  with contextlib.suppress(OSError, ValueError):
    print(text, file=sys.stderr)


def _format_lines(events: Iterable[Event]) -> str:
  return "".join(json.dumps(event) + "\n" for event in events)


def _find_description(events: Sequence[Event]) -> tuple[str, str] | None:
  """Returns (the run as JSON, the SHA-256 of its code) of the last event with a run, or None."""
  return next(((event["run"], event.get("sha", "")) for event in reversed(events) if "run" in event), None)


def _find_run(events: Sequence[Event]) -> spec.Run | None:
  """Returns the newest run of the events, or None."""
  found = _find_description(events)
  return spec.loads(found[0]) if found else None


def _find_remaining(events: Sequence[Event]) -> list[int]:
  made, gone = ({each["attempt"] for each in events if each["event"] == word} for word in ("intent", "deleted"))
  return sorted(made - gone)


def _find_unsettled(events: Sequence[Event]) -> list[int]:
  """Returns the attempts with an unanswered request, including requests of an earlier watcher."""
  own: set[int] = set()
  earlier: set[int] = set()
  for event in events:
    kind, attempt = event["event"], event["attempt"]
    if kind in ("intent", "created", "refused", "taken", "settled"):
      (own.add if kind == "intent" else own.discard)(attempt)
    if kind in ("taken", "settled"):
      (earlier.add if kind == "taken" else earlier.discard)(attempt)
  return sorted(own | earlier)


def parse_events(content: bytes) -> list[Event]:
  """Returns the events of the lines of a log. Other lines, such as one that a crash cut off, are ignored."""
  events = []
  for line in content.split(b"\n"):
    with contextlib.suppress(ValueError, RecursionError):
      event = json.loads(line)
      valid = isinstance(event, dict) and all(isinstance(event.get(key), kind) for key, kind in FIELDS.items())
      valid = valid and all(isinstance(event.get(key, ""), str) for key in ("run", "sha", "location", "text"))
      valid = valid and (event["event"] != "end" or isinstance(event.get("code", 0), int))
      if valid and 0 <= event["time"] < 1e11:  # seconds of a calendar
        events.append(event)
  return events
