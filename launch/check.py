"""What is wrong with a run before anything is paid for: its code, its config on its slice, its buckets, its hours."""

import dataclasses
import importlib.util
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from launch import bundle
from launch.errors import LaunchError, UnknownError
from launch.spec import Run
from launch.storage import Bucket

PLANNED = "vit_jax.train"  # the module whose plan is known
PATIENCE = 3600  # seconds for a plan: the compiler takes minutes for a large model
NEEDED = ("vit_jax", "jax", "libtpu")  # by a plan
_CLOUDS = ("qr", "gke")  # whose machines have nothing but the bundle
_FILES = ("--config.init.from", "--config.task.teacher", "--weights")  # arguments that are files
_REGION = r"[a-z]+-[a-z]+\d+"


@dataclasses.dataclass(frozen=True)
class Finding:
  """A line for the user. `kind` is refuse, warn or note."""

  kind: str
  text: str

  @property
  def refuses(self) -> bool:
    """Whether `launch run` does not start such a run, unless --force."""
    return self.kind == "refuse"


def check(run: Run, price: "float | None" = None, host_rate: "float | None" = None) -> list:
  """Findings about a run, made from the folder that is current. No call raises, but for Ctrl-C.

  Args:
    price: of a chip for an hour. host_rate: images a second that one host was measured to make.
  """
  try:
    code = bundle.make(pathlib.Path.cwd())
    names, root = code.names, bundle.repository(pathlib.Path.cwd())
  except LaunchError as error:
    return [Finding("refuse", str(error))]
  kept = f"{len(names):,} files, {len(code.content) / 1e6:,.1f} MB, {code.commit[:12]}{', changed' * code.dirty}"
  findings = [Finding("note", f"code: {kept}"), *_place(run), *_files(run, names)]
  if any(finding.refuses for finding in findings):  # before minutes of compiling
    return findings
  plan, found = _plan(run, root, price, host_rate)
  findings += found
  if plan:
    findings += [*judged(run, plan), *_data(run, plan.get("data_path"), names)]
  else:
    path = value(run.args, "--config.data.path")
    findings += _data(run, path, names) if path else []
  return findings


def show(findings: list) -> None:
  """Prints them, what refuses last."""
  titles = {"note": "", "warn": "warning: ", "refuse": "refused: "}
  for kind, title in titles.items():
    for finding in findings:
      if finding.kind == kind:
        print(title + finding.text, flush=True)


def value(args, flag: str) -> str:
  """The last value of a flag among a program's arguments, as argparse has it; "" for none."""
  found = ""
  for word, following in zip(args, [*args[1:], ""], strict=False):
    if word.startswith(f"{flag}="):
      found = word.partition("=")[2]
    elif word == flag:
      found = following
  return found


def judged(run: Run, plan: dict) -> list:
  """Findings from what `vit_jax.plan --json` says of a run on its slice."""
  if plan["problem"]:
    return [Finding("refuse", f"{plan['rented']}: {plan['problem']}")]
  memory = f"{plan['hbm_bytes'] / 2**30:.1f} of {plan['hbm_limit'] / 2**30:.1f} GiB of each device"
  found = [Finding("note", f"{plan['rented']}: fits, {memory}, {plan['mesh']}; {_hours(plan)}")]
  if plan["cost"] is not None:
    found.append(Finding("note", f"cost: {plan['cost']:,.0f} at that price, without evaluations, starts and restarts"))
  if plan["input_bound"]:
    text = (
      f"input-bound: the chips take {plan['images_per_second_per_host']:,.0f} images/s of each host, which makes "
      f"{plan['host_rate']:,.0f} ({plan['host_rate_method']}): {plan['hours']:,.1f} hours, of which the chips work "
      f"{plan['device_hours']:,.1f}. Measure a host (python -m benchmarks.input_pipeline) and say --host-rate, or "
      "take fewer layers in data.policy, smaller images, or a slice with more hosts"
    )
    found.append(Finding("warn", text))
  if plan["hours"] > run.max_hours:
    spot = "; spot machines may be taken away and begin again from a checkpoint" if run.capacity == "spot" else ""
    text = (
      f"--max-hours: {run.max_hours:g}, and the run takes {plan['hours']:,.1f} without evaluations and starts{spot}: "
      f"set --max-hours={math.ceil(1.3 * plan['hours'] + 1)}"
    )
    found.append(Finding("warn", text))
  return found


def _hours(plan):
  core_days = plan["core_days"]
  return (
    f"{plan['steps']:,} steps of {plan['step_seconds'] * 1e3:,.1f} ms, {plan['hours']:,.1f} hours, "
    f"{core_days:,.{0 if core_days >= 100 else 1}f} core-days, by the compiler's estimate"
  )


def _plan(run, root, price, host_rate):
  """(the plan or None, findings)."""
  if run.module != PLANNED or run.backend not in _CLOUDS:
    why = f"{run.module} is none" if run.module != PLANNED else f"--backend={run.backend} has the devices it has"
    return None, [Finding("note", f"not planned: there are plans of {PLANNED} on slices of TPUs, and {why}")]
  missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
  if missing:
    return None, [
      Finding("warn", f"not planned, as this Python has no {', '.join(missing)}: pip install -e '.[tpu]'; "
              "whether the config is right and fits is seen on the machines")
    ]  # fmt: skip
  print(f"planning: the step is compiled for {run.slices}x{run.tpu}, which takes up to minutes", file=sys.stderr)
  with tempfile.TemporaryDirectory(prefix="launch_check_") as folder:
    file = pathlib.Path(folder, "plan.json")
    words = [sys.executable, "-m", "vit_jax.plan", *_config_words(run.args), f"--json={file}"]
    words += [f"--topology={f'{run.slices}x' * (run.slices > 1)}{run.tpu}"]
    words += [f"--price={price}"] * (price is not None) + [f"--host-rate={host_rate}"] * (host_rate is not None)
    try:
      result = subprocess.run(
        words, cwd=root, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=PATIENCE,
        env={"VITJAX_PATIENCE": "30"} | os.environ,  # seconds for a bucket that is away: a plan can do without
      )  # fmt: skip
    except subprocess.TimeoutExpired:
      return None, [Finding("warn", f"not planned: the compiler took longer than {PATIENCE} s")]
    if result.returncode == 0:
      return json.loads(file.read_text())[0], []
  last = (result.stderr.strip().splitlines() or ["it said nothing"])[-1].removeprefix("error: ")
  if result.returncode == 2:  # of the user's, in vit_jax's own words
    return None, [Finding("refuse", last)]
  return None, [Finding("warn", f"not planned: vit_jax.plan ended with code {result.returncode} ({last})")]


def _config_words(args):
  """The arguments of a config, --config=FILE and --config.KEY=VALUE, each as one word."""
  found = []
  for word, following in zip(args, [*args[1:], ""], strict=False):
    if word == "--config" or word.startswith(("--config=", "--config.")):
      found += [word] if "=" in word else [f"{word}={following}"]
  return found


def _place(run):
  """The bucket is in the region of the machines."""
  if not run.workdir.startswith("gs://"):
    return []
  try:
    location = Bucket(run.workdir).location()
  except UnknownError as error:
    return [Finding("warn", f"--workdir: the region of its bucket is not known: {error}")]
  except LaunchError as error:
    return [Finding("refuse", f"--workdir: {error}")]
  return _regions(run, "--workdir", run.workdir, location, "refuse")


def _regions(run, flag, path, location, kind):
  """Findings where a bucket is not in the region of the zones, which is slow and paid for."""
  bucket = "/".join(path.split("/")[:3])
  context = re.fullmatch(rf"gke_[^_]+_({_REGION})(-[a-z])?_.+", run.cluster)
  regions = {zone.rpartition("-")[0] for zone in run.zones} | ({context[1]} if context else set())
  other = sorted(regions - {location})
  if not other:
    return []
  if not re.fullmatch(_REGION, location):
    return [
      Finding("warn", f"{flag}: {bucket} is in the multi-region {location}; one in {other[0]} is nearer and cheaper")
    ]
  return [
    Finding(
      kind,
      f"{flag}: {bucket} is in {location}, and the machines would be in {', '.join(other)}: slow, and traffic between "
      f"regions is paid for. Take a bucket in {other[0]}, or a --zone in {location}",
    )
  ]


def _files(run, names):
  """What is read on the workers, by arguments that are files: in a bucket, or among the code."""
  found = []
  config = value(run.args, "--config").partition(":")[0]
  if config and not _there(run, config, names):
    found.append(
      Finding(
        "refuse",
        f"--config: {config} is not among the code that workers get, which is what git tracks or would add below the "
        "root of the repository: write it from there, as configs/a.py, and see that .gitignore does not name it",
      )
    )
  for flag in _FILES:
    path = value(run.args, flag)
    if path and path != "none" and not path.startswith("gs://") and not _there(run, path, names):
      text = f"{flag}: {path} is on this machine, and workers do not have it: copy it to gs://, and name it there"
      found.append(Finding("refuse", text))
  return found


def _there(run, path, names):
  """Whether workers have a file or folder: of the code, or their own."""
  pure = pathlib.PurePosixPath(path)
  if pure.is_absolute() or path.startswith("~"):
    return run.backend not in _CLOUDS
  return str(pure) in names or any(name.startswith(f"{pure}/") for name in names)


def _data(run, path, names):
  """The images are where workers reach them."""
  folder = path or run.env.get("TFDS_DATA_DIR", "")
  if folder.startswith("gs://"):
    try:
      return _regions(run, "data", folder, Bucket(folder).location(), "warn")
    except UnknownError as error:
      return [Finding("warn", f"data: the region of {folder} is not known: {error}")]
    except LaunchError as error:
      return [Finding("refuse", f"data: {error}")]
  if run.backend in _CLOUDS and not (folder and _there(run, folder, names)):
    where = f"{folder} is on this machine" if folder else "the config names no place"
    return [
      Finding(
        "refuse",
        f"data: {where}, and the workers' disks are empty: bring the images once, as python -m vit_jax.prepare NAME "
        "--data_dir=gs://BUCKET/data does, and add --config.data.path=gs://BUCKET/data",
      )
    ]
  return []
