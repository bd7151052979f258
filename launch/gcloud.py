"""Calls gcloud, and tells what its answers mean: its complaints, queued resources and nodes.

gcloud ends with 2 for flags it does not know, and with 1 for all else, of which its text says "ERROR: (gcloud.…) WORD:
…". It tries again by itself, half a minute long, where a connection breaks or a server fails; nothing is tried again
here, for who watches a run asks again anyway. Words are those of SDK 528, googlecloudsdk/generated_clients/apis/tpu/v2;
a word of a state that is not among them is STARTING.
"""

import calendar
import json
import os
import re
import shlex
import signal
import subprocess
import time

from launch import tpus
from launch.assumptions import CALL
from launch.engine import DELETING, FAILED, LOST, QUEUED, READY, REPAIRING, STARTING, Look, Resource
from launch.errors import DENIED, NO_CAPACITY, USAGE, LaunchError, QuotaError, UnknownError, amount

TIMEOUT = CALL  # gcloud's own tries end after 33 s

# What says that gcloud did not get through, whatever else is said: also while it renews its credentials.
_AWAY = (
  r"ConnectionPool|Max retries exceeded|name resolution|Unable to find the server|gcloud crashed|network connectivity"
  r"|Connection (refused|reset|aborted)|timed out|RemoteDisconnected|Broken pipe|SSLError"
)
_LOGIN = (
  r"UNAUTHENTICATED|[Rr]eauth|invalid_grant|auth tokens|active account|gcloud auth (login|application)"
  r"|valid credentials|login again"
)
# Answers to many requests at once, which have nothing to do with the quota of chips.
_BUSY = r"(?i)per minute|rate.?limit|too many requests|e\.g\. check quota"
_CAPACITY = (
  r"(?i)no more capacity|insufficient capacity|out of capacity|not enough (resources|capacity)|stockout"
  r"|resource_pool_exhausted|no available (resources|capacity)|does not have enough resources"
)
_QUOTA = r"(?i)quota"
_EXPIRED = r"(?i)valid.?until|deadline_exceeded|expired|timing constraint"
_WRONG = r"INVALID_ARGUMENT|Invalid value for \[|OUT_OF_RANGE|UNIMPLEMENTED"
_PLACE = r"(?i)(the )?(requested )?(project|location|zone)s?\b"


class AbsentError(Exception):
  """The cloud says that there is no such thing: NOT_FOUND, and nothing else."""


class ExistsError(Exception):
  """The cloud says that there is such a thing already: ALREADY_EXISTS."""


def command(*words: str, alpha: bool = False, **flags) -> list:
  """The argument list of `gcloud compute tpus …`, each flag and its value as one word: --flag=value.

  Args:
    words: before the flags: ours, and a name.
    flags: `node_id="a"` is --node-id=a; True is the flag alone; None, False and "" leave it out.
  """
  argv = ["gcloud", *(("alpha",) if alpha else ()), "compute", "tpus", *words]
  for name, value in flags.items():
    flag = f"--{name.replace('_', '-')}"
    if value is True:
      argv.append(flag)
    elif value not in (None, False, ""):
      argv.append(f"{flag}={value}")
  return argv


def executed(argv: list) -> list:
  """Returns the argument list that `run` executes for one of `command`."""
  return [*argv, "--quiet", "--format=json"]


def run(argv: list, timeout: float = TIMEOUT, folder: "str | None" = None):
  """What gcloud says, from JSON; None where it says nothing.

  Args:
    argv: of `command`.
    timeout: seconds.
    folder: where it runs, for flags that name a file.

  Raises:
    AbsentError, ExistsError: what they say.
    LaunchError: it refuses for good, with USAGE, DENIED (QuotaError among them) or NO_CAPACITY.
    UnknownError: there is no answer, or none that can be read; what was asked for may have been done.
  """
  try:
    # A group of its own, which ends as a whole; and Ctrl-C in a terminal breaks off no request that is on its way.
    process = subprocess.Popen(
      executed(argv),
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      cwd=folder,
      start_new_session=True,
    )
  except FileNotFoundError:
    if folder and not os.path.isdir(folder):
      raise UnknownError(f"{folder}: the temporary directory is gone") from None
    raise LaunchError("gcloud is not installed; get it from cloud.google.com/sdk/docs/install", DENIED) from None
  except OSError as error:
    raise UnknownError(f"gcloud cannot be run now: {error.strerror}") from None
  try:
    answer, complaint = process.communicate(timeout=timeout)
  except subprocess.TimeoutExpired:
    raise UnknownError(f"`{shlex.join(argv[:6])}` did not answer within {timeout:g} s") from None
  finally:
    if process.poll() is None:
      os.killpg(process.pid, signal.SIGKILL)
      process.wait()
      process.stdout.close()
      process.stderr.close()
  if process.returncode:
    raise failure(process.returncode, complaint.decode(errors="replace"))
  try:
    return json.loads(answer) if answer.strip() else None
  except (ValueError, RecursionError):
    raise UnknownError(f"gcloud said what is no JSON: {answer[:80]!r}") from None


def listed(group: str, project: str, zone: str) -> list[dict]:
  """Returns all items of a group in a zone. UnknownError for an answer that is no list of objects with names."""
  items = run(command(group, "list", project=project, zone=zone))
  if not isinstance(items, list) or not all(isinstance(i, dict) and isinstance(i.get("name"), str) for i in items):
    raise UnknownError(f"gcloud listed {group} of {zone} as {str(items)[:80]}")
  return items


def described(group: str, name: str, project: str, zone: str) -> "dict | None":
  """Returns a queued resource or a node; None if the cloud says that there is none, and its list confirms that."""
  try:
    item = run(command(group, "describe", name, project=project, zone=zone))
  except AbsentError as error:
    if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", str(error)):
      raise UnknownError(f"gcloud reports that something other than {name} is absent: {error}") from None
    if any(last(each) == name for each in listed(group, project, zone)):
      raise UnknownError(f"{name} is not found, but {zone} lists it") from None
    return None
  if not isinstance(item, dict) or last(item) != name:
    raise UnknownError(f"gcloud described {name} as {str(item)[:80]}")
  return item


def last(item: dict) -> str:
  """Returns the last word of an item's name, projects/P/locations/ZONE/queuedResources/NAME; "" for none."""
  return str(item.get("name", "")).rpartition("/")[2]


def failure(code: int, text: str) -> Exception:
  """What gcloud's exit code and complaint mean, as an exception to raise."""
  said = short(text)
  if code == 2:
    return LaunchError(f"gcloud does not know a flag; `gcloud components update`, or report it: {said}", USAGE)
  if code != 1:
    return UnknownError(f"gcloud ended with {code}: {said}")
  if re.search(_AWAY, text):
    return UnknownError(f"gcloud did not get through: {said}")
  error = re.search(r"^ERROR: \([\w.-]+\) ([A-Z_]+): (.*)", text, re.MULTILINE | re.DOTALL)
  status, message = error.groups() if error else ("", text)
  if status == "NOT_FOUND":
    return LaunchError(f"gcloud: {said}; see --project and --zone") if re.match(_PLACE, message) else AbsentError(said)
  if status == "ALREADY_EXISTS":
    return ExistsError(said)
  return refusal(status, message) or (_denial(text, said) if _denied(status, text) else UnknownError(f"gcloud: {said}"))


def refusal(status: str, message: str) -> "Exception | None":
  """What a request's status and message mean, of a call or of what became of it later; None for anything else."""
  said = short(f"{status}: {message}" if status else message)
  if re.search(_CAPACITY, message):
    return LaunchError(f"no capacity: {said}", NO_CAPACITY)
  if status in ("RESOURCE_EXHAUSTED", "") and re.search(_BUSY, message):
    return UnknownError(f"Cloud TPU is busy: {said}")
  if status in ("RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "") and re.search(_QUOTA, message):
    return QuotaError(f"quota: {said}")
  if re.search(_WRONG, status or message):
    return LaunchError(f"Cloud TPU refuses: {said}", USAGE)
  return None


def failed(error: dict) -> tuple:
  """(exit code, words) of a queued resource in FAILED, from its failedData.error: a google.rpc.Status."""
  code, message = error.get("code", 0), error.get("message", "")
  status = {3: "INVALID_ARGUMENT", 4: "DEADLINE_EXCEEDED", 7: "PERMISSION_DENIED", 8: "RESOURCE_EXHAUSTED",
            9: "FAILED_PRECONDITION", 16: "UNAUTHENTICATED"}.get(code, "")  # fmt: skip
  said = short(f"{status}: {message}" if status and status not in message else message) or "no reason given"
  known = refusal(status, message)
  if isinstance(known, LaunchError):
    return known.code, said
  if code in (7, 16) or re.search(r"PERMISSION_DENIED|(?i:permission)", message):
    return DENIED, said
  # Capacity, and a time that has run out; and what nobody knows, for which another attempt is the only remedy.
  expiry = code in (4, 8) or re.search(_EXPIRED, message)
  return NO_CAPACITY, said if expiry else f"{said} (code {code})"


def short(text: str) -> str:
  """A complaint on one line, without gcloud's own prefix and advice on how to search its help."""
  text = re.sub(r"ERROR: \([\w.-]+\) ", "", text).partition("To search the help text")[0]
  text = " ".join(text.split())
  return text if len(text) <= 400 else f"{text[:400]}…"


def _denied(status, text):
  if status:
    return status in ("PERMISSION_DENIED", "UNAUTHENTICATED")
  return re.search(rf"{_LOGIN}|PERMISSION_DENIED", text)  # gcloud's own words, before it has asked


def _denial(text, said):
  """A refusal, with what to do about it."""
  if re.search(r"SERVICE_DISABLED|has not been used in project|API .{0,60}(not|dis)(-| )?(been )?(en)?abled", text):
    remedy = "run: gcloud services enable tpu.googleapis.com"
  elif re.search(_LOGIN, text) and "PERMISSION_DENIED" not in text:
    remedy = "run: gcloud auth login"
  elif re.search(r"(?i)actAs|service ?account", text):
    remedy = "ask for roles/iam.serviceAccountUser on the account of --service-account"
  else:
    remedy = "ask for roles/tpu.admin on the project (see `gcloud auth list` for who asks)"
  return LaunchError(f"denied: {said}; {remedy}", DENIED)


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


def check(item: dict) -> None:
  """Raises UnknownError for a queued resource without labels or state, which are the last that it would lose."""
  found, state = labels(item), item.get("state")
  if not isinstance(found, dict) or not found or not isinstance(state, dict) or not isinstance(word(item), str):
    raise UnknownError(f"{last(item)}: a description without labels or state: {str(item)[:80]}")


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
    error = item["state"].get("failedData", {}).get("error", {})
    code, reason = failed(error)
    return Look(FAILED, reason, code, quota=code == DENIED and "quota" in reason.lower())
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
