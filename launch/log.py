"""The log of a worker: a file of its machine, which goes to the run's folder in pieces, without secrets.

Programs write to the file themselves, so what they print is in it as it is, and on the disk only BEHIND bytes of it
are kept. Only who runs the worker may read it, who can read a program's variables too.
"""

import contextlib
import ctypes
import os
import pathlib
import re
import sys
import time

PIECE = 2**18  # bytes
BEHIND = 2**26  # bytes that the disk keeps; what is further behind is left out
MOST = 2**27  # bytes of a try that go to the run's folder as they come; beyond, its last piece does
SHORT = 8  # letters, below which a secret's value is a word of every log
TAIL, LINES = 8192, 40


class Log:
  """A file to which programs write. Its pieces follow each other also where the worker was killed between them."""

  def __init__(self, path: pathlib.Path):
    self.path, self._sent, self._secrets, self._longest = path, path.with_suffix(".sent"), None, 1
    self._start = self._first = self._gone = 0
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

  def begin(self) -> int:
    """A try begins: its place in the file."""
    self._first = self.size()
    return self._first

  def trim(self) -> None:
    """Gives the disk back all but the last BEHIND bytes, of however many; places in the file stay. Only on Linux."""
    gone = self.size() - BEHIND
    if gone - self._gone < PIECE or sys.platform != "linux":
      return
    self._gone = gone  # before it is so, as another thread reads
    with contextlib.suppress(OSError), open(self.path, "rb+") as file:
      # FALLOC_FL_KEEP_SIZE and _PUNCH_HOLE of linux/falloc.h; a file system that cannot, as NFS before 4.2, keeps all.
      ctypes.CDLL(None).fallocate64(file.fileno(), 1 | 2, ctypes.c_int64(0), ctypes.c_int64(gone))

  def piece(self, last: bool = False) -> tuple:
    """(what was added since the last piece that was sent, where it ends); b"" for nothing.

    Args:
      last: nothing will be added; else bytes are held back that may be the first of a secret.
    """
    start, size, note = self._start, self.size(), b""
    if size < start:  # cut off by somebody
      start = self._first = self._gone = 0
    full = start - self._first >= MOST
    if full and not last:
      return b"", start
    content = self._read(start)
    if size - start > (PIECE if full else BEHIND) or start < self._gone:
      note = f"launch: {size - PIECE - start:,} bytes are left out\n".encode()
      start = size - PIECE
      content = self._read(start)
    end = len(content) if last and start + len(content) >= size else max(0, len(content) - self._longest + 1)
    for match in self._secrets.finditer(content) if self._secrets else ():
      if match.start() < end < match.end():
        end = match.end()
    text = self._hidden(content[:end])
    text = note + text[self._longest - 1 :] if note else text  # it may begin inside of a secret
    if start - self._first < MOST <= start + end - self._first:
      text += f"\nlaunch: {MOST:,} bytes of a try; of what follows only the end is brought, when it ends\n".encode()
    return text, start + end

  def _read(self, start):
    with contextlib.suppress(OSError), open(self.path, "rb") as file:
      file.seek(start)
      return file.read(PIECE)
    return b""

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
