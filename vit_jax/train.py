"""Trains a model: python -m vit_jax.train --config=configs/digits.py --workdir=runs/digits [--config.optim.lr=1e-3]

The same command continues a run that was stopped or killed, to the same result bit for bit. Exit codes: 0 finished,
2 mistake in config or flags, 42 preempted (run it again), 44 loss not finite, 45 no readable checkpoint.
"""

import argparse
import collections
import contextlib
import hashlib
import importlib.metadata
import json
import pathlib
import time

import jax
import numpy as np

from vit_jax import build, checkpoints, config, flags, hardware, mesh, metrics, runtime, trees
from vit_jax.data import stream

PACKAGES = """jax jaxlib flax optax orbax-checkpoint grain tensorflow-datasets array_record ml-collections clu einops
numpy opencv-python-headless""".split()  # noqa: SIM905  two lines instead of thirteen


class _Preempted(Exception):
  """A SIGTERM reached some process: the step at hand is done, save and go."""


def main() -> None:
  """Reads flags, checks everything, trains."""
  parser = argparse.ArgumentParser("python -m vit_jax.train", allow_abbrev=False, description=__doc__)
  parser.add_argument("--config", required=True, help="file, or file:argument; --config.KEY=VALUE changes a value")
  parser.add_argument("--workdir", required=True, type=directory, help="where the run lives; one run each")
  parser.add_argument("--profile", type=int, default=0, metavar="STEPS", help="trace so many steps for TensorBoard")
  given, rest = parser.parse_known_args()
  runtime.quiet()

  file, edited = flags.load(given.config), flags.load(given.config)
  overrides = flags.overrides(rest, ("--config", "--workdir", "--profile"))
  for key, value in overrides.items():
    flags.edit(edited, key, value)
  run = build.complete(config.resolve(edited))
  changes = changes_of(file, run, overrides)
  if given.profile < 0:
    raise config.ConfigError(f"--profile: {given.profile} is not a number of steps")

  runtime.start()
  preemption = runtime.Preemption()  # from here on a SIGTERM is not lost
  parts = build.build(run, jax.devices())
  runtime.agree(objection(given.workdir, parts))
  with runtime.claim(given.workdir):
    say(f"{given.config}, changed by flags:" if changes else f"{given.config}, as it stands")
    for line in changes:
      say(f"  {line}")
    train(parts, given.workdir, given.profile, preemption)


def changes_of(file, run: config.Run, overrides: dict[str, str]) -> list[str]:
  """What the flags made of the file's own run; of a file that needs flags to be a run, the flags."""
  try:
    before = build.complete(config.resolve(file))
  except config.ConfigError:
    return [f"{key}: {value}" for key, value in overrides.items()]
  return trees.diff(config.plain(before), config.plain(run))


def directory(text: str) -> pathlib.Path:
  """The path of a --workdir."""
  if not text.strip():
    raise argparse.ArgumentTypeError("is empty; name a directory")
  return pathlib.Path(text)


def say(text: str) -> None:
  """Prints a line, on the first process only."""
  if jax.process_index() == 0:
    print(text, flush=True)


def objection(workdir: pathlib.Path, parts: build.Parts) -> str | None:
  """Why a run may not use the workdir: it holds one with another config. None if it may."""
  if workdir.exists() and not workdir.is_dir():
    return f"--workdir: {workdir} is a file; name a directory"
  found = runtime.read_json(workdir / "config.json")
  if found is None:
    if any((workdir / "checkpoints").glob("[0-9]*")):  # an empty folder is a start that was killed
      return f"--workdir: {workdir} holds checkpoints and no config.json; take another directory"
    return None
  strict = [{k: v for k, v in c.items() if k not in config.MAY_CHANGE} for c in (found, config.plain(parts.run))]
  differences = trees.diff(*strict)
  if not differences:
    return None
  listed = "\n  ".join(differences)
  return f"--workdir: {workdir} holds a run with another config; take another --workdir, or undo:\n  {listed}"


def train(
  parts: build.Parts, workdir: pathlib.Path, profile: int = 0, preemption: runtime.Preemption | None = None
) -> dict:
  """Trains to the end, from the newest checkpoint where there is one; returns and writes the result."""
  finished = runtime.read_json(workdir / "result.json")
  if finished and finished.get("steps") == parts.total and {"train_seconds", "images_per_second"} <= finished.keys():
    say(f"finished before, {parts.total} steps: nothing to do")
    close(finished, workdir)
    return finished

  # Where we are.
  first = jax.process_index() == 0
  store = checkpoints.Checkpoints(workdir, mesh.replicated(parts.mesh), parts.keep, parts.keep_every)
  with contextlib.closing(store):
    found = store.restore(parts.state_shapes)
    if found and int(found[0].step) > parts.total:
      raise config.ConfigError(
        f"config.total: {parts.total} steps, but {workdir} has done {int(found[0].step)} already"
      )
    if first:
      runtime.write_text(workdir / "config.json", config.dumps(parts.run))
    say(parts.overview())
    began = time.perf_counter()
    state, about = found or (parts.init(), {"images": 0, "seconds": 0.0, "train_seconds": 0.0})
    start = int(state.step)
    say(f"continues at step {start} of {parts.total}" if start else f"{parts.total} steps to go")
    writer = metrics.Writer(workdir, start, first)
    with contextlib.closing(writer):
      session = Session(parts, start, store, writer, about, began, workdir, profile, preemption or runtime.Preemption())
      state, figures = session.run(state, start)

  # What came out.
  result = {
    **figures,
    "skipped_images": session.skipped,
    "seed": parts.run.seed,
    "steps": parts.total,
    "train_seconds": session.train_seconds,
    "images_per_second": session.clock.rate,
    "config_sha256": hashlib.sha256(config.dumps(parts.run).encode()).hexdigest(),
    "weights_sha256": checkpoints.weights_digest(state.params, mesh.replicated(parts.mesh)),
    "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
  }
  if first:
    runtime.write_text(workdir / "result.json", json.dumps(result, indent=2) + "\n")
  close(result, workdir)
  return result


class Session:
  """One process's stretch of a run: the loop, and what happens beside it."""

  def __init__(self, parts, start, store, writer, about, began, workdir, profile, preemption):
    self.parts, self.store, self.writer, self.workdir, self.profile = parts, store, writer, workdir, profile
    self.clock = metrics.Clock(about["images"], about["seconds"])
    self.train_seconds = about["train_seconds"]
    self._before, self._began = about["train_seconds"], began
    self._preemption = preemption
    self._pending = collections.deque()  # (step, metrics on the devices) not fetched yet
    self._batches = parts.batches(start)
    self._tracing = False
    self._rows = []  # fetched and not written yet
    self._lapped = 0  # step of the last lap of the clock

  def run(self, state, start):
    """Trains from step `start` to the end and evaluates; returns the state and the figures."""
    parts = self.parts
    step = start
    try:
      compiled = parts.compile() if start < parts.total else None
      while step < parts.total:
        with self.clock.wait():
          batch = next(self._batches)
        self._trace(step - start)
        state, measured = compiled(state, batch)
        # Logging waits for the step before this one, so the devices always have work.
        if step == start + 1:
          self._first(step)
        if step > start and step % parts.log_every == 0:
          self._log(step)
        step += 1
        self._pending.append((step, measured))
        self._around(step, state)
      self._trace(None)
      figures = self._evaluate(step, state, parts.evals)
      self._save(step, state)
      self.store.wait()
      return state, figures
    except _Preempted:
      self._save(step, state)
      self.store.wait()
      raise runtime.Stop(
        runtime.EXIT_PREEMPTED, f"stopped at step {step} as asked, and saved; the same command continues"
      ) from None
    except stream.ImageError as error:
      if jax.process_count() > 1:  # a save needs all processes, and the others have no error
        raise config.ConfigError(str(error)) from error
      self._save(step, state)
      self.store.wait()
      raise config.ConfigError(f"{error}. Step {step} is saved; the same command continues from it") from error
    finally:
      self._batches.close()

  @property
  def skipped(self) -> int:
    """Training images that could not be decoded, in this session."""
    return self._batches.skipped

  def _around(self, step, state):
    """Between steps: evaluations and checkpoints that are due, and the question whether to stop."""
    last = step == self.parts.total
    due = {name: e for name, e in self.parts.evals.items() if step % e.every == 0}
    if last:
      self._log(step)
      self.train_seconds = self._before + time.perf_counter() - self._began
    elif due:
      self._evaluate(step, state, due)
    if step % self.parts.save_every == 0 and not last:
      self._save(step, state)
    self._poll()

  def _poll(self):
    if self._preemption.reached():
      raise _Preempted

  def _fetch(self, until):
    """Brings what was measured up to step `until` from the devices, which finish that step, and checks it."""
    steps = []
    while self._pending and self._pending[0][0] <= until:
      steps.append(self._pending.popleft())
    rows = jax.device_get([measured for _, measured in steps])
    for (step, _), row in zip(steps, rows, strict=True):
      bad = {name: float(value) for name, value in row.items() if not np.isfinite(value)}
      if bad:
        self.store.wait()
        saved = self.store.steps()
        raise runtime.Stop(
          runtime.EXIT_NOT_FINITE,
          f"step {step}: not finite: {bad}; "
          + (f"the last good checkpoint is step {saved[-1]}. " if saved else "no checkpoint was saved yet. ")
          + "A lower config.optim.lr, a longer warmup or config.optim.clip usually helps.",
        )
    self._rows += rows

  def _log(self, step):
    """Writes the means of what was measured since the last time, up to `step`."""
    self._fetch(step)
    if self._rows:
      means = {name: float(np.mean([row[name] for row in self._rows])) for name in self._rows[0]}
      self._rows = []
      self._write(step, means)

  def _first(self, step):
    """The first step of a session is done: says so, and starts the clock, which leaves compilation out."""
    self._fetch(step)
    self.clock.lap(0)
    self._lapped = step
    say(f"{step:>7}/{self.parts.total}  loss {self._rows[-1]['loss']:.4f}; compiled and under way")

  def _write(self, step, means):
    parts = self.parts
    images = (step - self._lapped) * parts.run.batch
    rates = self.clock.lap(images) if images else {}
    self._lapped = step
    scalars = {f"train/{name}": value for name, value in means.items()}
    scalars["train/learning_rate"] = float(parts.schedule(step - 1))
    scalars["skipped_images"] = self.skipped
    scalars["train/epoch"] = step * parts.run.batch / parts.examples
    line = f"{step:>7}/{parts.total}  {step / parts.total:4.0%}  loss {means['loss']:.4f}  top-1 {means['top1']:6.1%}"
    if rates:
      devices = parts.mesh.devices
      per_chip = rates["images_per_second"] / devices.size
      scalars |= {"images_per_second_per_chip": per_chip, "images_per_second": rates["images_per_second"]}
      scalars["data_wait"] = rates["data_wait"]
      line += f"  {rates['images_per_second']:,.0f} images/s  waiting for data {rates['data_wait']:.0%}"
      peak = hardware.peak(devices.flat[0])
      if peak:
        scalars["mfu"] = per_chip * parts.flops_per_image / peak
        line += f"  MFU {scalars['mfu']:.1%}"
      left = (parts.total - step) * parts.run.batch / self.clock.rate
      line += f"  {int(left // 60)}:{int(left % 60):02d} left"
    self.writer.write(step, scalars)
    say(line)

  def _evaluate(self, step, state, evals):
    """Figures of the given evaluations at `step`, written and printed."""
    self._fetch(step)
    with self.clock.pause():
      figures = figures_of(evals, state, self._poll)
      self.writer.write(step, {key if "/" in key else f"test/{key}": value for key, value in figures.items()})
      heads = [key for key in figures if key.endswith(("top1", "loss"))]
      say(f"{step:>7}  evaluated: " + "  ".join(f"{key} {figures[key]:.4f}" for key in heads))
    return figures

  def _save(self, step, state):
    """Saves `step` once all its steps are known to be finite; a step that is saved already stays."""
    self._fetch(step)
    if step in self.store.steps():
      return
    with self.clock.pause():
      seconds = self._before + time.perf_counter() - self._began
      done = step == self.parts.total
      about = {"images": self.clock.images, "seconds": self.clock.seconds}
      self.store.save(step, state, about | {"train_seconds": self.train_seconds if done else seconds})

  def _trace(self, done):
    """Starts and stops the profiler: `profile` steps after the first few, or up to the end of the run (None)."""
    warm = 3
    if self.profile and done == warm:
      jax.profiler.start_trace(str(self.workdir / "tensorboard"))
      self._tracing = True
    elif self._tracing and (done is None or done == warm + self.profile):
      jax.profiler.stop_trace()
      self._tracing = False
      say(f"wrote a trace; look at it with: tensorboard --logdir={self.workdir}/tensorboard")


def figures_of(evals: dict[str, build.Eval], state, poll) -> dict[str, float]:
  """Figures of all evaluations: plain names for the one called test, else `<name>/`; `ema_` for averaged weights."""
  figures = {}
  for name, evaluation in evals.items():
    for prefix, weights in (("", state.params), ("ema_", state.ema)):
      if weights:
        place = prefix if name == "test" else f"{name}/{prefix}"
        figures |= {place + key: value for key, value in evaluation.measure(weights, poll).items()}
  return figures


def report(result: dict) -> None:
  """The table of figures."""
  say("")
  for key, value in result.items():
    if key.endswith("images"):
      say(f"  {key.replace('_', ' '):<24}{value:>10,}")
    elif isinstance(value, float) and not key.endswith(("seconds", "per_second")):
      say(
        f"  {key.replace('_', ' '):<24}{value:>10.4f}"
        if key.endswith("loss")
        else f"  {key.replace('_', ' '):<24}{value:>10.2%}"
      )


def close(result: dict, workdir: pathlib.Path) -> None:
  """The last words of a run: figures, time, where to look."""
  report(result)
  rate = result["images_per_second"]
  say(f"  {'training':<24}{result['train_seconds']:>8.1f} s" + (f"   {rate:,.0f} images/s" if rate else ""))
  say(f"\n  figures   {workdir / 'result.json'}\n  curves    tensorboard --logdir={workdir / 'tensorboard'}")


if __name__ == "__main__":
  runtime.main(main)
