"""The description of a run: checked once, written as JSON, and read by all modules of `launch`."""

import dataclasses
import difflib
import getpass
import hashlib
import json
import re
import socket
from collections.abc import Sequence
from typing import Any

from . import tpus
from .errors import LaunchError

BACKENDS = ("local", "qr", "gke", "hosts")
YEAR = 24.0 * 365  # hours
FLEX_HOURS = 7 * 24  # docs.cloud.google.com/tpu/docs: flex-start runs up to seven days
CAPACITIES = ("spot", "reserved", "on-demand", "flex-start")
NAME = r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?"
_ACCOUNTS = {  # accounts of the machines, by backend
  "qr": (r"[a-z0-9-]{1,63}@[a-z0-9.-]{1,100}", "an address, as vit@my-project.iam.gserviceaccount.com"),
  "gke": (r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", "the name of a Kubernetes service account of the namespace"),
}
_SHAPES = {
  "name": (NAME, "a small letter, followed by at most 41 small letters, digits and dashes"),
  "project": (r"[a-z][a-z0-9.:-]{4,98}[a-z0-9]", "a project's id, as my-project-123"),
  "runtime_version": (r"[a-z0-9][a-z0-9._-]{0,62}", "a version of gcloud compute tpus versions list"),
  "network": (r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", "a network's name"),
  "subnetwork": (r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", "a subnetwork's name"),
  "image": (r"[a-z0-9][a-z0-9._/:-]{0,254}@sha256:[0-9a-f]{64}", "an image by its digest, NAME@sha256:64_HEX_DIGITS"),
  "queue": (r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", "a Kueue queue's name"),
  "namespace": (r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a namespace"),
  "cluster": (r"[A-Za-z0-9][A-Za-z0-9@:._/-]{0,200}", "a context of kubectl"),
  "owner": (r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?", "small letters, digits, - and _"),
  "python": (r"/[\w./+-]{1,200}", "an absolute path"),
  "module": (r"[A-Za-z_]\w{0,62}(\.[A-Za-z_]\w{0,62}){0,8}", "a Python module, as vit_jax.train"),
}  # fmt: skip
ZONE = r"[a-z]+-[a-z]+[0-9]+-[a-z][a-z0-9]*"
HOST = r"([a-z_][a-z0-9_-]{0,31}@)?[A-Za-z0-9]([A-Za-z0-9.:-]{0,250}[A-Za-z0-9])?"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,127}"
_SECRET = r"projects/[\w.:-]+/secrets/[\w-]+/versions/(\d+|latest)|file:/[\w./+-]+|k8s:[a-z0-9.-]+/[\w.-]+"
_BUCKET = r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f#*?\[\]]+)+/?"


@dataclasses.dataclass(frozen=True)
class Limits:
  """Time limits, in seconds.

  Args:
    beat: time between two reports of a worker.
    poll: time between two observations of the watcher. A request without effect is repeated after this time. The
      interval then doubles each time, up to 20 times its first value.
    silence: time without a report after which a worker counts as dead.
    queue: longest wait for capacity.
    provision: longest time from capacity until the machines are ready.
    start: longest time from ready machines until all workers report.
    appear: time after an answered request in which the answer "not found" is ignored.
    install: longest time to install the packages of the run.
    repair: longest time for a node to recover.
    stall: time without progress after which stacks are printed and the try ends. It must exceed the run's own limits.
    grace: time from the request to stop a program until it is killed.
    delete: longest time from the request of a deletion until the machines are absent.
    idle: time from the end of all work until a machine deletes itself.
    pause: time before the next attempt. It doubles with each attempt without progress, up to 30 times its first value.
  """

  beat: float = 15.0
  poll: float = 15.0
  silence: float = 180.0
  queue: float = 21_600.0
  provision: float = 1200.0
  start: float = 900.0
  appear: float = 60.0
  install: float = 1800.0
  repair: float = 1800.0
  stall: float = 3600.0
  grace: float = 120.0
  delete: float = 900.0
  idle: float = 1200.0
  pause: float = 30.0


def parse_duration(text: str) -> float:
  """Returns the seconds of "90s", "30m", "6h" or "2d". Raises a LaunchError for anything else."""
  match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smhd])", text, re.ASCII)
  if not match or not float(match[1]):
    raise LaunchError(f"{text[:40]!r} is not a duration. Write 90s, 30m, 6h or 2d")
  return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


@dataclasses.dataclass(frozen=True)
class Run:
  """A run: a module with its arguments, its machines and its limits.

  Args:
    name: name of the run; its attempts are NAME-a1, NAME-a2, …
    backend: one of BACKENDS.
    module: module that Python runs with -m on every host.
    args: arguments of the module, which are passed unchanged.
    workdir: gs://… or a directory. Its subdirectory `launch` contains reports, logs and code.
    tpu: type of slice, such as v3-32. slices: number of slices.
    zones: zones that are tried in turn, never two at the same time.
    capacity: one of CAPACITIES.
    max_hours: limit of the machine time of all attempts together, in hours. The machines then delete themselves, even
      without a watcher. 0 means 24 hours in a cloud, and a year on your own machines.
    max_failures: attempts without a new checkpoint before the run ends.
    hosts: hosts of the backend hosts, as for ssh. processes: number of processes of the backend local.
    image, queue, namespace, cluster: image, Kueue queue, namespace and kubectl context of the backend gke.
    env: variables of the program. secrets: {variable: location of its value}.
    python: interpreter on the workers that has all packages; by default one is installed.
    owner: name in the labels of the machines; other users do not delete them.
    max_cost: highest cost of all attempts together, in the currency of `price`. 0 means no limit.
    price: price per chip-hour.
  """

  name: str
  backend: str
  module: str
  args: tuple[str, ...]
  workdir: str
  tpu: str = ""
  slices: int = 1
  zones: tuple[str, ...] = ()
  project: str = ""
  capacity: str = "spot"
  max_hours: float = 0.0
  max_failures: int = 3
  runtime_version: str = ""
  network: str = ""
  subnetwork: str = ""
  internal_ips: bool = False
  service_account: str = ""
  hosts: tuple[str, ...] = ()
  processes: int = 1
  image: str = ""
  queue: str = ""
  namespace: str = "default"
  cluster: str = ""
  env: dict[str, str] = dataclasses.field(default_factory=dict)
  secrets: dict[str, str] = dataclasses.field(default_factory=dict)
  python: str = ""
  owner: str = dataclasses.field(default_factory=lambda: get_user_label())
  keep_on_fail: bool = False
  max_cost: float = 0.0
  price: float = 0.0
  limits: Limits = Limits()

  @property
  def workers(self) -> int:
    """Returns the number of processes: one per host."""
    if self.backend == "hosts":
      return len(self.hosts)
    return self.processes if self.backend == "local" else tpus.find_slice(self.tpu).hosts * self.slices

  @property
  def devices(self) -> int:
    """Returns the number of JAX devices of all workers; 0 if only the workers know it."""
    return tpus.find_slice(self.tpu).devices * self.slices if self.tpu else 0

  @property
  def chips(self) -> int:
    """Returns the number of chips of all slices, or 0 if only the workers know it."""
    return tpus.find_slice(self.tpu).chips * self.slices if self.tpu else 0

  @property
  def seconds(self) -> float:
    """Returns the machine time in seconds that all attempts together may take, by `max_hours` and `max_cost`."""
    allowed = self.max_hours * 3600
    if self.max_cost and self.price and self.chips:
      allowed = min(allowed, self.max_cost / (self.price * self.chips) * 3600 - self.reserve)
    return max(0.0, allowed)

  @property
  def reserve(self) -> float:
    """Returns the seconds of `max_cost` that are reserved for a deletion, during which the machines still cost."""
    return 2 * self.limits.grace + self.limits.delete

  @property
  def billed(self) -> bool:
    """Returns whether the machines are billed while they exist."""
    return self.backend in ("qr", "gke")

  @property
  def restarts_itself(self) -> bool:
    """Returns whether the engine restarts failed programs itself, as a JobSet does."""
    return self.backend == "gke"

  @property
  def left(self) -> str:
    """Returns a description of machines without a confirmed deletion."""
    return "may still be billed" if self.billed else "may still exist"

  @property
  def folder(self) -> str:
    """Returns the directory of the reports, logs, code and event log."""
    return f"{self.workdir.rstrip('/')}/launch"

  @property
  def mark(self) -> str:
    """Returns a label that separates the run from runs of the same name in other directories."""
    return compute_label(self.folder)

  def get_attempt_name(self, number: int) -> str:
    """Returns the name of an attempt."""
    return f"{self.name}-a{number}"

  def get_location(self, attempt: int) -> str:
    """Returns the location of an attempt: its zone, its cluster and namespace, or its hosts. Zones are used in turn."""
    if self.backend == "qr":
      return self.zones[(attempt - 1) % len(self.zones)] if self.zones else ""
    if self.backend == "gke":
      return f"{self.cluster or 'current context'}/{self.namespace}"
    return ",".join(self.hosts) or socket.gethostname()

  def make_labels(self, attempt: int) -> dict[str, str]:
    """Returns the labels that identify all resources of an attempt."""
    values = {"run": self.name, "owner": self.owner, "attempt": str(attempt), "folder": self.mark}
    return {"vitjax": "1"} | {f"vitjax-{key}": value for key, value in values.items()}

  def dumps(self) -> str:
    """Returns the run as JSON."""
    return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True)


def compute_label(folder: str) -> str:
  """Returns the label of a directory."""
  return hashlib.sha256(folder.encode(errors="surrogateescape")).hexdigest()[:16]


def loads(text: str) -> Run:
  """Returns the run of a text of `dumps`, after the same checks, because the file may have been changed."""
  try:
    values: dict[str, Any] = json.loads(text)
    limits = Limits(**values.pop("limits"))
    lists = {key: values.pop(key) for key in ("args", "zones", "hosts")}
    listed: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in lists.items()}
    run = Run(**values, **listed, limits=limits)
  except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
    raise LaunchError(f"the text is not a run that `launch` wrote: {' '.join(str(error).split())[:200]}") from None
  return check_and_complete(run)


def get_user_label() -> str:
  """Returns the name of the user in the form of a label."""
  try:
    name = getpass.getuser()
  except (KeyError, OSError):  # a container's user without a name
    name = "nobody"
  return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:63] or "nobody"


def find_flag_values(args: Sequence[str]) -> list[tuple[str, str]]:
  """Returns (flag, value) for each `--flag=value` and `--flag value` among the arguments of a module."""
  pairs = zip(args, [*args[1:], ""], strict=False)
  flags = [(word, after) for word, after in pairs if word[:2] == "--"]
  return [(word.partition("=")[0], word.partition("=")[2]) if "=" in word else (word, after) for word, after in flags]


def find_flag_value(args: Sequence[str], flag: str) -> str:
  """Returns the last value of a flag among the arguments of a module, as argparse does, or ""."""
  return dict(find_flag_values(args)).get(flag, "")


def format_flag(key: str) -> str:
  """Returns the flag of a field."""
  others = {"name": "NAME", "module": "-- PROGRAM", "args": "[ARGUMENTS]", "capacity": "--spot", "zones": "--zone"}
  singular = {"limits": "--limit", "secrets": "--secret"}
  return (others | singular).get(key) or "--" + key.replace("_", "-")


def check_and_complete(run: Run) -> Run:
  """Returns the run with the zones and runtime version of its slice. Raises a LaunchError for an invalid run."""
  _check_types(run)
  _check_choice("backend", run.backend, BACKENDS)
  account = _ACCOUNTS.get(run.backend, _ACCOUNTS["qr"])
  for key, (shape, words) in (_SHAPES | {"service_account": account}).items():
    value = getattr(run, key)
    if (value or key in ("name", "module", "owner")) and not re.fullmatch(shape, value, re.ASCII):
      raise LaunchError(f"{format_flag(key)}: {_shorten(value)} is not allowed. Write {words}")
  _check_choice("capacity", run.capacity, CAPACITIES)
  lists = (("zones", run.zones, ZONE, "europe-west4-a"), ("hosts", run.hosts, HOST, "alice@10.0.0.2"))
  for key, values, shape, example in lists:
    for value in values:
      if not re.fullmatch(shape, value, re.ASCII):
        raise LaunchError(f"{format_flag(key)}: {_shorten(value)} is not allowed. Write one such as {example}")
  _check_variables(run)
  _check_numbers(run)
  _check_workdir(run)
  run = _complete_for_backend(run)
  if run.max_cost and not run.seconds:
    least = run.price * run.chips * run.reserve / 3600
    raise LaunchError(f"--max-cost: {run.max_cost:g}; allowed: more than {least:.2f}, which is reserved for a deletion "
                      f"of {run.reserve:.0f} s")  # fmt: skip
  return run


def _check_types(run: Run) -> None:
  """Raises a LaunchError for a value of the wrong type. A file that was edited by hand may contain such a value."""
  for field in dataclasses.fields(run):
    value = getattr(run, field.name)
    kind = type(field.default) if field.default is not dataclasses.MISSING else None
    checks: dict[type | None, bool] = {
      float: isinstance(value, (int, float)) and not isinstance(value, bool),
      int: isinstance(value, int) and not isinstance(value, bool),
      str: isinstance(value, str),
      bool: isinstance(value, bool),
      tuple: isinstance(value, tuple) and all(isinstance(each, str) for each in value),
    }
    fine = checks.get(kind, True)
    if field.name in ("name", "backend", "module", "workdir", "owner"):
      fine = isinstance(value, str)
    if field.name == "args":
      fine = isinstance(value, tuple) and all(isinstance(each, str) for each in value)
    if field.name in ("env", "secrets"):
      fine = isinstance(value, dict) and all(isinstance(each, str) for pair in value.items() for each in pair)
    if not fine:
      raise LaunchError(f"{format_flag(field.name)}: {_shorten(value)} has a wrong type")


def _check_variables(run: Run) -> None:
  for option, values in (("--env", run.env), ("--secret", run.secrets)):
    for key, value in values.items():
      if not re.fullmatch(_VARIABLE, key, re.ASCII):
        raise LaunchError(f"{option}: {_shorten(key)} is not the name of a variable. Use letters, digits and _")
      if not _is_valid_text(value):
        raise LaunchError(f"{option}: the value of {key} has a zero byte or no encoding. Remove it")
  for key, value in run.secrets.items():
    if not re.fullmatch(_SECRET, value, re.ASCII):
      raise LaunchError(
        f"--secret: {key} must be the location of the value, not the value itself, which others could read. Write "
        "projects/P/secrets/NAME/versions/3, k8s:NAME/KEY or file:/path/on/the/worker"
      )
    if value.startswith("k8s:") != (run.backend == "gke") and not value.startswith("projects/"):
      raise LaunchError(f"--secret: {key}={value}: k8s: is for --backend=gke, file: for the others")
  for word in run.args:
    if not _is_valid_text(word):
      raise LaunchError(f"{_shorten(word)} has a zero byte or no encoding. Remove it from the argument")
  sizes = [len(word.encode(errors="surrogateescape")) for word in run.args]
  if max(sizes, default=0) >= 2**17 or sum(sizes) > 2**20:  # Linux starts none with more in one, or twice in all
    raise LaunchError(f"the arguments of the program have {sum(sizes):,} bytes, one of them {max(sizes):,}; allowed: "
                      "1,048,576 in all, 131,071 in one. Write them into a file, and pass its name")  # fmt: skip


def _is_valid_text(text: str) -> bool:
  """Returns True if a command line may contain a text. Surrogates for bytes that are not UTF-8 are allowed."""
  return re.fullmatch("[^\0\ud800-\udc7f\udd00-\udfff]*", text) is not None


def _check_numbers(run: Run) -> None:
  ranges = {"slices": (1, 256), "processes": (1, 64), "max_hours": (0, YEAR), "max_failures": (1, 100)}
  ranges |= {"max_cost": (0, 1e9), "price": (0, 1e6)}
  for key, (low, high) in ranges.items():
    if not low <= getattr(run, key) <= high:
      raise LaunchError(f"{format_flag(key)}: {getattr(run, key)}; allowed: {low} to {high}")
  if run.capacity == "flex-start" and run.max_hours > FLEX_HOURS:
    raise LaunchError(f"--max-hours: {run.max_hours:g}; flex-start allows {FLEX_HOURS} at most")
  if run.max_cost and not (run.price and run.chips):
    raise LaunchError("--max-cost: the cost of this run is not known. Add --price=PER_CHIP_HOUR, and --tpu")
  for field in dataclasses.fields(Limits):
    value = getattr(run.limits, field.name)
    if not isinstance(value, (int, float)) or not 0 < value < 1e8:
      raise LaunchError(f"limits.{field.name}: {_shorten(value)}; allowed: seconds above 0")


def _check_workdir(run: Run) -> None:
  if not run.workdir:
    flags = [word.partition("=")[0] for word in run.args]
    if near := difflib.get_close_matches("--workdir", flags, 1, 0.8):
      raise LaunchError(f"--workdir: missing. {run.module} has no flag {near[0]}, did you mean --workdir?")
    raise LaunchError("--workdir: missing. Add it after --, as in `-- vit_jax.train --workdir=gs://BUCKET/runs/a`")
  in_bucket = run.workdir.startswith("gs:")
  if in_bucket and not re.fullmatch(_BUCKET, run.workdir):
    raise LaunchError(f"--workdir: {_shorten(run.workdir)} is not a path in a bucket. Write gs://BUCKET/NAME")
  if not in_bucket and (run.workdir.startswith("-") or "://" in run.workdir or not run.workdir.isprintable()):
    raise LaunchError(f"--workdir: {_shorten(run.workdir)} is not allowed. Write gs://BUCKET/NAME or a directory")
  if run.backend in ("qr", "gke") and not in_bucket:
    raise LaunchError(
      f"--workdir: {run.workdir!r} would be deleted with the machines. Write gs://BUCKET/NAME, in the region of --zone"
    )


def _complete_for_backend(run: Run) -> Run:
  """Returns the run with values that follow from its slice. Refuses flags that the backend would ignore."""
  needs = {"qr": ("tpu", "project"), "gke": ("tpu", "image"), "hosts": ("hosts",), "local": ()}[run.backend]
  only = {
    "qr": (
      "zones", "project", "runtime_version", "network", "subnetwork", "service_account", "slices", "internal_ips"
    ),
    "gke": ("image", "queue", "cluster", "service_account", "slices", "namespace"),
    "hosts": ("hosts",),
    "local": ("processes",),
  }  # fmt: skip
  for key in needs:
    if not getattr(run, key):
      raise LaunchError(f"{format_flag(key)}: missing. --backend={run.backend} requires it")
  default = {field.name: field.default for field in dataclasses.fields(run)}
  for key in sorted({key for keys in only.values() for key in keys} - {*only[run.backend]}):
    if getattr(run, key) != default[key]:
      raise LaunchError(f"{format_flag(key)}: --backend={run.backend} does not support it. Remove it")
  if not run.max_hours:
    run = dataclasses.replace(run, max_hours=24.0 if run.backend in ("qr", "gke") else YEAR)
  if run.backend in ("qr", "gke"):
    slice_ = tpus.find_slice(run.tpu, vm=run.backend == "qr")
    run = dataclasses.replace(run, tpu=slice_.name)
  if run.backend == "qr":
    run = dataclasses.replace(
      run, zones=run.zones or slice_.kind.zones[:1], runtime_version=run.runtime_version or slice_.kind.runtime
    )
  elif run.tpu and run.backend in ("hosts", "local"):
    raise LaunchError(f"--tpu: --backend={run.backend} uses the devices of the machines. Remove it")
  return run


def _check_choice(key: str, value: str, allowed: Sequence[str]) -> None:
  if value not in allowed:
    raise LaunchError(f"{format_flag(key)}: {_shorten(value)}; allowed: {', '.join(allowed)}")


def _shorten(value: object) -> str:
  text = repr(value)
  return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"
