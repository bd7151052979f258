"""A local Kubernetes API server, with which the real kubectl can create, get, list, watch and delete objects."""

import collections
import contextlib
import copy
import dataclasses
import json
import re
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

Request = collections.namedtuple("Request", "method path query body")
KINDS = {  # {plural: (group, version, kind)}
  "pods": ("", "v1", "Pod"),
  "configmaps": ("", "v1", "ConfigMap"),
  "events": ("", "v1", "Event"),
  "jobs": ("batch", "v1", "Job"),
  "jobsets": ("jobset.x-k8s.io", "v1alpha2", "JobSet"),
  "workloads": ("kueue.x-k8s.io", "v1beta1", "Workload"),
}
_REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "AlreadyExists", 422: "Invalid",
            429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}  # fmt: skip
_PATH = re.compile(r"/apis?/(?:[^/]+/)?v\w+(?:/namespaces/(?P<namespace>[^/]+))?/(?P<kind>\w+)(?:/(?P<name>[^/]+))?")


@dataclasses.dataclass
class Fault:
  """A fault of the next requests of a method for a kind.

  Args:
    method: HTTP method, such as "POST". "" matches all methods.
    kind: kind, such as "jobsets". "" matches all kinds.
    code: HTTP status of the response. 0 cuts the connection.
    message: message of the response.
    times: number of affected requests.
    after: True if the server executes the request and only the response is lost.
    seconds: delay of the response.
  """

  method: str
  kind: str = ""
  code: int = 500
  message: str = "trouble"
  times: int = 1
  after: bool = False
  seconds: float = 0.0


class Server:
  """The server. It is a context manager.

  Args:
    kinds: names of the supported KINDS.
    made: called with each created kind and object.
    lingers: True if deleted objects are only marked, until a test removes them.
  """

  def __init__(self, kinds: tuple, made, lingers: bool):
    self.kinds, self.lingers = {kind: KINDS[kind] for kind in kinds}, lingers
    self.objects, self.requests, self.faults, self.turn = {}, [], [], threading.RLock()
    self._made = made

  def __enter__(self):
    self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"server_of_objects": self}))
    self._http.daemon_threads = True
    threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
    self.address = f"http://127.0.0.1:{self._http.server_port}"
    return self

  def __exit__(self, *_):
    self._http.shutdown()
    self._http.server_close()

  def make(self, kind: str, value: dict) -> dict:
    """Creates an object. Its controller then creates dependent objects."""
    item = copy.deepcopy(value) | {"apiVersion": self._version(kind), "kind": self.kinds[kind][2]}
    item["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "resourceVersion": "1"}
    item["metadata"].setdefault("namespace", "default")
    self.objects[kind, item["metadata"]["name"]] = item
    self._made(kind, item)
    return item

  def delete(self, kind: str, name: str) -> None:
    """Marks an object and the objects that it owns as deleted, and removes them unless deleted objects linger."""
    item = self.objects[kind, name]
    item["metadata"].setdefault("deletionTimestamp", now())
    for (other, key), owned in list(self.objects.items()):
      owners = [reference["uid"] for reference in owned["metadata"].get("ownerReferences", [])]
      if item["metadata"]["uid"] in owners:
        self.delete(other, key)
    if not self.lingers:
      self.objects.pop((kind, name), None)

  def fault(self, method: str, kind: str) -> "Fault | None":
    """Returns the fault of a request, or None."""
    with self.turn:
      for fault in self.faults:
        if fault.times and fault.method in ("", method) and fault.kind in ("", kind):
          fault.times -= 1
          return fault
    return None

  def answer(self, request: Request) -> tuple:
    """Executes a request for objects and returns (HTTP status, value)."""
    match = _PATH.fullmatch(request.path)
    if not match or match["kind"] not in self.kinds:
      return 404, status(404, "the server could not find the requested resource")
    kind, name, namespace = match["kind"], match["name"], match["namespace"]
    key = name or (request.body or {}).get("metadata", {}).get("name")
    what = f'{kind}{"." * bool(self.kinds[kind][0])}{self.kinds[kind][0]} "{key}"'
    with self.turn:
      if request.method == "POST":
        if (kind, key) in self.objects:
          return 409, status(409, f"{what} already exists", kind, key)
        request.body["metadata"].setdefault("namespace", namespace)
        return 201, self.make(kind, request.body)
      there = self.objects.get((kind, name))
      if name and (not there or there["metadata"]["namespace"] != namespace):
        return 404, status(404, f"{what} not found", kind, key)
      if request.method == "DELETE":
        self.delete(kind, name)
      if name:
        return 200, there
      items = [item for (each, _), item in sorted(self.objects.items()) if each == kind and _fits(item, request.query)]
      items = [item for item in items if namespace in (None, item["metadata"]["namespace"])]
      value = {"kind": f"{self.kinds[kind][2]}List", "apiVersion": self._version(kind), "items": items}
      return 200, value | {"metadata": {"resourceVersion": "1"}}

  def discovery(self, path: str) -> "dict | None":
    """Returns groups and kinds in the oldest form that kubectl understands, or None for other paths."""
    groups = {}
    for plural, (*pair, kind) in self.kinds.items():
      groups.setdefault(tuple(pair), {})[plural] = kind
    roots = {f"apis/{'/'.join(pair)}" if pair[0] else f"api/{pair[1]}": pair for pair in groups}
    named = [(group, {"groupVersion": f"{group}/{version}", "version": version}) for group, version in groups if group]
    listed = [{"name": group, "versions": [each], "preferredVersion": each} for group, each in named]
    definitions = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinitionList", "items": []}
    values = {
      "/apis/apiextensions.k8s.io/v1/customresourcedefinitions": definitions,
      "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
      "/api": {"kind": "APIVersions", "versions": ["v1"]},
      "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed},
      "/openapi/v3": {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}"} for root in roots}},
    }
    for root, pair in roots.items():
      verbs = {"namespaced": True, "verbs": ["create", "delete", "get", "list", "watch"]}
      resources = [{"name": name, "singularName": kind.lower(), "kind": kind} | verbs
                   for name, kind in groups[pair].items()]  # fmt: skip
      version = "/".join(pair).lstrip("/")
      values[f"/{root}"] = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version}
      values[f"/{root}"]["resources"] = resources
      # The server declares that it refuses unknown fields, so kubectl does not check fields itself.
      strict = {"parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]}
      group, version = pair
      paths = {
        f"/{root}/namespaces/{{namespace}}/{plural}/{{name}}": {
          "patch": strict | {"x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind}}
        }
        for plural, kind in groups[pair].items()
      }
      if root == "api/v1":  # kubectl requests this path for unknown kinds
        kind = {"x-kubernetes-group-version-kind": {"group": "", "version": "v1", "kind": "Namespace"}}
        paths["/api/v1/namespaces/{name}"] = {"patch": strict | kind}
      values[f"/openapi/v3/{root}"] = {"openapi": "3.0.0", "info": {"title": root, "version": "1"}, "paths": paths}
    return values.get(path)

  def _version(self, kind):
    group, version, _ = self.kinds[kind]
    return f"{group}/{version}".lstrip("/")


def status(code: int, message: str, kind: str = "", name: str = "") -> dict:
  """Returns a Status object with the reason of a refused request."""
  value = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "code": code}
  return value | {"reason": _REASONS.get(code, ""), "details": {"name": name, "kind": kind}}


def now() -> str:
  """Returns the time as Kubernetes writes it."""
  return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _fits(item, query):
  """Returns True if an object matches the selectors of a list."""
  for term in filter(None, query.get("labelSelector", "").split(",")):
    key, _, value = term.partition("=")
    if item["metadata"].get("labels", {}).get(key) != value.lstrip("="):
      return False
  for term in filter(None, query.get("fieldSelector", "").split(",")):
    path, _, value = term.partition("=")
    found = item
    for key in path.split("."):
      found = found.get(key, {})
    if found != value:
      return False
  return True


class _Handler(BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"
  disable_nagle_algorithm = True  # otherwise, responses of two packets wait for 40 ms
  server_of_objects = None

  def _handle(self):
    objects, parts = self.server_of_objects, urlsplit(self.path)
    query = {key: values[0] for key, values in parse_qs(parts.query).items()}
    length = int(self.headers.get("Content-Length") or 0)
    body = json.loads(self.rfile.read(length)) if length else None
    request = Request(self.command, parts.path, query, body)
    match = _PATH.fullmatch(parts.path)
    fault = objects.fault(self.command, match["kind"] if match else "")
    found = objects.discovery(parts.path)
    if found is None:
      objects.requests.append(request._replace(body=copy.deepcopy(body)))
    if fault:
      time.sleep(fault.seconds)
      if fault.after:
        objects.answer(request)
      if not fault.code:
        self.close_connection = True
        self.connection.close()
        return
      self._send(fault.code, status(fault.code, fault.message))
    elif parts.path == "/openapi/v2":  # empty Protocol Buffers, without schemas
      self._send(200)
    elif found is not None:
      self._send(200, found)
    elif query.get("watch"):
      self._watch(request)
    else:
      self._send(*objects.answer(request))

  do_GET = do_POST = do_DELETE = _handle

  def _watch(self, request):
    """Waits up to ten seconds for the removal of the watched objects, because kubectl only watches for removals."""
    before = self.server_of_objects.answer(request)[1].get("items", [])
    until = time.monotonic() + 10
    while self.server_of_objects.answer(request)[1].get("items") and time.monotonic() < until:
      time.sleep(0.02)
    self._send(200, *({"type": "DELETED", "object": item} for item in before))

  def _send(self, code, *values):
    content = "".join(json.dumps(value) + "\n" for value in values).encode()
    with contextlib.suppress(OSError):  # kubectl has ended
      self.send_response(code)
      self.send_header("Content-Type", "application/json")
      self.send_header("Content-Length", str(len(content)))
      self.end_headers()
      self.wfile.write(content)

  def log_message(self, *_):
    pass
