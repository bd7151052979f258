"""Checks a Google Cloud project before a run: permissions, APIs, quota, network and bucket.

All requests are read-only. Every check ends in one line: ok, refused or unknown. An answer that is missing, late,
forbidden or of another shape is unknown, and no conclusion is drawn from it.

Names of methods and fields: cloud.google.com/resource-manager/reference/rest/v1, /service-usage/docs/reference/rest,
/iam/docs/reference/rest/v1, /compute/docs/reference/rest/v1 and /storage/docs/json_api.
"""

import concurrent.futures
import dataclasses
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from . import errors, gke, machine, storage
from .errors import LaunchError, UnknownError, convert_unexpected, format_amount, guard_function
from .manifests import JOBSETS
from .spec import Run

TIMEOUT = 15.0  # seconds for an answer
LONGEST = 2**24  # bytes of an answer
# Methods that use POST and only read; every other request is a GET.
READING = (":testIamPermissions", ":getIamPolicy")
SERVERS = {
  "CLOUDRESOURCEMANAGER": "https://cloudresourcemanager.googleapis.com/",
  "SERVICEUSAGE": "https://serviceusage.googleapis.com/",
  "IAM": "https://iam.googleapis.com/",
  "COMPUTE": "https://compute.googleapis.com/compute/v1/",
  "STORAGE": "https://storage.googleapis.com/storage/v1/",
}
ME = '"user:$(gcloud config get account)"'
TPU = [f"tpu.{kind}.{verb}" for kind in ("nodes", "queuedResources") for verb in ("create", "delete", "get", "list")]
END = ["tpu.nodes.delete", "tpu.queuedResources.delete"]  # what a machine needs to delete itself
OBJECTS = ["storage.buckets.get", *(f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list"))]
_GENERATIONS = {"v5e": r"v5s?[-_ ]?lite", "v5p": r"v5p", "v6e": r"v6e"}


@dataclasses.dataclass(frozen=True)
class Finding:
  """A line for the user.

  Args:
    kind: note, ok, unknown, warn or refuse.
    text: the line.
    code: for refuse, the exit code of `launch`. After DENIED, the remaining checks are still useful.
  """

  kind: str
  text: str
  code: int = errors.USAGE

  @property
  def is_refusal(self) -> bool:
    """Returns whether `launch run` refuses such a run without --force."""
    return self.kind == "refuse"


class MissingError(Exception):
  """An error for HTTP status 404 from Google's API."""


class GoogleApi:
  """Read access to Google's APIs. The variables of gcloud (CLOUDSDK_API_ENDPOINT_OVERRIDES_…) select other servers.

  Args:
    token: token of the account, or None for emulators, which require none.
  """

  def __init__(self, token: storage.Token | None) -> None:
    self._token = token

  @guard_function("Google's API", (MissingError,))
  def read(self, service: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Returns the answer to a request that only reads.

    Args:
      service: a key of SERVERS.
      path: below the address of the server.
      body: for one of the methods of READING.

    Raises:
      MissingError: the object of the path does not exist.
      UnknownError: the answer is missing or unreadable.
    """
    assert body is None or path.partition("?")[0].endswith(READING), path
    server = os.environ.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service}", "")
    if not server and self._token is None:
      raise UnknownError("not checked, because emulators of Google Cloud are in use")
    content = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | (self._token.make_header() if self._token else {})
    request = urllib.request.Request(f"{(server or SERVERS[service]).rstrip('/')}/{path}", content, headers)
    try:
      with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        values = json.loads(answer.read(LONGEST))
    except urllib.error.HTTPError as error:
      with error:
        message = re.search(r'"message": *"([^"]*)', error.read(LONGEST).decode(errors="replace"))
      text = f"HTTP status {error.code}{f': {message[1]}' if message else ''}"
      raise MissingError(text) if error.code == 404 else UnknownError(text) from None
    if not isinstance(values, dict):
      raise UnknownError("the answer is not a JSON object")
    return values


def get_credentials() -> tuple[storage.Token | None, list[Finding]]:
  """Returns a token of the account, or a refusal. Emulators need no token."""
  disabled = os.environ.get("CLOUDSDK_AUTH_DISABLE_CREDENTIALS", "").lower() == "true"
  if os.environ.get("STORAGE_EMULATOR_HOST") or disabled:
    return None, []
  token = storage.Token()
  return token, run_check("credentials", _check_token, token)


def _check_token(token: storage.Token) -> Sequence[Finding]:
  token.make_header()
  return ()


def check_project(run: Run, token: storage.Token | None) -> Iterator[Finding]:
  """Yields one finding per check of the project of a run, in order.

  Args:
    run: a run of the backend qr.
    token: result of `get_credentials`.
  """
  google = GoogleApi(token)
  with concurrent.futures.ThreadPoolExecutor(16) as pool:
    for found in pool.map(lambda each: run_check(each[0], each[1], run, google, *each[2:]), list_checks(run)):
      yield from found


def list_checks(run: Run) -> list[tuple[Any, ...]]:
  """Returns (title, function, further arguments) of the checks that a run needs."""
  regions = sorted({zone.rpartition("-")[0] for zone in run.zones}) if run.internal_ips else ()
  return [
    ("permissions", check_permissions),
    *[("service account", check_service_account), ("self deletion", check_self_deletion)][
      : 2 * bool(run.service_account)
    ],
    ("APIs", check_apis),
    *((f"quota in {zone}", check_quota, zone) for zone in run.zones),
    ("network", check_network),
    *[("firewall", check_firewall)][: run.workers > 1],
    *((f"internal addresses in {region}", check_egress, region) for region in regions),
    ("bucket", check_bucket_access),
  ]


def run_check(title: str, check: Callable[..., Finding | Iterable[Finding]], *args: object) -> list[Finding]:
  """Returns the findings of a check, each on one line with a title.

  A LaunchError of the check is a refusal. An answer that is missing or has an unexpected form is unknown.
  """
  try:
    with convert_unexpected("the answer", (MissingError,)):
      found = check(*args)
      found = [found] if isinstance(found, Finding) else list(found)
  except LaunchError as error:
    found = [Finding("refuse", str(error), error.code)]
  except (UnknownError, MissingError) as error:
    found = [_make_unknown(f"not known ({_shorten_error(error) or 'no reason given'})")]
  return [dataclasses.replace(each, text=" ".join(f"{title}: {each.text}".split())) for each in found]


def check_cluster(run: Run) -> list[Finding]:
  """Returns whether the cluster of a run of the backend gke answers, knows JobSets and lets the user list them."""
  return run_check("cluster", _list_jobsets, run)


def _list_jobsets(run: Run) -> Finding:
  gke.run_kubectl([*gke.build_base_command(run.cluster, run.namespace), "get", JOBSETS, "--output=name"])
  return Finding("ok", f"JobSets can be listed in the namespace {run.namespace}")


def check_permissions(run: Run, google: GoogleApi) -> Finding:
  """Returns a finding about missing permissions of the user's account."""
  answer = google.read("CLOUDRESOURCEMANAGER", f"v1/projects/{run.project}:testIamPermissions", {"permissions": TPU})
  words = f"gcloud projects add-iam-policy-binding {run.project} --member={ME}"
  command = f"{words} --role=roles/tpu.admin --condition=None"
  return _compare_permissions(answer, TPU, f"your account in {run.project}", command)


def check_service_account(run: Run, google: GoogleApi) -> Finding:
  """Returns whether the account of the machines exists, and whether the user may use it."""
  wanted, account = ["iam.serviceAccounts.actAs"], run.service_account
  path = f"v1/projects/-/serviceAccounts/{account}:testIamPermissions"
  try:
    answer = google.read("IAM", path, {"permissions": wanted})
  except MissingError:
    command = f"gcloud iam service-accounts create {account.partition('@')[0]} --project={run.project}"
    return _make_refusal(f"the service account {account} does not exist. Run: {command}", errors.USAGE)
  words = f"gcloud iam service-accounts add-iam-policy-binding {account} --project={run.project}"
  command = f"{words} --member={ME} --role=roles/iam.serviceAccountUser"
  return _compare_permissions(answer, wanted, f"your account for {account}", command)


def check_self_deletion(run: Run, google: GoogleApi) -> Finding:
  """Returns whether the machines may delete themselves, which they do at the end of their time."""
  member, account = f"serviceAccount:{run.service_account}", run.service_account
  policy = google.read("CLOUDRESOURCEMANAGER", f"v1/projects/{run.project}:getIamPolicy", {})
  bindings = policy.get("bindings", [])
  missing, unread = {*END}, []
  for role in sorted({each["role"] for each in bindings if member in each["members"] and not each.get("condition")}):
    try:
      missing -= {*google.read("IAM", f"v1/{role}").get("includedPermissions", [])}
    except (UnknownError, MissingError) as error:
      unread.append(f"{role}: {error}")
  if not missing:
    return Finding("ok", f"{account} may delete its machines")
  if unread:
    raise UnknownError(f"a role of {account} cannot be read ({'; '.join(unread)})")
  role = f"projects/{run.project}/roles/vitjaxEnd"
  commands = (
    f"gcloud iam roles create vitjaxEnd --project={run.project} --permissions={','.join(END)} && gcloud projects "
    f"add-iam-policy-binding {run.project} --member={member} --role={role} --condition=None"
  )
  # A role of a folder or of the organisation is not in the policy of the project.
  return _make_unknown(f"{account} has no role of the project with {', '.join(sorted(missing))}. Run: {commands}")


def check_apis(run: Run, google: GoogleApi) -> Finding:
  """Returns a finding about APIs that are not enabled."""
  needed = ["tpu", "compute", "storage"]
  needed += ["secretmanager"] * any(each.startswith("projects/") for each in run.secrets.values())
  names = [f"{each}.googleapis.com" for each in needed]
  query = urllib.parse.urlencode([("names", f"projects/{run.project}/services/{name}") for name in names])
  answer = google.read("SERVICEUSAGE", f"v1/projects/{run.project}/services:batchGet?{query}")
  states = {each["name"].rpartition("/")[2]: each["state"] for each in answer["services"]}
  if off := [name for name in names if states.get(name) == "DISABLED"]:
    command = f"gcloud services enable {' '.join(off)} --project={run.project}"
    return _make_refusal(f"not enabled in {run.project}: {', '.join(off)}. Run: {command}")
  if unseen := [name for name in names if states.get(name) != "ENABLED"]:
    raise UnknownError(f"no answer about {', '.join(unseen)}")
  return Finding("ok", f"{', '.join(names)} are enabled")


def check_quota(run: Run, google: GoogleApi, zone: str) -> Finding:
  """Returns a finding about the quota of a zone, which must cover all chips. Its current use is unknown."""
  path = f"v1beta1/projects/{run.project}/services/tpu.googleapis.com/consumerQuotaMetrics?view=FULL&pageSize=1000"
  limits = _find_limits(run, google.read("SERVICEUSAGE", path))
  found = [value for value in (_get_limit(each, zone) for each in limits) if value is not None]
  limit, needed = min((value for value in found if value >= 0), default=None), format_amount(run.chips, "chip")
  kind = f"{run.capacity} {run.tpu}"
  if not found:
    raise UnknownError(f"no limit for {kind} is listed; see IAM & Admin, Quotas, in the console")
  if limit is not None and limit < run.chips:
    remedy = "Request more under IAM & Admin, Quotas, in the console, or use another --zone or --tpu"
    return _make_refusal(f"{limit} for {kind}, which needs {needed}. {remedy}")
  return Finding("ok", f"{'no limit' if limit is None else limit} for {kind}, {needed}")


def _find_limits(run: Run, values: Mapping[str, Any]) -> list[dict[str, Any]]:
  """Returns the limits for a type of slice and capacity, by names such as TPUV3sPodPerProjectPerZoneForTPUAPI."""
  if run.capacity == "flex-start":  # has no known limit
    return []
  generation, found = run.tpu.partition("-")[0], []
  for metric in values.get("metrics", []):
    for limit in metric.get("consumerQuotaLimits", []):
      text = " ".join(str(each.get(key, "")) for each in (metric, limit) for key in ("metric", "name", "displayName"))
      text = text.lower()
      same = re.search(_GENERATIONS.get(generation, rf"{generation}(?![0-9])"), text) and "serving" not in text
      same = same and ("preemptible" in text or "spot" in text) == (run.capacity == "spot")
      same = same and ("reserved" in text) == (run.capacity == "reserved")
      if generation in ("v2", "v3"):  # machines of one host have a quota of their own
        same = same and ("pod" in text) == (run.workers // run.slices > 1)
      found += [limit] if same else []
  return found


def _get_limit(limit: Mapping[str, Any], zone: str) -> int | None:
  """Returns the value of a limit in a zone, negative for unlimited, or None without a value."""
  values = {}
  for each in limit.get("quotaBuckets", []):
    place = each.get("dimensions") or {}
    values[place.get("zone") or place.get("region") or ""] = int(each["effectiveLimit"])
  return next((values[place] for place in (zone, zone.rpartition("-")[0], "") if place in values), None)


def check_network(run: Run, google: GoogleApi) -> Finding:
  """Returns whether the network exists."""
  name = _get_network(run)
  try:
    google.read("COMPUTE", f"projects/{run.project}/global/networks/{name}")
  except MissingError:
    command = f"gcloud compute networks create {name} --project={run.project}"
    return _make_refusal(f"the network {name} does not exist in {run.project}. Run: {command}", errors.USAGE)
  return Finding("ok", f"{name} exists")


def _get_network(run: Run) -> str:
  return run.network or "default"


def _is_in(item: Mapping[str, Any], run: Run) -> bool:
  return item["network"].rpartition("/")[2] == _get_network(run)


def check_firewall(run: Run, google: GoogleApi) -> Finding:
  """Returns whether a rule lets the hosts of a run connect to the coordinator."""
  name, answer = _get_network(run), google.read("COMPUTE", f"projects/{run.project}/global/firewalls?maxResults=500")
  for rule in answer.get("items", []):
    if _is_in(rule, run) and _opens_ports(rule, run):
      return Finding("ok", f"rule {rule['name']} lets the hosts connect to each other")
  command = (
    f"gcloud compute firewall-rules create vitjax-internal --project={run.project} --network={name} "
    "--direction=INGRESS --source-tags=vitjax --target-tags=vitjax --allow=tcp:8470-8482,tcp:8080-8081"
  )
  text = f"no rule of {name} opens tcp {machine.PORTS[0]}-{machine.PORTS[-1]} between the hosts"
  return _make_unknown(f"{text}. A policy of the organisation may open them. Otherwise run: {command}")


def _opens_ports(rule: Mapping[str, Any], run: Run) -> bool:
  """Returns whether a firewall rule opens the coordinator's ports from and to the hosts of a run."""
  if rule.get("direction") != "INGRESS" or rule.get("disabled"):
    return False
  to = rule.get("targetTags") or rule.get("targetServiceAccounts")
  if to and "vitjax" not in to and run.service_account not in to:
    return False
  private = [each for each in rule.get("sourceRanges", []) if re.match(r"10\.|172\.|192\.168\.|0\.0\.0\.0/0", each)]
  sources = [*rule.get("sourceTags", []), *rule.get("sourceServiceAccounts", [])]
  if not private and "vitjax" not in sources and (run.service_account or "-") not in sources:
    return False
  for each in rule.get("allowed", []):
    ranges = [part.partition("-")[::2] for part in each.get("ports", ["0-65535"])]
    whole = any(int(low) <= machine.PORTS[0] and machine.PORTS[-1] <= int(high or low) for low, high in ranges)
    if each["IPProtocol"] in ("all", "tcp", "6") and whole:
      return True
  return False


def check_egress(run: Run, google: GoogleApi, region: str) -> Finding:
  """Returns whether hosts without external addresses reach the bucket and PyPI."""
  place, name = f"projects/{run.project}/regions/{region}", _get_network(run)
  subnetwork = run.subnetwork or name
  try:
    subnet = google.read("COMPUTE", f"{place}/subnetworks/{subnetwork}")
  except MissingError:
    return _make_refusal(f"the subnetwork {subnetwork} does not exist. Correct --subnetwork", errors.USAGE)
  routers = google.read("COMPUTE", f"{place}/routers").get("items", [])
  nat = any(each.get("nats") for each in routers if _is_in(each, run))
  if subnet.get("privateIpGoogleAccess") is not True and not nat:
    command = (
      f"gcloud compute networks subnets update {subnetwork} --project={run.project} --region={region} "
      "--enable-private-ip-google-access"
    )
    text = f"{subnetwork} has neither Private Google Access nor Cloud NAT, so no host reaches the bucket"
    return _make_refusal(f"{text}. Run: {command}")
  if not nat and not run.python:
    commands = (
      f"gcloud compute routers create vitjax --project={run.project} --network={name} --region={region} && "
      f"gcloud compute routers nats create vitjax --project={run.project} --router=vitjax --region={region} "
      "--auto-allocate-nat-external-ips --nat-all-subnet-ip-ranges"
    )
    text = f"{name} has no Cloud NAT, through which hosts install packages, but they may have another connection"
    return _make_unknown(f"{text}. Otherwise run: {commands}")
  return Finding("ok", f"hosts reach the bucket{' and PyPI' if nat else ''}")


def get_bucket_url(path: str) -> str:
  """Returns gs://BUCKET for a path in a bucket."""
  return "/".join(path.split("/")[:3])


def check_bucket_access(run: Run, google: GoogleApi) -> Finding:
  """Returns whether the user may read and write the bucket of the run."""
  name = get_bucket_url(run.workdir)
  query = urllib.parse.urlencode([("permissions", each) for each in OBJECTS])
  answer = google.read("STORAGE", f"b/{name.removeprefix('gs://')}/iam/testPermissions?{query}")
  commands = " && ".join(
    f"gcloud storage buckets add-iam-policy-binding {name} --member={ME} --role=roles/storage.{role}"
    for role in ("objectUser", "legacyBucketReader")
  )
  return _compare_permissions(answer, OBJECTS, f"your account in {name}", commands)


def _compare_permissions(answer: Mapping[str, object], wanted: Sequence[str], account: str, command: str) -> Finding:
  """Returns a finding about permissions that are missing in an answer of testIamPermissions."""
  granted = answer.get("permissions", [])
  if not isinstance(granted, list):
    raise TypeError("permissions is not a list")
  if missing := [each for each in wanted if each not in granted]:
    return _make_refusal(f"{account} lacks {', '.join(missing)}. Run: {command}")
  return Finding("ok", f"{account} has all required permissions")


def _make_refusal(text: str, code: int = errors.DENIED) -> Finding:
  return Finding("refuse", text, code)


def _make_unknown(text: str) -> Finding:
  return Finding("unknown", text)


def _shorten_error(error: Exception) -> str:
  text = " ".join(str(error).split())
  return text if len(text) <= 200 else f"{text[:200]}…"
