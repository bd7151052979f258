"""GKE: kubectl and what its complaints mean; the JobSet of an attempt, and a ConfigMap with the code of its workers.

Keys and messages are those of JobSet v0.12 (api/jobset/v1alpha2 and pkg/constants in kubernetes-sigs/jobset) and of
Kubernetes' Job controller; what nodes are called is of cloud.google.com/kubernetes-engine/docs.
"""

import base64
import io
import math
import pathlib
import re
import subprocess
import zipfile

from launch import spec, tpus
from launch.assumptions import CLUSTER_CALL
from launch.errors import DENIED, USAGE, LaunchError, UnknownError

GROUP, VERSION = "jobset.x-k8s.io", "v1alpha2"
JOBSETS = f"jobsets.{GROUP}"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"  # label of a pod: its slice
RESTART = "jobset.sigs.k8s.io/restart-attempt"  # label of a pod: how often the JobSet was started again
COMPLETION = "batch.kubernetes.io/job-completion-index"  # annotation of a pod: its host in the slice
FOLDER, TPU = "vitjax-folder", "vitjax-tpu"  # annotations of ours
CONTAINER = "train"
KEPT = 86_400  # seconds that a JobSet that has ended is kept to be looked at; it has no machines any more
FATAL = (2, 44, 45)  # of the exit-code contract: no restart helps
FREE = (42, 143)  # asked to stop, as preemption does

_SELECTORS = {"spot": "cloud.google.com/gke-spot", "flex-start": "cloud.google.com/gke-flex-start"}
CODE = "/etc/vitjax"
_PACKAGE = pathlib.Path(__file__).parent


def jobset(run: spec.Run, attempt: int, expires: int) -> dict:
  """The JobSet of an attempt. It is started run.max_failures times, and again after each preemption."""
  slice_ = tpus.find(run.tpu)
  annotations = {FOLDER: run.folder, TPU: f"{run.slices} x {run.tpu}" if run.slices > 1 else run.tpu}
  if slice_.hosts > 1:  # a node pool is a slice, which two jobs must not share
    annotations["alpha.jobset.sigs.k8s.io/exclusive-topology"] = "cloud.google.com/gke-nodepool"
  if run.capacity == "flex-start":
    annotations["provreq.kueue.x-k8s.io/maxRunDurationSeconds"] = str(_seconds(run))
  queue = {"kueue.x-k8s.io/queue-name": run.queue} if run.queue else {}
  own = labels(run, attempt, expires)
  job = {
    "parallelism": slice_.hosts,
    "completions": slice_.hosts,
    "completionMode": "Indexed",
    "backoffLimit": 0,
    "activeDeadlineSeconds": _seconds(run),  # of each start; the worker itself ends at `expires`
    "podFailurePolicy": {
      "rules": [
        {
          "action": "FailJob",
          "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": sorted((*FATAL, *FREE))},
        },
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
      ]
    },
    "template": {"metadata": {"labels": own}, "spec": _pod(run, attempt, slice_)},
  }
  return {
    "apiVersion": f"{GROUP}/{VERSION}",
    "kind": "JobSet",
    "metadata": {"name": run.attempt(attempt), "labels": queue | own, "annotations": annotations},
    "spec": {
      "ttlSecondsAfterFinished": KEPT,
      "failurePolicy": {
        "maxRestarts": run.max_failures - 1,
        "restartStrategy": "BlockingRecreate",  # no old pod holds a chip or a port when the new ones come
        "rules": [
          # The Job controller says: "Container C for pod P failed with exit code 2 matching FailJob rule at index 0".
          {
            "name": "fatal",
            "action": "FailJobSet",
            "onJobFailureReasons": ["PodFailurePolicy"],
            "onJobFailureMessagePatterns": [f"exit code ({'|'.join(map(str, FATAL))}) "],
          },
          {"name": "expired", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]},
          {
            "name": "preempted",
            "action": "RestartJobSetAndIgnoreMaxRestarts",
            "onJobFailureReasons": ["PodFailurePolicy"],
          },
        ],
      },
      # Of one letter, as a pod's name of up to 63 has the run's name and its own numbers too.
      "replicatedJobs": [{"name": "s", "replicas": run.slices, "template": {"metadata": {"labels": own}, "spec": job}}],
    },
  }


def code(run: spec.Run, attempt: int, expires: int, owner: dict) -> dict:
  """The ConfigMap with `launch` itself, which goes when the JobSet `owner`, as the cluster returned it, goes."""
  reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
  reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
  return {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {
      "name": run.attempt(attempt),
      "labels": labels(run, attempt, expires),
      "annotations": {FOLDER: run.folder},
      "ownerReferences": [reference],
    },
    "immutable": True,
    "binaryData": {"launch.zip": base64.b64encode(archive()).decode()},
  }


def labels(run: spec.Run, attempt: int, expires: int) -> dict:
  """By which everything of an attempt is known as ours."""
  own = {"run": run.name, "owner": run.owner, "attempt": str(attempt), "folder": run.mark, "expires": str(expires)}
  return {"vitjax": "1"} | {f"vitjax-{key}": value for key, value in own.items()}


def archive() -> bytes:
  """The package `launch` as a zip file that Python imports from: the same bytes for the same files."""
  content = io.BytesIO()
  try:
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
      for path in sorted(_PACKAGE.rglob("*.py")):
        packed.writestr(zipfile.ZipInfo(f"launch/{path.relative_to(_PACKAGE).as_posix()}"), path.read_bytes(), 8)
  except OSError as error:
    raise UnknownError(f"{error.filename or _PACKAGE}: {error.strerror}") from None
  return content.getvalue()


def _pod(run, attempt, slice_):
  """Of a host, all whose chips it has."""
  words = ["python3", "-u", "-m", "launch.worker", "run"]
  words += [f"--folder={run.folder}", f"--attempt={attempt}", "--engine=gke"]
  fields = {
    "LAUNCH_SLICE": f"metadata.labels['{JOB_INDEX}']",
    "LAUNCH_INDEX": f"metadata.annotations['{COMPLETION}']",
    "LAUNCH_RESTART": f"metadata.labels['{RESTART}']",
  }
  environment = [{"name": "PYTHONPATH", "value": f"{CODE}/launch.zip"}]
  environment += [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()]
  for key, value in run.secrets.items():
    if value.startswith("k8s:"):  # the worker gets the others by itself
      name, _, entry = value.removeprefix("k8s:").partition("/")
      environment.append({"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": entry}}})
  chips = slice_.chips // slice_.hosts
  selector = {
    "cloud.google.com/gke-tpu-accelerator": slice_.accelerator,
    "cloud.google.com/gke-tpu-topology": slice_.grid,
  }
  wanted = _SELECTORS.get(run.capacity)
  tolerated = ["google.com/tpu", *([wanted] if wanted else [])]
  if run.capacity == "flex-start":
    tolerated.append("cloud.google.com/gke-queued")  # of node pools with queued provisioning
  pod = {
    "restartPolicy": "Never",
    "hostNetwork": True,
    "dnsPolicy": "ClusterFirstWithHostNet",
    "terminationGracePeriodSeconds": math.ceil(run.limits.grace) + 30,  # spot nodes give far less
    "nodeSelector": selector | ({wanted: "true"} if wanted else {}),
    "tolerations": [{"key": key, "operator": "Exists"} for key in tolerated],
    "containers": [
      {
        "name": CONTAINER,
        "image": run.image,
        # Kubernetes puts variables for $(NAME) in arguments; $$ is a $.
        "command": [word.replace("$", "$$") for word in words],
        "env": environment,
        "resources": {"requests": {"google.com/tpu": chips}, "limits": {"google.com/tpu": chips}},
        "securityContext": {"privileged": True},  # as xpk: libtpu locks memory and opens /dev/vfio
        "volumeMounts": [
          {"name": "shm", "mountPath": "/dev/shm"},
          {"name": "code", "mountPath": CODE, "readOnly": True},
        ],
      }
    ],
    "volumes": [
      {"name": "shm", "emptyDir": {"medium": "Memory"}},
      {"name": "code", "configMap": {"name": run.attempt(attempt)}},
    ],
  }
  if not wanted:  # machines that are not taken away; those of a reservation carry no label of their own
    absent = [{"key": key, "operator": "DoesNotExist"} for key in _SELECTORS.values()]
    terms = {"nodeSelectorTerms": [{"matchExpressions": absent}]}
    pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
  if run.service_account and run.backend == "gke":
    pod["serviceAccountName"] = run.service_account
  return pod


def _seconds(run):
  return math.ceil(run.max_hours * 3600)


TIMEOUT = CLUSTER_CALL  # of which a request may take 20 s
_INSTALL = "https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml"
# Of a network that is away, also for the plugin that gets the token.
_PASSING = (
  r"connection refused|(?<!localhost:8080) was refused|i/o timeout|no such host|TLS handshake|Max retries exceeded"
  r"|Failed to establish a new connection|Unable to find the server|network is unreachable|connection reset"
)
# kubectl exits with 1 whatever happens. What a line means, the first that fits: code, and what to do. The words in
# brackets are the reasons of Kubernetes' API (k8s.io/apimachinery/pkg/apis/meta/v1), the others kubectl's own.
_MEANINGS = (
  (r"namespaces \"[^\"]*\" not found", USAGE, "correct --namespace, or make it: kubectl create namespace NAME"),
  (r"doesn't have a resource type", USAGE, "the cluster does not know it"),
  (r"context \S+ does not exist|context was not found", USAGE, "correct --cluster; see: kubectl config get-contexts"),
  (r"localhost:8080 was refused|no configuration has been provided", USAGE,
   "kubectl knows no cluster; run: gcloud container clusters get-credentials CLUSTER --location=LOCATION"),
  (r"gke-gcloud-auth-plugin", DENIED,
   "run: gcloud components install gke-gcloud-auth-plugin; if it is there: gcloud auth login"),
  (r"\(Unauthorized\)|You must be logged in|getting credentials|provide credentials", DENIED, "run: gcloud auth login"),
  (r"exceeded quota", DENIED, "free some, or ask the administrator of the namespace for more"),
  (r"\(Forbidden\)|is forbidden", DENIED,
   "ask for the rights to make, see and delete JobSets, Jobs, Pods and ConfigMaps in the namespace"),
  (r"\(Invalid\)|\(BadRequest\)|is invalid:|denied the request|ValidationError|unknown field|unknown flag", USAGE,
   "the cluster refuses what it was asked for; its JobSet may be older than v0.12"),
)  # fmt: skip


class NoJobSetError(LaunchError):
  """The cluster does not know JobSets."""


def base(context: str, namespace: str) -> list:
  """The words that all commands begin with."""
  return [
    "kubectl",
    *([f"--context={context}"] if context else []),
    *([f"--namespace={namespace}"] if namespace else []),
  ]


def executed(words: list) -> list:
  """Returns the argument list that `ask` executes for words of `base`."""
  return [words[0], "--request-timeout=20s", *words[1:]]


def ask(words: list, content: str = "") -> str:
  """What a command of `base` prints. LookupError for what is not there, FileExistsError for what is there already.

  Args:
    content: for its standard input.
  """
  words = executed(words)
  try:
    result = subprocess.run(
      words, input=content, capture_output=True, encoding="utf-8", errors="replace", timeout=TIMEOUT
    )
  except FileNotFoundError:
    raise LaunchError(
      "kubectl is not installed; run: gcloud components install kubectl gke-gcloud-auth-plugin", DENIED
    ) from None
  except OSError as error:
    raise UnknownError(f"kubectl cannot be run now: {error.strerror}") from None
  except subprocess.TimeoutExpired:
    raise UnknownError(f"kubectl did not answer within {TIMEOUT:.0f} s") from None
  if result.returncode == 0:
    return result.stdout
  raise _error(result.stderr)


def context() -> str:
  """The context that kubectl uses when it is not told one: a run must name it, for it may change."""
  return ask(["kubectl", "config", "current-context"]).strip()


def _error(text):
  """The exception for a complaint."""
  lines = [line for line in text.splitlines() if line.strip() and not re.match(r"[EIW]\d{4} |Warning:", line)]
  short = " ".join(" ".join(lines or text.splitlines()[-1:]).split())[:300] or "no reason given"
  if re.search(r"\(AlreadyExists\)", text):
    return FileExistsError(short)
  if re.search(rf"\(NotFound\): ({re.escape(JOBSETS)}|configmaps|pods) \"[^\"]+\" not found", text):
    return LookupError(short)
  if re.search(r"no matches for kind \"JobSet\"|resource type \"jobsets?[.\"]", text):
    return NoJobSetError(f"JobSet is not installed on this cluster; run: kubectl apply --server-side -f {_INSTALL}")
  for pattern, code, remedy in () if re.search(_PASSING, text) else _MEANINGS:
    if re.search(pattern, text):
      return LaunchError(f"kubectl: {short}; {remedy}", code)
  return UnknownError(f"kubectl: {short}")
