"""Checks a run before anything is paid for: slice, module, files, buckets, config, memory, hours and cost."""

import contextlib
import difflib
import importlib.machinery
import importlib.util
import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from . import bundle, errors, preflight, tpus
from .errors import LaunchError, UnknownError, format_amount
from .preflight import Finding, get_bucket_url, run_check
from .spec import Run, find_flag_value, find_flag_values
from .storage import Bucket

CLOUDS = ("qr", "gke")  # backends with new machines, which have only the bundle
_FILES = ("--config.init.from", "--config.task.teacher", "--weights")  # arguments that are files
_TRACKER = "--config.log.tracker"
_REGION = r"[a-z]+-[a-z]+\d+"
_FORCE = "--force starts it anyway"
PLANNED = "vit_jax.train"  # the module with a known config and plan
PATIENCE = 3600.0  # seconds for a plan: the compiler takes minutes for a large model
NEWS = 15.0  # seconds between two lines of a program that takes long
TITLES = {"note": "", "ok": "ok: ", "unknown": "unknown: ", "warn": "warning: ", "refuse": "refused: "}
NEEDED = ("vit_jax", "jax", "libtpu")  # packages for a plan. Reading a config needs all but the last
# Reads a config as vit_jax.train does, and prints the place of the images.
_READ = """
import json, sys
from vit_jax import cli, config
from vit_jax.config import flags
from vit_jax.training import build

def read():
  overrides, (file,) = flags.split_overrides(sys.argv[1:])
  run = build.complete(config.resolve(flags.load_config(file.partition("=")[2], overrides)), adopt=False)
  print(json.dumps(run.data.args.get("path")))

cli.run_verb(read)
"""


def check_run(
  run: Run, price: float | None = None, host_rate: float | None = None, code: bundle.Bundle | None = None
) -> list[Finding]:
  """Returns findings about a run in the current directory, and prints each one as soon as it is known.

  Cheap checks come first. After a refusal, slower checks are skipped. For example, missing credentials
  end the check at once, and the step is compiled only if nothing was refused. Nothing in the cloud is changed.

  Args:
    run: the run.
    price: price per chip-hour, or None for the price of the run.
    host_rate: measured images per second of one host.
    code: the bundle to send, or None to create it.
  """
  found = []

  def add(findings: Iterable[Finding]) -> int:
    """Prints findings, and returns the exit code of all refusals up to now."""
    for finding in findings:
      print(TITLES[finding.kind] + finding.text, flush=True)
      found.append(finding)
    return get_refusal_code(found)

  token, missing = preflight.get_credentials() if run.backend == "qr" else (None, [])
  if add(missing):
    return found
  try:
    root = bundle.find_repository(pathlib.Path("."))
    code = code or bundle.make_bundle(root)
  except (LaunchError, UnknownError) as error:
    add([Finding("refuse", f"code: {error}")])
    return found
  size = f"{format_amount(len(code.names), 'file')}, {len(code.content) / 1e6:,.1f} MB"
  add([Finding("note", f"code: {code.words}, {size}")])
  add(check_slice(run))
  add(check_module(run, code.names))
  if add([*check_files(run, root, code.names), *check_tracker(run)]) == errors.USAGE:
    return found
  if not add(check_bucket(run, "--workdir", run.workdir)) and run.backend in CLOUDS:
    add(preflight.check_project(run, token) if run.backend == "qr" else preflight.check_cluster(run))
  if get_refusal_code(found) == errors.DENIED:  # reading the config and planning take time
    return found
  path, findings = read_config(run, root)
  add(findings)
  folder = path or run.env.get("TFDS_DATA_DIR", "")
  if path is not None:
    add(check_data(run, folder, code.names))
  if get_bucket_url(folder) != get_bucket_url(run.workdir):
    add(check_bucket(run, "data", folder))
  if not get_refusal_code(found):
    add(check_plan(run, root, price or run.price, host_rate))
  return found


def get_refusal_code(found: Sequence[Finding]) -> int:
  """Returns the exit code of the refusals among findings, or 0 without refusals."""
  codes = {finding.code for finding in found if finding.is_refusal}
  return errors.USAGE if errors.USAGE in codes else max(codes, default=errors.DONE)


def check_slice(run: Run) -> Iterator[Finding]:
  """Yields findings about a slice: it must be available in the zones, and several slices must be supported."""
  if run.backend not in CLOUDS:
    return
  slice_ = tpus.find_slice(run.tpu)
  for zone in sorted({*run.zones} - {*slice_.kind.zones}):
    zones = ", ".join(slice_.kind.zones)
    text = (
      f"--zone: no {slice_.generation} is known in {zone}, only in {zones}. If Google offers it there now, {_FORCE}"
    )
    yield Finding("refuse", text)
  # docs.cloud.google.com/tpu/docs/multislice-introduction: "v4 and later"; /tpu/docs/tpu-gke-multislice: "only supports
  # multi-host TPU slice node pools", "does not support TPU v3".
  if run.slices > 1 and slice_.generation in ("v2", "v3"):
    text = f"--slices: {run.slices}; {run.tpu} does not support several slices, v4 and later do. Use a larger slice"
    yield Finding("refuse", text)
  elif run.slices > 1 and run.backend == "gke" and slice_.hosts == 1:
    text = f"--slices: {run.slices}; on GKE, several slices must have several hosts each, but {run.tpu} has one host"
    yield Finding("refuse", f"{text}. Use a larger slice, or --backend=qr")
  where = f", in {', '.join(run.zones)}" if run.zones else ""
  machines = f"{f'{run.slices} x ' * (run.slices > 1)}{run.tpu}, {format_amount(slice_.chips, 'chip')}"
  yield Finding("note", f"machines: {machines} of {format_amount(slice_.hosts, 'host')}{where}")


def check_module(run: Run, names: Sequence[str]) -> Iterator[Finding]:
  """Yields a finding if workers do not have the module, either in the code or installed."""
  path, top = run.module.replace(".", "/"), run.module.partition(".")[0]
  if f"{path}.py" in names or f"{path}/__main__.py" in names:
    return
  stems = [name.removesuffix(".py").removesuffix("/__main__") for name in names if name.endswith(".py")]
  near = difflib.get_close_matches(run.module, [stem.replace("/", ".") for stem in stems], 1, 0.8)
  advice = f" Did you mean {near[0]}?" if near else ""
  if any(name == f"{top}.py" or name.startswith(f"{top}/") for name in names):
    yield Finding("refuse", f"-- {run.module}: this program is not in the code that is sent to the workers.{advice}")
  elif importlib.machinery.PathFinder.find_spec(top) is None:
    text = f"-- {run.module}: {top} is neither installed here nor in the code that is sent to the workers.{advice}"
    yield Finding("refuse" if near and not run.python else "warn", text)


def check_files(run: Run, root: pathlib.Path, names: Sequence[str]) -> Iterator[Finding]:
  """Yields a refusal for each argument that names a file which workers do not have."""
  config = find_flag_value(run.args, "--config").partition(":")[0]
  recipe = f"configs/{config}.py"  # of a config that is the name of a recipe
  if config and not is_on_workers(run, config, names) and recipe not in names:
    if (root / config).exists():
      text = f"{config} exists, but is not sent to the workers, because git ignores it in {root}. "
      text += "Remove it from .gitignore"
    elif pathlib.Path(config).exists():
      text = f"{config} must be relative to the root of the repository, {root}. Write it as configs/a.py"
    else:
      recipes = [name.removeprefix("configs/").removesuffix(".py") for name in names if name.startswith("configs/")]
      known = recipes if "/" not in config else [name for name in names if name.endswith(".py")]
      near = difflib.get_close_matches(config, known, 1, 0.6)
      text = f"the file {config} does not exist in {root}{f'. Did you mean {near[0]}?' if near else ''}"
    yield Finding("refuse", f"--config: {text}")
  for flag in _FILES:
    path = find_flag_value(run.args, flag)
    if path.startswith("hf:"):
      remedy = "write the weights to a bucket: "
      remedy += f"python -m vit_jax.convert {shlex.quote(path)} gs://BUCKET/weights.safetensors"
      yield from _check_extra(run, f"{flag}: {path}", "huggingface_hub", remedy)
    elif path and path != "none" and not path.startswith("gs://") and not is_on_workers(run, path, names):
      text = f"{flag}: {path} is on this machine, not on the workers. Copy it to a bucket, and use its gs:// path"
      yield Finding("refuse", text)


def check_tracker(run: Run) -> Iterator[Finding]:
  """Yields a refusal if the run sends metrics to a tracker that workers do not install."""
  tracker = find_flag_value(run.args, _TRACKER)
  if tracker not in ("", "none"):
    remedy = "leave the flag out, and send the metrics from this machine: "
    remedy += f"python -m vit_jax.report --export=NAME {shlex.quote(run.workdir)}"
    yield from _check_extra(run, _TRACKER, tracker[:40], remedy)


def _check_extra(run: Run, place: str, package: str, remedy: str) -> Iterator[Finding]:
  """Yields a finding about a package of an extra that the interpreter of the workers lacks, or may lack.

  The launcher installs the interpreter of TPU VMs and hosts, unless the run names one. The packages of an image are
  unknown. A local run has the interpreter of this process.

  Args:
    run: the run.
    place: the flag, and its value if the package depends on it.
    package: the missing package.
    remedy: another way to reach the same result, as the second half of a sentence.
  """
  if run.backend == "gke":
    image = f"the image must contain {package}, which the image of the Dockerfile lacks"
    yield Finding("warn", f"{place}: {image}. Add a line RUN pip install {package} to its stage tpu, or {remedy}")
  elif run.backend != "local" and not run.python:
    workers = "TPU VMs" if run.backend == "qr" else "hosts"
    text = f"{place} needs {package}, which the launcher does not install on {workers}"
    yield Finding("refuse", f"{text}. Set --python to an interpreter that has it, or {remedy}")


def check_data(run: Run, folder: str, names: Sequence[str]) -> Iterator[Finding]:
  """Yields a refusal if workers cannot reach the images."""
  reached = folder.startswith("gs://") or (folder and is_on_workers(run, folder, names))
  if run.backend in CLOUDS and not reached:
    where = f"{folder} is on this machine" if folder else "the config does not name a directory"
    remedy = "Copy the images once, as python -m vit_jax.prepare NAME --data_dir=gs://BUCKET/data does, and add "
    yield Finding(
      "refuse", f"data: {where}, but the disks of the workers are empty. {remedy}--config.data.path=gs://BUCKET/data"
    )


def check_bucket(run: Run, flag: str, path: str) -> list[Finding]:
  """Returns findings about a bucket: it must exist, be reachable, and be in the region of the machines.

  Args:
    run: the run that uses it.
    flag: "--workdir", for which another region is refused, or "data", for which it is a warning.
    path: path of the files. A path on a disk gives no findings.
  """
  kind = "refuse" if flag == "--workdir" else "warn"
  return (
    run_check(flag, lambda: check_region(run, path, Bucket(path).read_region(), kind))
    if path.startswith("gs://")
    else []
  )


def check_region(run: Run, path: str, location: str, kind: str) -> Finding:
  """Returns a finding about a bucket in `location`. Access from another region is slow and costs money."""
  where = f"{get_bucket_url(path)} is in "
  context = re.fullmatch(rf"gke_[^_]+_({_REGION})(-[a-z])?_.+", run.cluster)
  regions = {zone.rpartition("-")[0] for zone in run.zones} | ({context[1]} if context else set())
  other = sorted(regions - {location})
  if not other:
    return Finding("ok" if regions else "note", f"{where}{location}{', as the machines are' if regions else ''}")
  if not re.fullmatch(_REGION, location):
    return Finding("warn", f"{where}the multi-region {location}; one in {other[0]} is nearer and cheaper")
  text = (
    f"{where}{location}, and the machines would be in {', '.join(other)}: slow, and traffic between regions costs. "
    f"Use a bucket in {other[0]}, or a --zone in {location}"
  )
  return Finding(kind, f"{text}; {_FORCE}" if kind == "refuse" else text)


def is_on_workers(run: Run, path: str, names: Sequence[str]) -> bool:
  """Returns whether workers have a file or directory, in the code or on their own disks."""
  pure = pathlib.PurePosixPath(path)
  if pure.is_absolute() or path.startswith("~"):
    return run.backend not in CLOUDS
  return str(pure) in names or any(name.startswith(f"{pure}/") for name in names)


def judge_plan(run: Run, plan: Mapping[str, Any]) -> Iterator[Finding]:
  """Yields findings from the output of `vit_jax.plan --json` for a run that fits on its slice."""
  days = plan["core_days"]
  text = (
    f"{plan['hbm_bytes'] / 2**30:.1f} of {plan['hbm_limit'] / 2**30:.1f} GiB of each device, {plan['mesh']}; "
    f"{format_amount(plan['steps'], 'step')} of {plan['step_seconds'] * 1e3:,.1f} ms, {plan['hours']:,.1f} hours, "
    f"{days:,.{0 if days >= 100 else 1}f} core-days, by the compiler's estimate"
  )
  yield Finding("note", f"{run.tpu}: fits, {text}")
  if plan["cost"] is not None:
    yield Finding("note", f"cost: {plan['cost']:,.0f} at that price, without evaluations, starts and restarts")
  if plan["input_bound"]:
    text = (
      f"input-bound: the chips take {plan['images_per_second_per_host']:,.0f} images/s from each host, which delivers "
      f"{plan['host_rate']:,.0f} ({plan['host_rate_method']}): {plan['hours']:,.1f} hours, in which the chips work for "
      f"{plan['device_hours']:,.1f}. Measure a host (python -m benchmarks.input_pipeline) and add --host-rate, or use "
      "fewer layers in data.policy, smaller images, or a slice with more hosts"
    )
    yield Finding("warn", text)
  if plan["hours"] > run.max_hours:
    spot = "; spot machines may be preempted and restart from a checkpoint" if run.capacity == "spot" else ""
    text = (
      f"--max-hours: {run.max_hours:g}, but the run takes {plan['hours']:,.1f} without evaluations and starts{spot}"
    )
    yield Finding("warn", f"{text}. Set --max-hours={math.ceil(1.3 * plan['hours'] + 1)}")


def read_config(run: Run, root: pathlib.Path) -> tuple[str | None, list[Finding]]:
  """Returns (the path of the images from the config or a flag, findings).

  The place is "" if the config does not name it, and None if it is not known.
  """
  path = find_flag_value(run.args, "--config.data.path") or None
  if run.module != PLANNED:
    return path, []
  if not find_flag_value(run.args, "--config"):
    text = f"--config: missing. {PLANNED} requires a config. Use a value such as --config=digits"
    return path, [Finding("refuse", text)]
  if missing := _explain_missing(NEEDED[:-1]):
    return path, [Finding("warn", f"the config cannot be read, because {missing}")]
  places: list[str] = []
  found = run_check("config", _evaluate_config, run, root, places)
  return (places[0] if places else path), found


def _evaluate_config(run: Run, root: pathlib.Path, places: list[str]) -> Finding:
  text = _run_program([sys.executable, "-c", _READ, *_list_config_words(run.args)], root, "reading the config")
  folder = json.loads(text.splitlines()[-1]) or ""
  if not isinstance(folder, str):
    raise TypeError(f"data.path is {str(folder)[:80]}")
  places.append(folder)
  return Finding("note", "all keys and values are valid")


def check_plan(run: Run, root: pathlib.Path, price: float, host_rate: float | None) -> list[Finding]:
  """Compiles the step for the slice, and returns findings of the plan."""
  if run.module != PLANNED or run.backend not in CLOUDS:
    why = (
      f"{run.module} is another module" if run.module != PLANNED else f"--backend={run.backend} uses existing devices"
    )
    return [Finding("note", f"not planned: plans exist for {PLANNED} on TPU slices, but {why}")]
  if missing := _explain_missing(NEEDED):
    return [Finding("warn", f"not planned, because {missing}. It is not known whether the run fits into memory")]
  return run_check("plan", _compile_plan, run, root, price, host_rate)


def _compile_plan(run: Run, root: pathlib.Path, price: float | None, host_rate: float | None) -> list[Finding]:
  slices = f"{run.slices}x" * (run.slices > 1) + run.tpu
  with tempfile.TemporaryDirectory(prefix="launch_check_") as folder:
    file = pathlib.Path(folder, "plan.json")
    words = [
      sys.executable,
      "-m",
      "vit_jax.plan",
      *_list_config_words(run.args),
      f"--json={file}",
      f"--topology={slices}",
    ]
    words += [f"--price={price}"] * bool(price) + [f"--host-rate={host_rate}"] * (host_rate is not None)
    _run_program(words, root, f"planning: compiling the step for {slices}, which takes up to minutes")
    return list(judge_plan(run, json.loads(file.read_text())[0]))


def _explain_missing(names: Sequence[str]) -> str:
  """Returns a message with missing Python packages and the command that installs them, or ""."""
  missing = [name for name in names if importlib.util.find_spec(name) is None]
  return f"this Python lacks {', '.join(missing)}: {errors.INSTALL.format('tpu')}" if missing else ""


def _run_program(words: Sequence[str], root: pathlib.Path, what: str) -> str:
  """Returns the output of a program of vit_jax, and prints a line about it every NEWS seconds.

  Raises a LaunchError with the message of a user error, and UnknownError if the program fails otherwise.
  """
  start = time.monotonic()
  with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
    environment = {"VITJAX_PATIENCE": "30"} | os.environ  # seconds for a bucket without an answer
    process = subprocess.Popen(words, cwd=root, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment)
    try:
      while process.poll() is None and (passed := time.monotonic() - start) < PATIENCE:
        print(f"{what} …{f' {passed:.0f} s' if passed >= NEWS else ''}", file=sys.stderr, flush=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
          process.wait(NEWS)
    finally:  # also after Ctrl-C
      process.kill()
      code = process.wait()
    out.seek(0), err.seek(0)
    text, last = out.read(), (err.read().strip().splitlines() or ["no message"])[-1].removeprefix("error: ")
  if code == errors.USAGE:
    raise LaunchError(last)
  if code:
    raise UnknownError(f"{what}: ended with code {code} after {time.monotonic() - start:.0f} s ({last})")
  return text


def _list_config_words(args: Sequence[str]) -> list[str]:
  """Returns the arguments of a config, --config=FILE and --config.KEY=VALUE, each as one word."""
  return [
    f"{flag}={text}" for flag, text in find_flag_values(args) if flag == "--config" or flag.startswith("--config.")
  ]
