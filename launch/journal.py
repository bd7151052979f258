"""What was done for a run: a line for each event, on this machine before it is done, and copied to the run's folder.

Each line holds the state in which the event left the run, so that whoever reads the last one can go on: after a crash,
or on another machine. Lines are numbered; of two journals the longer one is the newer, as one at a time is written.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import sys
import time

from launch import spec
from launch.errors import LaunchError, UnknownError
from launch.state import State

COPY = "journal.jsonl"  # in the run's folder
_KINDS = {"event": str, "time": (int, float), "attempt": int, "try": int, "state": dict}
IN_FLIGHT = 240.0  # seconds that a request may be on its way: gcloud's deadline here is 180


def folder() -> pathlib.Path:
  """Where journals are on this machine."""
  base = os.environ.get("XDG_STATE_HOME") or pathlib.Path.home() / ".local" / "state"
  return pathlib.Path(base) / "vit_jax" / "launch"


def names() -> list[str]:
  """Runs that have a journal on this machine."""
  return sorted(path.stem for path in folder().glob("*.jsonl"))


class Journal:
  """Of one run. `events` are dicts: time (seconds since the epoch), event, attempt, state, and what else it says."""

  def __init__(self, name: str, storage=None):
    """Reads the journal of this machine, or the copy in the run's folder where that is longer.

    Args:
      storage: the run's folder; None for none.
    """
    if not re.fullmatch(spec.NAME, name, re.ASCII):
      raise LaunchError(f"{name[:80]!r} is no name of a run; write a small letter, then letters, digits and dashes")
    self._path, self._storage = folder() / f"{name}.jsonl", storage
    self.read()

  def read(self) -> None:
    """Reads it again, as another may have written to it."""
    storage = self._storage
    content = self._path.read_bytes() if self._path.exists() else b""
    self.events = _parsed(content)
    if content and not content.endswith(b"\n"):
      self._write("\n", "a")
    try:
      copy = storage.read(COPY) if storage else None
    except (UnknownError, LaunchError) as error:
      if not self.events:
        raise
      print(f"the journal of this machine is taken, as the run's folder gives none: {error}", file=sys.stderr)
      return
    if copy and len(found := _parsed(copy.content)) > len(self.events):
      self._take(found)

  def _take(self, found):
    """Goes on with the events of the run's folder, unless this machine's tell of another run that is not over."""
    mine, theirs = (next((e["run"] for e in reversed(events) if "run" in e), None) for events in (self.events, found))
    if self.remaining() and mine and theirs and spec.loads(mine).folder != spec.loads(theirs).folder:
      ours, name = spec.loads(mine), self._path.stem
      names = ", ".join(ours.attempt(attempt) for attempt in self.remaining())
      raise LaunchError(
        f"{name} is here the run of {ours.workdir}, of which {names} may still be there: launch down {name} first; or "
        f"set XDG_STATE_HOME to another folder for that of {spec.loads(theirs).workdir}"
      )
    self.events = found
    draft = self._path.with_suffix(".draft")
    self._write("".join(json.dumps(event) + "\n" for event in found), "w", draft)
    os.replace(draft, self._path)

  def append(self, event: str, state: State, **facts) -> None:
    """Writes an event; it is on the disk when this returns. A copy that cannot be made is said, and made later."""
    line = {"number": len(self.events), "time": time.time(), "event": event, "attempt": state.attempt} | facts
    line |= {"try": state.try_, "state": dataclasses.asdict(state)}
    text = json.dumps(line)
    try:
      self._write(text + "\n", "a")
    except LaunchError as error:
      if event == "intent":
        raise
      print(error, file=sys.stderr)  # what was made is known already, and is looked after
    self.events.append(json.loads(text))  # as it is read
    try:
      self.copy()
    except (UnknownError, LaunchError) as error:
      print(f"the journal's copy is late: {error}", file=sys.stderr)

  def copy(self) -> None:
    """Copies it to the run's folder. UnknownError, LaunchError."""
    if self._storage:
      self._storage.write(COPY, "".join(json.dumps(event) + "\n" for event in self.events).encode())

  @property
  def run(self) -> spec.Run:
    """What was asked for last. LaunchError where nothing was."""
    for event in reversed(self.events):
      if "run" in event:
        return spec.loads(event["run"])
    raise LaunchError(f"{self._path.stem}: there is no such run on this machine; name its --workdir, or see launch ls")

  @property
  def state(self) -> State:
    """In which the last event left the run."""
    if not self.events:
      return State()
    values = dict(self.events[-1]["state"])
    try:
      lists = {key: tuple(values[key]) if values[key] is not None else None for key in ("end", "unverified")}
      return State(**values | lists)
    except (TypeError, KeyError) as error:
      raise LaunchError(f"{self._path}: its last line is none that this version writes ({error})") from None

  def last(self, event: str) -> dict | None:
    """The newest of a kind."""
    return next((each for each in reversed(self.events) if each["event"] == event), None)

  @property
  def open(self) -> bool:
    """Whether the run has not come to an end."""
    return bool(self.events) and self.events[-1]["event"] != "end"

  def remaining(self) -> list[int]:
    """Attempts that were to be made, and were not seen to be gone."""
    made = {event["attempt"] for event in self.events if event["event"] == "intent"}
    return sorted(made - {event["attempt"] for event in self.events if event["event"] == "deleted"})

  def settled(self, attempt: int) -> bool:
    """Whether what is absent stays so: no request for the attempt can still be on its way."""
    events = [each for each in self.events if each["attempt"] == attempt]
    asked = max((each["time"] for each in events if each["event"] == "intent"), default=0.0)
    return any(each["event"] == "created" for each in events) or time.time() - asked > IN_FLIGHT

  def _write(self, text, mode, path=None):
    try:
      self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
      with open(path or self._path, f"{mode}b", opener=_private) as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
      raise LaunchError(f"{self._path}: {error.strerror}; nothing is made that is not written down first") from error


def _private(path, flags):
  """Opens a file that only its owner may read, for the variables of a run are in it."""
  return os.open(path, flags, 0o600)


def _parsed(content):
  """The events of lines; a line that a crash has torn is left out."""
  events = []
  for line in content.split(b"\n"):
    with contextlib.suppress(ValueError, RecursionError):
      event = json.loads(line)
      whole = isinstance(event, dict) and all(isinstance(event.get(key), kind) for key, kind in _KINDS.items())
      if whole and 0 <= event["time"] < 1e11:  # seconds, that a calendar has
        events.append(event)
  return events
