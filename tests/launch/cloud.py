"""A local server with the REST interface of Cloud TPU, for the real gcloud.

The responses follow v2 and v2alpha1 of tpu.googleapis.com, as gcloud's own client reads them. Each description of a
queued resource advances its state by one step, so that tests do not wait. `script` sets the states.
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
  """Returns a checked run for this cloud."""
  values = {"name": "vit-b16", "backend": "qr", "module": "vit_jax.train", "args": ("--config=c.py",), "tpu": "v3-32"}
  values |= {"workdir": "gs://bkt/runs/a", "project": "proj-x", "zones": ("europe-west4-a",), "owner": "alice"}
  return spec.check_and_complete(spec.Run(**values | changes))


def store(folder, asked: spec.Run, *attempts: int, expires: int = 1_795_300_000) -> storage.Disk:
  """Returns the storage of a run in which attempts are published."""
  made = storage.Disk(str(folder))
  for number in attempts or (1,):
    mailbox.Mailbox(made, number).publish(mailbox.Attempt(asked, number, CODE, expires))
  return made


class Server:
  """The server. It is a context manager, and `environment` connects gcloud to it.

  Args:
    zones: zones of the project.
    lingering: number of descriptions in which a deleted resource is still DELETING.

  Attributes:
    requests: all requests so far, as `Request`s.
    unreachable: zones that are missing in a list of all zones. The real server reports them in a field that gcloud does
      not show.
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
    """Sets the states of a queued resource, one for each description. The last state stays.

    Each state is a name, or a dict of arguments of `set_state`. Without a script, the states are GRANTED.
    """
    with self.lock:
      self._scripts[name], self._steps[name] = states, 0

  def set_state(self, name, state="", node="", health=None, endpoints=None, error=None, initiator="SERVICE") -> None:
    """Changes a queued resource and its nodes, or only the node of that name.

    Args:
      name: name of the queued resource or node.
      state: state of the queued resource, which ends its script and stays.
      node: state of each node.
      health: health of each node.
      endpoints: number of hosts of each node.
      error: (code, message) of FAILED.
      initiator: initiator of SUSPENDING and SUSPENDED.
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
    """Sets faults of the next requests of a verb: create, describe, list, delete, node, list_nodes, delete_node.

    The value for a verb is an iterable, from which each request takes one item:

    - None: no fault
    - an HTTP status
    - a tuple of HTTP status, message and status of the API
    - "cut": the connection breaks before the server executes the request
    - "lost": the connection breaks after the server has executed the request
    - a float: the response is delayed by this number of seconds
    """
    with self.lock:
      self._faults |= {verb: iter(each) for verb, each in faults.items()}

  def live(self) -> list:
    """Returns all existing resources: queued resources as ZONE/NAME, then nodes as ZONE/nodes/NAME."""
    with self.lock:
      return [f"{zone}/{name}" for zone, name in self._queued] + [f"{zone}/nodes/{name}" for zone, name in self._nodes]

  def bodies(self) -> dict:
    """Returns {name: description of the node} of the queued resources with machines."""
    with self.lock:
      active = [(name, each) for (_, name), each in self._queued.items() if each["state"]["state"] == "ACTIVE"]
      return {name: each["tpu"]["nodeSpec"][0]["node"] for name, each in active}

  def states(self) -> dict:
    """Returns {name: state} of all queued resources."""
    with self.lock:
      return {name: each["state"]["state"] for (_, name), each in self._queued.items()}

  def forget(self, name: str) -> None:
    """Removes a queued resource without its nodes, which leaks them."""
    with self.lock:
      self._queued = {key: each for key, each in self._queued.items() if key[1] != name}

  def add(self, name: str, labels: dict, zone="europe-west4-a", kind="v3-32", metadata=None) -> None:
    """Adds a queued resource of one slice, as if another user had created it."""
    with self.lock:
      node = {"acceleratorType": kind, "labels": labels, "metadata": metadata or {}}
      self._put(zone, name, {"tpu": {"nodeSpec": [{"node": node, "nodeId": name, "parent": _parent("proj-x", zone)}]}})

  def created(self) -> list:
    """Returns the bodies of all create requests in their order."""
    return [request.body for request in self.requests if request.verb == "create"]

  # Methods for the handler, which holds the lock.

  def fault(self, verb):
    """Returns the next fault of a verb."""
    return next(self._faults.get(verb, iter(())), None)

  def answer(self, request: Request, match) -> dict:
    """Executes a request and returns the response."""
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
    """Advances the described resource by one step of its script or of its deletion."""
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
