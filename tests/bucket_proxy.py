"""A proxy between a bucket server and its clients that injects faults. It runs in its own process.

In a test's process, answers would be delayed by the threads that decode images. `tests.buckets` starts the proxy:
python -m tests.bucket_proxy INNER OUTER SEED. It reads commands as lines of JSON and answers each with one line. The
process ends when its input is closed.
"""

import asyncio
import collections
import contextlib
import dataclasses
import json
import os
import random
import re
import sys
import threading
import urllib.parse
from typing import Any

import aiohttp
from aiohttp import web

_HOP = ("connection", "content-length", "transfer-encoding", "keep-alive")


@dataclasses.dataclass
class Trouble:
  """The faults that the proxy injects into requests. They may be changed at any time.

  Args:
    latency: seconds of delay before each request.
    busy: share of requests answered with 429 or 503, half of them after the server executed the request.
    resets: share of requests with a broken connection, in the middle of the request or of the answer.
    stalls: share of requests that are never answered and never closed.
    refused: all requests are answered with 403.
    away: connections are closed before the request is read.
    busy_paths: requests with this pattern in their path are answered with 503 and do not reach the server.
    cut: the first answer longer than this number of bytes is cut off there. Later answers are complete.
  """

  latency: float = 0.0
  busy: float = 0.0
  resets: float = 0.0
  stalls: float = 0.0
  refused: bool = False
  away: bool = False
  busy_paths: str | None = None
  cut: int | None = None


class Proxy:
  """Forwards requests to the port `inner` of this machine. `counts` contains requests by method and injected faults."""

  def __init__(self, inner: int, seed: int) -> None:
    self.trouble, self.counts, self.paths = Trouble(), collections.Counter(), []
    self._inner, self._draw = inner, random.Random(seed)

  async def open(self, outer: int) -> None:
    """Starts to accept requests at a port."""
    self._client = aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=60))
    app = web.Application(client_max_size=2**30)
    app.router.add_route("*", "/{path:.*}", self._pass)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", outer, backlog=256).start()

  def answer(self, words: dict[str, Any]) -> int | dict[str, int] | None:
    """Answers a command.

    Args:
      words: {"trouble": fields} sets the faults, {"asked": pattern} counts the requested paths with a pattern, and
        {"counts": any} returns the counts.
    """
    if "trouble" in words:
      self.trouble = Trouble(**words["trouble"])
      return None
    if "asked" in words:
      return sum(re.search(words["asked"], path) is not None for path in self.paths.copy())
    return self.counts.copy()

  async def _pass(self, request: web.Request) -> web.StreamResponse:
    trouble, draw = self.trouble, self._draw.random()
    self.counts[request.method] += 1
    path = urllib.parse.unquote(request.raw_path)
    self.paths.append(path)
    if trouble.away:
      return _cut(request)
    if trouble.refused:
      await request.read()
      return web.json_response({"error": {"code": 403, "message": "this account may not"}}, status=403)
    await asyncio.sleep(trouble.latency)
    if trouble.busy_paths and re.search(trouble.busy_paths, path):
      await request.read()
      return _busy(503)
    share, before = draw, self._draw.random() < 0.5
    if share < trouble.busy and before:
      await request.read()
      return _busy(self._draw.choice([429, 503]))
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
      if (answer.content_length or 0) > 2**16 and draw >= trouble.busy and not reset and trouble.cut is None:
        return await _stream(request, answer)
      content = await answer.read()
      headers = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
    if draw < trouble.busy:
      return _busy(self._draw.choice([429, 503]))
    sent = len(content) // 2
    if trouble.cut is not None and len(content) > trouble.cut:
      reset, sent, trouble.cut = True, trouble.cut, None
    if reset:
      self.counts["resets"] += 1
      part = web.StreamResponse(status=answer.status, headers=headers | {"Content-Length": str(len(content) + 1)})
      with contextlib.suppress(ConnectionError):  # raised if the client's process was killed
        await part.prepare(request)
        await part.write(content[:sent])
      return _cut(request)
    return web.Response(status=answer.status, headers=headers, body=content)


async def _stream(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
  """Forwards an answer in pieces, because a client may close the connection before the end of a long object."""
  passed = web.StreamResponse(
    status=answer.status,
    headers={
      name: value for name, value in answer.headers.items() if name.lower() not in _HOP or name == "Content-Length"
    },
  )
  with contextlib.suppress(ConnectionError):
    await passed.prepare(request)
    async for piece in answer.content.iter_any():
      await passed.write(piece)
  return passed


def _busy(status: int) -> web.Response:
  return web.json_response({"error": {"code": status, "message": "too much to do"}}, status=status)


def _cut(request: web.Request) -> web.Response:
  """Ends the connection like a broken network."""
  if request.transport:
    request.transport.abort()
  return web.Response()


def _listen(proxy: Proxy) -> None:
  """Answers commands until the input is closed."""
  for line in sys.stdin:
    print(json.dumps(proxy.answer(json.loads(line))), flush=True)
  os._exit(0)  # some requests are stalled


async def main(inner: int, outer: int, seed: int) -> None:
  """Starts the proxy, and prints `null` when it accepts requests."""
  proxy = Proxy(inner, seed)
  await proxy.open(outer)
  print("null", flush=True)
  threading.Thread(target=_listen, args=(proxy,), daemon=True).start()
  await asyncio.Event().wait()


if __name__ == "__main__":
  asyncio.run(main(*map(int, sys.argv[1:])))
