"""Several processes of one run on this machine, and what they say: for campaigns."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parent.parent.parent
COUNT = 4
CHANGES = {
    "model.depth": 1, "model.width": 16, "model.heads": 1, "model.hidden": 16, "batch": 8, "total": 40, "seed": 3,
    "checkpoint.every": 10, "checkpoint.keep": 3, "log.every": 1, "evals.test.every": 20, "data.path": "data",
    "limits.start": 120, "limits.peer": 15, "limits.step": 20, "limits.stop": 20,
}  # fmt: skip


class Group:
  """The processes of one run; what they print goes to files. A resource that leaves none of them."""

  def __init__(self, folder: pathlib.Path, workdir: str, count: int = COUNT, absent: tuple[int, ...] = (), **options):
    """`options`: changes of the config; `each`, {process: changes of the config for it}; `faults`, {process: (fault,
    number)}; `folders`, {process: where it starts}; `environment`; `limit`, {process: file size limit in bytes}."""
    each, faults, folders, limits = (options.pop(key, {}) for key in ("each", "faults", "folders", "limit"))
    environment = options.pop("environment", {})
    port = options.pop("port", None) or free_port()
    self.processes, self.files = {}, {}
    for i in range(count):
      if i in absent:
        continue
      changes = CHANGES | {key.replace("__", "."): value for key, value in options.items()} | each.get(i, {})
      model = changes.pop("recipe", "cct_2_3x2_32")
      flags = [f"--config={ROOT}/configs/folder.py:{model}", f"--workdir={folder / workdir}"]
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
    """What a process has printed so far."""
    return pathlib.Path(self.files[i].name).read_text(errors="replace")

  def await_text(self, pattern: str, i: int = 0, seconds: float = 120.0) -> None:
    """Returns when a process has printed this."""
    deadline = time.monotonic() + seconds
    while not re.search(pattern, self.text(i), re.MULTILINE):
      assert self.processes[i].poll() is None, f"process {i} ended before {pattern!r}:\n{self.text(i)[-2000:]}"
      assert time.monotonic() < deadline, f"process {i} never printed {pattern!r}:\n{self.text(i)[-2000:]}"
      time.sleep(0.02)

  def await_step(self, step: int) -> None:
    """Returns when this step has been logged."""
    self.await_text(rf"^ *{step}/\d+ ")

  def signal(self, number: signal.Signals, *which: int) -> None:
    """To these processes."""
    for i in which:
      self.processes[i].send_signal(number)

  def stop_at(self, step: int, *which: int) -> None:
    """After this step SIGTERM to these processes ends all with 42."""
    self.await_step(step)
    self.signal(signal.SIGTERM, *which)
    self.all_end(42, 15)

  def end(self, codes: dict[int, int | tuple], seconds: float) -> None:
    """All processes that `codes` has end with these within a time, and none with a traceback unless it has a bug."""
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
    """All with one code."""
    self.end(dict.fromkeys(self.processes, code), seconds)

  def says(self, pattern: str, *which: int) -> None:
    """Each of these (all) has printed this in its last words."""
    for i in which or self.processes:
      assert re.search(pattern, self.text(i)[-6000:]), f"process {i} does not say {pattern!r}:\n{self.text(i)[-2000:]}"


def free_port() -> int:
  """A TCP port of this machine."""
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]


def others(*without: int) -> list[int]:
  """The other processes."""
  return [i for i in range(COUNT) if i not in without]


def result(folder: pathlib.Path, workdir: str) -> dict:
  """Of a run that has ended."""
  return json.loads((folder / workdir / "result.json").read_text())


def finish(folder: pathlib.Path, workdir: str, **options) -> None:
  """The same command continues to the weights, figures and log of the undisturbed run."""
  with Group(folder, workdir, **options) as group:
    group.all_end(0, 180)
  here, there = result(folder, workdir), result(folder, "undisturbed")
  for key in ("weights_sha256", "loss", "top1", "images", "steps"):
    assert here[key] == there[key], f"{key}: {here[key]}, undisturbed {there[key]}"
  assert losses(folder, workdir) == losses(folder, "undisturbed")


def losses(folder: pathlib.Path, workdir: str) -> dict[int, dict]:
  """What metrics.jsonl says of steps and evaluations, without times."""
  rows = [json.loads(line) for line in (folder / workdir / "metrics.jsonl").read_text().splitlines()]
  table = {}
  for row in rows:
    table.setdefault(row["step"], {}).update(
      {key: value for key, value in row.items() if key.endswith(("loss", "top1"))}
    )
  return table
