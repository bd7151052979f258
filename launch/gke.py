"""Attempts on GKE: a JobSet each, which restarts itself; and kubectl, with the meaning of its answers."""

import contextlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from . import errors, manifests, spec, states, tpus
from .errors import DENIED, USAGE, LaunchError, QuotaError, UnknownError, format_amount
from .manifests import JOBSETS
from .states import Commands, MachineStatus, Resource

TIMEOUT = errors.CLUSTER_CALL  # seconds for a command; each request of it may take 20
# Reasons of a waiting container that do not pass by themselves.
_STUCK = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError")
_OWNED = "jobs,pods,configmaps"  # objects that belong to a JobSet
_SCALING = ("FailedScaleUp", "NotTriggerScaleUp", "TriggeredScaleUp")  # events of GKE's autoscaler about a pod
_INSTALL = "https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml"
# A failed connection, also of the plugin that gets the token.
_AWAY = (
  r"connection refused|(?<!localhost:8080) was refused|i/o timeout|no such host|TLS handshake|Max retries exceeded"
  r"|Failed to establish a new connection|Unable to find the server|network is unreachable|connection reset"
)
_QUOTA = r"exceeded quota"
# kubectl always fails with exit code 1. The first pattern that matches gives the exit code and the advice. The words in
# brackets are reasons of the API of Kubernetes (k8s.io/apimachinery/pkg/apis/meta/v1), the others are kubectl's own.
_MEANINGS = (
  (r"namespaces \"[^\"]*\" not found", USAGE, "correct --namespace, or create one: kubectl create namespace NAME"),
  (r"doesn't have a resource type", USAGE, "the cluster does not support this resource"),
  (r"context \S+ does not exist|context was not found", USAGE, "correct --cluster; see: kubectl config get-contexts"),
  (r"localhost:8080 was refused|no configuration has been provided", USAGE,
   "kubectl knows no cluster; run: gcloud container clusters get-credentials CLUSTER --location=LOCATION"),
  (r"gke-gcloud-auth-plugin", DENIED,
   "run: gcloud components install gke-gcloud-auth-plugin; if it is installed: gcloud auth login"),
  (r"\(Unauthorized\)|You must be logged in|getting credentials|provide credentials", DENIED, "run: gcloud auth login"),
  (_QUOTA, DENIED, "free some quota, or ask the administrator of the namespace for more"),
  (r"\(Forbidden\)|is forbidden", DENIED,
   "ask for the rights to create, read and delete JobSets, Jobs, Pods and ConfigMaps in the namespace"),
  (r"\(Invalid\)|\(BadRequest\)|is invalid:|denied the request|ValidationError|unknown field|unknown flag", USAGE,
   "the cluster refuses the request; its JobSet may be older than v0.12"),
)  # fmt: skip


class NoJobSetError(LaunchError):
  """The cluster does not know JobSets."""


def build_base_command(context: str, namespace: str) -> list[str]:
  """Returns the first words of all commands in a context and a namespace."""
  flags = {"context": context, "namespace": namespace}
  return ["kubectl", *(f"--{key}={value}" for key, value in flags.items() if value)]


def build_executed_command(words: list[str]) -> list[str]:
  """Returns the argument list that `run_kubectl` executes for words that start with `build_base_command`."""
  return [words[0], "--request-timeout=20s", *words[1:]]


def run_kubectl(words: list[str], content: str = "") -> str:
  """Returns the output of a command.

  Args:
    words: the command, which starts with `build_base_command`.
    content: its standard input.

  Raises:
    LookupError: the object does not exist.
    FileExistsError: the object exists already.
    LaunchError: a final refusal; NoJobSetError if the cluster does not know JobSets.
    UnknownError: the answer is missing. The request may have been executed.
  """
  install = "Run: gcloud components install kubectl gke-gcloud-auth-plugin"
  code, output, complaint = errors.call(build_executed_command(words), TIMEOUT, install, content.encode())
  if code:
    raise _make_error(complaint)
  return output.decode(errors="replace")


def get_default_context() -> str:
  """Returns the context that kubectl uses by default. A run must name it, because the default may change."""
  return run_kubectl(["kubectl", "config", "current-context"]).strip()


def _make_error(text: str) -> Exception:
  """Returns the exception for the standard error of kubectl."""
  lines = [line for line in text.splitlines() if line.strip() and not re.match(r"[EIW]\d{4} |Warning:", line)]
  short = " ".join(" ".join(lines or text.splitlines()[-1:]).split())[:300] or "no reason given"
  if re.search(r"\(AlreadyExists\)", text):
    return FileExistsError(short)
  if re.search(rf"\(NotFound\): ({re.escape(JOBSETS)}|configmaps|pods) \"[^\"]+\" not found", text):
    return LookupError(short)
  if re.search(r"no matches for kind \"JobSet\"|resource type \"jobsets?[.\"]", text):
    return NoJobSetError(f"JobSet is not installed on this cluster; run: kubectl apply --server-side -f {_INSTALL}")
  for pattern, code, remedy in () if re.search(_AWAY, text) else _MEANINGS:
    if re.search(pattern, text):
      message = f"kubectl: {short}; {remedy}"
      return QuotaError(message) if pattern == _QUOTA else LaunchError(message, code)
  return UnknownError(f"kubectl: {short}")


def _read_object(words: Sequence[str], content: str = "") -> dict[str, Any]:
  """Returns the object that a command prints as JSON."""
  value = errors.parse_json(run_kubectl([*words, "--output=json"], content).encode(), "kubectl")
  if not isinstance(value, dict):
    raise UnknownError(f"kubectl: expected an object, got {str(value)[:80]}")
  return value


def _list_items(words: Sequence[str]) -> list[dict[str, Any]]:
  """Returns the objects of the list that a command prints as JSON."""
  value = _read_object(words)
  items = value.get("items")
  if not isinstance(items, list) or not all(isinstance(each, dict) and "metadata" in each for each in items):
    raise UnknownError(f"kubectl: expected a list, got {str(value)[:80]}")
  return items


class Engine:
  """See states.Engine.

  Args:
    run: a run of the backend gke.
  """

  def __init__(self, run: spec.Run) -> None:
    self._run = run
    self._base = build_base_command(run.cluster, run.namespace)

  def create(self, attempt: int, expires: int) -> None:
    """See states.Engine. The pods wait for the ConfigMap, which belongs to the JobSet and is deleted with it."""
    made = self._create(attempt, JOBSETS, manifests.make_jobset(self._run, attempt, expires))
    self._create(attempt, "configmaps", manifests.make_config_map(self._run, attempt, expires, made))

  def _create(self, attempt: int, kind: str, value: Mapping[str, object]) -> dict[str, Any]:
    """Creates an object and returns it. An object of this attempt that exists is accepted."""
    name = self._run.get_attempt_name(attempt)
    try:
      return _read_object([*self._base, "create", "--filename=-"], json.dumps(value))
    except FileExistsError:
      pass
    try:
      found = _read_object([*self._base, "get", kind, name])
    except LookupError as error:
      raise UnknownError(f"{kind} {name} existed a moment ago, but was deleted: {error}") from error
    if not self._run.make_labels(attempt).items() <= _get_labels(found).items():
      place = self._run.get_location(attempt)
      raise LaunchError(
        f"{kind} {name} in {place} is in use: it is {_get_owner(found)}. Choose another name for the run"
      )
    return found

  def look(self, attempt: int) -> MachineStatus:
    """See states.Engine."""
    name = self._run.get_attempt_name(attempt)
    try:
      jobset = _read_object([*self._base, "get", JOBSETS, name])
    except (LookupError, NoJobSetError) as error:
      return self._confirm_absence(attempt, error)
    if jobset.get("metadata", {}).get("name") != name:
      raise UnknownError(f"kubectl described {name} as {str(jobset)[:80]}")
    if not states.has_labels(self._run, attempt, name, _get_labels(jobset)):
      return MachineStatus(states.ABSENT, f"{name} exists, but it is {_get_owner(jobset)}")
    state, detail = get_jobset_state(jobset)
    if state == states.QUEUED:
      return MachineStatus(state, self._explain_queue(jobset) or detail)
    if state != states.STARTING:
      return MachineStatus(state, detail)
    return self._look_at_pods(jobset, self._select_objects("pods", attempt))

  def _confirm_absence(self, attempt: int, error: Exception) -> MachineStatus:
    """Returns ABSENT or DELETING for a JobSet that was not found. A list must confirm it."""
    name, has_jobsets = self._run.get_attempt_name(attempt), not isinstance(error, LaunchError)
    remaining = self._select_objects(f"{JOBSETS},{_OWNED}" if has_jobsets else _OWNED, attempt)
    named = re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])|JobSet", str(error))
    if any(item.get("kind") == "JobSet" for item in remaining) or not named:
      raise UnknownError(f"{error}, but a list contains the JobSet, or the error is about another object") from error
    if remaining and not has_jobsets:  # the API server has just started, and does not know all kinds yet
      raise UnknownError(f"{error}, but pods of {name} exist") from error
    names = ", ".join(f"{item['kind'].lower()} {item['metadata']['name']}" for item in remaining[:3])
    return (
      MachineStatus(states.DELETING, f"the JobSet is deleted, but these objects still exist: {names}")
      if remaining
      else MachineStatus(states.ABSENT)
    )

  def delete(self, target: int | Resource) -> None:
    """See `launch.states.Engine`. An object of this name with other labels stays, because it is somebody else's."""
    if not isinstance(target, Resource):
      with contextlib.suppress(NoJobSetError):  # nothing else is billed, and `look` reports whether anything is left
        run_kubectl([*self._base, *_build_deletion(self._selector(target))])
      return
    words = build_base_command(self._run.cluster, target.location.rpartition("/")[2])
    with contextlib.suppress(LookupError):
      found = _read_object([*words, "get", JOBSETS, target.name])
      if _get_labels(found).get("vitjax") and self._resource(found).has_labels_of(target):
        run_kubectl([*words, *_build_deletion(target.name)])

  def list_resources(self, zones: Sequence[str]) -> tuple[list[Resource], dict[str, str]]:
    """See states.Engine. Lists the namespace of the run; the whole cluster if `zones` is ("-",)."""
    everywhere = "-" in zones
    try:
      items = _list_items([*self._base, "get", JOBSETS, "--selector=vitjax=1", *["--all-namespaces"] * everywhere])
    except (UnknownError, LaunchError) as error:
      return [], {self._location("*" if everywhere else self._run.namespace): str(error)}
    return [self._resource(item) for item in items], {}

  def build_shell_command(self, attempt: int, worker: int, words: Sequence[str]) -> list[str]:
    """See states.Engine."""
    pods = (pod for pod in self._select_objects("pods", attempt) if self._worker(pod) == worker)
    running = [pod for pod in pods if pod.get("status", {}).get("phase") == "Running" and not _is_deleting(pod)]
    if not running:
      name = self._run.get_attempt_name(attempt)
      raise LaunchError(f"worker {worker} of {name} has no running pod. See python -m launch status {self._run.name}")
    name, terminal = running[-1]["metadata"]["name"], [] if words else ["--stdin", "--tty"]
    return [*self._base, "exec", *terminal, name, f"--container={manifests.CONTAINER}", "--", *(words or ["sh"])]

  def build_commands(self, target: int | Resource, expires: int = 0) -> Commands:
    """See `launch.states.Engine`."""
    if isinstance(target, Resource):
      words = build_base_command(self._run.cluster, target.location.rpartition("/")[2])
      return Commands("", shlex.join([*words, *_build_deletion(target.name)[:-1]]))
    attempt = target
    name, last, get = self._run.get_attempt_name(attempt), self._run.workers - 1, [*self._base, "get"]
    create = shlex.join(build_executed_command([*self._base, "create", "--filename=-", "--output=json"]))
    selector = [self._selector(attempt), "--output=json"]
    pod = [*self._base, "exec", "--stdin", "--tty", "POD", f"--container={manifests.CONTAINER}", "--", "sh"]
    script = manifests.format_script(
      ("create: the JobSet",
       [manifests.format_here_document(create, manifests.format_jobset(self._run, attempt, expires))]),
      (f"create: a ConfigMap {name} with launch.zip, which names the JobSet by its uid and is its standard input",
       [f"# {create}"]),
      ("inspect", [build_executed_command([*get, JOBSETS, name, "--output=json"]),
                   *(build_executed_command([*get, kinds, *selector]) for kinds in ("pods", _OWNED))]),
      ("inspect, if the JobSet is not found: a list must confirm it",
       [build_executed_command([*get, f"{JOBSETS},{_OWNED}", *selector])]),
      ("delete", [build_executed_command([*self._base, *_build_deletion(selector[0])])]),
      (f"ssh: python -m launch ssh {self._run.name} --worker=N, with N from 0 to {last}, in the pod of the worker",
       [pod]),
    )  # fmt: skip
    look = shlex.join([*get, f"{JOBSETS},jobs,pods", selector[0]])
    delete = shlex.join([*self._base, *_build_deletion(name)[:-1]])  # waits for the end
    return Commands(script, f"{delete} && {look}")

  def _select_objects(self, kinds: str, attempt: int) -> list[dict[str, Any]]:
    return _list_items([*self._base, "get", kinds, self._selector(attempt)])

  def _selector(self, attempt: int) -> str:
    return "--selector=" + ",".join(f"{key}={value}" for key, value in self._run.make_labels(attempt).items())

  def _location(self, namespace: str) -> str:
    return f"{self._run.cluster or 'current context'}/{namespace}"

  def _explain_queue(self, jobset: Mapping[str, Any]) -> str:
    """Returns the reason why a JobSet waits in Kueue, or "" without Kueue."""
    selector = f"--selector=kueue.x-k8s.io/job-uid={jobset['metadata'].get('uid', '')}"
    workloads = self._items_if_allowed("workloads.kueue.x-k8s.io", selector)
    conditions = [_get_conditions(item) for item in workloads]
    reasons = [each[kind] for each in conditions for kind in ("Evicted", "QuotaReserved", "Admitted") if kind in each]
    checks = [each for item in workloads for each in item.get("status", {}).get("admissionChecks", [])]
    reasons += [each for each in checks if each.get("state") != "Ready"]  # such as requests of flex-start
    texts = [each["message"] for each in reasons if each.get("message")]
    return f"Kueue: {'; '.join(dict.fromkeys(texts))}" if texts else ""

  def _look_at_pods(self, jobset: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> MachineStatus:
    """Returns the state of an active JobSet from the pods of its latest start."""
    status, workers = jobset.get("status", {}), self._run.workers
    restarts = status.get("restarts", 0)
    latest = [pod for pod in pods if _get_label(pod, manifests.RESTART) == restarts and not _is_deleting(pod)]
    current = dict(sorted({self._worker(pod): pod for pod in latest}.items()))
    phases = {worker: pod.get("status", {}).get("phase") for worker, pod in current.items()}
    there = [worker for worker, phase in phases.items() if phase in ("Running", "Succeeded")]
    if len(there) >= workers:
      addresses = tuple(current[worker]["status"].get("podIP", "") for worker in there)
      return MachineStatus(states.READY, "", 0, len(there), addresses)
    if not current and (why := self._explain_missing_pods(jobset["metadata"]["name"])) and re.search(_QUOTA, why):
      return MachineStatus(states.QUEUED, f"no pods: {why}")
    homeless = [(pod, wait) for pod in current.values() if (wait := _find_unschedulable(pod))]
    if homeless and len(homeless) == len(current):  # machines without nodes are not billed
      why = self._explain_scaling(homeless[0][0]) or homeless[0][1].get("message", "")
      return MachineStatus(states.QUEUED, f"{len(homeless)} of {format_amount(workers, 'pod')} without a node: {why}")
    details = [f"{len(there)} of {format_amount(workers, 'pod')} of {jobset['metadata']['name']} running"]
    if restarts:
      message = _get_conditions(jobset).get("RestartingJobSet", {}).get("message", "")
      counted = status.get("restartsCountTowardsMax", 0)
      details.append(f"start {restarts + 1}, {counted} after failures" + f" ({message})" * bool(message))
    details += [f"w{worker:02d}: {text}" for worker, pod in current.items() if (text := _explain_pod(pod))]
    broken = restarts or "Failed" in phases.values() or any(map(_is_deleting, pods))
    return MachineStatus(states.REPAIRING if broken else states.STARTING, "; ".join(details[:4]), 0, len(there))

  def _items_if_allowed(self, kind: str, selector: str) -> list[dict[str, Any]]:
    """Returns selected objects; [] in a cluster without Kueue, or if the user may not read events."""
    try:
      return _read_object([*self._base, "get", kind, selector]).get("items", [])
    except LaunchError:
      return []

  def _explain_scaling(self, pod: Mapping[str, Any]) -> str:
    """Returns the latest message of the autoscaler about a pod without a node."""
    selector = f"--field-selector=involvedObject.name={pod['metadata']['name']}"
    events = self._items_if_allowed("events", selector)
    scaling = [event for event in events if event.get("reason") in _SCALING]
    last = max(scaling, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "", default={})
    return f"{last['reason']}: {last.get('message', '')}" if last else ""

  def _explain_missing_pods(self, name: str) -> str:
    """Returns the latest message of the Job controller about pods of a JobSet that it could not create."""
    events = self._items_if_allowed("events", "--field-selector=reason=FailedCreate")
    mine = [event for event in events if str(event.get("involvedObject", {}).get("name", "")).startswith(f"{name}-")]
    last = max(mine, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "", default={})
    return " ".join(str(last.get("message", "")).split())[:300]

  def _worker(self, pod: Mapping[str, Any]) -> int:
    """Returns the number of a pod among all slices."""
    index = _parse_number(pod["metadata"].get("annotations", {}).get(manifests.COMPLETION))
    return _get_label(pod, manifests.JOB_INDEX) * tpus.find_slice(self._run.tpu).hosts + index

  def _resource(self, jobset: Mapping[str, Any]) -> Resource:
    metadata, (state, detail) = jobset["metadata"], get_jobset_state(jobset)
    status = jobset.get("status", {}).get("replicatedJobsStatus", [])
    slices = sum(job.get("replicas", 1) for job in jobset.get("spec", {}).get("replicatedJobs", []))
    if state == states.STARTING and sum(job.get("ready", 0) for job in status) >= slices:
      state = states.READY
    place, kind = self._location(metadata.get("namespace", "")), metadata.get("annotations", {}).get(manifests.TPU, "")
    created, detail = metadata.get("creationTimestamp", ""), detail.partition(":")[0]
    return states.make_resource(metadata["name"], place, _get_labels(jobset), state, detail, created, kind)


def _build_deletion(which: str) -> list[str]:
  """Returns the arguments of the kubectl command that deletes an object by name or by selector."""
  return ["delete", f"{JOBSETS},configmaps", which, "--ignore-not-found", "--wait=false"]


def get_jobset_state(jobset: Mapping[str, Any]) -> tuple[str, str]:
  """Returns (state, detail) of a JobSet; STARTING if only its pods show more."""
  conditions = _get_conditions(jobset)
  if _is_deleting(jobset):
    return states.DELETING, "in deletion"
  for kind, state in (("Completed", states.DONE), ("Failed", states.FAILED)):
    if conditions.get(kind, {}).get("status") == "True":
      condition = conditions[kind]
      return state, f"{condition.get('reason', kind)}: {condition.get('message', '')}"
  return (states.QUEUED, "suspended") if jobset.get("spec", {}).get("suspend") else (states.STARTING, "")


def _explain_pod(pod: Mapping[str, Any]) -> str:
  """Returns the reason why a pod does not run, or "" if the reason is unknown."""
  for container in pod.get("status", {}).get("containerStatuses", []):
    state = container.get("state", {})
    waiting, ended = state.get("waiting", {}), state.get("terminated", {})
    if waiting.get("reason") in _STUCK:
      return f"{waiting['reason']}: {waiting.get('message', '')}"
    if ended.get("exitCode"):
      return f"exit {ended['exitCode']}"
  if why := _find_unschedulable(pod):
    return why.get("message", "")
  lost = _get_conditions(pod).get("DisruptionTarget", {})
  return f"{lost.get('reason')}: {lost.get('message', '')}" if lost.get("status") == "True" else ""


def _find_unschedulable(pod: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns the condition of a pod that waits for a node. The result is empty for other pods."""
  condition = _get_conditions(pod).get("PodScheduled", {})
  waits = pod.get("status", {}).get("phase") == "Pending" and condition.get("status") == "False"
  return condition if waits else {}


def _get_owner(item: Mapping[str, Any]) -> str:
  """Returns the owner of an object, for messages."""
  owner = _get_labels(item).get("vitjax-owner")
  return f"of {owner}, in {item['metadata'].get('annotations', {}).get(manifests.FOLDER)}" if owner else "not of launch"


def _is_deleting(item: Mapping[str, Any]) -> bool:
  return bool(item.get("metadata", {}).get("deletionTimestamp"))


def _get_conditions(item: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
  return {each.get("type"): each for each in item.get("status", {}).get("conditions", [])}


def _get_labels(item: Mapping[str, Any]) -> Mapping[str, str]:
  return item.get("metadata", {}).get("labels", {})


def _get_label(item: Mapping[str, Any], key: str) -> int:
  return _parse_number(_get_labels(item).get(key, ""))


def _parse_number(text: str) -> int:
  """Returns the number of a label, which anybody may have changed."""
  return int(text) if re.fullmatch(r"\d{1,18}", text or "", re.ASCII) else 0
