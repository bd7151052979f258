"""The log of a worker: a file of its machine, which goes to the run's folder in pieces, without secrets."""

import contextlib
import os
import pathlib
import re
import time

PIECE = 2**18  # bytes
BEHIND = 2**26  # bytes, beyond which what is between is left out
SHORT = 8  # letters, below which a secret's value is a word of every log
TAIL, LINES = 8192, 40


class Log:
  """A file to which programs write. Its pieces follow each other also where the worker was killed between them."""

  def __init__(self, path: pathlib.Path):
    self.path, self._sent, self._secrets, self._longest = path, path.with_suffix(".sent"), None, 1
    self._start = 0
    with contextlib.suppress(OSError, ValueError):
      self._start = int(self._sent.read_text())
    os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))

  def hide(self, values) -> None:
    """From now on these are written as ***, those of at least 8 letters."""
    hidden = sorted({value.encode(errors="surrogateescape") for value in values if len(value) >= SHORT}, key=len)
    self._longest = len(hidden[-1]) if hidden else 1
    self._secrets = re.compile(b"|".join(map(re.escape, reversed(hidden)))) if hidden else None

  def hidden(self, text: str) -> str:
    """A text without secrets."""
    return self._hidden(text.encode(errors="surrogateescape")).decode(errors="replace")

  def _hidden(self, content):
    return self._secrets.sub(b"***", content) if self._secrets else content

  def say(self, text: str) -> None:
    """Adds a line of the worker's own."""
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} launch: {self.hidden(text)}\n"
    with contextlib.suppress(OSError), open(self.path, "ab") as file:  # of a full disk the reports speak
      file.write(line.encode(errors="replace"))

  def size(self) -> int:
    """Its bytes."""
    with contextlib.suppress(OSError):
      return self.path.stat().st_size
    return 0

  def piece(self, last: bool = False) -> tuple:
    """(what was added since the last piece that was sent, where it ends); b"" for nothing.

    Args:
      last: nothing will be added; else bytes are held back that may be the first of a secret.
    """
    start, size, note = self._start, self.size(), b""
    if size < start:  # cut off by somebody
      start = 0
    if size - start > BEHIND:
      note = f"launch: {size - PIECE - start:,} bytes are left out\n".encode()
      start = size - PIECE
    try:
      with open(self.path, "rb") as file:
        file.seek(start)
        content = file.read(PIECE)
    except OSError:
      return b"", start
    end = len(content) if last and start + len(content) >= size else max(0, len(content) - self._longest + 1)
    for match in self._secrets.finditer(content) if self._secrets else ():
      if match.start() < end < match.end():
        end = match.end()
    text = self._hidden(content[:end])
    return (note + text[self._longest - 1 :] if note else text), start + end  # it may begin inside of a secret

  def sent(self, end: int) -> None:
    """A piece up to there has arrived."""
    self._start = end
    with contextlib.suppress(OSError):  # it is sent twice then, if the worker is killed
      self._sent.write_text(str(end))

  def tail(self, start: int) -> str:
    """Its last lines behind a place."""
    try:
      with open(self.path, "rb") as file:
        begin = max(start, self.size() - 2 * TAIL)
        file.seek(begin)
        content = self._hidden(file.read())[self._longest - 1 if begin > start else 0 :]
    except OSError:
      return ""
    lines = content[-TAIL:].decode(errors="replace").splitlines()
    return "\n".join(lines[-LINES:])
