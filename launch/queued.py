"""What Cloud TPU says of queued resources and of the nodes that they become, in the words of `launch.engine`.

Words are those of SDK 528, googlecloudsdk/generated_clients/apis/tpu/v2; one that is not among them is STARTING.
"""

import calendar
import re
import time

from launch import gcloud, tpus
from launch.engine import DELETING, FAILED, LOST, QUEUED, READY, REPAIRING, STARTING, Look, Resource
from launch.screen import amount

QUEUE_STATES = {
  "CREATING": QUEUED,
  "ACCEPTED": QUEUED,
  "WAITING_FOR_RESOURCES": QUEUED,
  "PROVISIONING": STARTING,
  "ACTIVE": READY,  # if its nodes are
  "SUSPENDING": LOST,
  "SUSPENDED": LOST,
  "FAILED": FAILED,
  "DELETING": DELETING,
}
NODE_STATES = {
  "CREATING": STARTING,
  "STARTING": STARTING,
  "READY": READY,
  **dict.fromkeys(("RESTARTING", "REIMAGING", "REPAIRING", "HIDING", "HIDDEN", "UNHIDING"), REPAIRING),
  **dict.fromkeys(("PREEMPTED", "TERMINATED", "STOPPING", "STOPPED", "DELETING", "UNKNOWN"), LOST),
}
# HEALTH_UNSPECIFIED, which JSON leaves out, is "not initialized or failed to retrieve": it speaks neither for illness
# nor against it, and the workers' own reports decide.
HEALTHY = ("", "HEALTH_UNSPECIFIED", "HEALTHY")
_WORST = (LOST, REPAIRING, STARTING, READY)


def word(item: dict) -> str:
  """The cloud's own word for the state of a queued resource, or of a node."""
  state = item.get("state", "")
  return (state.get("state", "") if isinstance(state, dict) else state) or "STATE_UNSPECIFIED"


def labels(item: dict) -> dict:
  """Of a queued resource, which are those of its nodes; or of a node."""
  specs = item.get("tpu", {}).get("nodeSpec") or [{"node": item}]
  return specs[0].get("node", {}).get("labels", {})


def whose(item: dict) -> str:
  """Whose it is, for people."""
  found = labels(item)
  if "vitjax" not in found:
    return "not of `launch`"
  return "attempt {} of run {} of {}".format(*(found.get(f"vitjax-{key}", "?") for key in ("attempt", "run", "owner")))


def waiting(item: dict) -> Look:
  """How a queued resource is; READY says that its nodes, which are to be looked at, were made."""
  state = QUEUE_STATES.get(word(item), STARTING)
  if state == FAILED:
    code, reason = gcloud.failed(item["state"].get("failedData", {}).get("error", {}))
    return Look(FAILED, reason, code)
  by = item.get("state", {}).get("stateInitiator", "nobody knows whom")
  return Look(state, f"{word(item)}, by {by}" if state == LOST else word(item))


def together(nodes: list, hosts: int) -> Look:
  """How the nodes of an active queued resource are.

  Args:
    nodes: (name, node), with None for one that is not there.
    hosts: that each has when it is whole.
  """
  looks = [_node(name, node, hosts) for name, node in nodes]
  worst = min((look.state for look in looks), key=_WORST.index)
  return Look(
    worst,
    "; ".join(look.detail for look in looks if look.state == worst and look.detail) or "READY",
    hosts=sum(look.hosts for look in looks),
    addresses=tuple(address for look in looks for address in look.addresses),
  )


def resource(item: dict) -> Resource:
  """A queued resource or a node of an inventory."""
  found, node = labels(item), "tpu" not in item
  _, _, _, zone, _, name = item["name"].split("/")
  specs = item.get("tpu", {}).get("nodeSpec") or [{"node": item}]
  kind = tpus.named(specs[0].get("node", {}).get("acceleratorType", "").rpartition("/")[2])
  count = max(len(specs), _slices(specs[0]))
  state = (NODE_STATES if node else QUEUE_STATES).get(word(item), STARTING)
  return Resource(
    name,
    zone,
    found.get("vitjax-run", ""),
    found.get("vitjax-owner", ""),
    _number(found.get("vitjax-attempt")),
    DELETING if word(item) == "DELETING" else state,
    f"{word(item)}, without its queued resource" if node else word(item),
    _number(found.get("vitjax-expires")),
    _seconds(item.get("createTime", "")),
    f"{count}x{kind}" if count > 1 else kind,
    found.get("vitjax-folder", ""),
  )


def _node(name, node, hosts):
  """How one is. Of an active queued resource it is there, or was."""
  if node is None:
    return Look(LOST, f"{name} is gone")
  state, health = NODE_STATES.get(word(node), STARTING), node.get("health", "")
  endpoints = [each.get("ipAddress", "") for each in node.get("networkEndpoints", [])]
  addresses = tuple(address for address in endpoints if address)
  said = [word(node)]
  if state == READY and health not in HEALTHY:
    state = REPAIRING
  elif state == READY and len(addresses) != hosts:
    state = STARTING
  if len(addresses) != hosts:
    without = "".join(f", none for worker {i}" for i, address in enumerate(endpoints) if not address)
    said.append(f"{len(addresses)} of {amount(hosts, 'host')} with an address{without}")
  said += [health] if health not in HEALTHY else []
  said += [node[key] for key in ("healthDescription",) if node.get(key)]
  said += [f"{each.get('symptomType')} of worker {each.get('workerId', '?')}" for each in node.get("symptoms", [])]
  return Look(state, f"{name}: {', '.join(said)}" if state != READY else "", hosts=len(addresses), addresses=addresses)


def _slices(spec):
  several = spec.get("multisliceParams") or spec.get("multiNodeParams") or {}
  return several.get("nodeCount", 1)


def _number(text):
  return int(text) if re.fullmatch(r"\d{1,12}", text or "", re.ASCII) else 0


def _seconds(text):
  """Of 2026-11-23T10:38:43.123456789Z, since the epoch; 0 if it is none."""
  match = re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", text)
  return float(calendar.timegm(time.strptime(match[0], "%Y-%m-%dT%H:%M:%S"))) if match else 0.0
