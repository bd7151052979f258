"""Attempts on GKE: a JobSet each, which restarts itself; and kubectl, with the meaning of its answers."""

import contextlib
import json
import re
import shlex

from launch import errors, manifests, spec, states, tpus
from launch.errors import DENIED, USAGE, LaunchError, QuotaError, UnknownError, amount
from launch.manifests import JOBSETS
from launch.states import Commands, Look, Resource

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


def base(context: str, namespace: str) -> list[str]:
  """Returns the first words of all commands in a context and a namespace."""
  flags = {"context": context, "namespace": namespace}
  return ["kubectl", *(f"--{key}={value}" for key, value in flags.items() if value)]


def executed(words: list[str]) -> list[str]:
  """Returns the argument list that `ask` executes for words that start with `base`."""
  return [words[0], "--request-timeout=20s", *words[1:]]


def ask(words: list[str], content: str = "") -> str:
  """Returns the output of a command.

  Args:
    words: the command, which starts with `base`.
    content: its standard input.

  Raises:
    LookupError: the object does not exist.
    FileExistsError: the object exists already.
    LaunchError: a final refusal; NoJobSetError if the cluster does not know JobSets.
    UnknownError: the answer is missing. The request may have been executed.
  """
  install = "Run: gcloud components install kubectl gke-gcloud-auth-plugin"
  code, output, complaint = errors.call(executed(words), TIMEOUT, install, content.encode())
  if code:
    raise _failure(complaint)
  return output.decode(errors="replace")


def context() -> str:
  """Returns the context that kubectl uses by default. A run must name it, because the default may change."""
  return ask(["kubectl", "config", "current-context"]).strip()


def _failure(text):
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


def _read(words, content=""):
  """Returns the object that a command prints as JSON."""
  value = errors.parse_json(ask([*words, "--output=json"], content).encode(), "kubectl")
  if not isinstance(value, dict):
    raise UnknownError(f"kubectl: expected an object, got {str(value)[:80]}")
  return value


def _items(words):
  """Returns the objects of the list that a command prints as JSON."""
  value = _read(words)
  items = value.get("items")
  if not isinstance(items, list) or not all(isinstance(each, dict) and "metadata" in each for each in items):
    raise UnknownError(f"kubectl: expected a list, got {str(value)[:80]}")
  return items


class Engine:
  """See states.Engine.

  Args:
    run: a run of the backend gke.
  """

  def __init__(self, run: spec.Run):
    self._run = run
    self._base = base(run.cluster, run.namespace)

  def create(self, attempt: int, expires: int) -> None:
    """See states.Engine. The pods wait for the ConfigMap, which belongs to the JobSet and is deleted with it."""
    made = self._create(attempt, JOBSETS, manifests.jobset(self._run, attempt, expires))
    self._create(attempt, "configmaps", manifests.code(self._run, attempt, expires, made))

  def _create(self, attempt, kind, value):
    """Creates an object and returns it. An object of this attempt that exists is accepted."""
    name = self._run.attempt(attempt)
    try:
      return _read([*self._base, "create", "--filename=-"], json.dumps(value))
    except FileExistsError:
      pass
    try:
      found = _read([*self._base, "get", kind, name])
    except LookupError as error:
      raise UnknownError(f"{kind} {name} existed a moment ago, and is gone: {error}") from error
    if not self._run.labels(attempt).items() <= _labels(found).items():
      place = self._run.location(attempt)
      raise LaunchError(f"{kind} {name} in {place} is in use: it is {_owner(found)}. Choose another name for the run")
    return found

  def look(self, attempt: int) -> Look:
    """See states.Engine."""
    name = self._run.attempt(attempt)
    try:
      jobset = _read([*self._base, "get", JOBSETS, name])
    except (LookupError, NoJobSetError) as error:
      return self._confirm_absence(attempt, error)
    if jobset.get("metadata", {}).get("name") != name:
      raise UnknownError(f"kubectl described {name} as {str(jobset)[:80]}")
    if not states.owns(self._run, attempt, name, _labels(jobset)):
      return Look(states.ABSENT, f"{name} is there, but it is {_owner(jobset)}")
    state, detail = stage(jobset)
    if state == states.QUEUED:
      return Look(state, self._explain_queue(jobset) or detail)
    if state != states.STARTING:
      return Look(state, detail)
    return self._look_at_pods(jobset, self._selected("pods", attempt))

  def _confirm_absence(self, attempt, error):
    """Returns ABSENT or DELETING for a JobSet that was not found. A list must confirm it."""
    name, has_jobsets = self._run.attempt(attempt), not isinstance(error, LaunchError)
    left = self._selected(f"{JOBSETS},{_OWNED}" if has_jobsets else _OWNED, attempt)
    named = re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])|JobSet", str(error))
    if any(item.get("kind") == "JobSet" for item in left) or not named:
      raise UnknownError(f"{error}, but a list contains the JobSet, or the error is about another object") from error
    if left and not has_jobsets:  # the API server has just started, and does not know all kinds yet
      raise UnknownError(f"{error}, but pods of {name} are there") from error
    names = ", ".join(f"{item['kind'].lower()} {item['metadata']['name']}" for item in left[:3])
    return Look(states.DELETING, f"the JobSet is gone; still there: {names}") if left else Look(states.ABSENT)

  def delete(self, target: int | Resource) -> None:
    """See `launch.states.Engine`. An object of this name with other labels stays, because it is somebody else's."""
    if not isinstance(target, Resource):
      with contextlib.suppress(NoJobSetError):  # nothing else is billed, and `look` reports whether anything is left
        ask([*self._base, *_deletion(self._selector(target))])
      return
    words = base(self._run.cluster, target.location.rpartition("/")[2])
    with contextlib.suppress(LookupError):
      found = _read([*words, "get", JOBSETS, target.name])
      if _labels(found).get("vitjax") and self._resource(found).has_labels_of(target):
        ask([*words, *_deletion(target.name)])

  def inventory(self, zones: tuple) -> tuple:
    """See states.Engine. Lists the namespace of the run; the whole cluster if `zones` is ("-",)."""
    everywhere = "-" in zones
    try:
      items = _items([*self._base, "get", JOBSETS, "--selector=vitjax=1", *["--all-namespaces"] * everywhere])
    except (UnknownError, LaunchError) as error:
      return [], {self._location("*" if everywhere else self._run.namespace): str(error)}
    return [self._resource(item) for item in items], {}

  def shell(self, attempt: int, worker: int, words: list) -> list:
    """See states.Engine."""
    pods = (pod for pod in self._selected("pods", attempt) if self._worker(pod) == worker)
    running = [pod for pod in pods if pod.get("status", {}).get("phase") == "Running" and not _is_leaving(pod)]
    if not running:
      name = self._run.attempt(attempt)
      raise LaunchError(f"worker {worker} of {name} has no running pod. See python -m launch status {self._run.name}")
    name, terminal = running[-1]["metadata"]["name"], [] if words else ["--stdin", "--tty"]
    return [*self._base, "exec", *terminal, name, f"--container={manifests.CONTAINER}", "--", *(words or ["sh"])]

  def commands(self, target: int | Resource, expires: int = 0) -> Commands:
    """See `launch.states.Engine`."""
    if isinstance(target, Resource):
      words = base(self._run.cluster, target.location.rpartition("/")[2])
      return Commands("", shlex.join([*words, *_deletion(target.name)[:-1]]))
    attempt = target
    name, last, get = self._run.attempt(attempt), self._run.workers - 1, [*self._base, "get"]
    create = shlex.join(executed([*self._base, "create", "--filename=-", "--output=json"]))
    selector = [self._selector(attempt), "--output=json"]
    pod = [*self._base, "exec", "--stdin", "--tty", "POD", f"--container={manifests.CONTAINER}", "--", "sh"]
    script = manifests.script(
      ("create: the JobSet", [manifests.here(create, manifests.jobset_text(self._run, attempt, expires))]),
      (f"create: a ConfigMap {name} with launch.zip, which names the JobSet by its uid and is its standard input",
       [f"# {create}"]),
      ("inspect", [executed([*get, JOBSETS, name, "--output=json"]),
                   *(executed([*get, kinds, *selector]) for kinds in ("pods", _OWNED))]),
      ("inspect, if the JobSet is not found: a list must confirm it",
       [executed([*get, f"{JOBSETS},{_OWNED}", *selector])]),
      ("delete", [executed([*self._base, *_deletion(selector[0])])]),
      (f"ssh: python -m launch ssh {self._run.name} --worker=N, with N from 0 to {last}, in the pod of the worker",
       [pod]),
    )  # fmt: skip
    look = shlex.join([*get, f"{JOBSETS},jobs,pods", selector[0]])
    delete = shlex.join([*self._base, *_deletion(name)[:-1]])  # waits for the end
    return Commands(script, f"{delete} && {look}")

  def _selected(self, kinds, attempt):
    return _items([*self._base, "get", kinds, self._selector(attempt)])

  def _selector(self, attempt):
    return "--selector=" + ",".join(f"{key}={value}" for key, value in self._run.labels(attempt).items())

  def _location(self, namespace):
    return f"{self._run.cluster or 'current context'}/{namespace}"

  def _explain_queue(self, jobset):
    """Returns the reason why a JobSet waits in Kueue, or "" without Kueue."""
    selector = f"--selector=kueue.x-k8s.io/job-uid={jobset['metadata'].get('uid', '')}"
    workloads = self._items_if_allowed("workloads.kueue.x-k8s.io", selector)
    conditions = [_conditions(item) for item in workloads]
    reasons = [each[kind] for each in conditions for kind in ("Evicted", "QuotaReserved", "Admitted") if kind in each]
    checks = [each for item in workloads for each in item.get("status", {}).get("admissionChecks", [])]
    reasons += [each for each in checks if each.get("state") != "Ready"]  # such as requests of flex-start
    texts = [each["message"] for each in reasons if each.get("message")]
    return f"Kueue: {'; '.join(dict.fromkeys(texts))}" if texts else ""

  def _look_at_pods(self, jobset, pods):
    """Returns the state of an active JobSet from the pods of its latest start."""
    status, workers = jobset.get("status", {}), self._run.workers
    restarts = status.get("restarts", 0)
    latest = [pod for pod in pods if _label(pod, manifests.RESTART) == restarts and not _is_leaving(pod)]
    current = dict(sorted({self._worker(pod): pod for pod in latest}.items()))
    phases = {worker: pod.get("status", {}).get("phase") for worker, pod in current.items()}
    there = [worker for worker, phase in phases.items() if phase in ("Running", "Succeeded")]
    if len(there) >= workers:
      addresses = tuple(current[worker]["status"].get("podIP", "") for worker in there)
      return Look(states.READY, "", 0, len(there), addresses)
    if not current and (why := self._explain_missing_pods(jobset["metadata"]["name"])) and re.search(_QUOTA, why):
      return Look(states.QUEUED, f"no pods: {why}")
    homeless = [(pod, why) for pod in current.values() if (why := _unschedulable(pod))]
    if homeless and len(homeless) == len(current):  # machines without nodes are not billed
      why = self._explain_scaling(homeless[0][0]) or homeless[0][1].get("message", "")
      return Look(states.QUEUED, f"{len(homeless)} of {amount(workers, 'pod')} without a node: {why}")
    details = [f"{len(there)} of {amount(workers, 'pod')} of {jobset['metadata']['name']} running"]
    if restarts:
      message = _conditions(jobset).get("RestartingJobSet", {}).get("message", "")
      counted = status.get("restartsCountTowardsMax", 0)
      details.append(f"start {restarts + 1}, {counted} after failures" + f" ({message})" * bool(message))
    details += [f"w{worker:02d}: {text}" for worker, pod in current.items() if (text := _trouble(pod))]
    broken = restarts or "Failed" in phases.values() or any(map(_is_leaving, pods))
    return Look(states.REPAIRING if broken else states.STARTING, "; ".join(details[:4]), 0, len(there))

  def _items_if_allowed(self, kind, selector):
    """Returns selected objects; [] in a cluster without Kueue, or if the user may not read events."""
    try:
      return _read([*self._base, "get", kind, selector]).get("items", [])
    except LaunchError:
      return []

  def _explain_scaling(self, pod):
    """Returns the latest message of the autoscaler about a pod without a node."""
    selector = f"--field-selector=involvedObject.name={pod['metadata']['name']}"
    events = self._items_if_allowed("events", selector)
    scaling = [event for event in events if event.get("reason") in _SCALING]
    last = max(scaling, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "", default=None)
    return f"{last['reason']}: {last.get('message', '')}" if last else ""

  def _explain_missing_pods(self, name):
    """Returns the latest message of the Job controller about pods of a JobSet that it could not create."""
    events = self._items_if_allowed("events", "--field-selector=reason=FailedCreate")
    mine = [event for event in events if str(event.get("involvedObject", {}).get("name", "")).startswith(f"{name}-")]
    last = max(mine, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "", default={})
    return " ".join(str(last.get("message", "")).split())[:300]

  def _worker(self, pod):
    """Returns the number of a pod among all slices."""
    index = _number(pod["metadata"].get("annotations", {}).get(manifests.COMPLETION))
    return _label(pod, manifests.JOB_INDEX) * tpus.find(self._run.tpu).hosts + index

  def _resource(self, jobset):
    metadata, (state, detail) = jobset["metadata"], stage(jobset)
    status = jobset.get("status", {}).get("replicatedJobsStatus", [])
    slices = sum(job.get("replicas", 1) for job in jobset.get("spec", {}).get("replicatedJobs", []))
    if state == states.STARTING and sum(job.get("ready", 0) for job in status) >= slices:
      state = states.READY
    place, kind = self._location(metadata.get("namespace", "")), metadata.get("annotations", {}).get(manifests.TPU, "")
    created, detail = metadata.get("creationTimestamp", ""), detail.partition(":")[0]
    return states.resource(metadata["name"], place, _labels(jobset), state, detail, created, kind)


def _deletion(which):
  """Returns the arguments of the kubectl command that deletes an object by name or by selector."""
  return ["delete", f"{JOBSETS},configmaps", which, "--ignore-not-found", "--wait=false"]


def stage(jobset: dict) -> tuple[str, str]:
  """Returns (state, detail) of a JobSet; STARTING if only its pods show more."""
  conditions = _conditions(jobset)
  if _is_leaving(jobset):
    return states.DELETING, "in deletion"
  for kind, state in (("Completed", states.DONE), ("Failed", states.FAILED)):
    if conditions.get(kind, {}).get("status") == "True":
      said = conditions[kind]
      return state, f"{said.get('reason', kind)}: {said.get('message', '')}"
  return (states.QUEUED, "suspended") if jobset.get("spec", {}).get("suspend") else (states.STARTING, "")


def _trouble(pod):
  """Returns the reason why a pod does not run, or "" if the reason is unknown."""
  for container in pod.get("status", {}).get("containerStatuses", []):
    state = container.get("state", {})
    waiting, ended = state.get("waiting", {}), state.get("terminated", {})
    if waiting.get("reason") in _STUCK:
      return f"{waiting['reason']}: {waiting.get('message', '')}"
    if ended.get("exitCode"):
      return f"exit {ended['exitCode']}"
  if why := _unschedulable(pod):
    return why.get("message", "")
  lost = _conditions(pod).get("DisruptionTarget", {})
  return f"{lost.get('reason')}: {lost.get('message', '')}" if lost.get("status") == "True" else ""


def _unschedulable(pod):
  """Returns the condition of a pod that waits for a node. The result is false for other pods."""
  said = _conditions(pod).get("PodScheduled", {})
  return pod.get("status", {}).get("phase") == "Pending" and said.get("status") == "False" and said


def _owner(item):
  """Returns the owner of an object, for messages."""
  owner = _labels(item).get("vitjax-owner")
  return f"of {owner}, in {item['metadata'].get('annotations', {}).get(manifests.FOLDER)}" if owner else "not of launch"


def _is_leaving(item):
  return bool(item.get("metadata", {}).get("deletionTimestamp"))


def _conditions(item):
  return {each.get("type"): each for each in item.get("status", {}).get("conditions", [])}


def _labels(item):
  return item.get("metadata", {}).get("labels", {})


def _label(item, key):
  return _number(_labels(item).get(key))


def _number(text):
  """Returns the number of a label, which anybody may have changed."""
  return int(text) if re.fullmatch(r"\d{1,18}", text or "", re.ASCII) else 0
