"""A Cloud TPU that is not there: its REST interface on loopback, which the real gcloud talks to.

What it answers follows tpu.googleapis.com's v2 and v2alpha1, as gcloud's own client reads them. A queued resource moves
on by one step each time that it is described, so that nothing waits; `script` says through which states.
"""

import collections
import contextlib
import http.server
import json
import tempfile
import threading
import time

from launch import mailbox, spec, storage, tpus
from tests.launch import rest
from tests.launch.rest import Refusal, Request

GRANTED = ("WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")
CODE = "c0de" * 16


def run(**changes) -> spec.Run:
  """A run for this cloud, checked."""
  values = {"name": "vit-b16", "backend": "qr", "module": "vit_jax.train", "args": ("--config=c.py",), "tpu": "v3-32"}
  values |= {"workdir": "gs://bkt/runs/a", "project": "proj-x", "zones": ("europe-west4-a",), "owner": "alice"}
  return spec.check_and_complete(spec.Run(**values | changes))


def store(folder, asked: spec.Run, *attempts: int, expires: int = 1_795_300_000) -> storage.Disk:
  """A run's folder in which attempts are published."""
  made = storage.Disk(str(folder))
  for number in attempts or (1,):
    mailbox.Mailbox(made, number).publish(mailbox.Attempt(asked, number, CODE, expires))
  return made


class Server:
  """The server: a context. `environment` leads gcloud to it.

  Args:
    zones: that the project has.
    lingering: how many times what is deleted is still seen DELETING.

  Attributes:
    requests: all so far, as `Request`s.
    unreachable: zones that a list of all zones lacks, as the true server says in a field that gcloud does not show.
  """

  def __init__(self, zones=("europe-west4-a", "us-central1-b"), lingering=1):
    self.zones, self.lingering, self.requests, self.unreachable = zones, lingering, [], []
    self._queued, self._nodes, self._operations, self._steps, self._left = {}, {}, {}, {}, {}
    self._scripts, self._faults = collections.defaultdict(lambda: GRANTED), {}
    self.lock = threading.RLock()

  def __enter__(self):
    with contextlib.ExitStack() as stack:
      config = stack.enter_context(tempfile.TemporaryDirectory())
      self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), rest.handler(self))
      self._server.daemon_threads = True
      stack.callback(self._server.server_close)
      thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
      thread.start()
      stack.callback(thread.join)
      stack.callback(self._server.shutdown)
      self._stack = stack.pop_all()
    address = f"http://127.0.0.1:{self._server.server_port}"
    self.environment = {
      "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{address}/",
      "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{address}/compute/v1/",
      "CLOUDSDK_API_ENDPOINT_OVERRIDES_OSLOGIN": f"{address}/",
      "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
      "CLOUDSDK_CONFIG": config,
      "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
      "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
      "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
    }
    return self

  def __exit__(self, *_):
    self._stack.close()

  def script(self, name: str, *states) -> None:
    """The states of a queued resource, one each time that it is described; the last one stays.

    Each is a state's name, or a dict of arguments of `set_state`. Without a script it is granted: GRANTED.
    """
    with self.lock:
      self._scripts[name], self._steps[name] = states, 0

  def set_state(self, name, state="", node="", health=None, endpoints=None, error=None, initiator="SERVICE") -> None:
    """Changes a queued resource, and its nodes; or the node of that name alone.

    Args:
      state: of the queued resource, which stays; its script has ended.
      node, health, endpoints: of each node: its state, its health, how many hosts it shows.
      error: (code, message) of FAILED.
      initiator: of SUSPENDING and SUSPENDED.
    """
    with self.lock:
      key = next((key for key in self._queued if key[1] == name), None)
      if key and state:
        self._scripts[name] = ({"state": state, "error": error, "initiator": initiator},)
        self._change(key, state, error, initiator)
      for each in [each for each in self._nodes if key in (None, self._owner(each))]:
        if key or each[1] == name:
          self._change_node(each, node, health, endpoints)

  def faults(self, **faults) -> None:
    """What happens to the next requests of a verb: create, describe, list, delete, node, list_nodes, delete_node.

    For each an iterable, of which each request takes one: None for no fault, an HTTP status, a tuple of status, message
    and the API's word for it, "cut" for a connection that breaks off before the server has read, "lost" for one that
    breaks off when all is done, or seconds that pass.
    """
    with self.lock:
      self._faults |= {verb: iter(each) for verb, each in faults.items()}

  def live(self) -> list:
    """All that was created and is not deleted, as ZONE/NAME: queued resources, then nodes as ZONE/nodes/NAME."""
    with self.lock:
      return [f"{zone}/{name}" for zone, name in self._queued] + [f"{zone}/nodes/{name}" for zone, name in self._nodes]

  def bodies(self) -> dict:
    """{name: the node's description} of the queued resources that have machines."""
    with self.lock:
      active = [(name, each) for (_, name), each in self._queued.items() if each["state"]["state"] == "ACTIVE"]
      return {name: each["tpu"]["nodeSpec"][0]["node"] for name, each in active}

  def states(self) -> dict:
    """{name: state} of all queued resources."""
    with self.lock:
      return {name: each["state"]["state"] for (_, name), each in self._queued.items()}

  def forget(self, name: str) -> None:
    """The queued resource is gone, and its nodes are not: a leak."""
    with self.lock:
      self._queued = {key: each for key, each in self._queued.items() if key[1] != name}

  def add(self, name: str, labels: dict, zone="europe-west4-a", kind="v3-32", metadata=None) -> None:
    """A queued resource of one slice, as if somebody had created it."""
    with self.lock:
      node = {"acceleratorType": kind, "labels": labels, "metadata": metadata or {}}
      self._put(zone, name, {"tpu": {"nodeSpec": [{"node": node, "nodeId": name, "parent": _parent("proj-x", zone)}]}})

  def created(self) -> list:
    """The bodies of all requests that were to create something, in their order."""
    return [request.body for request in self.requests if request.verb == "create"]

  # What the handler asks, under the lock.

  def fault(self, verb):
    """The next fault of a verb."""
    return next(self._faults.get(verb, iter(())), None)

  def answer(self, request: Request, match) -> dict:
    """Does what is asked."""
    zone, kind, name = match["zone"], match["kind"], match["name"]
    if not zone:
      found = [{"name": _parent(match["project"], each), "locationId": each} for each in self.zones]
      return {"locations": found}
    if kind == "operations":
      return self._operations[name]
    store = self._queued if kind == "queuedResources" else self._nodes
    if request.method == "GET" and not name:
      shown = [each for key, each in store.items() if zone in ("-", key[0]) and key[0] not in self.unreachable]
      unreachable = [_parent(match["project"], each) for each in self.unreachable if zone == "-"]
      return {kind: shown, "unreachable": unreachable}
    if request.method == "POST" and not name:
      return self._create(match, request)
    if (zone, name) not in store:
      raise Refusal(404, f"Resource '{request.path.split('/', 2)[2]}' was not found")
    if match["action"]:
      return _guest_attributes(store[zone, name])
    if request.method == "DELETE":
      self._delete(kind, (zone, name), request.query)
      return self._operation(match)
    if request.method == "PATCH":
      store[zone, name]["metadata"] = request.body.get("metadata", {})
      return self._operation(match, store[zone, name], "Node")
    self._move(kind, (zone, name))
    if (zone, name) not in store:
      raise Refusal(404, f"Resource '{name}' was not found")
    return store[zone, name]

  def _create(self, match, request):
    zone, name = match["zone"], request.query["queuedResourceId"]
    if (zone, name) in self._queued:
      raise Refusal(409, f"Resource '{_parent(match['project'], zone)}/queuedResources/{name}' already exists")
    made = json.loads(json.dumps(request.body))
    asked = made["tpu"]["nodeSpec"][0]
    several = asked.get("multisliceParams") or asked.get("multiNodeParams")
    if several:
      prefix = several.get("nodeIdPrefix", name)
      made["tpu"]["nodeSpec"] = [dict(asked, nodeId=f"{prefix}-{i}") for i in range(several["nodeCount"])]
    return self._operation(match, self._put(zone, name, made))

  def _put(self, zone, name, made):
    made["name"] = f"{made['tpu']['nodeSpec'][0]['parent']}/queuedResources/{name}"
    made["createTime"] = time.strftime("%Y-%m-%dT%H:%M:%S.123456789Z", time.gmtime())
    self._queued[zone, name], self._steps[name] = made, 0
    self._change((zone, name), "ACCEPTED")
    return made

  def _move(self, kind, key):
    """One step of what is described: of a queued resource, and of all that is being deleted."""
    if (kind, key) in self._left:
      self._left[kind, key] -= 1
      if self._left[kind, key] < 0:
        del self._left[kind, key]
        gone = [key] if kind == "nodes" else [each for each in self._nodes if self._owner(each) == key]
        for each in gone:
          del self._nodes[each]
        if kind == "queuedResources":
          del self._queued[key]
    elif kind == "queuedResources":
      name, states = key[1], self._scripts[key[1]]
      step = states[min(self._steps[name], len(states) - 1)]
      self._steps[name] += 1
      step = {"state": step} if isinstance(step, str) else step
      self._change(key, step["state"], step.get("error"), step.get("initiator", "SERVICE"))
      for each in [each for each in self._nodes if self._owner(each) == key]:
        self._change_node(each, step.get("node", ""), step.get("health"), step.get("endpoints"))

  def _change(self, key, state, error=None, initiator="SERVICE"):
    before = self._queued[key].get("state", {}).get("state")
    self._queued[key]["state"] = {"state": state, "stateInitiator": initiator}
    if error:
      self._queued[key]["state"]["failedData"] = {"error": {"code": error[0], "message": error[1]}}
    for slice_ in self._queued[key]["tpu"]["nodeSpec"]:
      node = key[0], slice_["nodeId"]
      if state in ("SUSPENDED", "FAILED"):
        self._nodes.pop(node, None)
      elif state in ("SUSPENDING", "DELETING") and node in self._nodes:
        self._nodes[node]["state"] = "DELETING"
      elif state in ("PROVISIONING", "ACTIVE") and state != before:
        self._nodes[node] = dict(slice_["node"], name=f"{slice_['parent']}/nodes/{node[1]}", apiVersion="V2")
        self._nodes[node] |= {"queuedResource": self._queued[key]["name"], "state": "CREATING"}
        if state == "ACTIVE":
          self._change_node(node, "READY", "HEALTHY", tpus.find_slice(slice_["node"]["acceleratorType"]).hosts)

  def _change_node(self, key, state, health, endpoints):
    node = self._nodes[key]
    node["state"] = state or node["state"]
    if health is not None:
      node["health"] = health
    if endpoints is not None:
      node["networkEndpoints"] = [
        {"ipAddress": f"10.0.0.{2 + i}", "port": 8470, "accessConfig": {"externalIp": f"192.0.2.{2 + i}"}}
        for i in range(endpoints)
      ]

  def _operation(self, match, response=None, kind="QueuedResource"):
    name = f"operation-{len(self._operations) + 1}"
    made = {"name": f"{_parent(match['project'], match['zone'])}/operations/{name}", "done": True}
    made |= {"response": {"@type": f"type.googleapis.com/google.cloud.tpu.v2.{kind}"} | response} if response else {}
    return self._operations.setdefault(name, made)

  def _owner(self, node):
    return node[0], self._nodes[node].get("queuedResource", "").rpartition("/")[2]

  def _delete(self, kind, key, query):
    if kind == "queuedResources":
      state = self._queued[key]["state"]["state"]
      if query.get("force") not in ("true", "True") and state not in ("ACCEPTED", "FAILED", "SUSPENDED"):
        raise Refusal(400, f"{key[1]} has nodes: delete them first, or use force", "FAILED_PRECONDITION")
      if state == "DELETING":
        raise Refusal(400, f"{key[1]} is being deleted", "FAILED_PRECONDITION")
      self._change(key, "DELETING", initiator="USER")
    else:
      self._nodes[key]["state"] = "DELETING"
    self._left[kind, key] = self.lingering


def _parent(project, zone):
  return f"projects/{project}/locations/{zone}"


def _guest_attributes(node):
  items = [{"namespace": "hostkeys", "key": "ssh-rsa", "value": "AAAAB3"}]
  return {"guestAttributes": [{"queryPath": "", "queryValue": {"items": items}} for _ in node["networkEndpoints"]]}
