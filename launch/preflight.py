"""Checks a Google Cloud project before a run: permissions, APIs, quota, network and bucket.

All requests only read. Every check ends in one line: ok, refused or unknown. An answer that is missing, late, forbidden
or of another shape is unknown; nothing is concluded from it.

Names of methods and fields: cloud.google.com/resource-manager/reference/rest/v1, /service-usage/docs/reference/rest,
/iam/docs/reference/rest/v1, /compute/docs/reference/rest/v1 and /storage/docs/json_api.
"""

import concurrent.futures
import dataclasses
import http.client
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator

from launch import errors, machine, manifests, storage
from launch.errors import LaunchError, UnknownError, amount
from launch.spec import Run

TIMEOUT = 15.0  # seconds for an answer
LONGEST = 2**24  # bytes of an answer
# Methods that use POST and change nothing; every other request is a GET.
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
_SHAPES = (KeyError, TypeError, ValueError, AttributeError, IndexError)  # of an answer that is not as documented


@dataclasses.dataclass(frozen=True)
class Finding:
  """A line for the user.

  Args:
    kind: refuse, warn or note; of a check of the project ok, refuse or unknown.
    code: of what refuses, the exit code of `launch`; DENIED where the rest is worth being looked at all the same.
  """

  kind: str
  text: str
  code: int = errors.USAGE

  @property
  def refuses(self) -> bool:
    """Whether `launch run` does not start such a run, unless --force."""
    return self.kind == "refuse"


@dataclasses.dataclass(frozen=True)
class Answer:
  """An answer to a request.

  Args:
    status: of HTTP; 0 if there was no answer.
    values: the JSON object; empty if there is none.
    why: the reason why the status is not 200, on one line.
  """

  status: int
  values: dict = dataclasses.field(default_factory=dict)
  why: str = ""


class Google:
  """Google's APIs, for reading. The variables of gcloud (CLOUDSDK_API_ENDPOINT_OVERRIDES_…) lead to other servers.

  Args:
    token: of the account; None to ask without one, which only emulators allow.
  """

  def __init__(self, token: "storage.Token | None"):
    self._token = token

  def read(self, service: str, path: str, body: "dict | None" = None) -> Answer:
    """Returns the answer to a request that changes nothing.

    Args:
      service: a key of SERVERS.
      path: below the address of the server.
      body: for one of the methods of READING.
    """
    assert body is None or path.partition("?")[0].endswith(READING), path
    server = os.environ.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service}", "")
    if not server and self._token is None:
      return Answer(0, why="not asked, because emulators of Google Cloud are in use")
    content = None if body is None else json.dumps(body).encode()
    try:
      headers = {"Content-Type": "application/json"} | (self._token.header() if self._token else {})
      request = urllib.request.Request(f"{(server or SERVERS[service]).rstrip('/')}/{path}", content, headers)
      with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        values = json.loads(answer.read(LONGEST))
    except urllib.error.HTTPError as error:
      return Answer(error.code, why=f"HTTP status {error.code}{_message(error)}")
    except (OSError, ValueError, RecursionError, http.client.HTTPException, LaunchError, UnknownError) as error:
      return Answer(0, why=_short(getattr(error, "reason", None) or error) or type(error).__name__)
    return Answer(200, values) if isinstance(values, dict) else Answer(0, why="the answer is not a JSON object")


def credentials() -> "tuple[storage.Token | None, list[Finding]]":
  """Returns a token of the account, and a refusal if there is none. Emulators need no token."""
  disabled = os.environ.get("CLOUDSDK_AUTH_DISABLE_CREDENTIALS", "").lower() == "true"
  if os.environ.get("STORAGE_EMULATOR_HOST") or disabled:
    return None, []
  token = storage.Token()
  try:
    token.header()
  except LaunchError as error:
    return None, [Finding("refuse", f"credentials: {error}", errors.DENIED)]
  except UnknownError as error:
    return token, [Finding("unknown", f"credentials: {error}")]
  return token, []


def of_project(run: Run, token: "storage.Token | None") -> Iterator[Finding]:
  """Finds what would prevent a run of the backend qr in its project; each finding as soon as it is known.

  Args:
    run: of the backend qr.
    token: of `credentials`.
  """
  google = Google(token)
  checks = [permissions, apis, quota, network, bucket]
  if run.service_account:
    checks[1:1] = [service_account, self_deletion]
  with concurrent.futures.ThreadPoolExecutor(len(checks)) as pool:
    for found in pool.map(lambda check: _known(check, run, google), checks):
      yield from found


def of_cluster(run: Run) -> Iterator[Finding]:
  """Finds whether the cluster of a run of the backend gke answers, knows JobSets and lets the user list them."""
  words = [*manifests.base(run.cluster, run.namespace), "get", manifests.JOBSETS, "--output=name"]
  try:
    manifests.ask(words)
    yield Finding("ok", f"cluster: JobSets can be listed in the namespace {run.namespace}")
  except (UnknownError, LookupError, OSError) as error:
    yield _unknown("cluster", _short(error))
  except LaunchError as error:
    yield Finding("refuse", f"cluster: {error}", error.code)


def _known(check: Callable, run: Run, google: Google) -> list[Finding]:
  """Returns the findings of a check; unknown if an answer has another shape than documented."""
  title = check.__name__.replace("_", " ")
  try:
    return list(check(run, google))
  except _SHAPES as error:
    return [_unknown(title, f"an answer of an unknown form ({type(error).__name__}: {_short(error)})")]


def permissions(run: Run, google: Google) -> Iterator[Finding]:
  """Finds permissions that the account of the user lacks."""
  path = f"v1/projects/{run.project}:testIamPermissions"
  answer = google.read("CLOUDRESOURCEMANAGER", path, {"permissions": TPU})
  words = f"gcloud projects add-iam-policy-binding {run.project} --member={ME}"
  binding = f"{words} --role=roles/tpu.admin --condition=None"
  yield from _granted("permissions", answer, TPU, f"your account in {run.project}", binding)


def service_account(run: Run, google: Google) -> Iterator[Finding]:
  """Finds whether the account of the machines exists, and whether the user may use it."""
  wanted = ["iam.serviceAccounts.actAs"]
  path = f"v1/projects/-/serviceAccounts/{run.service_account}:testIamPermissions"
  answer = google.read("IAM", path, {"permissions": wanted})
  if answer.status == 404:
    name = run.service_account.partition("@")[0]
    command = f"gcloud iam service-accounts create {name} --project={run.project}"
    yield Finding("refuse", f"service account: there is no {run.service_account}. Run: {command}", errors.USAGE)
    return
  words = f"gcloud iam service-accounts add-iam-policy-binding {run.service_account} --project={run.project}"
  binding = f"{words} --member={ME} --role=roles/iam.serviceAccountUser"
  yield from _granted("service account", answer, wanted, f"your account for {run.service_account}", binding)


def self_deletion(run: Run, google: Google) -> Iterator[Finding]:
  """Finds whether the machines may delete themselves, which they do at the end of their time."""
  member, title = f"serviceAccount:{run.service_account}", "self deletion"
  answer = google.read("CLOUDRESOURCEMANAGER", f"v1/projects/{run.project}:getIamPolicy", {})
  if answer.status != 200:
    yield _unknown(title, answer.why)
    return
  bindings = answer.values.get("bindings", [])
  roles = sorted({each["role"] for each in bindings if member in each["members"] and not each.get("condition")})
  read = [google.read("IAM", f"v1/{role}") for role in roles]
  missing = {*END} - {each for role in read for each in role.values.get("includedPermissions", [])}
  unread = [f"{role}: {each.why}" for role, each in zip(roles, read, strict=True) if each.status != 200]
  if missing and unread:
    yield _unknown(title, f"a role of {run.service_account} cannot be read ({'; '.join(unread)})")
  elif missing:
    role = f"projects/{run.project}/roles/vitjaxEnd"
    commands = (
      f"gcloud iam roles create vitjaxEnd --project={run.project} --permissions={','.join(END)} && gcloud projects "
      f"add-iam-policy-binding {run.project} --member={member} --role={role} --condition=None"
    )
    # A role of a folder or of the organisation is not in the policy of the project.
    text = f"{run.service_account} has no role of the project with {', '.join(sorted(missing))}. Run: {commands}"
    yield Finding("unknown", f"{title}: {text}")
  else:
    yield Finding("ok", f"{title}: {run.service_account} may delete its machines")


def apis(run: Run, google: Google) -> Iterator[Finding]:
  """Finds APIs that are not enabled."""
  needed = ["tpu", "compute", "storage"]
  needed += ["secretmanager"] * any(each.startswith("projects/") for each in run.secrets.values())
  names = [f"{each}.googleapis.com" for each in needed]
  query = urllib.parse.urlencode([("names", f"projects/{run.project}/services/{name}") for name in names])
  answer = google.read("SERVICEUSAGE", f"v1/projects/{run.project}/services:batchGet?{query}")
  if answer.status != 200:
    yield _unknown("APIs", answer.why)
    return
  states = {each["name"].rpartition("/")[2]: each["state"] for each in answer.values["services"]}
  off = [name for name in names if states.get(name) == "DISABLED"]
  unseen = [name for name in names if states.get(name) not in ("ENABLED", "DISABLED")]
  if off:
    command = f"gcloud services enable {' '.join(off)} --project={run.project}"
    yield Finding("refuse", f"APIs: not enabled in {run.project}: {', '.join(off)}. Run: {command}", errors.DENIED)
  elif unseen:
    yield _unknown("APIs", f"no state of {', '.join(unseen)}")
  else:
    yield Finding("ok", f"APIs: {', '.join(names)} are enabled")


def quota(run: Run, google: Google) -> Iterator[Finding]:
  """Finds whether the quota of each zone is at least the number of chips; what is in use is not known."""
  path = f"v1beta1/projects/{run.project}/services/tpu.googleapis.com/consumerQuotaMetrics?view=FULL&pageSize=1000"
  answer = google.read("SERVICEUSAGE", path)
  for zone in run.zones:
    title = f"quota in {zone}"
    if answer.status != 200:
      yield _unknown(title, answer.why)
      continue
    found = [value for value in (_limit(each, zone) for each in _limits(run, answer.values)) if value is not None]
    limit = min((value for value in found if value >= 0), default=None)
    kind = f"{run.capacity} {run.tpu}"
    if not found:
      yield _unknown(title, f"no limit for {kind} is listed; see IAM & Admin, Quotas, in the console")
    elif limit is not None and limit < run.chips:
      remedy = "Request more under IAM & Admin, Quotas, in the console, or use another --zone or --tpu"
      yield Finding(
        "refuse", f"{title}: {limit} for {kind}, which needs {amount(run.chips, 'chip')}. {remedy}", errors.DENIED
      )
    else:
      yield Finding("ok", f"{title}: {'no limit' if limit is None else limit} for {kind}, {amount(run.chips, 'chip')}")


def _limits(run, values):
  """Returns the limits for a type of slice and capacity, by names such as TPUV3sPodPerProjectPerZoneForTPUAPI."""
  generation = run.tpu.partition("-")[0]
  found = []
  for metric in values.get("metrics", []):
    for limit in metric.get("consumerQuotaLimits", []):
      text = " ".join(str(each.get(key, "")) for each in (metric, limit) for key in ("metric", "name", "displayName"))
      text = text.lower()
      same = re.search(_GENERATIONS.get(generation, rf"{generation}(?![0-9])"), text) and "serving" not in text
      same = same and ("preemptible" in text or "spot" in text) == (run.capacity == "spot")
      same = same and ("reserved" in text) == (run.capacity == "reserved")
      if generation in ("v2", "v3"):  # machines of one host have a quota of their own
        same = same and ("pod" in text) == (run.workers // run.slices > 1)
      if same and run.capacity != "flex-start":
        found.append(limit)
  return found


def _limit(limit, zone):
  """Returns the value of a limit in a zone, negative for unlimited; None if it has none."""
  values = {}
  for each in limit.get("quotaBuckets", []):
    place = each.get("dimensions") or {}
    values[place.get("zone") or place.get("region") or ""] = int(each["effectiveLimit"])
  return next((values[place] for place in (zone, zone.rpartition("-")[0], "") if place in values), None)


def network(run: Run, google: Google) -> Iterator[Finding]:
  """Finds whether the network exists, its hosts reach each other, and hosts without addresses reach Google and PyPI."""
  name, base = run.network or "default", f"projects/{run.project}"
  answer = google.read("COMPUTE", f"{base}/global/networks/{name}")
  if answer.status == 404:
    command = f"gcloud compute networks create {name} --project={run.project}"
    yield Finding("refuse", f"network: there is no network {name} in {run.project}. Run: {command}", errors.USAGE)
    return
  yield Finding("ok", f"network: {name} exists") if answer.status == 200 else _unknown("network", answer.why)
  if run.workers > 1:
    yield _firewall(run, google.read("COMPUTE", f"{base}/global/firewalls?maxResults=500"), name)
  if run.internal_ips:
    for region in sorted({zone.rpartition("-")[0] for zone in run.zones}):
      place = f"{base}/regions/{region}"
      subnetwork = run.subnetwork or name
      answers = [google.read("COMPUTE", f"{place}/{path}") for path in (f"subnetworks/{subnetwork}", "routers")]
      yield _ways_out(run, name, subnetwork, region, *answers)


def _firewall(run, answer, name):
  """Returns whether a rule lets the hosts of a run connect to the coordinator."""
  if answer.status != 200:
    return _unknown("firewall", answer.why)
  for rule in answer.values.get("items", []):
    if rule["network"].rpartition("/")[2] == name and _opens(rule, run):
      return Finding("ok", f"firewall: rule {rule['name']} lets the hosts connect to each other")
  command = (
    f"gcloud compute firewall-rules create vitjax-internal --project={run.project} --network={name} "
    "--direction=INGRESS --source-tags=vitjax --target-tags=vitjax --allow=tcp:8470-8482,tcp:8080-8081"
  )
  text = f"no rule of {name} opens tcp {machine.PORTS[0]}-{machine.PORTS[-1]} between the hosts; a policy of the"
  return Finding("unknown", f"firewall: {text} organisation may do so. Otherwise run: {command}")


def _opens(rule, run):
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


def _ways_out(run, name, subnetwork, region, subnet, routers):
  """Returns whether hosts without external addresses reach the bucket and PyPI."""
  title = f"internal addresses in {region}"
  if subnet.status == 404:
    return Finding("refuse", f"{title}: there is no subnetwork {subnetwork}. Correct --subnetwork", errors.USAGE)
  if subnet.status != 200 or routers.status != 200:
    return _unknown(title, subnet.why or routers.why)
  mine = [each for each in routers.values.get("items", []) if each["network"].rpartition("/")[2] == name]
  nat = any(each.get("nats") for each in mine)
  access = subnet.values.get("privateIpGoogleAccess") is True
  enable = (
    f"gcloud compute networks subnets update {subnetwork} --project={run.project} --region={region} "
    "--enable-private-ip-google-access"
  )
  create = (
    f"gcloud compute routers create vitjax --project={run.project} --network={name} --region={region} && gcloud "
    f"compute routers nats create vitjax --project={run.project} --router=vitjax --region={region} "
    "--auto-allocate-nat-external-ips --nat-all-subnet-ip-ranges"
  )
  if not access and not nat:
    text = f"{subnetwork} has neither Private Google Access nor Cloud NAT, so no host reaches the bucket"
    return Finding("refuse", f"{title}: {text}. Run: {enable}", errors.DENIED)
  if not nat and not run.python:
    text = f"{name} has no Cloud NAT, through which hosts install packages; another way out may exist"
    return Finding("unknown", f"{title}: {text}. Otherwise run: {create}")
  return Finding("ok", f"{title}: hosts reach the bucket{' and PyPI' if nat else ''}")


def bucket_of(path: str) -> str:
  """Returns gs://BUCKET of a path in a bucket."""
  return "/".join(path.split("/")[:3])


def bucket(run: Run, google: Google) -> Iterator[Finding]:
  """Finds whether the user may read and write the bucket of the run."""
  name = bucket_of(run.workdir)
  query = urllib.parse.urlencode([("permissions", each) for each in OBJECTS])
  answer = google.read("STORAGE", f"b/{name.removeprefix('gs://')}/iam/testPermissions?{query}")
  commands = " && ".join(
    f"gcloud storage buckets add-iam-policy-binding {name} --member={ME} --role=roles/storage.{role}"
    for role in ("objectUser", "legacyBucketReader")
  )
  yield from _granted("bucket", answer, OBJECTS, f"your account in {name}", commands)


def _granted(title, answer, wanted, whose, command):
  """Finds permissions that are not among those of an answer of testIamPermissions."""
  if answer.status != 200:
    yield _unknown(title, answer.why)
    return
  granted = answer.values.get("permissions", [])
  if not isinstance(granted, list):
    raise TypeError("permissions is not a list")
  if missing := [each for each in wanted if each not in granted]:
    yield Finding("refuse", f"{title}: {whose} lacks {', '.join(missing)}. Run: {command}", errors.DENIED)
  else:
    yield Finding("ok", f"{title}: {whose} has all that is needed")


def _unknown(title, why):
  return Finding("unknown", f"{title}: not known ({why or 'no reason given'})")


def _message(error):
  """Returns the message of an error of Google's APIs, with a separator."""
  try:
    with error:
      text = error.read(LONGEST).decode(errors="replace")
    return f": {_short(json.loads(text)['error']['message'])}"
  except (OSError, http.client.HTTPException, RecursionError, *_SHAPES):
    return ""


def _short(value):
  text = " ".join(str(value).split())
  return text if len(text) <= 200 else f"{text[:200]}…"
