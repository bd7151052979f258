"""Requests to the local server of `tests.launch.cloud`, and their faults."""

import contextlib
import dataclasses
import http.server
import json
import re
import socket
import time
import urllib.parse

STATUS = {
  400: "INVALID_ARGUMENT",
  401: "UNAUTHENTICATED",
  403: "PERMISSION_DENIED",
  404: "NOT_FOUND",
  409: "ALREADY_EXISTS",
  429: "RESOURCE_EXHAUSTED",
  500: "INTERNAL",
  503: "UNAVAILABLE",
  504: "DEADLINE_EXCEEDED",
}
_VERBS = {
  ("POST", "queuedResources"): "create",
  ("GET", "queuedResources"): "describe",
  ("DELETE", "queuedResources"): "delete",
  ("GET", "nodes"): "node",
  ("DELETE", "nodes"): "delete_node",
}
_PATH = re.compile(
  r"/(?P<version>v1|v2|v2alpha1)/projects/(?P<project>[^/]+)/locations"
  r"(/(?P<zone>[^/]+)(/(?P<kind>queuedResources|nodes|operations)(/(?P<name>[^/:]+)(:(?P<action>\w+))?)?)?)?"
)


@dataclasses.dataclass(frozen=True)
class Request:
  """A request. Its verb is a verb of `Server.faults`, or "other"."""

  verb: str
  method: str
  path: str
  query: dict
  body: dict
  version: str


class Refusal(Exception):
  """An error that becomes a response with an HTTP status."""

  def __init__(self, code, message, status=""):
    self.code, self.message, self.status = code, message, status or STATUS[code]


def handler(server):
  """Returns the handler of a `cloud.Server`, which responds to each request or causes the next fault."""

  class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
      """Does not print requests, because `requests` contains them."""

    def _do(self):
      path, _, query = self.path.partition("?")
      path = urllib.parse.unquote(path)
      content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
      if path.startswith("/compute/"):
        return self._send(200, {"name": path.rpartition("/")[2], "commonInstanceMetadata": {"items": []}})
      if path.startswith("/v1/users/"):  # path of OS Login
        account = {"primary": True, "username": "alice_example_com", "operatingSystemType": "LINUX"}
        profile = {"name": "alice", "posixAccounts": [account]}
        return self._send(200, {"loginProfile": profile} if self.command == "POST" else profile)
      match = _PATH.fullmatch(path)
      if not match:
        return self._send(404, {"error": {"code": 404, "message": f"no {path}", "status": "NOT_FOUND"}})
      verb = _VERBS.get((self.command, match["kind"]), "other")
      if match["action"]:
        verb = "other"
      elif self.command == "GET" and not match["name"]:
        verb = {"queuedResources": "list", "nodes": "list_nodes"}.get(match["kind"], "other")
      request = Request(
        verb, self.command, path, dict(urllib.parse.parse_qsl(query)), json.loads(content or b"{}"), match["version"]
      )
      with server.lock:
        server.requests.append(request)
        fault = server.fault(verb)
      if isinstance(fault, float):
        time.sleep(fault)
      try:
        if fault == "cut":
          return self._cut()
        if isinstance(fault, (int, tuple)):
          raise Refusal(*(fault if isinstance(fault, tuple) else (fault, f"scripted {STATUS[fault]}")))
        with server.lock:
          found = json.loads(json.dumps(server.answer(request, match)))
      except Refusal as refusal:
        error = {"code": refusal.code, "message": refusal.message, "status": refusal.status}
        return self._send(refusal.code, {"error": error})
      return self._cut() if fault == "lost" else self._send(200, found)

    do_GET = do_POST = do_DELETE = do_PATCH = _do

    def _cut(self):
      self.close_connection = True
      with contextlib.suppress(OSError):
        self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, code, found):
      content = json.dumps(found).encode()
      with contextlib.suppress(OSError):  # the client was killed
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

  return Handler
