"""Tests the errors for hostile files: python -m tests.campaigns.files [WORD ...]

The cases are weights of all formats, their JSON files, files of workdirs, configs and predictions. Each case is given
to a real verb. The verb must end with exit code 2, or with the documented code. The error must have few lines and no
traceback. The verb may use 60 seconds of processor time and 1 GiB more memory than an idle verb. It must not write or
change a file.

The campaign prints a line for each failure, and then `N passed, M failed`. The exit code is 1 if a case failed. Each
WORD selects the cases whose names contain it. The campaign takes some minutes. tests/importers/test_hostile.py reads
the same weights in one process.
"""

import argparse
import hashlib
import importlib
import json
import os
import pathlib
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # for worker processes
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"

from tests import hostile, hostile_paths, runs
from tests.campaigns.choice import choose
from vit_jax import cli
from vit_jax.corpora import builders

VERBS = ("train", "evaluate", "convert", "fewshot", "sweep", "plan")
SECONDS, BYTES, LINES = 60, 2**30, 4
Case = tuple[str, Callable[[pathlib.Path], list[str]], tuple[int, ...]]  # name, folder -> command, exit codes


def main() -> int:
  """Runs all cases and returns the exit code."""
  parser = argparse.ArgumentParser("python -m tests.campaigns.files", description=__doc__)
  parser.add_argument("words", nargs="*", help="run only cases with names that contain one of these words")
  chosen = choose(parser, (case[0] for case in cases(pathlib.Path("run"))), parser.parse_args().words)
  sys.dont_write_bytecode = True  # also in forked children, because a compiled config would change the folder
  warnings.filterwarnings("ignore", message=".*os.fork")
  passed = failed = 0
  with tempfile.TemporaryDirectory() as name:
    root = pathlib.Path(name)
    os.environ |= {"TFDS_DATA_DIR": f"{root}/data", "XDG_CACHE_HOME": f"{root}/cache"}
    # Each command runs in a fork of this process, so this process must not initialise JAX itself.
    for verb in VERBS:
      importlib.import_module(f"vit_jax.{verb}")
    importlib.import_module("torch")
    importlib.import_module("tensorflow_datasets")
    run_in_child(lambda: builders.prepare_dataset("digits"), root / "log")
    run_in_child(lambda: run(["train", *runs.words(root / "run", total=2)]), root / "log")
    assert (root / "run/result.json").exists(), (root / "log").read_text()
    for case in cases(root / "run"):
      if case[0] not in chosen:
        continue
      problem = attempt(case, root)
      failed, passed = failed + bool(problem), passed + (not problem)
      if problem:
        print(f"{case[0]}: {problem}", flush=True)
  print(f"{passed} passed, {failed} failed")
  return bool(failed)


def attempt(case: Case, root: pathlib.Path) -> str | None:
  """Runs a case and returns its problems, or None."""
  name, make, codes = case
  # A run that continues writes its lock, its length, its command and its goodput.
  but = {"lock", "config.json", "recipe.json", "goodput.json"} if "metrics" in name else {"lock"}
  folder, log = root / "case", root / "log"
  folder.mkdir()
  os.chdir(folder)
  try:
    made = root / "command"
    for last in (made, log):
      last.unlink(missing_ok=True)
    if run_in_child(lambda: made.write_text(json.dumps(make(folder))), log)[0]:
      return f"nothing was made: {log.read_text(errors='replace')[-600:]!r}"
    command = json.loads(made.read_text())
    before, _ = list_contents(folder, but), log.write_text("")
    code, seconds, grown = run_in_child(lambda: run(command), log)
    output, after = log.read_text(errors="replace"), list_contents(folder, but)
  finally:
    os.chdir(root)
    shutil.rmtree(folder)
  # The differences of a config are a list, and a run may print its description before an error.
  most = 40 if "another config" in output else LINES
  lines = output[max(0, output.find("error: ")) :].splitlines()
  problems = [
    f"exit {code}, expected {codes}" * (code not in codes),
    "a traceback" * ("Traceback" in output),
    f"{len(lines)} lines, {len(output)} characters" * (code != 0 and (len(lines) > most or len(output) > 3000)),
    "characters that a terminal obeys" * ("\x1b" in output),
    f"{seconds:.0f} s" * (seconds > SECONDS),
    f"{grown / 2**20:.0f} MiB" * (grown > BYTES),
    f"changed: {sorted(str(key) for key in {**before, **after} if before.get(key) != after.get(key))[:5]}"
    * (code != 0 and before != after),
  ]
  found = "; ".join(filter(None, problems))
  return f"{found}: {output[-600:]!r}" if found else None


def run(command: list[str]) -> None:
  """Runs a verb in this process, with the command line of a user."""
  os.environ["PYTHONWARNINGS"] = "ignore"
  verb, *words = command
  sys.argv = [verb, *words]
  if "--config=configs/digits.py" in words:
    os.chdir(runs.ROOT)
  cli.run_verb(sys.modules[f"vit_jax.{verb}"].main)


def run_in_child(function: Callable[[], None], log: pathlib.Path) -> tuple[int, float, int]:
  """Runs a function in a child process.

  Returns:
    The exit code, the seconds of processor time, and the bytes of memory above the memory of this process.
  """
  sys.stdout.flush()
  pid = os.fork()
  if pid == 0:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = 1
    try:
      function()
      code = 0
    except SystemExit as end:
      code = end.code if isinstance(end.code, int) else 1
    except BaseException:
      import traceback

      traceback.print_exc()
    finally:
      sys.stdout.flush()
      os._exit(code)
  deadline = time.monotonic() + 10 * SECONDS
  while (ended := os.wait4(pid, os.WNOHANG))[0] == 0:
    if time.monotonic() > deadline:
      os.kill(pid, signal.SIGKILL)
    time.sleep(0.02)
  used, own = ended[2], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return os.waitstatus_to_exitcode(ended[1]), used.ru_utime + used.ru_stime, 1024 * max(0, used.ru_maxrss - own)


def list_contents(folder: pathlib.Path, but: set[str]) -> dict:
  """Returns the types of the paths in a folder and the digests of its files, without the names in `but`."""
  result = {}
  for path in sorted(folder.rglob("*")):
    if path.name in but:
      continue
    mode = path.lstat().st_mode
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(mode) else path.lstat().st_mtime_ns
    result[path.relative_to(folder)] = (stat.S_IFMT(mode), digest if not stat.S_ISDIR(mode) else None)
  return result


# The cases.


def cases(run: pathlib.Path) -> Iterator[Case]:
  """Yields all cases. `run` is a finished workdir, which cases copy."""
  for number, name in enumerate(hostile.WEIGHTS):
    yield name, make_command(number, hostile.weights, name), (2,)
  for number, name in enumerate(hostile.HUB):
    yield f"beside: {name}", make_command(number, hostile.hub, name), (2,)
  for name, make in hostile_paths.PATHS.items():
    yield f"path: {name}", lambda folder, make=make: ["convert", "--inspect", str(make(folder / "w.npz"))], (2,)
  for name, (file, data) in WORKDIR.items():
    # The checkpoint contains the config of its run. config.json is used only without a checkpoint.
    yield (
      f"workdir, measured: {name}",
      copy_workdir(run, file, data, "evaluate"),
      (0, 2) if file == "config.json" else (0,),
    )
    yield f"workdir, continued: {name}", copy_workdir(run, file, data, "train"), (0, 2)
    if file == "config.json":
      yield f"workdir, begun: {name}", copy_workdir(run, file, data, "train", saved=False), (2,)
  for name, (code, body) in CONFIGS.items():
    yield f"config: {name}", config(body), (code,)
  for name, record in SWEEPS.items():
    yield f"sweep: {name}", sweep(record), (2,)
  for name, flags in FLAGS.items():
    yield f"flags: {name}", lambda folder, flags=flags: ["evaluate", f"--workdir={run}", *flags(folder)], (2,)


def make_command(number: int, make: Callable, name: str) -> Callable:
  """Returns a function that makes the command of a case.

  Most commands are `convert --inspect`, which does not read values. Every sixth command is a verb that reads them.
  """

  def command(folder):
    path = make(folder, name)
    digits = runs.words(folder / "new")
    return {
      0: ["train", *digits, f"--config.init.from={path}"],
      6: ["evaluate", "--config=configs/digits.py", f"--weights={path}", *digits[2:]],
      12: ["train", *digits, "--config.task.name=distill", f"--config.task.teacher={path}"],
      18: ["convert", str(path), str(folder / "out.safetensors")],
      24: ["fewshot", f"--config={runs.ROOT}/configs/fewshot.py", f"--weights={path}"],
    }.get(number % 30, ["convert", "--inspect", str(path)])

  return command


ODD = {
  "a pipe": hostile_paths.pipe,
  "a folder": hostile_paths.folder,
  "brackets": hostile.DEEP,
  "objects": '{"a":' * 900 + "1" + "}" * 900,
}
ODD |= {"no UTF-8": b"\xff\n", "a list": "[1]", "a number": "3"}
WORKDIR = {
  **{f"{file} is {name}": (file, data) for file in ("config.json", "result.json") for name, data in ODD.items()},
  **{f"metrics.jsonl is {name}": ("metrics.jsonl", data) for name, data in ODD.items()},
  "a model that is a number": ("config.json", '{"model": 3}'),
  "a model without a name": ("config.json", '{"model": {"name": [3]}, "optim": {"decay": []}}'),
  "a text of 10 MB": ("config.json", json.dumps({"model": {"name": "x" * 10**7}})),
  "a name that terminals obey": ("config.json", json.dumps({hostile.ESCAPE: hostile.ESCAPE})),
  "a result of texts": ("result.json", json.dumps({"steps": 2, "train_seconds": "1", "images_per_second": "2"})),
  "images that are a text": (
    "result.json", json.dumps({"steps": 2, "train_seconds": 1.0, "images_per_second": 1.0, "images": hostile.ESCAPE}),
  ),
  "a metric of texts": ("metrics.jsonl", '{"step": "x"}\n[]\n3\n{"step": null}\n'),
}  # fmt: skip


def copy_workdir(run: pathlib.Path, file: str, data, verb: str, saved: bool = True) -> Callable:
  """Returns a function that copies a finished workdir, replaces a file, and returns the command of a verb.

  If `saved` is False, the copy has no checkpoints and no result.
  """

  def command(folder):
    shutil.copytree(run, folder / "run")
    if not saved:
      shutil.rmtree(folder / "run/checkpoints")
      (folder / "run/result.json").unlink()
    target = folder / "run" / file
    target.unlink()
    if callable(data):
      data(target)
    else:
      target.write_bytes(data if isinstance(data, bytes) else data.encode())
    total = "3" if file == "metrics.jsonl" else "2"  # a finished run does not read its metrics
    return ["train", *runs.words(folder / "run", total=total)] if verb == "train" else [verb, f"--workdir={folder}/run"]

  return command


RECIPE = "from vit_jax.config import Sweep, product, recipe\n"
DIGITS = RECIPE + (
  "def get_config(): return recipe(model=dict(name='cct_2_3x2_32'), data=dict(name='digits', image_size=32),"
  " optim=dict(name='adamw', lr=1e-3), total='1ep', batch=16)\n"
)
CONFIGS = {  # name -> (exit code, text of the config)
  "an exception of its own": (2, "class Odd(Exception): pass\nraise Odd('x' * 300_000)"),
  "an interrupt": (130, "def get_config(): raise KeyboardInterrupt"),
  "an exit": (2, "import sys; sys.exit(0)"),
  "recursion": (2, "def get_config(): return get_config()"),
  "no memory": (2, "def get_config(): raise MemoryError"),
  "a generator": (2, "def get_config():\n  while True: yield 1"),
  "zero bytes": (2, "a = '\0'"),
  "no UTF-8": (2, b"a = '\xff'"),
  "brackets": (2, "a = " + "(" * 100_000),
  "a text that terminals obey": (2, f"raise ValueError({hostile.ESCAPE!r})"),
  "itself inside": (2, RECIPE + "def get_config():\n  a = {'name': 'x'}; a['b'] = a\n  return recipe(model=a)"),
  "objects": (2, RECIPE + "def get_config(): return recipe(model=object(), data=len, optim={1, 2}, total=1j, batch=3)"),
  "a number of 10,000 digits": (2, DIGITS.replace("batch=16", "batch=10**10_000")),
  "a pattern without end": (2, DIGITS.replace("lr=1e-3", "lr=1e-3, weight_decay=1, decay_on=[('(a+)+b', 1.0)]")),
  "weights whose name has a zero": (2, DIGITS.replace("batch", f"init={{'from': {hostile_paths.ZERO!r}}}, batch")),
  "a text of 300,000 characters": (2, DIGITS.replace("'adamw'", "'x' * 300_000")),
}  # fmt: skip


def config(body) -> Callable:
  def command(folder):
    (folder / "it.py").write_bytes(body if isinstance(body, bytes) else body.encode())
    return ["train", f"--config={folder}/it.py", f"--workdir={folder}/new"]

  return command


SWEEPS = {
  "trials without end": "def sweep():\n  import itertools; return product({'seed': itertools.count()})",
  "10^15 trials": "def sweep(): return product({k: range(10**5) for k in ('seed', 'batch', 'total')})",
  "a generator": "def sweep(): return Sweep(trials=({} for _ in range(10**9)))",
  "a trial that is a number": "def sweep(): return [3]",
  "a record of numbers": '{"trials": [3]}',
  "a record of texts": '{"trials": [{"name": "a", "attempts": "x"}]}',
}


def sweep(text: str) -> Callable:
  """Returns a function that writes an invalid sweep, or an invalid record in its workdir."""

  def command(folder):
    body = text if text.startswith("def") else "def sweep(): return product({'seed': range(2)})"
    (folder / "it.py").write_text(DIGITS + body)
    if text.startswith("{"):
      (folder / "sweep").mkdir()
      (folder / "sweep/.lock").touch()
      (folder / "sweep/sweep.json").write_text(
        json.dumps(json.loads(text) | {"config": f"{folder}/it.py", "flags": {}})
      )
    return ["sweep", f"--config={folder}/it.py", f"--workdir={folder}/sweep"]

  return command


FLAGS = {
  "predictions in a folder": lambda folder: [f"--write-predictions={folder}"],
  "predictions nowhere": lambda folder: ["--write-predictions=/nowhere/p.csv"],
  "predictions of no format": lambda folder: [f"--write-predictions={folder}/p.exe"],
  "a report that is a file": lambda folder: [f"--report={runs.ROOT}/README.md"],
  "a split that terminals obey": lambda folder: [f"--split={hostile.ESCAPE}"],
}


if __name__ == "__main__":
  sys.exit(main())
