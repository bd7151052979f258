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
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

from launch import bundle, errors, preflight, tpus
from launch.errors import LaunchError, UnknownError, amount
from launch.preflight import Finding, bucket_of
from launch.spec import Run
from launch.storage import Bucket

CLOUDS = ("qr", "gke")  # whose machines have nothing but the bundle
_FILES = ("--config.init.from", "--config.task.teacher", "--weights")  # arguments that are files
_REGION = r"[a-z]+-[a-z]+\d+"
_FORCE = "--force starts it all the same"


def value(args: Sequence[str], flag: str) -> str:
  """The last value of a flag among a program's arguments, as argparse has it; "" for none."""
  found = ""
  for word, following in zip(args, [*args[1:], ""], strict=False):
    if word.startswith(f"{flag}="):
      found = word.partition("=")[2]
    elif word == flag:
      found = following
  return found


def of_slice(run: Run) -> Iterator[Finding]:
  """Whether the slice is rented in the zones, and so many of it work together."""
  if run.backend not in CLOUDS:
    return
  slice_ = tpus.find(run.tpu)
  for zone in set(run.zones) - {*slice_.kind.zones}:
    yield Finding(
      "refuse",
      f"--zone: as far as is known there is no {slice_.generation} in {zone}, but in {', '.join(slice_.kind.zones)}; "
      f"if Google has it there by now, {_FORCE}",
    )
  # docs.cloud.google.com/tpu/docs/multislice-introduction: "v4 and later"; /tpu/docs/tpu-gke-multislice: "only supports
  # multi-host TPU slice node pools", "does not support TPU v3".
  if run.slices > 1 and slice_.generation in ("v2", "v3"):
    yield Finding(
      "refuse", f"--slices: {run.slices}; slices work together from v4 on, not of {run.tpu}: take a larger one"
    )
  elif run.slices > 1 and run.backend == "gke" and slice_.hosts == 1:
    text = (
      f"--slices: {run.slices}; on GKE slices of several hosts work together, and {run.tpu} is one host: take a larger"
    )
    yield Finding("refuse", f"{text} one, or --backend=qr")
  where = f", in {', '.join(run.zones)}" if run.zones else ""
  several = f"{run.slices} x " if run.slices > 1 else ""
  yield Finding(
    "note", f"machines: {several}{run.tpu}, {amount(slice_.chips, 'chip')} of {amount(slice_.hosts, 'host')}{where}"
  )


def of_module(run: Run, names: Sequence[str]) -> Iterator[Finding]:
  """Whether workers have the program: in the code, or else installed."""
  path, top = run.module.replace(".", "/"), run.module.partition(".")[0]
  if f"{path}.py" in names or f"{path}/__main__.py" in names:
    return
  programs = [
    name.removesuffix(".py").removesuffix("/__main__").replace("/", ".") for name in names if name[-3:] == ".py"
  ]
  near = difflib.get_close_matches(run.module, programs, 1, 0.8)
  advice = f" Did you mean {near[0]}?" if near else ""
  if any(name == f"{top}.py" or name.startswith(f"{top}/") for name in names):
    yield Finding("refuse", f"-- {run.module}: there is no such program in the code that workers get.{advice}")
  elif importlib.machinery.PathFinder.find_spec(top) is None:
    text = f"-- {run.module}: there is no {top} in the code that workers get, and none is installed here.{advice}"
    yield Finding("refuse" if near and not run.python else "warn", text)


def of_files(run: Run, root: pathlib.Path, names: Sequence[str]) -> Iterator[Finding]:
  """Whether workers have what is read there by arguments that are files: in a bucket, or among the code."""
  config = value(run.args, "--config").partition(":")[0]
  if config and not there(run, config, names):
    if (root / config).exists():
      text = f"{config} is there, and not among the code that workers get, which is what git tracks or would add in "
      text += f"{root}: see that .gitignore does not name it"
    elif pathlib.Path(config).exists():
      text = f"{config} is looked for from the root of the repository, {root}: write it from there, as configs/a.py"
    else:
      near = difflib.get_close_matches(config, [name for name in names if name.endswith(".py")], 1, 0.6)
      text = f"there is no file {config}{f'; did you mean {near[0]}?' if near else f' in {root}'}"
    yield Finding("refuse", f"--config: {text}")
  for flag in _FILES:
    path = value(run.args, flag)
    if path and path != "none" and not path.startswith("gs://") and not there(run, path, names):
      text = f"{flag}: {path} is on this machine, and workers do not have it: copy it to gs://, and name it there"
      yield Finding("refuse", text)


def of_data(run: Run, folder: str, names: Sequence[str]) -> Iterator[Finding]:
  """Whether the images are where workers reach them."""
  if run.backend in CLOUDS and not folder.startswith("gs://") and not (folder and there(run, folder, names)):
    where = f"{folder} is on this machine" if folder else "the config names no place"
    yield Finding(
      "refuse",
      f"data: {where}, and the workers' disks are empty: bring the images once, as python -m vit_jax.prepare NAME "
      "--data_dir=gs://BUCKET/data does, and add --config.data.path=gs://BUCKET/data",
    )


def of_bucket(run: Run, flag: str, path: str) -> Iterator[Finding]:
  """Finds whether a bucket exists, can be reached, and is in the region of the machines.

  Args:
    run: whose machines use it.
    flag: "--workdir", which refuses a bucket elsewhere, or "data", which warns.
    path: in the bucket; nothing is found for a path on a disk.
  """
  if not path.startswith("gs://"):
    return
  try:
    yield from of_region(run, flag, path, Bucket(path).location(), "refuse" if flag == "--workdir" else "warn")
  except UnknownError as error:
    yield Finding("unknown", f"{flag}: the region of {bucket_of(path)} is not known ({error})")
  except LaunchError as error:
    yield Finding("refuse", f"{flag}: {error}", error.code)


def of_region(run: Run, flag: str, path: str, location: str, kind: str) -> Iterator[Finding]:
  """Whether a bucket in `location` is in the region of the zones: else it is slow and paid for."""
  bucket = bucket_of(path)
  context = re.fullmatch(rf"gke_[^_]+_({_REGION})(-[a-z])?_.+", run.cluster)
  regions = {zone.rpartition("-")[0] for zone in run.zones} | ({context[1]} if context else set())
  other = sorted(regions - {location})
  if not other:
    yield Finding(
      "ok" if regions else "note", f"{flag}: {bucket} is in {location}{', as the machines are' if regions else ''}"
    )
  elif not re.fullmatch(_REGION, location):
    text = f"{flag}: {bucket} is in the multi-region {location}; one in {other[0]} is nearer and cheaper"
    yield Finding("warn", text)
  else:
    yield Finding(
      kind,
      f"{flag}: {bucket} is in {location}, and the machines would be in {', '.join(other)}: slow, and traffic between "
      f"regions is paid for. Take a bucket in {other[0]}, or a --zone in {location}"
      + f"; {_FORCE}"
      * (kind == "refuse"),
    )


def there(run: Run, path: str, names: Sequence[str]) -> bool:
  """Whether workers have a file or folder: of the code, or their own."""
  pure = pathlib.PurePosixPath(path)
  if pure.is_absolute() or path.startswith("~"):
    return run.backend not in CLOUDS
  return str(pure) in names or any(name.startswith(f"{pure}/") for name in names)


PLANNED = "vit_jax.train"  # the module whose config and plan are known
PATIENCE = 3600.0  # seconds for a plan: the compiler takes minutes for a large model
NEWS = 15.0  # seconds between two lines of one who waits
TITLES = {"note": "", "ok": "ok: ", "unknown": "unknown: ", "warn": "warning: ", "refuse": "refused: "}
NEEDED = ("vit_jax", "jax", "libtpu")  # by a plan; to read a config all but the last
# Reads a config as vit_jax.train does, and prints where it says that the images are.
_READ = """
import json, sys
from vit_jax import build, cli, config, flags

def read():
  overrides, (file,) = flags.overrides(sys.argv[1:])
  run = build.complete(config.resolve(flags.load(file.partition("=")[2], overrides)))
  print(json.dumps(run.data.args.get("path")))

cli.main(read)
"""


def check(
  run: Run, price: "float | None" = None, host_rate: "float | None" = None, code: "bundle.Bundle | None" = None
) -> list:
  """Returns findings about a run in the current folder, and prints each one as soon as it is known.

  Cheap checks come first. A refusal ends the check before anything that takes longer: without credentials nothing else
  is checked, and the step is compiled for a plan only if nothing was refused. Nothing is changed in the cloud. Only
  Ctrl-C is raised.

  Args:
    run: to be checked.
    price: per chip-hour; that of the run if None.
    host_rate: measured images per second of one host.
    code: the bundle that would be sent; it is made if None.
  """
  found, price = [], price or run.price

  def say(several):
    for finding in several:
      print(TITLES[finding.kind] + finding.text, flush=True)
      found.append(finding)

  token = None
  if run.backend == "qr":
    token, missing = preflight.credentials()
    say(missing)
    if refusal(found):
      return found
  try:
    root = bundle.repository(pathlib.Path("."))
    code = code or bundle.make(root)
  except (LaunchError, UnknownError) as error:
    say([Finding("refuse", str(error))])
    return found
  say([Finding("note", f"code: {code.words}, {amount(len(code.names), 'file')}, {len(code.content) / 1e6:,.1f} MB")])
  say(of_slice(run))
  say(of_module(run, code.names))
  say(of_files(run, root, code.names))
  if refusal(found) == errors.USAGE:
    return found
  say(of_bucket(run, "--workdir", run.workdir))
  if run.backend in CLOUDS and not refusal(found):
    say(preflight.of_project(run, token) if run.backend == "qr" else preflight.of_cluster(run))
  if refusal(found) == errors.DENIED:  # reading the config and planning take time
    return found
  path, read = _config(run, root)
  say(read)
  folder = path or run.env.get("TFDS_DATA_DIR", "")
  if path is not None:
    say(of_data(run, folder, code.names))
  if bucket_of(folder) != bucket_of(run.workdir):
    say(of_bucket(run, "data", folder))
  if not refusal(found):
    say(_plan(run, root, price, host_rate))
  return found


def refusal(found: list) -> int:
  """The exit code of what refuses among findings; 0 where nothing does."""
  codes = {finding.code for finding in found if finding.refuses}
  return errors.USAGE if errors.USAGE in codes else max(codes, default=errors.DONE)


def judged(run: Run, plan: dict) -> list:
  """Findings from what `vit_jax.plan --json` says of a run on its slice."""
  if plan["problem"]:
    return [Finding("refuse", f"{run.tpu}: {plan['problem']}")]
  memory = f"{plan['hbm_bytes'] / 2**30:.1f} of {plan['hbm_limit'] / 2**30:.1f} GiB of each device"
  found = [Finding("note", f"{run.tpu}: fits, {memory}, {plan['mesh']}; {_hours(plan)}")]
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
    f"{amount(plan['steps'], 'step')} of {plan['step_seconds'] * 1e3:,.1f} ms, {plan['hours']:,.1f} hours, "
    f"{core_days:,.{0 if core_days >= 100 else 1}f} core-days, by the compiler's estimate"
  )


def _config(run, root):
  """(where the images are, as the config or a flag of it says, "" for nowhere, None if that is not known; findings)."""
  path = value(run.args, "--config.data.path") or None
  if run.module != PLANNED:
    return path, []
  if not value(run.args, "--config"):
    return path, [Finding("refuse", f"--config: missing; {PLANNED} needs one, as --config=configs/digits.py")]
  if missing := _missing(NEEDED[:-1]):
    return path, [Finding("warn", f"the config is not read, {missing}")]
  words = [sys.executable, "-c", _READ, *_config_words(run.args)]
  text, failed = _answer(words, root, "reading the config")
  if failed:
    return path, [failed]
  try:
    folder = json.loads(text.splitlines()[-1]) or ""
  except (ValueError, IndexError, RecursionError):
    return path, [Finding("unknown", f"config: it was read with an answer of an unknown form, {text[-80:]!r}")]
  if not isinstance(folder, str):
    return path, [Finding("unknown", f"config: its data.path is {str(folder)[:80]}, which is not a text")]
  return folder, [Finding("note", "config: all its keys and values are understood")]


def _plan(run, root, price, host_rate):
  """Findings of a plan."""
  if run.module != PLANNED or run.backend not in CLOUDS:
    why = f"{run.module} is none" if run.module != PLANNED else f"--backend={run.backend} has the devices it has"
    return [Finding("note", f"not planned: there are plans of {PLANNED} on slices of TPUs, and {why}")]
  if missing := _missing(NEEDED):
    return [Finding("warn", f"not planned, {missing}; whether it fits is seen on the machines")]
  several = f"{run.slices}x" if run.slices > 1 else ""
  try:
    with tempfile.TemporaryDirectory(prefix="launch_check_") as folder:
      file = pathlib.Path(folder, "plan.json")
      words = [sys.executable, "-m", "vit_jax.plan", *_config_words(run.args), f"--json={file}"]
      words += [f"--topology={several}{run.tpu}"]
      words += [f"--price={price}"] * bool(price) + [f"--host-rate={host_rate}"] * (host_rate is not None)
      title = f"planning: compiling the step for {several}{run.tpu}, which takes up to minutes"
      _, failed = _answer(words, root, title)
      return [failed] if failed else judged(run, json.loads(file.read_text())[0])
  except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
    why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return [Finding("unknown", f"plan: it could not be read ({why}); whether the run fits is seen on the machines")]


def _missing(names):
  """What this Python lacks, and what to do; "" for nothing."""
  missing = [name for name in names if importlib.util.find_spec(name) is None]
  return f"as this Python has no {', '.join(missing)}: pip install -e '.[tpu]'" if missing else ""


def _answer(words, root, what):
  """(what a program of vit_jax prints, or None; the finding where it fails). Says what is waited for, every NEWS s."""
  try:
    return _waited(words, root, what)
  except OSError as error:  # no processes, no files or no space
    return None, Finding("unknown", f"{what}: could not be started ({error.strerror or error})")


def _waited(words, root, what):
  start = time.monotonic()
  with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
    process = subprocess.Popen(
      words, cwd=root, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
      env={"VITJAX_PATIENCE": "30"} | os.environ,  # seconds for a bucket that is away: a plan can do without
    )  # fmt: skip
    try:
      while process.poll() is None and (passed := time.monotonic() - start) < PATIENCE:
        print(f"{what} …{f' {passed:.0f} s' if passed >= NEWS else ''}", file=sys.stderr, flush=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
          process.wait(NEWS)
    finally:  # of Ctrl-C too
      process.kill()
      code = process.wait()
    out.seek(0), err.seek(0)
    text, last = out.read(), (err.read().strip().splitlines() or ["it said nothing"])[-1].removeprefix("error: ")
  if code == 0:
    return text, None
  if code == errors.USAGE:  # of the user's, in vit_jax's own words
    return None, Finding("refuse", last)
  return None, Finding("warn", f"{what}: ended with code {code} after {time.monotonic() - start:.0f} s ({last})")


def _config_words(args):
  """The arguments of a config, --config=FILE and --config.KEY=VALUE, each as one word."""
  found = []
  for word, following in zip(args, [*args[1:], ""], strict=False):
    if word == "--config" or word.startswith(("--config=", "--config.")):
      found += [word] if "=" in word else [f"{word}={following}"]
  return found
