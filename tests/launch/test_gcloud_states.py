"""Tests of the states of queued resources and nodes in gcloud's descriptions."""

import ast
import pathlib
import shutil

import pytest

from launch import gcloud
from launch.errors import NO_CAPACITY
from launch.states import DELETING, FAILED, LOST, QUEUED, READY, REPAIRING, STARTING, STATES

# A second copy of the states in Google's reference and in threads on GitHub: {state of `launch`: states of the API}.
QUEUE = {
  QUEUED: {"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"},
  STARTING: {"PROVISIONING", "STATE_UNSPECIFIED", "", "A_WORD_OF_2027"},
  READY: {"ACTIVE"},
  LOST: {"SUSPENDING", "SUSPENDED"},
  FAILED: {"FAILED"},
  DELETING: {"DELETING"},
}
NODE = {
  READY: {"READY"},
  STARTING: {"CREATING", "STARTING", "STATE_UNSPECIFIED", "", "A_WORD_OF_2027"},
  REPAIRING: {"REPAIRING", "RESTARTING", "REIMAGING", "HIDING", "HIDDEN", "UNHIDING"},
  LOST: {"PREEMPTED", "TERMINATED", "STOPPED", "STOPPING", "DELETING", "UNKNOWN"},
}
HEALTH = {READY: {None, "HEALTH_UNSPECIFIED", "HEALTHY"},
          REPAIRING: {"TIMEOUT", "UNHEALTHY_TENSORFLOW", "UNHEALTHY_MAINTENANCE", "A_WORD_OF_2027"}}  # fmt: skip


def pairs(table):
  """Returns the pairs (state, word) of a table."""
  return [(state, word) for state, words in table.items() for word in sorted(words, key=str)]


def node(state="READY", health="HEALTHY", hosts=4, **more):
  """Returns a node as gcloud describes it."""
  endpoints = [{"ipAddress": f"10.0.0.{i}", "port": 8470} for i in range(hosts)]
  found = {"name": "projects/p/locations/z/nodes/a-a1", "state": state, "networkEndpoints": endpoints} | more
  return found | ({"health": health} if health else {})


@pytest.mark.parametrize(("state", "word"), pairs(QUEUE))
def test_state_of_a_queued_resource_is_mapped(state, word):
  look = gcloud.get_queue_status({"state": {"state": word, "stateInitiator": "SERVICE"}})
  assert look.state == state and (look.detail or state == FAILED)
  assert state in STATES and (look.code == NO_CAPACITY) == (state == FAILED)


@pytest.mark.parametrize(("state", "word"), pairs(NODE))
def test_state_of_a_node_is_mapped(state, word):
  look = gcloud.get_nodes_status([("a-a1", node(word))], 4)
  assert (look.state, look.hosts) == (state, 4)
  assert state == READY or (word or "STATE_UNSPECIFIED") in look.detail


@pytest.mark.parametrize(("state", "health"), pairs(HEALTH))
def test_node_is_ready_unless_its_health_is_bad(state, health):
  look = gcloud.get_nodes_status([("a-a1", node(health=health, healthDescription="a fan"))], 4)
  assert look.state == state
  assert state == READY or (health in look.detail and "a fan" in look.detail)


@pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed")
@pytest.mark.parametrize(("table", "kind", "owner"), [
  (QUEUE, "State", "QueuedResourceState"), (NODE, "State", "Node"), (HEALTH, "Health", "Node")])  # fmt: skip
def test_all_states_of_the_sdk_are_known(table, kind, owner):
  root = pathlib.Path(shutil.which("gcloud")).resolve().parent.parent
  file = root / "lib/googlecloudsdk/generated_clients/apis/tpu/v2/tpu_v2_messages.py"
  if not file.exists():
    pytest.skip("gcloud's client of Cloud TPU is not beside it")
  inside = {each.name: each for each in ast.walk(ast.parse(file.read_text())) if isinstance(each, ast.ClassDef)}[owner]
  enum = next(each for each in inside.body if getattr(each, "name", "") == f"{kind}ValueValuesEnum")
  values = [each.targets[0].id for each in enum.body if isinstance(each, ast.Assign)]
  known = {word for words in table.values() for word in words}
  assert len(values) > 3 and set(values) <= known


@pytest.mark.parametrize(("hosts", "expected"), [(3, 4), (0, 4), (5, 4), (7, 8)])
def test_unexpected_number_of_hosts_is_waited_for_and_named(hosts, expected):
  look = gcloud.get_nodes_status([("a-a1", node(hosts=hosts))], expected)
  assert look.state == STARTING and f"{hosts} of {expected} hosts" in look.detail


def test_worker_without_an_address_is_named():
  found = node()
  found["networkEndpoints"][2] = {"port": 8470}
  look = gcloud.get_nodes_status([("a-a1", found)], 4)
  assert look.state == STARTING and look.hosts == 3 and "none for worker 2" in look.detail


def test_symptoms_are_shown_with_their_worker():
  symptoms = [{"symptomType": "PROJECT_ABUSE", "workerId": "3", "createTime": "2026-01-01T00:00:00Z"}]
  assert (
    "PROJECT_ABUSE of worker 3" in gcloud.get_nodes_status([("a-a1", node("REPAIRING", symptoms=symptoms))], 4).detail
  )


@pytest.mark.parametrize(
  ("words", "worst"),
  [
    (("READY", "READY"), READY),
    (("READY", "CREATING"), STARTING),
    (("CREATING", "REPAIRING"), REPAIRING),
    (("REPAIRING", "PREEMPTED"), LOST),
    (("READY", None), LOST),
  ],
)
def test_worst_slice_determines_the_state(words, worst):
  nodes = [(f"a-a1-{i}", word and node(word)) for i, word in enumerate(words)]
  for order in (nodes, nodes[::-1]):
    look = gcloud.get_nodes_status(order, 4)
    assert look.state == worst
  assert gcloud.get_nodes_status(nodes, 4).hosts == 4 * sum(word is not None for word in words)


def test_addresses_are_in_the_order_of_workers():
  look = gcloud.get_nodes_status([("a-a1-0", node()), ("a-a1-1", node())], 4)
  assert look.addresses == ("10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3") * 2


def test_detail_names_the_initiator_of_a_suspension():
  for by in ("USER", "SERVICE"):
    assert by in gcloud.get_queue_status({"state": {"state": "SUSPENDED", "stateInitiator": by}}).detail


def test_resource_has_the_values_of_its_labels():
  labels = {"vitjax": "1", "vitjax-run": "a", "vitjax-owner": "alice", "vitjax-attempt": "2", "vitjax-expires": "1795"}
  spec = {"node": {"acceleratorType": "v3-32", "labels": labels}, "nodeId": "a-a2"}
  item = {"name": "projects/p/locations/z/queuedResources/a-a2", "createTime": "1970-01-02T00:00:01.123456789Z"}
  found = gcloud.make_item_resource(item | {"state": {"state": "SUSPENDED"}, "tpu": {"nodeSpec": [spec]}})
  assert (found.name, found.location, found.run, found.owner) == ("a-a2", "z", "a", "alice")
  assert (found.attempt, found.expires, found.created) == (2, 1795, 86401.0)
  assert (found.state, found.detail, found.kind) == (LOST, "SUSPENDED", "v3-32")


@pytest.mark.parametrize("damaged", [{}, {"vitjax": "1", "vitjax-attempt": "x", "vitjax-expires": "-5"}])
def test_changed_labels_do_not_raise_errors(damaged):
  found = gcloud.make_item_resource(node(labels=damaged))
  assert (found.attempt, found.expires, found.created) == (0, 0, 0.0) and "without its queued" in found.detail
