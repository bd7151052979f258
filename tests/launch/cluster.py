"""A local cluster for the real kubectl, in which tests control the JobSet controller, Kueue and the nodes."""

import contextlib
import copy
import json
import pathlib
import re
import shutil
import tempfile
import uuid

from tests.launch.kubernetes_api import KINDS, Fault, Server, now

JOBSET, RESTART = "jobset.sigs.k8s.io/", "jobset.sigs.k8s.io/restart-attempt"
COMPLETION = "batch.kubernetes.io/job-completion-index"
NO_NODES = "0/8 nodes are available: 8 node(s) didn't match Pod's node affinity/selector."
NO_QUOTA = "couldn't assign flavors to pod set s: insufficient unused quota for google.com/tpu in flavor v5e"


class Cluster:
  """The cluster. It is a context manager, and `environment` connects kubectl to it.

  Args:
    kinds: kinds of the cluster. A cluster without JobSet lacks "jobsets".
    starts: True if pods get nodes and run at once.
    lingers: True if deleted objects stay until `reap`.
  """

  def __init__(self, kinds: tuple = tuple(KINDS), starts: bool = False, lingers: bool = False):
    self.starts, self._server = starts, Server(kinds, self._made, lingers)
    self.created = []  # all objects ever created, as kind/name

  def __enter__(self):
    with contextlib.ExitStack() as stack:
      folder = pathlib.Path(tempfile.mkdtemp(prefix="cluster_"))
      stack.callback(shutil.rmtree, folder)
      stack.enter_context(self._server)
      named = {"cluster": "c", "user": "u", "namespace": "default"}
      config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "loopback",
        "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "c", "cluster": {"server": self._server.address}}],
        "contexts": [{"name": "loopback", "context": named}],
      }
      (folder / "config").write_text(json.dumps(config))
      self.environment = {"KUBECONFIG": str(folder / "config"), "KUBECACHEDIR": str(folder / "cache")}
      self._stack = stack.pop_all()
    return self

  def __exit__(self, *_):
    self._stack.close()

  def reset(self, starts: bool = False, lingers: bool = False) -> None:
    """Removes all objects, so that kubectl need not discover the kinds of a new cluster."""
    with self._server.turn:
      self.starts, self._server.lingers = starts, lingers
      for each in (self._server.objects, self._server.requests, self._server.faults, self.created):
        each.clear()

  @property
  def requests(self) -> list:
    """(method, path, query, body) of all requests except discovery."""
    return self._server.requests

  def bodies(self, kind: str) -> list:
    """Returns the bodies of the create requests of a kind."""
    return [each.body for each in self.requests if each.method == "POST" and each.path.endswith(f"/{kind}")]

  def faults(self, *faults: Fault) -> None:
    """Sets the next faults. Each fault applies to the first requests that it matches."""
    self._server.faults[:] = faults

  def live(self) -> list:
    """Returns the existing JobSets, pods and ConfigMaps as kind/name."""
    kinds = ("jobsets", "pods", "configmaps")
    with self._server.turn:
      return sorted(f"{kind}/{name}" for kind, name in self._server.objects if kind in kinds)

  def standing(self) -> list:
    """Returns the names of the JobSets that are not being deleted."""
    with self._server.turn:
      items = [(name, item) for (kind, name), item in self._server.objects.items() if kind == "jobsets"]
      return [name for name, item in items if not item["metadata"].get("deletionTimestamp")]

  def jobset(self, name: str) -> "dict | None":
    """Returns a JobSet, or None."""
    with self._server.turn:
      return self._server.objects.get(("jobsets", name))

  def linger(self) -> None:
    """Keeps deleted objects until `reap`."""
    self._server.lingers = True

  def pods(self, name: str) -> list:
    """Returns the pods of a JobSet in the order of slices and hosts."""
    pods = [item for (kind, _), item in self._server.objects.items() if kind == "pods"]
    own = [pod for pod in pods if pod["metadata"]["labels"][f"{JOBSET}jobset-name"] == name]
    return sorted(own, key=lambda pod: (_slice(pod), _host(pod)))

  # Events in a cluster, which affect the JobSet of a name.

  def set_state(self, name: str, state: str) -> None:
    """Brings a JobSet to one of `states.STATES`, in the usual way."""
    ways = {"queued": self.wait, "starting": self.admit, "ready": self.run, "lost": self.lose, "failed": self.fail}
    (ways | {"done": self.complete, "absent": self.remove})[state](name)

  def admit(self, name: str) -> None:
    """Admits a JobSet, as Kueue does. Its pods get nodes and pull their images."""
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    self._each(name, "Pending", {"type": "PodScheduled", "status": "True"}, waiting)

  def run(self, name: str) -> None:
    """Starts all pods of a JobSet."""
    self._each(name, "Running", {"type": "PodScheduled", "status": "True"}, {"running": {}})

  def wait(self, name: str, message: str = NO_NODES) -> None:
    """Leaves all pods of a JobSet without nodes."""
    self._each(name, "Pending", {"type": "PodScheduled", "status": "False", "message": message}, None)

  def stick(self, name: str, worker: int, reason: str, message: str) -> None:
    """Makes the container of a pod wait for a reason."""
    waiting = {"name": "train", "state": {"waiting": {"reason": reason, "message": message}}}
    self.pods(name)[worker]["status"].update(phase="Pending", containerStatuses=[waiting])

  def tell(self, name: str, worker: int, reason: str, message: str) -> None:
    """Adds an event of a pod."""
    pod = self.pods(name)[worker]["metadata"]["name"]
    event = {"metadata": {"name": f"{pod}.{uuid.uuid4().hex[:8]}"}, "involvedObject": {"kind": "Pod", "name": pod}}
    self._server.make("events", event | {"reason": reason, "message": message, "lastTimestamp": now()})

  def complete(self, name: str) -> None:
    """Ends all workers of a JobSet with exit code 0."""
    self._each(name, "Succeeded", {"type": "Ready", "status": "False"}, {"terminated": {"exitCode": 0}})
    self._condition(name, "Completed", "AllJobsCompleted", "jobset completed successfully")

  def fail(self, name: str, reason: str = "ReachedMaxRestarts", message: str = "jobset failed") -> None:
    """Marks a JobSet as failed. Its pods stay for inspection."""
    self._each(name, "Failed", {"type": "Ready", "status": "False"}, {"terminated": {"exitCode": 1}})
    self._condition(name, "Failed", reason, message)

  def exit(self, name: str, worker: int, code: int) -> None:
    """Ends a worker with an exit code. The policies of the Job and of the JobSet decide the effect."""
    pod = self.pods(name)[worker]["metadata"]["name"]
    for index, rule in enumerate(self._job(name)["podFailurePolicy"]["rules"]):
      codes = rule.get("onExitCodes", {})
      if code in codes.get("values", []):
        # The message of pkg/controller/job/pod_failure_policy.go in kubernetes/kubernetes.
        about = f"Container {codes['containerName']} for pod default/{pod}"
        self._failed(
          name, "PodFailurePolicy", f"{about} failed with exit code {code} matching FailJob rule at index {index}"
        )
        return
    self._failed(name, "BackoffLimitExceeded", "Job has reached the specified backoff limit")

  def lose(self, name: str) -> None:
    """Removes the node of the first pod of a JobSet."""
    pod = self.pods(name)[0]["metadata"]["name"]
    rule = "has condition DisruptionTarget matching FailJob rule at index 1"
    self._failed(name, "PodFailurePolicy", f"Pod default/{pod} {rule}")

  def expire(self, name: str) -> None:
    """Ends the Job of a JobSet at its deadline."""
    self._failed(name, "DeadlineExceeded", "Job was active longer than specified deadline")

  def remove(self, name: str) -> None:
    """Deletes a JobSet, as another user does."""
    with self._server.turn:
      self._server.delete("jobsets", name)

  def say(self, name: str, condition: str) -> None:
    """Adds a condition of an unknown type to a JobSet."""
    self._condition(name, condition, condition, "as nobody knows")

  def reap(self, *kinds: str) -> None:
    """Removes the objects that are being deleted, of these kinds or of all kinds."""
    with self._server.turn:
      for (kind, name), item in list(self._server.objects.items()):
        if item["metadata"].get("deletionTimestamp") and (not kinds or kind in kinds):
          del self._server.objects[kind, name]

  # Actions of the controllers.

  def _made(self, kind, item):
    name = item["metadata"]["name"]
    self.created.append(f"{kind}/{name}")
    if kind != "jobsets":
      return
    item["status"] = {"restarts": 0, "conditions": []}
    if "kueue.x-k8s.io/queue-name" in item["metadata"]["labels"]:
      item["spec"]["suspend"] = True
      uid = item["metadata"]["uid"]
      metadata = {"name": f"jobset-{name}-1a2b3", "ownerReferences": [{"uid": uid}]}
      condition = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": NO_QUOTA}
      labels = {"kueue.x-k8s.io/job-uid": uid}
      self._server.make("workloads", {"metadata": metadata | {"labels": labels}, "status": {"conditions": [condition]}})
    elif self.starts:
      self.run(name)
    else:
      self.wait(name)

  def _jobset(self, name):
    return self._server.objects["jobsets", name]

  def _job(self, name):
    return self._jobset(name)["spec"]["replicatedJobs"][0]["template"]["spec"]

  def _each(self, name, phase, condition, state):
    """Sets the phase of all pods of a JobSet, and creates the pods if the JobSet has none."""
    with self._server.turn:
      jobset = self._jobset(name)
      jobset["spec"]["suspend"] = False
      if not self.pods(name):
        self._make_pods(name, jobset)
      for number, pod in enumerate(self.pods(name)):
        pod["status"] = {"phase": phase, "conditions": [condition], "podIP": f"10.0.0.{number}"}
        if state is not None:
          pod["status"]["containerStatuses"] = [{"name": "train", "state": state}]
      ready = jobset["spec"]["replicatedJobs"][0]["replicas"] if phase in ("Running", "Succeeded") else 0
      jobset["status"]["replicatedJobsStatus"] = [{"name": "s", "ready": ready}]

  def _make_pods(self, name, jobset):
    (replicated,), job = jobset["spec"]["replicatedJobs"], self._job(name)
    restart = str(jobset["status"]["restarts"])
    for number in range(replicated["replicas"]):
      for index in range(job["completions"]):
        own = {f"{JOBSET}jobset-name": name, f"{JOBSET}job-index": str(number), RESTART: restart}
        metadata = {
          "name": f"{name}-{replicated['name']}-{number}-{index}-{uuid.uuid4().hex[:5]}",
          "labels": job["template"]["metadata"]["labels"] | own,
          "annotations": {COMPLETION: str(index)},
          "ownerReferences": [{"uid": jobset["metadata"]["uid"]}],
        }
        self._server.make("pods", {"metadata": metadata, "spec": copy.deepcopy(job["template"]["spec"]), "status": {}})

  def _condition(self, name, kind, reason, message):
    status = self._jobset(name)["status"]
    status["conditions"] = [each for each in status["conditions"] if each["type"] != kind]
    status["conditions"].append({"type": kind, "status": "True", "reason": reason, "message": message})

  def _failed(self, name, reason, message):
    """Applies the first matching rule, or a counted restart, as in pkg/controllers/failure_policy.go of JobSet."""
    status, policy = self._jobset(name)["status"], self._jobset(name)["spec"]["failurePolicy"]
    action = "RestartJobSet"
    for rule in policy["rules"]:
      reasons, patterns = rule.get("onJobFailureReasons", []), rule.get("onJobFailureMessagePatterns", [])
      if (not reasons or reason in reasons) and (not patterns or any(re.search(each, message) for each in patterns)):
        action = rule["action"]
        break
    counted = status.get("restartsCountTowardsMax", 0)
    if action == "FailJobSet":
      self.fail(name, "FailJobSetFailurePolicyAction", "applying FailJobSet failure policy action")
    elif action == "RestartJobSet" and counted >= policy["maxRestarts"]:
      self.fail(name, "ReachedMaxRestarts", "jobset failed due to reaching max number of restarts")
    else:
      with self._server.turn:
        status["restartsCountTowardsMax"] = counted + (action == "RestartJobSet")
        status["restarts"] += 1
        for pod in self.pods(name):
          del self._server.objects["pods", pod["metadata"]["name"]]
        self._condition(name, "RestartingJobSet", "", f"applying {action} failure policy action")
        self.run(name) if self.starts else self.wait(name)


def _slice(pod):
  return int(pod["metadata"]["labels"][f"{JOBSET}job-index"])


def _host(pod):
  return int(pod["metadata"]["annotations"][COMPLETION])
