"""The training loop: a run from where it stands to its result."""

import collections
import contextlib
import functools
import hashlib
import importlib.metadata
import json
import pathlib
from collections.abc import Callable, Iterator

import jax
import numpy as np

from vit_jax import build, checkpoints, clock, config, files, hardware, mesh, runtime, steps, writer
from vit_jax.data import stream
from vit_jax.evals import outcomes
from vit_jax.runtime import say
from vit_jax.schema import ConfigError

PACKAGES = """jax jaxlib flax optax orbax-checkpoint grain tensorflow-datasets array_record ml-collections clu einops
numpy opencv-python-headless""".split()  # noqa: SIM905  two lines instead of thirteen


def train(
  parts: build.Parts,
  workdir: pathlib.Path,
  profile: int = 0,
  watch: runtime.Watch | None = None,
  weights: dict[str, np.ndarray] | None = None,
) -> dict:
  """Trains to the end, from the newest checkpoint where there is one; writes and returns the result.

  Args:
    profile: so many steps are traced for TensorBoard.
    watch: by default one of its own.
    weights: {path: host array} to begin with, where there is no checkpoint; by default those that the run names.

  Raises runtime.Stop when asked to stop, and for a value that is not finite; ConfigError for an image that cannot be
  decoded. The first and the last save before.
  """
  if result := finished(workdir, parts.total):
    return result
  with contextlib.ExitStack() as resources:
    watch = watch or resources.enter_context(runtime.Watch(parts.run.limits))
    resources.enter_context(watch.phase("save"))  # which closes what is open
    # Where the run stands.
    say(parts.overview())
    store = checkpoints.Checkpoints(workdir, mesh.replicated(parts.mesh), parts.keep, parts.keep_every)
    resources.callback(store.close)
    with watch.phase("restore"):
      state, timer, digests = first_state(parts, store, weights)
      frozen, digests = parts.frozen(digests)
    start = step = int(state.step)
    batches = parts.batches(start)
    log, trace = Log(parts, workdir, start, timer, store), writer.Trace(workdir, start, profile)
    for resource in (log, trace, batches):
      resources.callback(resource.close)
    resources.push(watch.report)
    save = functools.partial(save_state, store, log, {"model": parts.model.description.to_json(), "frozen": digests})
    say(f"continues at step {start} of {parts.total}" if start else f"{parts.total} steps to go")
    try:
      with watch.phase("compile"):
        train_step = parts.compile() if step < parts.total else None
        runtime.barrier("compiled")  # or the first step would wait for another process's compiler
      with watch.phase("step"):
        while step < parts.total:
          with timer.wait(), watch.phase("data", batches.waiting):
            batch = next(batches)
          with trace.step(step), jax.transfer_guard("disallow"):
            state, metrics = train_step(state, batch, frozen)
          log.write_due(step)  # of the steps before this one, so that the devices always have work
          step += 1
          log.add(step, metrics, batches.skipped)
          if step < parts.total:
            if due := {name: each for name, each in parts.evals.items() if step % each.every == 0}:
              with watch.phase("evaluation"):
                evaluate(due, step, state, log, watch.poll)
            if step % parts.save_every == 0:
              with watch.phase("save"):
                save(step, state)
            watch.poll()
        # The end.
        log.write(step)
      trace.close()
      timer.stop()
      with watch.phase("evaluation"):
        figures = evaluate(parts.evals, step, state, log, watch.poll)
      save(step, state)
    except (runtime.Preempted, stream.ImageError) as reason:
      if isinstance(reason, runtime.Preempted) or runtime.alone():  # all must save; one alone has the image
        with watch.phase("save"):
          log.write(step)
          save(step, state)
      raise ending(reason, step) from reason
  return write_result(workdir, figures | {"skipped_images": batches.skipped} | facts(parts, state, timer))


# Where a run begins, and what it ends with.


def finished(workdir: pathlib.Path, total: int) -> dict | None:
  """The result of a run of `total` steps that has ended before; None where there is none."""
  result = files.read_json(workdir / "result.json")
  if not result or result.get("steps") != total or not {"train_seconds", "images_per_second"} <= result.keys():
    return None
  say(f"finished before, {total} steps: nothing to do")
  return result


def first_state(
  parts: build.Parts, store: checkpoints.Checkpoints, weights: dict[str, np.ndarray] | None
) -> tuple[steps.State, clock.Clock, dict[str, str] | None]:
  """The newest state that is saved, the clock that goes on from there, and the digests of frozen weights.

  Without a saved state, that before the first step, and None, for no weights are expected.
  """
  saved, workdir = store.restore(parts.state_shapes), store.directory.parent
  if saved and int(saved[0].step) > parts.total:
    raise ConfigError(f"config.total: {parts.total} steps, but {workdir} has done {int(saved[0].step)} already")
  if jax.process_index() == 0:
    files.write_text(workdir / "config.json", config.dumps(parts.run))
  if saved is None:
    watch = clock.Clock()
    return parts.start(starting_weights(parts) if weights is None else weights), watch, None
  state, about = saved
  running = int(state.step) < parts.total
  watch = clock.Clock(about["images"], about["seconds"], about["train_seconds"], running)
  return state, watch, about.get("frozen", {})


def starting_weights(parts: build.Parts, flag: str = "config.init.from") -> dict[str, np.ndarray]:
  """What `config.init` names, on the host; says what was done. ConfigError on every process if any has one."""
  weights, notes, problem = {}, [], None
  try:
    weights, notes = parts.weights()
  except ConfigError as error:
    problem = f"{flag}: {error}"
  runtime.agree(problem)
  for note in notes:
    say(note)
  return weights


def facts(parts: build.Parts, state: steps.State, watch: clock.Clock) -> dict:
  """What result.json says beside the figures: how long it took, and of what and to what exactly."""
  return {
    "seed": parts.run.seed,
    "steps": parts.total,
    "train_seconds": watch.train_seconds,
    "images_per_second": watch.rate,
    "config_sha256": hashlib.sha256(config.dumps(parts.run).encode()).hexdigest(),
    "weights_sha256": checkpoints.weights_digest(state.params, mesh.replicated(parts.mesh)),
    "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
  }


def write_result(workdir: pathlib.Path, result: dict) -> dict:
  """The result, which the first process writes."""
  if jax.process_index() == 0:
    files.write_text(workdir / "result.json", json.dumps(result, indent=2) + "\n")
  return result


def ending(reason: Exception, step: int) -> Exception:
  """The error that a run ends with at `step`: it was asked to stop, or an image cannot be decoded."""
  if isinstance(reason, runtime.Preempted):
    return runtime.Stop(reason.code, f"{reason}. Step {step} is saved; the same command continues from it")
  saved = f". Step {step} is saved; the same command continues from it" if runtime.alone() else ""
  return ConfigError(f"{reason}{saved}")


# What happens between steps.


def evaluate(
  evals: dict[str, build.Eval], step: int, state: steps.State, log: "Log", poll: Callable[[], None]
) -> dict[str, float]:
  """Figures of the state at `step`, written and printed. `poll` is called between batches, and raises to stop."""
  with log.paused(step):
    measures = {name: each.measure for name, each in evals.items()}
    figures = outcomes.figures(outcomes.measure(measures, state.params, state.ema, poll))
    log.evaluated(step, figures)
  return figures


def save_state(store: checkpoints.Checkpoints, log: "Log", about: dict, step: int, state: steps.State) -> None:
  """Saves `step` once all its steps are known to be finite; a step that is saved already stays."""
  with log.paused(step):
    if step not in store.steps():
      store.save(step, state, {**about, **log.clock.counts()})


class Log:
  """What steps measure: fetched from the devices late, checked, and written and printed as means. A resource."""

  def __init__(
    self,
    parts: build.Parts,
    workdir: pathlib.Path,
    start: int,
    clock: clock.Clock,
    store: checkpoints.Checkpoints,
  ):
    """`start`: step that the run continues from. `store` knows which steps are saved."""
    self.clock = clock
    self._parts, self._start, self._store = parts, start, store
    self._writer = writer.Writer(workdir, start, jax.process_index() == 0)
    self._pending = collections.deque()  # (step, metrics on the devices), not fetched yet
    self._rows = []  # {metric: value} of steps that are fetched and not written yet
    self._lap_began = start  # step
    self._skipped = 0

  def add(self, step: int, metrics: dict[str, jax.Array], skipped: int) -> None:
    """What `step` measured, which the devices may not have done yet, and how many images were skipped so far."""
    self._pending.append((step, metrics))
    self._skipped = skipped

  def write_due(self, step: int) -> None:
    """Writes the steps up to `step` if a line is due there. The first step starts the clock: it was compilation."""
    if step == self._start + 1:
      self._fetch(step)
      self.clock.lap(0)
      self._lap_began = step
      say(f"{step:>7}/{self._parts.total}  loss {self._rows[-1]['loss']:.4f}; compiled and under way")
    if step > self._start and step % self._parts.log_every == 0:
      self.write(step)

  def write(self, step: int) -> None:
    """Writes and prints means over the steps since the last line, up to `step`, and rates."""
    self._fetch(step)
    if not self._rows:
      return
    means = {name: float(np.mean([row[name] for row in self._rows])) for name in self._rows[0]}
    self._rows = []
    parts, headline = self._parts, self._parts.task.headline
    scalars = {f"train/{name}": value for name, value in means.items()} | {
      "train/learning_rate": float(parts.schedule(step - 1)),
      "skipped_images": self._skipped,
      "train/epoch": step * parts.run.batch / parts.examples,
    }
    line = f"{step:>7}/{parts.total}  {step / parts.total:4.0%}  loss {means['loss']:.4f}"
    if headline in means:
      line += f"  top-1 {means['top1']:6.1%}" if headline == "top1" else f"  {headline} {means[headline]:.4f}"
    images = (step - self._lap_began) * parts.run.batch
    self._lap_began = step
    # A process that has one step left has no lap.
    if images and (lap := self.clock.lap(images)):
      rates = self._rates(lap)
      scalars |= rates
      line += f"  {rates['images_per_second']:,.0f} images/s  waiting for data {rates['data_wait']:.0%}"
      line += f"  MFU {rates['mfu']:.1%}" if "mfu" in rates else ""
      left = (parts.total - step) * parts.run.batch / self.clock.rate
      line += f"  {int(left // 60)}:{int(left % 60):02d} left"
    self._writer.write(step, scalars)
    say(line)

  @contextlib.contextmanager
  def paused(self, step: int) -> Iterator[None]:
    """Time after `step` that is not training's: waits until all steps are done, and checks them."""
    self._fetch(step)
    with self.clock.pause():
      yield

  def evaluated(self, step: int, figures: dict[str, float]) -> None:
    """Writes figures, and prints the most telling ones."""
    self._writer.write(step, {name if "/" in name else f"test/{name}": value for name, value in figures.items()})
    shown = [name for name in figures if name.endswith(("top1", "loss", "shot"))]
    say(f"{step:>7}  evaluated: " + "  ".join(f"{name} {figures[name]:.4f}" for name in shown))

  def close(self) -> None:
    """Ends the files."""
    self._writer.close()

  def _rates(self, rates):
    """A lap's rates, with those of a chip."""
    devices = self._parts.mesh.devices
    per_chip, peak = rates["images_per_second"] / devices.size, hardware.peak(devices.flat[0])
    utilisation = {"mfu": per_chip * self._parts.flops_per_image / peak} if peak else {}
    return rates | {"images_per_second_per_chip": per_chip} | utilisation

  def _fetch(self, step):
    """Brings what was measured up to `step` from the devices, which finish that step, and checks it."""
    steps = []
    while self._pending and self._pending[0][0] <= step:
      steps.append(self._pending.popleft())
    rows = jax.device_get([metrics for _, metrics in steps])
    for (number, _), row in zip(steps, rows, strict=True):
      check_finite(number, row, self._store)
    self._rows += rows


def check_finite(step: int, metrics: dict[str, np.ndarray], store: checkpoints.Checkpoints) -> None:
  """Ends the run where a metric of `step` is not a finite number, and says which checkpoint is good."""
  wrong = {name: float(value) for name, value in metrics.items() if not np.isfinite(value)}
  if wrong:
    store.wait()
    saved = store.steps()
    raise runtime.Stop(
      runtime.EXIT_NOT_FINITE,
      f"step {step}: not finite: {wrong}; "
      + (f"the last good checkpoint is step {saved[-1]}. " if saved else "no checkpoint was saved yet. ")
      + "A lower config.optim.lr, a longer warmup or config.optim.clip usually helps.",
    )
