"""A run as text for other programs: the JobSet and ConfigMap of GKE, a command of xpk, a task of SkyPilot, scripts.

Keys and messages are those of JobSet v0.12 (api/jobset/v1alpha2 and pkg/constants in kubernetes-sigs/jobset) and of the
Job controller of Kubernetes. The labels of nodes are those of cloud.google.com/kubernetes-engine/docs. xpk and SkyPilot
start the program of a run without `launch`. After their restarts, the program continues from its checkpoint.
"""

import base64
import dataclasses
import io
import json
import math
import pathlib
import re
import shlex
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from . import spec, tpus
from .errors import LaunchError, UnknownError
from .states import FATAL

GROUP, VERSION = "jobset.x-k8s.io", "v1alpha2"
JOBSETS = f"jobsets.{GROUP}"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"  # label of a pod: its slice
RESTART = "jobset.sigs.k8s.io/restart-attempt"  # label of a pod: the number of restarts of the JobSet
COMPLETION = "batch.kubernetes.io/job-completion-index"  # annotation of a pod: its host in the slice
FOLDER, TPU = "vitjax-folder", "vitjax-tpu"  # annotations of `launch`
CONTAINER = "train"
KEPT = 86_400  # seconds for which a JobSet without machines is kept for inspection
FREE = (42, 143)  # exit codes of a requested stop, as in a preemption

_SELECTORS = {"spot": "cloud.google.com/gke-spot", "flex-start": "cloud.google.com/gke-flex-start"}
_CODE = "/etc/vitjax"
_PACKAGE = pathlib.Path(__file__).parent

IMAGE = "REGION-docker.pkg.dev/PROJECT/REPOSITORY/vit@sha256:DIGEST"  # for a run without an image
CLUSTER = "my-cluster"
PYTHON = "~/vit_jax/bin/python"  # on SkyPilot's machines
_RETRIES = 50  # of xpk and SkyPilot, which also count preemptions
_PLAIN = r"(?!(?i:true|false|yes|no|on|off|null|y|n)$)[A-Za-z/][A-Za-z0-9/._-]*"  # needs no quotes in YAML
_SETUP = f"""\
set -e
python3 -m pip install --user --quiet uv
python3 -m uv venv --allow-existing --python 3.12 ~/vit_jax
python3 -m uv pip install --quiet --python {PYTHON} '.[tpu,gcs]'
"""


def make_jobset(run: spec.Run, attempt: int, expires: int) -> dict[str, Any]:
  """Returns the JobSet of an attempt, which starts run.max_failures times, and again after each preemption."""
  slice_, seconds = tpus.find_slice(run.tpu), math.ceil(run.seconds)
  annotations = {FOLDER: run.folder, TPU: f"{run.slices} x {run.tpu}" if run.slices > 1 else run.tpu}
  if slice_.hosts > 1:  # a node pool is one slice, which two jobs must not share
    annotations["alpha.jobset.sigs.k8s.io/exclusive-topology"] = "cloud.google.com/gke-nodepool"
  if run.capacity == "flex-start":
    annotations["provreq.kueue.x-k8s.io/maxRunDurationSeconds"] = str(seconds)
  queue = {"kueue.x-k8s.io/queue-name": run.queue} if run.queue else {}
  labels = run.make_labels(attempt) | {"vitjax-expires": str(expires)}
  exits = {"containerName": CONTAINER, "operator": "In", "values": sorted((*FATAL, *FREE))}
  job = {
    "parallelism": slice_.hosts,
    "completions": slice_.hosts,
    "completionMode": "Indexed",
    "backoffLimit": 0,
    "activeDeadlineSeconds": seconds,  # of each start; the worker itself ends at `expires`
    "podFailurePolicy": {
      "rules": [
        {"action": "FailJob", "onExitCodes": exits},
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
      ]
    },
    "template": {"metadata": {"labels": labels}, "spec": _make_pod(run, attempt, slice_)},
  }
  # The message of the Job controller: "Container C for pod P failed with exit code 2 matching FailJob rule at index 0".
  failed = {"onJobFailureReasons": ["PodFailurePolicy"]}
  fatal = {"onJobFailureMessagePatterns": [f"exit code ({'|'.join(map(str, FATAL))}) "]}
  failures = {
    "maxRestarts": run.max_failures - 1,
    "restartStrategy": "BlockingRecreate",  # no old pod uses a chip or a port when the new pods start
    "rules": [
      {"name": "fatal", "action": "FailJobSet", **failed, **fatal},
      {"name": "expired", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]},
      {"name": "preempted", "action": "RestartJobSetAndIgnoreMaxRestarts", **failed},
    ],
  }
  # One letter, because the name of a pod has 63 characters at most and contains the name of the run and numbers.
  jobs = {"name": "s", "replicas": run.slices, "template": {"metadata": {"labels": labels}, "spec": job}}
  return {
    "apiVersion": f"{GROUP}/{VERSION}",
    "kind": "JobSet",
    "metadata": {"name": run.get_attempt_name(attempt), "labels": queue | labels, "annotations": annotations},
    "spec": {"ttlSecondsAfterFinished": KEPT, "failurePolicy": failures, "replicatedJobs": [jobs]},
  }


def make_config_map(run: spec.Run, attempt: int, expires: int, owner: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the ConfigMap with `launch` itself. It is deleted with the JobSet `owner`, as the cluster returned it."""
  reference = {key: owner[key] for key in ("apiVersion", "kind")}
  return {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {
      "name": run.get_attempt_name(attempt),
      "labels": run.make_labels(attempt) | {"vitjax-expires": str(expires)},
      "annotations": {FOLDER: run.folder},
      "ownerReferences": [reference | {key: owner["metadata"][key] for key in ("name", "uid")}],
    },
    "immutable": True,
    "binaryData": {"launch.zip": base64.b64encode(pack_launch()).decode()},
  }


def pack_launch() -> bytes:
  """Returns the package `launch` as a zip file that Python imports from: the same bytes for the same files."""
  content = io.BytesIO()
  try:
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
      for path in sorted(_PACKAGE.rglob("*.py")):
        packed.writestr(zipfile.ZipInfo(f"launch/{path.relative_to(_PACKAGE).as_posix()}"), path.read_bytes(), 8)
  except OSError as error:
    raise UnknownError(f"{error.filename or _PACKAGE}: {error.strerror}") from None
  return content.getvalue()


def _make_pod(run: spec.Run, attempt: int, slice_: tpus.Slice) -> dict[str, Any]:
  """Returns the pod of a host, which uses all chips of the host."""
  words = ["python3", "-u", "-m", "launch.worker", "run"]
  words += [f"--folder={run.folder}", f"--attempt={attempt}", "--engine=gke"]
  fields = {
    "LAUNCH_SLICE": f"metadata.labels['{JOB_INDEX}']",
    "LAUNCH_INDEX": f"metadata.annotations['{COMPLETION}']",
    "LAUNCH_RESTART": f"metadata.labels['{RESTART}']",
  }
  environment: list[dict[str, Any]] = [{"name": "PYTHONPATH", "value": f"{_CODE}/launch.zip"}]
  environment += [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()]
  for key, value in run.secrets.items():
    if value.startswith("k8s:"):  # the worker reads the others itself
      name, _, entry = value.removeprefix("k8s:").partition("/")
      environment.append({"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": entry}}})
  chips = {"google.com/tpu": slice_.chips // slice_.hosts}
  selector = {
    "cloud.google.com/gke-tpu-accelerator": slice_.accelerator,
    "cloud.google.com/gke-tpu-topology": slice_.grid,
  }
  wanted = _SELECTORS.get(run.capacity)
  tolerated = ["google.com/tpu", *([wanted] if wanted else [])]
  if run.capacity == "flex-start":
    tolerated.append("cloud.google.com/gke-queued")  # of node pools with queued provisioning
  container = {
    "name": CONTAINER,
    "image": run.image,
    # Kubernetes replaces $(NAME) in arguments by variables; $$ is a $.
    "command": [word.replace("$", "$$") for word in words],
    "env": environment,
    "resources": {"requests": chips, "limits": chips},
    # As in xpk: libtpu locks memory and opens /dev/vfio, which belongs to root. The image may have another user.
    "securityContext": {"privileged": True, "runAsUser": 0},
    "volumeMounts": [
      {"name": "shm", "mountPath": "/dev/shm"},
      {"name": "code", "mountPath": _CODE, "readOnly": True},
    ],
  }
  pod = {
    "restartPolicy": "Never",
    "hostNetwork": True,
    "dnsPolicy": "ClusterFirstWithHostNet",
    "terminationGracePeriodSeconds": math.ceil(run.limits.grace) + 30,  # spot nodes give far less
    "nodeSelector": selector | ({wanted: "true"} if wanted else {}),
    "tolerations": [{"key": key, "operator": "Exists"} for key in tolerated],
    "containers": [container],
    "volumes": [
      {"name": "shm", "emptyDir": {"medium": "Memory"}},
      {"name": "code", "configMap": {"name": run.get_attempt_name(attempt)}},
    ],
  }
  if not wanted:  # machines that are not preempted; those of a reservation have no label of their own
    absent = [{"key": key, "operator": "DoesNotExist"} for key in _SELECTORS.values()]
    terms = {"nodeSelectorTerms": [{"matchExpressions": absent}]}
    pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
  if run.service_account and run.backend == "gke":
    pod["serviceAccountName"] = run.service_account
  return pod


def format_jobset(run: spec.Run, attempt: int, expires: int) -> str:
  """Returns the JobSet of an attempt as text for kubectl."""
  return (
    f"# `python -m launch run` creates this, a ConfigMap of that name with {_CODE}/launch.zip, and in the bucket\n"
    f"# a{attempt}/spec.json and the code that it names.\n{format_yaml(make_jobset(run, attempt, expires))}"
  )


def build_xpk_command(run: spec.Run) -> str:
  """Returns the command of xpk that starts the program of a run. Raises LaunchError for what xpk does not support."""
  if len(run.name) > 40:
    raise LaunchError(f"xpk: the name {run.name!r} has {len(run.name)} characters; allowed: 40")
  for word in (*run.args, *run.env.values()):
    if "\n" in word or "\r" in word:
      raise LaunchError(f"xpk: {word[:60]!r} has a line break, which xpk does not support. Put it into the config")
  # gcloud names the context of a cluster gke_PROJECT_LOCATION_CLUSTER.
  match = re.fullmatch(r"gke_([^_]+)_([^_]+)_([^_]+)", run.cluster)
  project, zone, cluster = match.groups() if match else (run.project, "".join(run.zones[:1]), CLUSTER)
  words = ["xpk", "workload", "create", f"--workload={run.name}", f"--cluster={cluster}"]
  words += [f"--project={project}"] * bool(project) + [f"--zone={zone}"] * bool(zone)
  words += [f"--tpu-type={tpus.find_slice(run.tpu).rented}", f"--num-slices={run.slices}"]
  words += [f"--docker-image={run.image or IMAGE}", f"--max-restarts={_RETRIES}", "--restart-on-exit-codes=42"]
  words += [f"--termination-grace-period-seconds={run.limits.grace:.0f}"]
  words += {"spot": ["--spot"], "on-demand": ["--on-demand"], "flex-start": ["--flex"]}.get(run.capacity, [])
  words += [f"--env={key}={value}" for key, value in run.env.items()]
  # bash executes the command. `exec` lets SIGTERM reach the program.
  words.append("--command=exec " + shlex.join(["python3", "-u", "-m", run.module, *run.args]))
  secrets = [f"# xpk does not pass secrets: give {key} to the program by other means.\n" for key in run.secrets]
  unsupported = _list_unsupported(run, "xpk", {"image", "cluster", "project", "slices"})
  return f"{''.join(secrets)}{unsupported}{shlex.join(words)}\n"


def build_skypilot_task(run: spec.Run) -> str:
  """Returns the task of SkyPilot that starts the program of a run. Raises LaunchError for what is not supported."""
  if run.slices > 1:
    raise LaunchError(f"SkyPilot starts one slice; --slices is {run.slices}: use python -m launch run, or --xpk")
  if run.capacity in ("reserved", "flex-start"):
    raise LaunchError(
      f"SkyPilot's TPU VMs are spot or on demand; --{run.capacity} is for python -m launch run, or --xpk"
    )
  slice_ = tpus.find_slice(run.tpu)
  if not slice_.kind.runtime:
    raise LaunchError(f"SkyPilot starts TPU VMs, and Cloud TPU's API does not offer {slice_.generation}; use --xpk")
  places = [{"infra": f"gcp/{zone.rpartition('-')[0]}/{zone}"} for zone in run.zones] or [{"infra": "gcp"}]
  resources = {
    "accelerators": f"tpu-{slice_.rented}:1",
    "accelerator_args": {"tpu_vm": True, "runtime_version": run.runtime_version or slice_.kind.runtime},
    "use_spot": run.capacity == "spot",
    "job_recovery": {"strategy": "FAILOVER", "max_restarts_on_errors": run.max_failures},
    **(places[0] if len(places) == 1 else {"any_of": places}),
  }
  task = {"name": run.name, "resources": resources, "num_nodes": 1, "workdir": "."}
  task |= {"envs": run.env} if run.env else {}
  task |= {"secrets": dict.fromkeys(run.secrets)} if run.secrets else {}
  task["setup"] = "true\n" if run.python else _SETUP
  program = shlex.join(["-u", "-m", run.module, *run.args])
  task["run"] = f"exec {shlex.quote(run.python) if run.python else PYTHON} {program}\n"
  secrets = "".join(f" --secret {key}" for key in run.secrets)
  unsupported = _list_unsupported(run, "SkyPilot", {"python", "max_failures", "runtime_version", "slices"})
  return f"# sky jobs launch{secrets} THIS_FILE\n{unsupported}{format_yaml(task)}"


def _list_unsupported(run: spec.Run, launcher: str, supported: Iterable[str]) -> str:
  """Returns a comment with the flags of a run that another launcher does not support."""
  common = ("name", "backend", "module", "args", "workdir", "tpu", "zones", "capacity", "env", "secrets", "owner")
  default: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(run)}
  default["runtime_version"] = tpus.find_slice(run.tpu).kind.runtime if run.runtime_version else ""
  default["limits"] = spec.Limits(grace=run.limits.grace) if launcher == "xpk" else spec.Limits()
  flags = [spec.format_flag(k) for k in default if k not in (*supported, *common) and getattr(run, k) != default[k]]
  if launcher == "xpk":
    flags += ["--zone (except the first zone)"] * (len(run.zones) > 1) + ["--reserved"] * (run.capacity == "reserved")
  return f"# {launcher} does not support: {', '.join(flags)}. Nothing ends at --max-hours.\n"


def format_script(*sections: tuple[str, Iterable[list[str] | str]]) -> str:
  """Returns commands as a script of the shell.

  Args:
    sections: a title and its lines, which are argument lists, or texts that need no quotes.
  """
  return "\n\n".join(
    "\n".join([f"# {title}", *(line if isinstance(line, str) else shlex.join(line) for line in lines)])
    for title, lines in sections
  )


def format_here_document(command: str, text: str) -> str:
  """Returns a command of the shell that reads a text from its standard input."""
  return f"{command} <<'END_OF_TEXT'\n{text.rstrip()}\nEND_OF_TEXT"


def format_yaml(value: Mapping[str, object] | Sequence[object]) -> str:
  """Returns lists and dictionaries as readable YAML, which every parser of YAML reads as the same value."""
  return "\n".join(_format_yaml_lines(value)) + "\n"


def _format_yaml_lines(value: Any) -> Iterator[str]:
  pairs: Iterable[tuple[str | None, Any]] = (
    value.items() if isinstance(value, dict) else ((None, each) for each in value)
  )
  for key, each in pairs:
    start = "-" if key is None else f"{_format_scalar(key)}:"
    if key is not None and isinstance(each, str) and _is_block(each):
      yield f"{start} |"
      yield from (f"  {line}" if line else "" for line in each[:-1].split("\n"))
    elif isinstance(each, (dict, list)) and each:
      inner = [f"  {line}" if line else "" for line in _format_yaml_lines(each)]
      if key is None:  # the first line starts behind the dash
        inner[0] = f"- {inner[0][2:]}"
      else:
        yield start
      yield from inner
    else:
      yield f"{start} {_format_scalar(each)}"


def _is_block(text: Any) -> bool:
  """Returns whether a text is several printable lines with one line break at the end."""
  return text[:1].strip() and text[-1] == "\n" != text[-2:-1] and text.replace("\n", "").isprintable()


def _format_scalar(value: object) -> str:
  """Returns a word without quotes, and other values as JSON, with escapes for characters that YAML does not allow."""
  if isinstance(value, str) and re.fullmatch(_PLAIN, value, re.ASCII):
    return value
  text = json.dumps(value, ensure_ascii=False)
  return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
