"""The training loop: continues a run from its newest checkpoint until its result is written."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from vit_jax import certificates, checkpoints, config, runtime
from vit_jax.checkpoints import digests, forms, provenance
from vit_jax.data.device_batches import DeviceBatches
from vit_jax.data.images import ImageError
from vit_jax.data.workers import WorkerError
from vit_jax.evals import intervals, outcomes, selection
from vit_jax.parallel import sharding
from vit_jax.runtime import print_line
from vit_jax.schema import ConfigError, format_amount, to_plain
from vit_jax.schema.errors import NotFiniteError
from vit_jax.schema.texts import quote_word
from vit_jax.storage import files
from vit_jax.training import comparison, goodput, steps, time_to_target, writer
from vit_jax.training.experiment import Eval, Experiment
from vit_jax.training.training_log import TrainingLog, make_not_finite_error


def train(
  experiment: Experiment,
  workdir: pathlib.Path,
  profile: int = 0,
  watch: runtime.Watch | None = None,
  weights: dict[str, np.ndarray] | None = None,
  start_time: float | None = None,
  draw_pictures: Callable[[], Mapping[str, bytes]] | None = None,
) -> dict[str, Any]:
  """Trains until the end, starting from the newest checkpoint if there is one.

  Args:
    experiment: the components of the run.
    workdir: directory of the run.
    profile: number of steps to profile for TensorBoard.
    watch: receives requests to stop and enforces time limits. By default a new watch is created.
    weights: {path: host array} of initial weights for a run without a checkpoint. By default the weights of
      `config.init`.
    start_time: start time of the program in seconds since the epoch. By default the current time.
    draw_pictures: function that returns {name: PNG} for TensorBoard. The first process calls it after step 1.

  Returns:
    The contents of result.json.

  Raises:
    runtime.Stop: if the run was asked to stop, if a worker process died, if a value is not finite, or if an image of a
      later batch cannot be decoded. A requested stop and a bad image save the state first. With
      `config.log.certificate=stop`, a run whose checkpoint contains two consecutive verdicts "below" stops before its
      first step.
    ConfigError: if an image of the current batch cannot be decoded. A run of one process saves the state first.
    OSError: if a file cannot be written.
  """
  if result := load_result(workdir, experiment.total):
    time_to_target.print_target_of_finished_run(experiment.run.log.target, result.get("target"), workdir)
    return result
  with contextlib.ExitStack() as resources:
    watch = watch or resources.enter_context(runtime.Watch(experiment.run.limits))
    resources.enter_context(watch.phase("save"))  # its time limit applies while resources are closed
    session, state = open_session(resources, experiment, workdir, profile, watch, weights, start_time)
    watch.step = step = int(state.step)
    if problem := comparison.find_stop_reason(session.certificate, experiment, step):  # in an earlier attempt
      raise convert_to_exit(runtime.Preempted(runtime.EXIT_OFF_TRACK, problem), step, workdir)
    session.log.write_config()
    print_line(
      f"continues at step {step} of {experiment.total}" if step else f"{format_amount(experiment.total, 'step')} to go"
    )
    try:
      if not session.evaluated:  # a stop interrupted the evaluation
        evaluate(session, experiment.find_due_evals(step), step, state)
      with session.phase("compile"):
        train_step = experiment.compile() if step < experiment.total else None
        runtime.barrier("compiled")  # waiting for other processes counts as compilation, not as the first step
      with session.phase("step"):
        while step < experiment.total:
          assert train_step is not None  # compiled, because steps remain
          with session.phase("data", session.batches.describe_waiting):
            batch = next(session.batches)
          if session.batches.problem:  # of a later batch, so all processes can save and stop before it
            watch.ask(runtime.EXIT_CONFIG, f"error: {session.batches.problem}")
          with session.trace.annotate_step(step), jax.transfer_guard("disallow"):
            state, metrics = train_step(state, batch, session.frozen_weights)
          session.log.write_due(step)  # writes earlier steps, so that the devices always have work
          watch.step = step = step + 1
          session.log.add(step, metrics, session.batches.skipped)
          if step == 1 and draw_pictures:
            write_first_batch(session, draw_pictures)
          if step < experiment.total:
            evaluate(session, experiment.find_due_evals(step), step, state)
            if step % experiment.save_every == 0:
              save(session, step, state)
            watch.poll()
        session.log.write(step)
      session.trace.close()
      session.timer.stop()
      figures = evaluate(session, experiment.evals, step, state)
      save(session, step, state)
    except (runtime.Preempted, ImageError, WorkerError) as reason:
      if isinstance(reason, runtime.Preempted) or runtime.is_alone():  # saving needs all processes
        save(session, step, state)
        session.store.wait()  # before other processes notice the end and exit
      raise convert_to_exit(reason, step, workdir) from reason
    session.store.wait()  # the last state must be saved before the result is written
    return write_result(
      workdir,
      figures
      | {"skipped_images": session.batches.skipped}
      | describe_ranking(session, figures)
      | session.log.describe_target()
      | ({"certificate": session.certificate.to_json()} if session.certificate else {})
      | collect_metadata(session, state),
    )


# Resources of a run.


@dataclasses.dataclass(frozen=True)
class Session:
  """The resources that the loop uses in addition to the state. They are closed when the loop ends.

  Attributes:
    experiment: the components of the run.
    watch: receives requests to stop and enforces time limits.
    timer: measures the time of each phase.
    store: the checkpoints.
    log: the log of figures.
    trace: the profile.
    batches: the training batches.
    frozen_weights: {name: {path: array}} of weights that the task reads but does not train.
    frozen_digests: {key of the config: SHA-256} of these weights.
    evaluated: false if a stop interrupted the evaluations of the restored step.
    changed_length: whether the run had another length before a restart.
    certificate: comparison with a published curve, or None if there is none for this run.
    phase: the function `enter_phase`, which takes the name of a phase.
  """

  experiment: Experiment
  watch: runtime.Watch
  timer: goodput.GoodputTracker
  store: checkpoints.Checkpoints
  log: TrainingLog
  trace: writer.Trace
  batches: DeviceBatches
  frozen_weights: dict[str, dict[str, jax.Array]]
  frozen_digests: dict[str, str]
  evaluated: bool
  changed_length: bool
  certificate: certificates.Certificate | None
  phase: Callable[..., contextlib.AbstractContextManager[None]]

  @property
  def verdicts(self) -> list[dict[str, Any]]:
    """Verdicts of the comparison with a published curve so far."""
    return self.certificate.list_verdicts() if self.certificate else []


def open_session(
  resources: contextlib.ExitStack,
  experiment: Experiment,
  workdir: pathlib.Path,
  profile: int,
  watch: runtime.Watch,
  weights: dict[str, np.ndarray] | None,
  start_time: float | None,
) -> tuple[Session, steps.State[jax.Array]]:
  """Opens a run and restores its state.

  Args:
    resources: exit stack that closes the run.
    experiment, workdir, profile, watch, weights, start_time: see `train`.

  Returns:
    The opened run, and the newest saved state or the initial state.
  """
  timer = goodput.GoodputTracker(workdir / "goodput.json" if jax.process_index() == 0 else None, start_time)
  resources.callback(timer.close)
  print_line(experiment.format_overview())
  store = checkpoints.Checkpoints(
    workdir, sharding.make_replicated_sharding(experiment.mesh), experiment.run.checkpoint.keep, experiment.keep_every
  )
  resources.callback(store.close)
  with watch.phase("restore"):
    state, about = restore_or_create_state(experiment, store, timer, weights)
    frozen_weights, frozen_digests = experiment.load_frozen_weights(about.get("frozen"))
    for model in experiment.task.frozen_models.values():
      for note in model.notes:
        print_line(f"{model.path}: {note}")
  start = int(state.step)
  batches = experiment.open_batches(start)
  phase = functools.partial(enter_phase, watch, timer)
  log = TrainingLog(experiment, workdir, start, timer, phase, store, about)
  trace = writer.Trace(workdir, start, profile)
  for resource in (log, trace, batches):
    resources.callback(resource.close)
  resources.push(watch.report)
  changed_length = comparison.has_other_length(experiment.run, about)
  certificate = comparison.find_certificate(experiment.run, experiment.total, about.get("verdicts", ()), changed_length)
  for line in comparison.describe_start(certificate, experiment):
    print_line(line)
  if problem := experiment.find_class_problem():
    print_line(f"warning: {problem}")
  return (
    Session(
      experiment=experiment,
      watch=watch,
      timer=timer,
      store=store,
      log=log,
      trace=trace,
      batches=batches,
      frozen_weights=frozen_weights,
      frozen_digests=frozen_digests,
      evaluated=about.get("evaluated", True),
      changed_length=changed_length,
      certificate=certificate,
      phase=phase,
    ),
    state,
  )


@contextlib.contextmanager
def enter_phase(
  watch: runtime.Watch, timer: goodput.GoodputTracker, name: str, detail: Callable[[], str] = str
) -> Iterator[None]:
  """Applies the time limits of a phase to the code in the context, and counts its time for this phase.

  Args:
    watch: enforces the time limits.
    timer: measures the time of each phase.
    name: name of the phase.
    detail: function that describes the operation for which the phase waits. It is used in the message about an exceeded
      limit.
  """
  with watch.phase(name, detail), timer.phase(name):
    yield


_DRAWING = "drawing the first batch (--config.log.images=false omits it)"


def write_first_batch(session: Session, draw: Callable[[], Mapping[str, bytes]]) -> None:
  """Writes the line of the first step, then pictures of its batch for TensorBoard.

  Args:
    session: the opened run, after its first step.
    draw: function that returns {name: PNG}. Only the first process calls it.
  """
  session.log.write_due(1)
  # The drawing counts as `start` in the time accounting. The phase `save` delays a stop request until the drawing is
  # complete. Otherwise, the request could raise an exception within the import of a drawing library. The run would then
  # end with a traceback.
  with session.watch.phase("save", lambda: _DRAWING), session.timer.phase("start"):
    session.log.write_pictures(0, draw() if runtime.process_index() == 0 else {})
    runtime.barrier("drawn")  # Other processes wait here, so that the wait does not count as their second step.
  session.watch.poll()


# Start and end of a run.


def load_result(workdir: pathlib.Path, total: int) -> dict[str, Any] | None:
  """Returns the result of a run that is already finished, or None.

  Args:
    workdir: directory of the run.
    total: number of steps of the run. A result for a different number of steps is ignored.
  """
  # The result of the first process counts, because other processes may see another disk.
  result = json.loads(runtime.gather_texts(json.dumps(files.read_json(workdir / "result.json")), "result")[0])
  if not result or result.get("steps") != total or not forms.is_result_record(result):
    return None
  print_line(f"already finished, {format_amount(total, 'step')}")
  return result


def restore_or_create_state(
  experiment: Experiment,
  store: checkpoints.Checkpoints,
  timer: goodput.GoodputTracker,
  weights: dict[str, np.ndarray] | None,
) -> tuple[steps.State[jax.Array], dict[str, Any]]:
  """Returns the newest saved state and the description in its checkpoint, and resumes the clock from it.

  Without a checkpoint, the function returns the initial state and an empty description.

  Args:
    experiment: the components of the run.
    store: the checkpoints of the run.
    timer: the clock of the run.
    weights: {path: host array} of initial weights. None uses the weights of `config.init`.

  Raises:
    ConfigError: if the newest checkpoint has more steps than the run, or if it cannot be used for this run.
  """
  workdir = store.directory.parent
  with timer.phase("restore"):
    saved = store.restore(experiment.state_shapes, forms.check_metadata)
  if saved and int(saved[0].step) > experiment.total:
    raise ConfigError(
      f"config.total: {format_amount(experiment.total, 'step')}, but the run in {workdir} has already completed "
      f"{int(saved[0].step)}"
    )
  if jax.process_index() == 0:
    files.write_text(workdir / "config.json", config.dumps(experiment.run))
  if saved is None:
    return experiment.create_initial_state(load_initial_weights(experiment) if weights is None else weights), {}
  state, about = saved
  before = about.get("identity")
  splits = provenance.compare_splits(before["data"], experiment.images.source) if before else []
  for note in provenance.list_notes(before, experiment.identity, splits):
    print_line(note)
  timer.resume(about, running=int(state.step) < experiment.total)
  return state, {"frozen": {}} | about


def load_initial_weights(experiment: Experiment, flag: str = "config.init.from") -> dict[str, np.ndarray]:
  """Returns the weights of `config.init` on the host, and prints notes on how the weights were adapted.

  Args:
    experiment: the components of the run.
    flag: key or flag that names the weights, for error messages.

  Raises:
    ConfigError: if any process cannot read the weights, or if the weights differ between processes. Every process
      raises the error.
  """
  weights, notes, problem = {}, [], None
  try:
    weights, notes = experiment.read_initial_weights()
  except ConfigError as error:
    problem = f"{flag}: {error}"
  runtime.raise_together(problem)
  for note in notes:
    print_line(note)
  return checkpoints.check_same_arrays(weights, experiment.run.init.from_)


def describe_ranking(session: Session, figures: Mapping[str, float]) -> dict[str, Any]:
  """Returns the entries of result.json for the intervals of proportions and for the figure that ranks the run (see
  `selection.describe_selection`).

  Args:
    session: the run at its end.
    figures: the figures of the last step.
  """
  return {
    "intervals": {
      name: list(ends) for name, ends in intervals.compute_figure_intervals(figures).items()
    },  # lists, as in JSON
    "selection": selection.describe_selection(
      to_plain(session.experiment.run), figures, session.log.count_measurements()
    ),
  }


def collect_metadata(session: Session, state: steps.State[jax.Array]) -> dict[str, Any]:
  """Returns the entries of result.json that are not figures: durations, seed, versions and digests.

  Args:
    session: the run at its end.
    state: the last state.
  """
  experiment, timer = session.experiment, session.timer
  return {
    "seed": experiment.run.seed,
    "steps": experiment.total,
    "train_seconds": timer.train_seconds,
    "images_per_second": timer.rate,
    "config_sha256": hashlib.sha256(config.dumps(experiment.run).encode()).hexdigest(),
    "weights_sha256": digests.sha256(state.params, sharding.make_replicated_sharding(experiment.mesh)),
    "packages": experiment.identity["packages"],
    "goodput": timer.goodput(),  # computed last, because the measured time ends here
  }


def write_result(workdir: pathlib.Path, result: dict[str, Any]) -> dict[str, Any]:
  """Writes result.json on the first process, and returns the result.

  Args:
    workdir: directory of the run.
    result: contents of result.json.
  """
  if jax.process_index() == 0:
    files.write_text(workdir / "result.json", json.dumps(result, indent=2) + "\n")
  return result


def convert_to_exit(reason: Exception, step: int, workdir: pathlib.Path) -> Exception:
  """Returns the exception that ends a run before its last step.

  Args:
    reason: a request to stop, an image that cannot be decoded, or the death of a worker process.
    step: number of completed steps.
    workdir: directory of the run.
  """
  advice = f"Step {step} is saved; the same command continues from it"
  if isinstance(reason, WorkerError):
    return runtime.Stop(runtime.EXIT_PEER, f"{reason}. {advice}" if runtime.is_alone() else str(reason))
  if isinstance(reason, runtime.Preempted) and reason.code == runtime.EXIT_OFF_TRACK:
    advice = (
      f"Step {step} is saved; the same command with --config.log.certificate=report continues from it. Show the curve: "
      f"python -m vit_jax.report {quote_word(str(workdir))}"
    )
  elif not isinstance(reason, runtime.Preempted) or reason.code == runtime.EXIT_CONFIG:
    advice += ", with --accept-data if the file was fixed or restored"
  if isinstance(reason, runtime.Preempted):
    return runtime.Stop(reason.code, f"{reason}. {advice}")
  return ConfigError(f"{reason}. {advice}" if runtime.is_alone() else str(reason))


# Actions between steps.


def evaluate(session: Session, due: Mapping[str, Eval], step: int, state: steps.State[jax.Array]) -> dict[str, float]:
  """Measures the state at a step, then writes and prints the figures.

  Args:
    session: the open run.
    due: the evaluations that are due.
    step: number of the step.
    state: state with the parameters and their average. Both are measured.

  Returns:
    The figures under their names in result.json.

  Raises:
    Preempted: if the run must stop. Raised between batches.
    Stop: if an output of the model is NaN or infinite. The exit code is 44, and the state is not saved.
  """
  if not due:
    return {}
  session.log.write_due(step)  # the line of the step precedes the lines of its evaluations
  with session.log.phase("evaluation", step):
    try:
      measured = session.experiment.evaluate(due, state, session.watch.poll)
    except NotFiniteError as error:
      raise make_not_finite_error(step, str(error), session.store) from error
    figures = outcomes.collect_figures(measured)
  session.log.write_evaluation(step, figures)  # outside of the phase, which may be interrupted
  compare_with_curve(session, step, figures)
  with session.log.phase("evaluation", step):
    session.log.draw(step, measured)
  return figures


def compare_with_curve(session: Session, step: int, figures: Mapping[str, float]) -> None:
  """Prints whether the figures of a step are inside the published range.

  A run with `config.log.certificate=stop` is asked to stop if it is below the range twice in a row.

  Args:
    session: the open run.
    step: number of the step.
    figures: values under their names in result.json.
  """
  certificate = session.certificate
  verdict = certificate and certificate.add(step, figures)
  if not certificate or not verdict:
    return
  print_line(f"{step:>7}  {certificate.format_verdict(verdict)}")
  if reason := comparison.find_stop_reason(certificate, session.experiment, step):
    session.watch.ask(runtime.EXIT_OFF_TRACK, reason)


def save(session: Session, step: int, state: steps.State[jax.Array]) -> None:
  """Saves the state of a step and its description, after checking that the metrics of all steps so far are finite.

  A step that is already saved is skipped. Log lines that are due are written first, and the values of the next line are
  saved. Therefore a kill does not change any line of the log.

  Args:
    session: the open run.
    step: number of the step.
    state: state to save.
  """
  session.log.write_due(step)
  with session.log.phase("save", step):
    if step not in session.store.list_steps():
      session.log.flush()
      session.store.save(
        step,
        state,
        describe_checkpoint(session.experiment, session.frozen_digests, step)
        | session.log.get_progress(step)
        | {"verdicts": session.verdicts, "changed_length": session.changed_length},
      )


def describe_checkpoint(experiment: Experiment, frozen_digests: dict[str, str], step: int) -> dict[str, Any]:
  """Returns the description that a checkpoint stores with its state.

  Args:
    experiment: the components of the run.
    frozen_digests: {key of the config: SHA-256} of weights that the task reads but does not train.
    step: number of the step.
  """
  order = provenance.sample_order(experiment.images, step * experiment.run.batch)
  model = experiment.model.description.to_json()
  # If the task learns from the moving average, the average is the result of the run.
  weights = {"weights": "average"} if experiment.task.uses_average else {}
  return {"model": model, "frozen": frozen_digests, "identity": experiment.identity, "order": order} | weights
