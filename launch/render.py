"""A run as text for other launchers: the JobSet of `--backend=gke`, a command of xpk, a task of SkyPilot.

They start the run's own program, whose checkpoints make their restarts exact; only the JobSet has `launch` in it.
"""

import dataclasses
import json
import re
import shlex

from launch import manifests, spec, tpus
from launch.errors import LaunchError

IMAGE = "REGION-docker.pkg.dev/PROJECT/REPOSITORY/vit@sha256:DIGEST"  # where the run has none
CLUSTER = "my-cluster"
PYTHON = "~/vit_jax/bin/python"  # of SkyPilot's machines
_RETRIES = 50  # of xpk and SkyPilot, which count preemptions too
_PLAIN = r"(?!(?i:true|false|yes|no|on|off|null|y|n)$)[A-Za-z/][A-Za-z0-9/._-]*"  # is itself in YAML
_SETUP = f"""\
set -e
python3 -m pip install --user --quiet uv
python3 -m uv venv --allow-existing --python 3.12 ~/vit_jax
python3 -m uv pip install --quiet --python {PYTHON} '.[tpu,gcs]'
"""


def jobset(run: spec.Run, attempt: int, expires: int) -> str:
  """The JobSet of an attempt, for kubectl. `run` makes the ConfigMap, spec and code that it needs too."""
  value = manifests.jobset(run, attempt, expires)
  lines = [
    f"# `python -m launch run` makes this, a ConfigMap of that name with {manifests.CODE}/launch.zip, and in the bucket"
  ]
  lines += [f"# a{attempt}/spec.json and the code that it says."]
  return "\n".join([*lines, yaml(value)])


def xpk(run: spec.Run) -> str:
  """The command of xpk that starts the run's program on a cluster of xpk's. LaunchError for what xpk cannot take."""
  if len(run.name) > 40:
    raise LaunchError(f"xpk: the name {run.name!r} has {len(run.name)} characters; allowed: 40")
  for word in (*run.args, *run.env.values()):
    if "\n" in word or "\r" in word:
      raise LaunchError(f"xpk: {word[:60]!r} has a line break, which xpk's manifests cannot have; put it in the config")
  # gke_PROJECT_LOCATION_CLUSTER is what gcloud calls a cluster's context.
  match = re.fullmatch(r"gke_([^_]+)_([^_]+)_([^_]+)", run.cluster)
  project, zone, cluster = match.groups() if match else (run.project, "".join(run.zones[:1]), CLUSTER)
  words = ["xpk", "workload", "create", f"--workload={run.name}", f"--cluster={cluster}"]
  words += [f"--project={project}"] * bool(project) + [f"--zone={zone}"] * bool(zone)
  words += [f"--tpu-type={tpus.find(run.tpu).rented}", f"--num-slices={run.slices}"]
  words += [f"--docker-image={run.image or IMAGE}", f"--max-restarts={_RETRIES}", "--restart-on-exit-codes=42"]
  words += [f"--termination-grace-period-seconds={run.limits.grace:.0f}"]
  words += {"spot": ["--spot"], "on-demand": ["--on-demand"], "flex-start": ["--flex"]}.get(run.capacity, [])
  words += [f"--env={key}={value}" for key, value in run.env.items()]
  # xpk gives it to bash, which must become the program, or SIGTERM would not reach it.
  words.append("--command=exec " + shlex.join(["python3", "-u", "-m", run.module, *run.args]))
  missing = [f"# xpk hands no secrets over: give {key} to the program by other means.\n" for key in run.secrets]
  missing.append(_left_out(run, "xpk", {"image", "cluster", "project", "slices"}))
  return "".join(missing) + shlex.join(words) + "\n"


def skypilot(run: spec.Run) -> str:
  """The task of SkyPilot that starts the run's program on TPU VMs. LaunchError for what SkyPilot cannot do."""
  if run.slices > 1:
    raise LaunchError(f"SkyPilot starts one slice; --slices is {run.slices}: use python -m launch run, or --xpk")
  if run.capacity in ("reserved", "flex-start"):
    raise LaunchError(
      f"SkyPilot's TPU VMs are spot or on demand; --{run.capacity} is for python -m launch run, or --xpk"
    )
  slice_ = tpus.find(run.tpu)
  places = [f"gcp/{zone.rpartition('-')[0]}/{zone}" for zone in run.zones] or ["gcp"]
  resources = {
    "accelerators": f"tpu-{slice_.rented}:1",
    "accelerator_args": {"tpu_vm": True, "runtime_version": run.runtime_version or slice_.kind.runtime},
    "use_spot": run.capacity == "spot",
    "job_recovery": {"strategy": "FAILOVER", "max_restarts_on_errors": run.max_failures},
  }
  resources |= {"infra": places[0]} if len(places) == 1 else {"any_of": [{"infra": place} for place in places]}
  task = {"name": run.name, "resources": resources, "num_nodes": 1, "workdir": "."}
  if run.env:
    task["envs"] = run.env
  if run.secrets:
    task["secrets"] = dict.fromkeys(run.secrets)
  start = shlex.join(["-u", "-m", run.module, *run.args])
  task["setup"] = "true\n" if run.python else _SETUP
  task["run"] = f"exec {shlex.quote(run.python) if run.python else PYTHON} {start}\n"
  asked = "".join(f" --secret {key}" for key in run.secrets)
  missing = _left_out(run, "SkyPilot", {"python", "max_failures", "runtime_version", "slices"})
  return f"# sky jobs launch{asked} THIS_FILE\n{missing}{yaml(task)}"


def _left_out(run, whose, takes):
  """A comment on what was asked for and is not in the text, nor in anything else that the other launcher does."""
  takes = takes | {
    "name",
    "backend",
    "module",
    "args",
    "workdir",
    "tpu",
    "zones",
    "capacity",
    "env",
    "secrets",
    "owner",
  }
  default = {field.name: field.default for field in dataclasses.fields(run)}
  default["runtime_version"] = tpus.find(run.tpu).kind.runtime if run.runtime_version else ""
  default["limits"] = spec.Limits(**({"grace": run.limits.grace} if whose == "xpk" else {}))
  missing = [spec.flag(key) for key in default if key not in {*takes, "owner"} and getattr(run, key) != default[key]]
  if whose == "xpk":
    missing += ["--zone but for the first"] * (len(run.zones) > 1) + ["--reserved"] * (run.capacity == "reserved")
  return f"# Not in here, as {whose} has nothing for it: {', '.join(missing)}. Nothing ends at --max-hours.\n"


def script(*sections: tuple[str, list]) -> str:
  """Returns commands as a script of the shell.

  Args:
    sections: a title and its lines, which are argument lists or texts that need no quotes.
  """
  texts = []
  for title, lines in sections:
    quoted = [line if isinstance(line, str) else shlex.join(line) for line in lines]
    texts.append("\n".join([f"# {title}", *quoted]))
  return "\n\n".join(texts)


def here(command: str, text: str) -> str:
  """Returns a command of the shell that reads a text from its standard input."""
  return f"{command} <<'END_OF_TEXT'\n{text.rstrip()}\nEND_OF_TEXT"


def yaml(value) -> str:
  """Lists and dictionaries as YAML, for people; the same value to any parser of YAML."""
  return "\n".join(_lines(value)) + "\n"


def _lines(value):
  pairs = value.items() if isinstance(value, dict) else ((None, each) for each in value)
  for key, each in pairs:
    start = "-" if key is None else f"{_scalar(key)}:"
    if key is not None and isinstance(each, str) and _block(each):
      yield f"{start} |"
      yield from (f"  {line}" if line else "" for line in each[:-1].split("\n"))
    elif isinstance(each, (dict, list)) and each:
      inner = [f"  {line}" if line else "" for line in _lines(each)]
      if key is None:  # the first line begins beside the dash
        inner[0] = f"- {inner[0][2:]}"
      else:
        yield start
      yield from inner
    else:
      yield f"{start} {_scalar(each)}"


def _block(text):
  """Whether it is better read as lines: several that can be printed, and one line break at the end."""
  return text[:1].strip() and text[-1] == "\n" != text[-2:-1] and text.replace("\n", "").isprintable()


def _scalar(value):
  """A word as it is, anything else as JSON, which YAML is too but for characters that cannot be printed."""
  if isinstance(value, str) and re.fullmatch(_PLAIN, value, re.ASCII):
    return value
  text = json.dumps(value, ensure_ascii=False)
  return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
