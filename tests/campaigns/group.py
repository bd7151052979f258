"""Several processes of one run on this machine, with checks of their outputs, for campaigns."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from tests import ports

ROOT = pathlib.Path(__file__).parent.parent.parent
COUNT = 4  # processes of a group by default
CHANGES = {
    "model.depth": 1, "model.width": 16, "model.heads": 1, "model.hidden": 16, "batch": 8, "total": 40, "seed": 3,
    "checkpoint.every": 10, "checkpoint.keep": 3, "log.every": 1, "log.images": False,
    "evals.test.every": 20, "data.path": "data",
    "limits.start": 120, "limits.peer": 15, "limits.step": 20, "limits.stop": 20,
}  # fmt: skip


class Group:
  """The processes of one run, with outputs in files. The context manager kills all of them at its end."""

  def __init__(
    self, folder: pathlib.Path, workdir: str, count: int | None = None, absent: tuple[int, ...] = (), **options
  ):
    """Starts the processes.

    Args:
      folder: folder of the outputs and of the workdir.
      workdir: name of the workdir in the folder.
      count: number of processes. The default is `COUNT`, which a campaign may change.
      absent: processes that are not started.
      **options: changes of the config. These names have another meaning: `each`, {process: changes of its config};
        `faults`, {process: (fault, number)}; `folders`, {process: its current directory}; `environment`; `port`;
        `limit`, {process: file size limit in bytes}.
    """
    each, faults, folders, limits = (options.pop(key, {}) for key in ("each", "faults", "folders", "limit"))
    environment = options.pop("environment", {})
    port = options.pop("port", None) or ports.find_free_port()
    self.processes, self.files = {}, {}
    count = COUNT if count is None else count
    for i in range(count):
      if i in absent:
        continue
      changes = CHANGES | {key.replace("__", "."): value for key, value in options.items()} | each.get(i, {})
      model = changes.pop("recipe", "cct_2_3x2_32")
      flags = [f"--config={ROOT}/configs/folder.py:{model}", f"--workdir={folder / workdir}", "--no-report"]
      flags += [f"--config.{key}={value}" for key, value in changes.items()]
      start = ["tests.campaigns.faulty", *map(str, faults[i]), "train"] if i in faults else ["vit_jax.train"]
      placed = {"VITJAX_COORDINATOR": f"127.0.0.1:{port}", "VITJAX_PROCESSES": count, "VITJAX_PROCESS": i}
      command = [sys.executable, "-m", *start, *flags]
      if i in limits:
        command = ["bash", "-c", f'ulimit -f {limits[i] // 1024}; exec "$@"', "bash", *command]
      self.files[i] = tempfile.NamedTemporaryFile("w+", dir=folder, delete=False)
      self.processes[i] = subprocess.Popen(
        command,
        cwd=folders.get(i, folder),
        env=os.environ | {"PYTHONPATH": str(ROOT)} | {k: str(v) for k, v in (placed | environment).items()},
        stdout=self.files[i],
        stderr=subprocess.STDOUT,
      )

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for process in self.processes.values():
      process.kill()
      process.wait()

  def text(self, i: int) -> str:
    """Returns the output of a process so far."""
    return pathlib.Path(self.files[i].name).read_text(errors="replace")

  def await_text(self, pattern: str, i: int = 0, seconds: float = 120.0) -> None:
    """Waits until the output of a process matches a pattern."""
    deadline = time.monotonic() + seconds
    while not re.search(pattern, self.text(i), re.MULTILINE):
      assert self.processes[i].poll() is None, f"process {i} ended before {pattern!r}:\n{self.text(i)[-2000:]}"
      assert time.monotonic() < deadline, f"process {i} never printed {pattern!r}:\n{self.text(i)[-2000:]}"
      time.sleep(0.02)

  def await_step(self, step: int) -> None:
    """Waits until this step has been logged."""
    self.await_text(rf"^ *{step}/\d+ ")

  def signal(self, number: signal.Signals, *which: int) -> None:
    """Sends a signal to these processes."""
    for i in which:
      self.processes[i].send_signal(number)

  def stop_at(self, step: int, *which: int) -> None:
    """Sends SIGTERM to these processes after a step, and checks that all processes end with exit code 42."""
    self.await_step(step)
    self.signal(signal.SIGTERM, *which)
    self.all_end(42, 15)

  def end(self, codes: dict[int, int | tuple], seconds: float) -> None:
    """Checks that processes end with their codes in time, without a traceback unless the code is 1 or -9."""
    deadline = time.monotonic() + seconds
    for i, expected in codes.items():
      try:
        code = self.processes[i].wait(max(0.1, deadline - time.monotonic()))
      except subprocess.TimeoutExpired:
        raise AssertionError(f"process {i} still runs after {seconds} s:\n{self.text(i)[-2000:]}") from None
      allowed = expected if isinstance(expected, tuple) else (expected,)
      assert code in allowed, f"process {i} ended with {code}, not {expected}:\n{self.text(i)[-3000:]}"
      if code not in (1, -9):
        assert "Traceback" not in self.text(i), f"process {i}:\n{self.text(i)[-3000:]}"

  def all_end(self, code: int | tuple, seconds: float) -> None:
    """Checks that all processes end with the same code in time."""
    self.end(dict.fromkeys(self.processes, code), seconds)

  def expect_output(self, pattern: str, *which: int) -> None:
    """Checks that the end of the output of each of these processes (default: all) matches a pattern."""
    for i in which or self.processes:
      assert re.search(pattern, self.text(i)[-6000:]), f"process {i} does not say {pattern!r}:\n{self.text(i)[-2000:]}"


def others(*without: int) -> list[int]:
  """Returns the numbers of the other processes."""
  return [i for i in range(COUNT) if i not in without]


def result(folder: pathlib.Path, workdir: str) -> dict:
  """Returns the result of a finished run."""
  return json.loads((folder / workdir / "result.json").read_text())


def finish(folder: pathlib.Path, workdir: str, **options) -> None:
  """Continues a run with the same command, and compares its weights, figures and log with the undisturbed run."""
  with Group(folder, workdir, **options) as group:
    group.all_end(0, 180)
  here, there = result(folder, workdir), result(folder, "undisturbed")
  for key in ("weights_sha256", "loss", "top1", "images", "steps"):
    assert here[key] == there[key], f"{key}: {here[key]}, undisturbed {there[key]}"
  assert losses(folder, workdir) == losses(folder, "undisturbed")


def losses(folder: pathlib.Path, workdir: str) -> dict[int, dict]:
  """Returns the losses and accuracies in metrics.jsonl by step."""
  rows = [json.loads(line) for line in (folder / workdir / "metrics.jsonl").read_text().splitlines()]
  table = {}
  for row in rows:
    table.setdefault(row["step"], {}).update(
      {key: value for key, value in row.items() if key.endswith(("loss", "top1"))}
    )
  return table
