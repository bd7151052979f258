"""Attempts on GKE: a JobSet each, which starts again by itself, through kubectl."""

import json
import re
import shlex
from datetime import datetime

from launch import engine, manifests, render, spec, tpus
from launch.engine import Look, Resource
from launch.errors import USAGE, LaunchError, UnknownError, amount

# Of a container that waits, what is not just slow.
_STUCK = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError")
_OWNED = "jobs,pods,configmaps"  # of a JobSet
_SCALING = ("FailedScaleUp", "NotTriggerScaleUp", "TriggeredScaleUp")  # events of GKE's autoscaler about a pod


class Engine:
  """See engine.Engine."""

  def __init__(self, run: spec.Run):
    self._run = run
    self._base = manifests.base(run.cluster, run.namespace)
    self._taken = set()  # attempts whose names another run has

  def location(self, attempt: int) -> str:
    """See engine.Engine."""
    return self._location(self._run.namespace)

  def request(self, attempt: int, expires: int) -> str:
    """See engine.Engine."""
    name, hosts = self._run.attempt(attempt), self._run.workers
    create = manifests.executed([*self._base, "create", "--filename=-", "--output=json"])
    get = [*self._base, "get"]
    selector = [f"--selector={self._selector(attempt)}", "--output=json"]
    delete = [*self._base, "delete", f"{manifests.JOBSETS},configmaps", selector[0], "--ignore-not-found"]
    pod = [*self._base, "exec", "--stdin", "--tty", "POD", f"--container={manifests.CONTAINER}", "--", "sh"]
    return render.script(
      ("create: the JobSet", [render.here(shlex.join(create), render.jobset(self._run, attempt, expires))]),
      (f"create: a ConfigMap {name} with launch.zip, which names the JobSet by its uid and is its standard input",
       [f"# {shlex.join(create)}"]),
      ("inspect", [manifests.executed([*get, manifests.JOBSETS, name, "--output=json"]),
                   *(manifests.executed([*get, kinds, *selector]) for kinds in ("pods", _OWNED))]),
      ("inspect, if the JobSet is not found: a list must confirm it",
       [manifests.executed([*get, f"{manifests.JOBSETS},{_OWNED}", *selector])]),
      ("delete", [manifests.executed([*delete, "--wait=false"])]),
      (f"ssh: python -m launch ssh {self._run.name} --worker=N, with N from 0 to {hosts - 1}, in the pod of the worker",
       [pod]),
    )  # fmt: skip

  def create(self, attempt: int, expires: int) -> None:
    """The JobSet, then the ConfigMap that its pods wait for: so it belongs to the JobSet, and goes with it."""
    wanted = manifests.jobset(self._run, attempt, expires)
    try:
      made = self._create(wanted)
    except FileExistsError:
      made = self._ours(manifests.JOBSETS, attempt)
    try:
      self._create(manifests.code(self._run, attempt, expires, made))
    except FileExistsError:
      self._ours("configmaps", attempt)

  def look(self, attempt: int) -> Look:
    """See engine.Engine."""
    try:
      jobset = self._read("get", manifests.JOBSETS, self._run.attempt(attempt))
    except (LookupError, manifests.NoJobSetError) as error:
      known = not isinstance(error, LaunchError)
      left = self._selected(f"{manifests.JOBSETS},{_OWNED}" if known else _OWNED, attempt)
      if any(item.get("kind") == "JobSet" for item in left) or not re.search(
        rf"(?<![\w-]){re.escape(self._run.attempt(attempt))}(?![\w-])|JobSet", str(error)
      ):
        raise UnknownError(f"{error}, but it is listed, or another object is meant") from error
      if left and not known:  # the API server has just started, and knows half of its kinds
        raise UnknownError(f"{error}, but pods of {self._run.attempt(attempt)} are there") from error
      names = ", ".join(f"{item['kind'].lower()} {item['metadata']['name']}" for item in left[:3])
      return Look(engine.DELETING, f"the JobSet is gone; still there: {names}") if left else Look(engine.ABSENT)
    if jobset.get("metadata", {}).get("name") != self._run.attempt(attempt):
      raise UnknownError(f"kubectl described {self._run.attempt(attempt)} as {str(jobset)[:80]}")
    if attempt in self._taken or not self._mine(jobset, attempt):
      return Look(engine.ABSENT, f"{self._run.attempt(attempt)} is there, but it is {_whose(jobset)}")
    state, detail = stage(jobset)
    if state == engine.QUEUED:
      return Look(state, self._queued(jobset) or detail)
    if state != engine.STARTING:
      return Look(state, detail)
    return self._seen(jobset, self._selected("pods", attempt))

  def delete(self, attempt: int) -> None:
    """See engine.Engine. What has its name and not its labels is somebody else's, and stays."""
    if attempt in self._taken:
      return
    words = ["delete", f"{manifests.JOBSETS},configmaps", f"--selector={self._selector(attempt)}"]
    try:
      manifests.ask([*self._base, *words, "--ignore-not-found", "--wait=false"])
    except manifests.NoJobSetError:  # nothing else is billed; `look` says whether any of it is there
      return

  def remove(self, resource: Resource) -> None:
    """See engine.Engine."""
    namespace = resource.location.rpartition("/")[2]
    base = manifests.base(self._run.cluster, namespace)
    try:
      found = _parsed(manifests.ask([*base, "get", manifests.JOBSETS, resource.name, "--output=json"]))
    except LookupError:
      return
    marks = found.get("metadata", {}).get("labels", {})
    now = marks.get("vitjax-run", ""), marks.get("vitjax-owner", ""), _number(marks.get("vitjax-attempt"))
    mark = marks.get("vitjax-folder", "")
    if marks.get("vitjax") and (*now, mark) == (resource.run, resource.owner, resource.attempt, resource.mark):
      manifests.ask(
        [*base, "delete", f"{manifests.JOBSETS},configmaps", resource.name, "--ignore-not-found", "--wait=false"]
      )

  def deletion(self, attempt: int) -> str:
    """See engine.Engine."""
    kinds = f"{manifests.JOBSETS},jobs,pods"
    seeing = [*self._base, "get", kinds, f"--selector={self._selector(attempt)}"]
    deleting = ["delete", f"{manifests.JOBSETS},configmaps", self._run.attempt(attempt), "--ignore-not-found"]
    return f"{shlex.join([*self._base, *deleting])} && {shlex.join(seeing)}"

  def inventory(self, zones: tuple) -> tuple:
    """See engine.Engine. Of the run's namespace; of all that the cluster has if `zones` is ("-",)."""
    words, everywhere = list(self._base), "-" in zones
    words += ["get", manifests.JOBSETS, "--selector=vitjax=1", "--output=json"]
    words += ["--all-namespaces"] if everywhere else []
    try:
      items = _items(_parsed(manifests.ask(words)))
    except (UnknownError, LaunchError) as error:
      return [], {self._location("*" if everywhere else self._run.namespace): str(error)}
    return [self._resource(item) for item in items], {}

  def shell(self, attempt: int, worker: int, words: list) -> list:
    """See engine.Engine."""
    pods = (pod for pod in self._selected("pods", attempt) if self._worker(pod) == worker)
    running = [pod for pod in pods if pod.get("status", {}).get("phase") == "Running" and not _leaving(pod)]
    if not running:
      advice = f"see python -m launch status {self._run.name}"
      raise LaunchError(f"worker {worker} of {self._run.attempt(attempt)} has no pod that runs; {advice}")
    name = running[-1]["metadata"]["name"]
    asking = [] if words else ["--stdin", "--tty"]
    return [*self._base, "exec", *asking, name, f"--container={manifests.CONTAINER}", "--", *(words or ["sh"])]

  def _create(self, value):
    return _parsed(manifests.ask([*self._base, "create", "--filename=-", "--output=json"], json.dumps(value)))

  def _read(self, *words):
    return _parsed(manifests.ask([*self._base, *words, "--output=json"]))

  def _selected(self, kinds, attempt):
    return _items(self._read("get", kinds, f"--selector={self._selector(attempt)}"))

  def _selector(self, attempt):
    return ",".join(f"{key}={value}" for key, value in self._marks(attempt).items())

  def _mine(self, item, attempt):
    return self._marks(attempt).items() <= item["metadata"].get("labels", {}).items()

  def _marks(self, attempt):
    """Labels that everything of an attempt has, and nothing else."""
    return {key: each for key, each in manifests.labels(self._run, attempt, 0).items() if key != "vitjax-expires"}

  def _location(self, namespace):
    return f"{self._run.cluster or 'current context'}/{namespace}"

  def _ours(self, kind, attempt):
    """What is there already under the attempt's name, if this run made it."""
    name = self._run.attempt(attempt)
    try:
      found = self._read("get", kind, name)
    except LookupError as error:
      raise UnknownError(f"{kind} {name} was there, and is gone: {error}") from error
    if not self._mine(found, attempt) or _folder(found) != self._run.folder:
      self._taken.add(attempt)
      location = self._location(self._run.namespace)
      raise LaunchError(
        f"{kind} {name} in {location} is taken: it is {_whose(found)}; choose another name for the run", USAGE
      )
    return found

  def _queued(self, jobset):
    """Why Kueue keeps it waiting, "" if there is none."""
    selector = f"--selector=kueue.x-k8s.io/job-uid={jobset['metadata'].get('uid', '')}"
    try:
      workloads = self._read("get", "workloads.kueue.x-k8s.io", selector).get("items", [])
    except LaunchError:  # a cluster without Kueue
      return ""
    conditions = [_conditions(item) for item in workloads]
    reasons = [each[kind] for each in conditions for kind in ("Evicted", "QuotaReserved", "Admitted") if kind in each]
    checks = [each for item in workloads for each in item.get("status", {}).get("admissionChecks", [])]
    reasons += [each for each in checks if each.get("state") != "Ready"]  # as requests for machines of flex-start
    texts = [each["message"] for each in reasons if each.get("message")]
    return f"Kueue: {'; '.join(dict.fromkeys(texts))}" if texts else ""

  def _seen(self, jobset, pods):
    """The state of an attempt whose JobSet neither waits nor has ended, by the pods of its latest start."""
    restarts, name = jobset.get("status", {}).get("restarts", 0), jobset["metadata"]["name"]
    current = {}
    for pod in pods:
      if _label(pod, manifests.RESTART) == restarts and not _leaving(pod):
        current[self._worker(pod)] = pod
    phases = {worker: pod.get("status", {}).get("phase") for worker, pod in sorted(current.items())}
    there = [worker for worker, phase in phases.items() if phase in ("Running", "Succeeded")]
    if len(there) >= self._run.workers:
      addresses = tuple(current[worker]["status"].get("podIP", "") for worker in there)
      return Look(engine.READY, "", 0, len(there), addresses)
    homeless = {w: _conditions(pod)["PodScheduled"] for w, pod in sorted(current.items()) if _unschedulable(pod)}
    if homeless and len(homeless) == len(current):  # no node is there, and none is billed
      worker, condition = next(iter(homeless.items()))
      why = self._scaling(current[worker]) or condition.get("message", "")
      return Look(engine.QUEUED, f"{len(homeless)} of {amount(self._run.workers, 'pod')} without a node: {why}")
    details = [f"{len(there)} of {amount(self._run.workers, 'pod')} of {name} running"]
    details += [_again(jobset)] if restarts else []
    details += [text for worker, pod in sorted(current.items()) if (text := _trouble(worker, pod))]
    broken = restarts or "Failed" in phases.values() or any(map(_leaving, pods))
    return Look(engine.REPAIRING if broken else engine.STARTING, "; ".join(details[:4]), 0, len(there))

  def _scaling(self, pod):
    """What the autoscaler said last about a pod that has no node."""
    about = f"--field-selector=involvedObject.name={pod['metadata']['name']}"
    try:
      events = self._read("get", "events", about).get("items", [])
    except LaunchError:  # who may not see events is told what the pod says
      return ""
    said = [event for event in events if event.get("reason") in _SCALING]
    last = max(said, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "", default=None)
    return f"{last['reason']}: {last.get('message', '')}" if last else ""

  def _worker(self, pod):
    """A pod's number among all slices."""
    index = _number(pod["metadata"].get("annotations", {}).get(manifests.COMPLETION))
    return _label(pod, manifests.JOB_INDEX) * tpus.find(self._run.tpu).hosts + index

  def _resource(self, jobset):
    metadata = jobset["metadata"]
    marks, notes = metadata.get("labels", {}), metadata.get("annotations", {})
    state, detail = stage(jobset)
    status = jobset.get("status", {}).get("replicatedJobsStatus", [])
    slices = sum(job.get("replicas", 1) for job in jobset.get("spec", {}).get("replicatedJobs", []))
    word = detail.partition(":")[0]
    if state == engine.STARTING and sum(job.get("ready", 0) for job in status) >= slices:
      state = engine.READY
    created = metadata.get("creationTimestamp", "")
    return Resource(
      metadata["name"],
      self._location(metadata.get("namespace", "")),
      marks.get("vitjax-run", ""),
      marks.get("vitjax-owner", ""),
      _number(marks.get("vitjax-attempt")),
      state,
      word,
      _number(marks.get("vitjax-expires")),
      datetime.fromisoformat(created.replace("Z", "+00:00")).timestamp() if created else 0.0,
      notes.get(manifests.TPU, ""),
      marks.get("vitjax-folder", ""),
    )


def stage(jobset: dict) -> tuple:
  """(state, detail) that a JobSet says itself; STARTING where only its pods know more."""
  conditions = _conditions(jobset)
  if _leaving(jobset):
    return engine.DELETING, "deleted, and not gone yet"
  for kind, state in (("Completed", engine.DONE), ("Failed", engine.FAILED)):
    if conditions.get(kind, {}).get("status") == "True":
      said = conditions[kind]
      return state, f"{said.get('reason', kind)}: {said.get('message', '')}"
  if jobset.get("spec", {}).get("suspend"):
    return engine.QUEUED, "suspended"
  return engine.STARTING, ""


def _again(jobset):
  status = jobset["status"]
  said = _conditions(jobset).get("RestartingJobSet", {}).get("message", "")
  counted = status.get("restartsCountTowardsMax", 0)
  return f"start {status['restarts'] + 1}, {counted} after failures" + (f" ({said})" if said else "")


def _trouble(worker, pod):
  """What keeps a pod from running, "" if nothing does that is known."""
  status = pod.get("status", {})
  for container in status.get("containerStatuses", []):
    state = container.get("state", {})
    waiting, ended = state.get("waiting", {}), state.get("terminated", {})
    if waiting.get("reason") in _STUCK:
      return f"w{worker:02d}: {waiting['reason']}: {waiting.get('message', '')}"
    if ended.get("exitCode"):
      return f"w{worker:02d}: exit {ended['exitCode']}"
  if _unschedulable(pod):
    return f"w{worker:02d}: {_conditions(pod)['PodScheduled'].get('message', '')}"
  lost = _conditions(pod).get("DisruptionTarget", {})
  return f"w{worker:02d}: {lost.get('reason')}: {lost.get('message', '')}" if lost.get("status") == "True" else ""


def _unschedulable(pod):
  said = _conditions(pod).get("PodScheduled", {})
  return pod.get("status", {}).get("phase") == "Pending" and said.get("status") == "False"


def _whose(item):
  owner = item["metadata"].get("labels", {}).get("vitjax-owner")
  return f"of {owner}, in {_folder(item)}" if owner else "not of launch"


def _folder(item):
  return item["metadata"].get("annotations", {}).get(manifests.FOLDER)


def _leaving(item):
  return bool(item.get("metadata", {}).get("deletionTimestamp"))


def _conditions(item):
  return {each.get("type"): each for each in item.get("status", {}).get("conditions", [])}


def _label(item, key):
  return _number(item["metadata"].get("labels", {}).get(key))


def _number(text):
  """Of a label, which anybody may have changed."""
  return int(text) if re.fullmatch(r"\d{1,18}", text or "", re.ASCII) else 0


def _parsed(text):
  try:
    value = json.loads(text)
  except ValueError as error:
    raise UnknownError(f"kubectl: an answer that is no JSON ({error})") from error
  if not isinstance(value, dict):
    raise UnknownError(f"kubectl: an answer of another form: {str(value)[:80]}")
  return value


def _items(value):
  """The items of a list. UnknownError for an answer that is none."""
  items = value.get("items")
  if not isinstance(items, list) or not all(isinstance(each, dict) and "metadata" in each for each in items):
    raise UnknownError(f"kubectl: an answer that is no list: {str(value)[:80]}")
  return items
