"""Tests of the local Cloud TPU server, on which other tests rely."""

import http.client
import json
import urllib.error
import urllib.request

import pytest

from tests.launch import cloud

ZONE = "europe-west4-a"
QUEUED = f"projects/proj-x/locations/{ZONE}/queuedResources"
NODES = f"projects/proj-x/locations/{ZONE}/nodes"


@pytest.fixture(scope="module")
def started():
  with cloud.Server() as server:
    yield server


@pytest.fixture
def server(started):
  started.faults(create=(), describe=(), delete=(), node=())
  return started


def ask(server, method, path, body=None):
  """Sends a request and returns (HTTP status, response)."""
  address = server.environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"]
  content = None if body is None else json.dumps(body).encode()
  request = urllib.request.Request(f"{address}v2/{path}", content, method=method)
  try:
    with urllib.request.urlopen(request, timeout=10) as answer:
      return answer.status, json.load(answer)
  except urllib.error.HTTPError as error:
    with error:
      return error.code, json.load(error)["error"]


def create(server, name, **several):
  """Requests a v3-32, or several."""
  spec = {"parent": QUEUED.rpartition("/")[0], "node": {"acceleratorType": "v3-32"}}
  spec |= {"multisliceParams": several} if several else {"nodeId": name}
  return ask(server, "POST", f"{QUEUED}?queuedResourceId={name}", {"tpu": {"nodeSpec": [spec]}})


def state(server, name):
  """Returns the state in the description of a queued resource, or the HTTP status of an error."""
  status, found = ask(server, "GET", f"{QUEUED}/{name}")
  return found["state"]["state"] if status == 200 else status


def alive(server, name):
  """Returns the existing resources with a name."""
  return [each.removeprefix(f"{ZONE}/") for each in server.live() if name in each]


def test_request_is_granted_in_steps_and_exists_until_its_deletion(server):
  assert create(server, "a1")[0] == 200 and create(server, "a1")[0] == 409
  assert [state(server, "a1") for _ in range(4)] == [*cloud.GRANTED, "ACTIVE"]
  node = ask(server, "GET", f"{NODES}/a1")[1]
  assert node["state"] == "READY" and len(node["networkEndpoints"]) == 4
  assert alive(server, "a1") == ["a1", "nodes/a1"]
  assert ask(server, "DELETE", f"{QUEUED}/a1")[1]["status"] == "FAILED_PRECONDITION"
  assert ask(server, "DELETE", f"{QUEUED}/a1?force=true")[0] == 200
  assert [state(server, "a1") for _ in range(2)] == ["DELETING", 404]
  assert ask(server, "GET", f"{NODES}/a1")[0] == 404 and not alive(server, "a1")


def test_script_runs_once_and_its_last_state_stays(server):
  server.script("b1", "ACTIVE", {"state": "ACTIVE", "node": "REPAIRING", "endpoints": 3}, "SUSPENDED")
  create(server, "b1")
  assert state(server, "b1") == "ACTIVE" and state(server, "b1") == "ACTIVE"
  node = ask(server, "GET", f"{NODES}/b1")[1]
  assert node["state"] == "REPAIRING" and len(node["networkEndpoints"]) == 3
  assert [state(server, "b1") for _ in range(2)] == ["SUSPENDED"] * 2
  assert alive(server, "b1") == ["b1"]  # without nodes, but it still uses the quota


def test_set_state_stays_and_a_failure_has_its_reason(server):
  create(server, "c1", nodeCount=2, nodeIdPrefix="c1")
  server.set_state("c1", "ACTIVE")
  server.set_state("c1-1", node="PREEMPTED")
  found = [ask(server, "GET", f"{NODES}/c1-{i}")[1]["state"] for i in range(2)]
  assert found == ["READY", "PREEMPTED"] and state(server, "c1") == "ACTIVE"
  server.set_state("c1", "FAILED", error=(8, "no more capacity"))
  assert ask(server, "GET", f"{QUEUED}/c1")[1]["state"]["failedData"]["error"]["message"] == "no more capacity"
  assert alive(server, "c1") == ["c1"]


def test_node_may_outlive_its_queued_resource(server):
  server.add("d1", {"vitjax": "1"})
  server.set_state("d1", "ACTIVE")
  server.forget("d1")
  assert alive(server, "d1") == ["nodes/d1"] and state(server, "d1") == 404
  assert ask(server, "DELETE", f"{NODES}/d1")[0] == 200
  assert [ask(server, "GET", f"{NODES}/d1")[0] for _ in range(2)] == [200, 404] and not alive(server, "d1")


def test_each_request_takes_one_fault(server):
  server.add("e1", {})
  server.faults(describe=[500, None, (429, "slowly", "RESOURCE_EXHAUSTED")])
  assert [ask(server, "GET", f"{QUEUED}/e1")[0] for _ in range(4)] == [500, 200, 429, 200]


@pytest.mark.parametrize(("fault", "done"), [("cut", False), ("lost", True)])
def test_connection_breaks_before_or_after_the_change(server, fault, done):
  server.faults(create=[fault])
  with pytest.raises((http.client.HTTPException, OSError)):
    create(server, f"f-{fault}")
  assert bool(alive(server, f"f-{fault}")) == done
  assert server.requests[-1].verb == "create" and server.requests[-1].body["tpu"]
