"""Calls of gcloud, and the meaning of its answers: errors, queued resources and nodes.

gcloud ends with code 2 for unknown flags and with code 1 for all other errors, with a text that starts with
"ERROR: (gcloud.…) WORD: …". It repeats a request for half a minute after a broken connection or a server error. This
module does not repeat requests, because the watcher asks again. The words of states are those of SDK 528
(googlecloudsdk/generated_clients/apis/tpu/v2). An unknown word counts as STARTING.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from . import tpus
from .errors import (
  CALL,
  DENIED,
  NO_CAPACITY,
  USAGE,
  LaunchError,
  QuotaError,
  UnknownError,
  call,
  format_amount,
  parse_json,
)
from .states import (  # fmt: skip
  DELETING,
  FAILED,
  LOST,
  QUEUED,
  READY,
  REPAIRING,
  STARTING,
  MachineStatus,
  Resource,
  make_resource,
)

TIMEOUT = CALL  # gcloud's own repetitions end after 33 s
GROUPS = ("queued-resources", "tpu-vm")

# Words of a failed connection, also while gcloud renews its credentials. They outweigh all other words.
_AWAY = (
  r"ConnectionPool|Max retries exceeded|name resolution|Unable to find the server|gcloud crashed|network connectivity"
  r"|Connection (refused|reset|aborted)|timed out|RemoteDisconnected|Broken pipe|SSLError"
)
_LOGIN = (
  r"UNAUTHENTICATED|[Rr]eauth|invalid_grant|auth tokens|active account|gcloud auth (login|application)"
  r"|valid credentials|login again"
)
# Limits on the rate of requests, which are not the quota of chips.
_BUSY = r"(?i)per minute|rate.?limit|too many requests|e\.g\. check quota"
_CAPACITY = (
  r"(?i)no more capacity|insufficient capacity|out of capacity|not enough (resources|capacity)|stockout"
  r"|resource_pool_exhausted|no available (resources|capacity)|does not have enough resources"
)
_QUOTA = r"(?i)\bquota\b(?! project)"
_QUOTA_STATUS = ("RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "PERMISSION_DENIED", "")
_WRONG = r"INVALID_ARGUMENT|Invalid value for \[|OUT_OF_RANGE|UNIMPLEMENTED"
# What to do about a refusal. The first pattern that matches counts.
_REMEDIES = (
  (r"SERVICE_DISABLED|has not been used in project|API .{0,60}(not|dis)(-| )?(been )?(en)?abled",
   "run: gcloud services enable tpu.googleapis.com"),
  (rf"(?s)\A(?!.*PERMISSION_DENIED).*({_LOGIN})", "run: gcloud auth login"),
  (r"(?i)actAs|service ?account", "ask for roles/iam.serviceAccountUser on the account of --service-account"),
  ("", "ask for roles/tpu.admin on the project (`gcloud auth list` shows your account)"),
)  # fmt: skip
_STATUS = {3: "INVALID_ARGUMENT", 4: "DEADLINE_EXCEEDED", 7: "PERMISSION_DENIED", 8: "RESOURCE_EXHAUSTED",
           9: "FAILED_PRECONDITION", 16: "UNAUTHENTICATED"}  # fmt: skip


class AbsentError(UnknownError):
  """The cloud reports that a resource does not exist. A caller that does not expect this knows nothing."""


class ExistsError(UnknownError):
  """The cloud reports that a resource exists already. A caller that does not expect this knows nothing."""


NO_ANSWER = (UnknownError, LaunchError)


def build_gcloud_command(*words: str, alpha: bool = False, **flags: object) -> list[str]:
  """Returns the argument list of `gcloud compute tpus …`, with each flag as one word: --flag=value.

  Args:
    words: a group, a verb and a name.
    alpha: whether the command needs gcloud alpha.
    flags: `node_id="a"` becomes --node-id=a. True gives a flag without a value. None, False and "" are omitted.
  """
  values = {f"--{name.replace('_', '-')}": value for name, value in flags.items() if value not in (None, False, "")}
  options = [flag if value is True else f"{flag}={value}" for flag, value in values.items()]
  return ["gcloud", *["alpha"] * alpha, "compute", "tpus", *words, *options]


def build_deletion(group: str, name: str, **place: Any) -> list[str]:
  """Returns the command that requests the deletion of a queued resource with its nodes, or of a node."""
  return build_gcloud_command(group, "delete", name, **place, force=group == GROUPS[0], **{"async": True})


def add_output_flags(argv: list[str]) -> list[str]:
  """Returns the argument list that `run_gcloud` executes for one of `build_gcloud_command`."""
  return [*argv, "--quiet", "--format=json"]


def run_gcloud(argv: list[str], timeout: float = TIMEOUT, folder: str | None = None) -> object:
  """Returns the JSON value that gcloud prints, or None for an empty output.

  Args:
    argv: from `build_gcloud_command`.
    timeout: seconds.
    folder: the working directory, for flags that name a file.

  Raises:
    AbsentError, ExistsError: the cloud reports this.
    LaunchError: a final refusal, with the code USAGE, DENIED (also as QuotaError) or NO_CAPACITY.
    UnknownError: the answer is missing or unreadable. The request may have been executed.
  """
  install = "Get it from cloud.google.com/sdk/docs/install"
  code, answer, complaint = call(add_output_flags(argv), timeout, install, folder=folder)
  if code:
    raise make_error(code, complaint)
  return parse_json(answer, "gcloud")


def list_items(group: str, **place: Any) -> list[dict[str, Any]]:
  """Returns all items of a group in a zone. Raises UnknownError for an answer that is not a list of named objects."""
  items = run_gcloud(build_gcloud_command(group, "list", **place))
  if not isinstance(items, list) or not all(isinstance(i, dict) and isinstance(i.get("name"), str) for i in items):
    raise UnknownError(f"gcloud listed {group} of {place['zone']} as {str(items)[:80]}")
  return items


def describe_item(group: str, name: str, **place: Any) -> dict[str, Any] | None:
  """Returns a queued resource or a node, or None if the cloud reports that it is absent and its list confirms that."""
  try:
    item = run_gcloud(build_gcloud_command(group, "describe", name, **place))
  except AbsentError as error:
    if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", str(error)):
      raise UnknownError(f"gcloud reports that something other than {name} is absent: {error}") from None
    if any(get_short_name(each) == name for each in list_items(group, **place)):
      raise UnknownError(f"{name} is not found, but {place['zone']} lists it") from None
    return None
  if not isinstance(item, dict) or get_short_name(item) != name:
    raise UnknownError(f"gcloud described {name} as {str(item)[:80]}")
  return item


def get_short_name(item: Mapping[str, object]) -> str:
  """Returns the last word of the name projects/P/locations/ZONE/queuedResources/NAME; "" without a name."""
  return str(item.get("name", "")).rpartition("/")[2]


def make_error(code: int, text: str) -> Exception:
  """Returns the exception for an exit code of gcloud and the text of its standard error."""
  reason = _shorten(text)
  if code == 2:
    return LaunchError(f"gcloud does not know a flag: {reason}. Run: gcloud components update, or report it", USAGE)
  if code != 1:
    return UnknownError(f"gcloud ended with {code}: {reason}")
  if re.search(_AWAY, text):
    return UnknownError(f"gcloud has no connection: {reason}")
  error = re.search(r"^ERROR: \([\w.-]+\) ([A-Z_]+): (.*)", text, re.MULTILINE | re.DOTALL)
  status, message = error.groups() if error else ("", text)
  if status == "NOT_FOUND":
    wrong_place = re.match(r"(?i)(the )?(requested )?(project|location|zone)s?\b", message)
    return LaunchError(f"gcloud: {reason}. Correct --project or --zone") if wrong_place else AbsentError(reason)
  if status == "ALREADY_EXISTS":
    return ExistsError(reason)
  if known := _make_refusal(status, message):
    return known
  # Without a status these are gcloud's own words, before it has sent the request.
  if (
    re.search(r"PERMISSION_DENIED|UNAUTHENTICATED", status) if status else re.search(rf"{_LOGIN}|PERMISSION_DEN", text)
  ):
    remedy = next(remedy for pattern, remedy in _REMEDIES if re.search(pattern, text))
    return LaunchError(f"denied: {reason}; {remedy}", DENIED)
  return UnknownError(f"gcloud: {reason}")


def _make_refusal(status: str, message: str) -> Exception | None:
  """Returns the exception for the status and message of a refused request, or None for other messages."""
  reason = _shorten(f"{status}: {message}" if status else message)
  if re.search(_CAPACITY, message):
    return LaunchError(f"no capacity: {reason}", NO_CAPACITY)
  if status in ("RESOURCE_EXHAUSTED", "") and re.search(_BUSY, message):
    return UnknownError(f"Cloud TPU is busy: {reason}")
  if status in _QUOTA_STATUS and re.search(_QUOTA, message):
    return QuotaError(f"quota: {reason}")
  if re.search(_WRONG, status or message):
    return LaunchError(f"Cloud TPU refuses: {reason}", USAGE)
  return None


def explain_failed(error: Mapping[str, Any]) -> tuple[int, str]:
  """Returns (exit code, reason) of a queued resource in the state FAILED, from a google.rpc.Status."""
  code, message = error.get("code", 0), error.get("message", "")
  status = _STATUS.get(code, "")
  reason = _shorten(f"{status}: {message}" if status and status not in message else message) or "no reason given"
  known = _make_refusal(status, message)
  if isinstance(known, LaunchError):
    return known.code, reason
  if code in (7, 16) or re.search(r"PERMISSION_DENIED|(?i:permission)", message):
    return DENIED, reason
  # Another attempt is the only remedy for an expired request, and for an unknown reason.
  expired = code in (4, 8) or re.search(r"(?i)valid.?until|deadline_exceeded|expired|timing constraint", message)
  return NO_CAPACITY, reason if expired else f"{reason} (code {code})"


def _shorten(text: str) -> str:
  """Returns an error on one line, without gcloud's prefix and its advice on the help."""
  text = re.sub(r"ERROR: \([\w.-]+\) ", "", text).partition("To search the help text")[0]
  text = " ".join(text.split())
  return text if len(text) <= 400 else f"{text[:400]}…"


QUEUE_STATES = {
  **dict.fromkeys(("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"), QUEUED),
  "PROVISIONING": STARTING,
  "ACTIVE": READY,  # if its nodes are ready
  **dict.fromkeys(("SUSPENDING", "SUSPENDED"), LOST),
  "FAILED": FAILED,
  "DELETING": DELETING,
}
NODE_STATES = {
  **dict.fromkeys(("CREATING", "STARTING"), STARTING),
  "READY": READY,
  **dict.fromkeys(("RESTARTING", "REIMAGING", "REPAIRING", "HIDING", "HIDDEN", "UNHIDING"), REPAIRING),
  **dict.fromkeys(("PREEMPTED", "TERMINATED", "STOPPING", "STOPPED", "DELETING", "UNKNOWN"), LOST),
}
# HEALTH_UNSPECIFIED, which JSON leaves out, means "not initialized or failed to retrieve". Then the reports of the
# workers decide.
HEALTHY = ("", "HEALTH_UNSPECIFIED", "HEALTHY")
ALONE = "without its queued resource"  # of a node
_WORST = (LOST, REPAIRING, STARTING, READY)


def get_state_word(item: Mapping[str, Any]) -> str:
  """Returns the cloud's word for the state of a queued resource or a node."""
  state = item.get("state", "")
  return (state.get("state", "") if isinstance(state, dict) else state) or "STATE_UNSPECIFIED"


def _get_node_specs(item: Mapping[str, Any]) -> list[dict[str, Any]]:
  """Returns the descriptions of the nodes of a queued resource, or of a node."""
  return item.get("tpu", {}).get("nodeSpec") or [{"node": item}]


def get_labels(item: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the labels of a node, or of the nodes of a queued resource."""
  return _get_node_specs(item)[0].get("node", {}).get("labels", {})


def check_item(item: Mapping[str, object]) -> None:
  """Raises UnknownError for a queued resource without labels or state, which every queued resource has."""
  found, state = get_labels(item), item.get("state")
  if (
    not isinstance(found, dict) or not found or not isinstance(state, dict) or not isinstance(get_state_word(item), str)
  ):
    raise UnknownError(f"{get_short_name(item)}: a description without labels or state: {str(item)[:80]}")


def get_item_owner(item: Mapping[str, object]) -> str:
  """Returns the owner of an item, for messages."""
  found = get_labels(item)
  if "vitjax" not in found:
    return "not of `launch`"
  return "attempt {} of run {} of {}".format(*(found.get(f"vitjax-{key}", "?") for key in ("attempt", "run", "owner")))


def get_queue_status(item: Mapping[str, Any]) -> MachineStatus:
  """Returns the state of a queued resource. READY means that its nodes exist and must be checked next."""
  state = QUEUE_STATES.get(get_state_word(item), STARTING)
  if state == FAILED:
    code, reason = explain_failed(item["state"].get("failedData", {}).get("error", {}))
    return MachineStatus(FAILED, reason, code, quota=code == DENIED and "quota" in reason.lower())
  initiator = item.get("state", {}).get("stateInitiator", "an unknown initiator")
  return MachineStatus(state, f"{get_state_word(item)}, by {initiator}" if state == LOST else get_state_word(item))


def get_nodes_status(nodes: Sequence[tuple[str, dict[str, Any] | None]], hosts: int) -> MachineStatus:
  """Returns the state of the nodes of an active queued resource, which is the state of the worst node.

  Args:
    nodes: (name, node), with None for a node that is absent.
    hosts: the number of hosts of a complete node.
  """
  looks = [_get_node_status(name, node, hosts) for name, node in nodes]
  worst = min((look.state for look in looks), key=_WORST.index)
  return MachineStatus(
    worst,
    "; ".join(look.detail for look in looks if look.state == worst and look.detail) or "READY",
    hosts=sum(look.hosts for look in looks),
    addresses=tuple(address for look in looks for address in look.addresses),
  )


def _get_node_status(name: str, node: Mapping[str, Any] | None, hosts: int) -> MachineStatus:
  """Returns the state of a node. If a node of an active queued resource is absent, it has been deleted."""
  if node is None:
    return MachineStatus(LOST, f"{name} is gone")
  state, health = NODE_STATES.get(get_state_word(node), STARTING), node.get("health", "")
  endpoints = [each.get("ipAddress", "") for each in node.get("networkEndpoints", [])]
  addresses = tuple(address for address in endpoints if address)
  details = [get_state_word(node)]
  if state == READY and health not in HEALTHY:
    state = REPAIRING
  elif state == READY and len(addresses) != hosts:
    state = STARTING
  if len(addresses) != hosts:
    without = "".join(f", none for worker {i}" for i, address in enumerate(endpoints) if not address)
    details.append(f"{len(addresses)} of {format_amount(hosts, 'host')} with an address{without}")
  details += [text for text in (health if health not in HEALTHY else "", node.get("healthDescription")) if text]
  details += [f"{each.get('symptomType')} of worker {each.get('workerId', '?')}" for each in node.get("symptoms", [])]
  return MachineStatus(
    state, f"{name}: {', '.join(details)}" if state != READY else "", hosts=len(addresses), addresses=addresses
  )


def make_item_resource(item: Mapping[str, Any]) -> Resource:
  """Returns a Resource for a queued resource, or for a node that has no queued resource."""
  word, spec, is_node = get_state_word(item), _get_node_specs(item)[0], "tpu" not in item
  _, _, _, zone, _, name = item["name"].split("/")
  kind = tpus.normalise_name(spec.get("node", {}).get("acceleratorType", "").rpartition("/")[2])
  several = spec.get("multisliceParams") or spec.get("multiNodeParams") or {}
  count = max(len(_get_node_specs(item)), several.get("nodeCount", 1))
  state = DELETING if word == "DELETING" else (NODE_STATES if is_node else QUEUE_STATES).get(word, STARTING)
  detail = f"{word}, {ALONE}" if is_node else word
  kind = f"{count}x{kind}" if count > 1 else kind
  return make_resource(name, zone, get_labels(item), state, detail, item.get("createTime", ""), kind)
