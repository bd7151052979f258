"""Checks a run before anything is paid for: credentials, project, code, config, buckets, memory, hours and cost."""

import contextlib
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from launch import bundle, errors, findings, preflight
from launch.errors import LaunchError, UnknownError, amount
from launch.findings import Finding
from launch.spec import Run

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
  say(findings.of_slice(run))
  say(findings.of_module(run, code.names))
  say(findings.of_files(run, root, code.names))
  if refusal(found) == errors.USAGE:
    return found
  say(findings.of_bucket(run, "--workdir", run.workdir))
  if run.backend in findings.CLOUDS and not refusal(found):
    say(preflight.of_project(run, token) if run.backend == "qr" else preflight.of_cluster(run))
  if refusal(found) == errors.DENIED:  # reading the config and planning take time
    return found
  path, read = _config(run, root)
  say(read)
  folder = path or run.env.get("TFDS_DATA_DIR", "")
  if path is not None:
    say(findings.of_data(run, folder, code.names))
  if findings.bucket_of(folder) != findings.bucket_of(run.workdir):
    say(findings.of_bucket(run, "data", folder))
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
  path = findings.value(run.args, "--config.data.path") or None
  if run.module != PLANNED:
    return path, []
  if not findings.value(run.args, "--config"):
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
  if run.module != PLANNED or run.backend not in findings.CLOUDS:
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
