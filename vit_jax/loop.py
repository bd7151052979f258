"""The training loop: a run from where it stands to its result."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping

import jax
import numpy as np

from vit_jax import (
  build,
  checkpoints,
  clock,
  config,
  digests,
  files,
  identity,
  intervals,
  mesh,
  runtime,
  selection,
  steps,
  writer,
)
from vit_jax.data.device_batches import DeviceBatches
from vit_jax.data.images import ImageError
from vit_jax.data.workers import WorkerError
from vit_jax.evals import outcomes
from vit_jax.log import Log, due, not_finite
from vit_jax.runtime import say
from vit_jax.schema import ConfigError, amount, plain
from vit_jax.schema.errors import NotFiniteError


def train(
  parts: build.Parts,
  workdir: pathlib.Path,
  profile: int = 0,
  watch: runtime.Watch | None = None,
  weights: dict[str, np.ndarray] | None = None,
  began: float | None = None,
  pictures: Mapping[str, bytes] | None = None,
) -> dict:
  """Trains to the end, from the newest checkpoint where there is one; writes and returns the result.

  Args:
    profile: so many steps are traced for TensorBoard.
    watch: by default one of its own.
    weights: {path: host array} to begin with, where there is no checkpoint; by default those that the run names.
    began: when the program was started, in seconds since the epoch; by default now.
    pictures: PNGs by name that TensorBoard gets before the first step.

  Raises runtime.Stop when asked to stop, and for a value that is not finite; ConfigError for an image that cannot be
  decoded. The first and the last save before. OSError for a file that cannot be written.
  """
  if result := finished(workdir, parts.total):
    return result
  with contextlib.ExitStack() as resources:
    watch = watch or resources.enter_context(runtime.Watch(parts.run.limits))
    resources.enter_context(watch.phase("save"))  # which closes what is open
    run, state = opened(resources, parts, workdir, profile, watch, weights, began)
    run.log.begin(pictures or {})
    watch.step = step = int(state.step)
    say(f"continues at step {step} of {parts.total}" if step else f"{amount(parts.total, 'step')} to go")
    try:
      if not run.evaluated:  # a stop had cut it short
        evaluate(run, due(parts, step), step, state)
      with run.phase("compile"):
        train_step = parts.compile() if step < parts.total else None
        runtime.barrier("compiled")  # or the first step would wait for another process's compiler
      with run.phase("step"):
        while step < parts.total:
          with run.phase("data", run.batches.waiting):
            batch = next(run.batches)
          if run.batches.problem:  # in a batch ahead, so that all processes can stop before it
            watch.ask(runtime.EXIT_CONFIG, f"error: {run.batches.problem}")
          with run.trace.step(step), jax.transfer_guard("disallow"):
            state, metrics = train_step(state, batch, run.frozen)
          run.log.write_due(step)  # of the steps before this one, so that the devices always have work
          watch.step = step = step + 1
          run.log.add(step, metrics, run.batches.skipped)
          if step < parts.total:
            evaluate(run, due(parts, step), step, state)
            if step % parts.save_every == 0:
              save(run, step, state)
            watch.poll()
        run.log.write(step)
      run.trace.close()
      run.timer.stop()
      figures = evaluate(run, parts.evals, step, state)
      save(run, step, state)
    except (runtime.Preempted, ImageError, WorkerError) as reason:
      if isinstance(reason, runtime.Preempted) or runtime.alone():  # all must save; one alone has the image
        save(run, step, state)
        run.store.wait()  # before the others hear of the end, and leave
      raise ending(reason, step) from reason
    run.store.wait()  # a run that has a result has its last state too
    return write_result(
      workdir, figures | {"skipped_images": run.batches.skipped} | chosen(parts, figures) | facts(run, state)
    )


# What is open while a run trains.


@dataclasses.dataclass(frozen=True)
class Run:
  """What the loop uses besides the state, and closes at its end."""

  parts: build.Parts
  watch: runtime.Watch
  timer: clock.Clock
  store: checkpoints.Checkpoints
  log: Log
  trace: writer.Trace
  batches: DeviceBatches
  frozen: dict[str, jax.Array]
  frozen_digests: dict[str, str]
  evaluated: bool  # all that was due at the step that the run continues from
  phase: Callable[..., contextlib.AbstractContextManager]  # `in_phase` by name


def opened(
  resources: contextlib.ExitStack,
  parts: build.Parts,
  workdir: pathlib.Path,
  profile: int,
  watch: runtime.Watch,
  weights: dict[str, np.ndarray] | None,
  began: float | None,
) -> tuple[Run, steps.State]:
  """A run where it stands, which `resources` close, and its state. The arguments are those of `train`."""
  timer = clock.Clock(workdir / "goodput.json" if jax.process_index() == 0 else None, began)
  resources.callback(timer.close)
  say(parts.overview())
  store = checkpoints.Checkpoints(workdir, mesh.replicated(parts.mesh), parts.keep, parts.keep_every)
  resources.callback(store.close)
  with watch.phase("restore"):
    state, about = first_state(parts, store, timer, weights)
    frozen, frozen_digests = parts.frozen(about.get("frozen"))
    for note in parts.task.frozen.notes if frozen else ():
      say(f"{parts.task.frozen.path}: {note}")
  start = int(state.step)
  batches = parts.batches(start)
  phase = functools.partial(in_phase, watch, timer)
  log = Log(parts, workdir, start, timer, phase, store, about)
  trace = writer.Trace(workdir, start, profile)
  for resource in (log, trace, batches):
    resources.callback(resource.close)
  resources.push(watch.report)
  evaluated = about.get("evaluated", True)
  return Run(parts, watch, timer, store, log, trace, batches, frozen, frozen_digests, evaluated, phase), state


@contextlib.contextmanager
def in_phase(watch: runtime.Watch, timer: clock.Clock, name: str, detail: Callable[[], str] = str) -> Iterator[None]:
  """What is inside has the limits of a phase, and its time is the phase's."""
  with watch.phase(name, detail), timer.phase(name):
    yield


# Where a run begins, and what it ends with.


def finished(workdir: pathlib.Path, total: int) -> dict | None:
  """The result of a run of `total` steps that has ended before; None where there is none."""
  # The first process's, for others may see another disk.
  result = json.loads(runtime.gather(json.dumps(files.read_json(workdir / "result.json")), "result")[0])
  if not result or result.get("steps") != total or not isinstance(result.get("train_seconds"), int | float):
    return None
  if not isinstance(result.get("images_per_second", ""), int | float | None):  # not as it was written: measure again
    return None
  say(f"finished before, {amount(total, 'step')}: nothing to do")
  return result


def first_state(
  parts: build.Parts, store: checkpoints.Checkpoints, timer: clock.Clock, weights: dict[str, np.ndarray] | None
) -> tuple[steps.State, dict]:
  """The newest state that is saved, from which the clock goes on, and what is said about it.

  Without a saved state, that before the first step, and nothing.
  """
  workdir = store.directory.parent
  with timer.phase("restore"):
    saved = store.restore(parts.state_shapes, identity.check)
  if saved and int(saved[0].step) > parts.total:
    raise ConfigError(
      f"config.total: {amount(parts.total, 'step')}, but {workdir} has done {int(saved[0].step)} already"
    )
  if jax.process_index() == 0:
    files.write_text(workdir / "config.json", config.dumps(parts.run))
  if saved is None:
    return parts.start(starting_weights(parts) if weights is None else weights), {}
  state, about = saved
  for note in identity.notes(about.get("identity"), parts.identity):
    say(note)
  timer.resume(about, running=int(state.step) < parts.total)
  return state, {"frozen": {}} | about


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
  return checkpoints.same(weights, parts.run.init.from_)


def chosen(parts: build.Parts, figures: Mapping[str, float]) -> dict:
  """Returns the intervals of a result's proportions, and which figure ranks the run; see `selection.about`."""
  counts = selection.measurements({name: each.every for name, each in parts.evals.items()}, parts.total)
  return {
    "intervals": {name: list(ends) for name, ends in intervals.of_figures(figures).items()},  # as JSON has them
    "selection": selection.about(plain(parts.run), figures, counts),
  }


def facts(run: Run, state: steps.State) -> dict:
  """What result.json says beside the figures: how long it took, and of what and to what exactly."""
  parts, timer = run.parts, run.timer
  return {
    "seed": parts.run.seed,
    "steps": parts.total,
    "train_seconds": timer.train_seconds,
    "images_per_second": timer.rate,
    "config_sha256": hashlib.sha256(config.dumps(parts.run).encode()).hexdigest(),
    "weights_sha256": digests.sha256(state.params, mesh.replicated(parts.mesh)),
    "packages": parts.identity["packages"],
    "goodput": timer.goodput(),  # last: it ends here
  }


def write_result(workdir: pathlib.Path, result: dict) -> dict:
  """The result, which the first process writes."""
  if jax.process_index() == 0:
    files.write_text(workdir / "result.json", json.dumps(result, indent=2) + "\n")
  return result


def ending(reason: Exception, step: int) -> Exception:
  """The error that a run ends with at `step`: it was asked to stop, an image is bad, or a worker process died."""
  advice = f"Step {step} is saved; the same command continues from it"
  if isinstance(reason, WorkerError):
    return runtime.Stop(runtime.EXIT_PEER, f"{reason}. {advice}" if runtime.alone() else str(reason))
  if not isinstance(reason, runtime.Preempted) or reason.code == runtime.EXIT_CONFIG:
    advice += ", with --accept-data where the file was mended"
  if isinstance(reason, runtime.Preempted):
    return runtime.Stop(reason.code, f"{reason}. {advice}")
  return ConfigError(f"{reason}. {advice}" if runtime.alone() else str(reason))


# What happens between steps.


def evaluate(run: Run, evals: dict[str, build.Eval], step: int, state: steps.State) -> dict[str, float]:
  """Measures the state at a step, then writes and prints the figures.

  Args:
    run: what is open.
    evals: the evaluations that are due.
    step: of the state.
    state: its parameters and their average are measured.

  Returns:
    The figures under the names of result.json.

  Raises:
    Preempted: the run must stop; raised between batches.
    Stop: an output of the model is NaN or infinite. Exit code 44; the state is not saved.
  """
  if not evals:
    return {}
  with run.log.phase("evaluation", step):
    measures = {name: each.measure for name, each in evals.items()}
    try:
      measured = outcomes.measure(measures, state.params, state.ema, run.watch.poll)
    except NotFiniteError as error:
      raise not_finite(step, str(error), run.store) from error
    figures = outcomes.figures(measured)
  run.log.evaluated(step, figures)  # not in that phase, which may be interrupted
  with run.log.phase("evaluation", step):
    run.log.draw(step, measured)
  return figures


def save(run: Run, step: int, state: steps.State) -> None:
  """Saves `step`, and what is said of it, once all its steps are known to be finite; one that is saved already stays.

  Lines that are due are written before, and what the next one is to hold is saved: so a kill changes no line.
  """
  run.log.write_due(step)
  with run.log.phase("save", step):
    if step not in run.store.steps():
      run.log.flush()
      run.store.save(step, state, description(run.parts, run.frozen_digests, step) | run.log.progress(step))


def description(parts: build.Parts, frozen: dict[str, str], step: int) -> dict:
  """What a checkpoint of a step says it is a state of; `frozen` are the digests of weights that are."""
  order = identity.order(parts.images, step * parts.run.batch)
  model = parts.model.description.to_json()
  return {"model": model, "frozen": frozen, "identity": parts.identity, "order": order}
