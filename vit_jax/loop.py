"""One process's stretch of a run: the training loop, and what happens beside it."""

import collections
import time

import jax
import numpy as np

from vit_jax import build, clock, hardware, runtime, schema
from vit_jax.data import stream
from vit_jax.evals import Outcome
from vit_jax.runtime import say


class _Preempted(Exception):
  """A SIGTERM reached some process: the step at hand is done, save and go."""


class Session:
  """The loop from a step to the end: logging, evaluations, checkpoints, preemption, profiling."""

  def __init__(self, parts, start, store, writer, about, began, workdir, profile, preemption):
    self.parts, self.store, self.writer, self.workdir, self.profile = parts, store, writer, workdir, profile
    self.clock = clock.Clock(about["images"], about["seconds"])
    self.train_seconds = about["train_seconds"]
    self._before, self._began = about["train_seconds"], began
    self._preemption = preemption
    self._pending = collections.deque()  # (step, metrics on the devices) not fetched yet
    self._batches = parts.batches(start)
    self._tracing = False
    self._rows = []  # fetched and not written yet
    self._lapped = 0  # step of the last lap of the clock
    self._frozen, self._digests = parts.frozen(about.get("frozen"))

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
        state, measured = compiled(state, batch, self._frozen)
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
        raise schema.ConfigError(str(error)) from error
      self._save(step, state)
      self.store.wait()
      raise schema.ConfigError(f"{error}. Step {step} is saved; the same command continues from it") from error
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
    line = f"{step:>7}/{parts.total}  {step / parts.total:4.0%}  loss {means['loss']:.4f}"
    line += f"  {parts.task.headline} {means[parts.task.headline]:.4f}"
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
      figures = figures_of(measured(evals, state, self._poll))
      self.writer.write(step, {key if "/" in key else f"test/{key}": value for key, value in figures.items()})
      heads = [key for key in figures if key.endswith(("top1", "loss", "shot"))]
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
      about["model"] = self.parts.model.description.to_json()
      about |= {"frozen": self._digests} if self._digests else {}
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


def measured(evals: dict[str, build.Eval], state, poll) -> dict[str, Outcome]:
  """Outcomes of all evaluations by what their figures begin with: nothing for the one called test, else `<name>/`; then
  `ema_` for averaged weights."""
  outcomes = {}
  # The average is spread over more devices than the parameters: gathered once, not by every batch.
  places = {path: state.params[path].sharding for path in state.ema}
  average = jax.jit(lambda ema: ema, out_shardings=places)(state.ema) if evals and state.ema else {}
  for name, evaluation in evals.items():
    for prefix, weights in (("", state.params), ("ema_", average)):
      if weights:
        outcomes[prefix if name == "test" else f"{name}/{prefix}"] = evaluation.measure(weights, poll)
  return outcomes


def figures_of(outcomes: dict[str, Outcome]) -> dict[str, float]:
  """All figures under the names of result.json."""
  return {place + key: value for place, outcome in outcomes.items() for key, value in outcome.figures.items()}
