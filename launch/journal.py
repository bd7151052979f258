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
    copy = storage.read(COPY) if storage else None
    if copy and len(found := _parsed(copy.content)) > len(self.events):
      self.events = found
      self._write("".join(json.dumps(event) + "\n" for event in found), "w")

  def append(self, event: str, state: State, **facts) -> None:
    """Writes an event; it is on the disk when this returns. A copy that cannot be made is said, and made later."""
    line = {"number": len(self.events), "time": time.time(), "event": event, "attempt": state.attempt} | facts
    line |= {"try": state.try_, "state": dataclasses.asdict(state)}
    text = json.dumps(line)
    self._write(text + "\n", "a")
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

  def _write(self, text, mode):
    try:
      self._path.parent.mkdir(parents=True, exist_ok=True)
      with open(self._path, f"{mode}b") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
      raise LaunchError(f"{self._path}: {error.strerror}; nothing is made that is not written down first") from error


def _parsed(content):
  """The events of lines; a line that a crash has torn is left out."""
  events = []
  for line in content.split(b"\n"):
    with contextlib.suppress(ValueError, RecursionError):
      event = json.loads(line)
      if isinstance(event, dict) and {"event", "time", "attempt", "try", "state"} <= event.keys():
        events.append(event)
  return events
