"""An experiment: the components of a run on given devices, and the actions that training composes."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from vit_jax import checkpoints, evals, importers, models, tasks
from vit_jax.checkpoints import provenance
from vit_jax.checkpoints.digests import sha256
from vit_jax.data import catalog, shared_data, stream
from vit_jax.data.device_batches import DeviceBatches
from vit_jax.evals import Outcome, outcomes
from vit_jax.importers import options, surgery
from vit_jax.models import flops, overview
from vit_jax.optim.schedules import Schedule
from vit_jax.parallel import sharding
from vit_jax.schema import ConfigError, Duration, format_amount
from vit_jax.training import steps
from vit_jax.training.bound_run import BoundRun
from vit_jax.trees import count_values


class Eval(NamedTuple):
  """An evaluation and its interval.

  Attributes:
    every: interval in steps.
    measure: function (params, poll) -> Outcome. It calls `poll` between batches.
  """

  every: int
  measure: evals.Measure


@dataclasses.dataclass(frozen=True)
class Experiment:
  """A run on given devices. `build.build` assembles it.

  Attributes:
    run: the bound run.
    mesh: the device mesh.
    total: number of steps of the run.
    images: training images.
    model: the model on the mesh.
    task: the task.
    schedule: function from step to learning rate.
    program: the jitted functions of the run.
    evals: {name: evaluation}.
    splits: the splits that the run reads for training and evaluation.
    forward_flops: FLOPs of the task's forward pass for one image, two for each multiply-accumulate. 0 without training.
    training_flops: FLOPs of forward and backward pass for one image, without recomputation. 0 without training. With an
      ascent step, the FLOPs are counted twice.
  """

  run: BoundRun
  mesh: jax.sharding.Mesh
  total: int
  images: stream.Examples
  model: models.Model
  task: tasks.Task
  schedule: Schedule
  program: steps.Program
  evals: Mapping[str, Eval]
  splits: tuple[shared_data.OpenedSplit, ...] = ()
  forward_flops: int = 0
  training_flops: int = 0

  # Sizes and intervals.

  @property
  def epoch_length(self) -> int:
    """Number of images of an epoch."""
    return self.images.source.epoch_length

  def count_steps(self, duration: Duration) -> int:
    """Converts a duration to a number of steps."""
    return duration.count_steps(self.run.batch, self.epoch_length, self.total)

  @property
  def save_every(self) -> int:
    """Interval of checkpoints in steps."""
    return max(1, self.count_steps(self.run.checkpoint.every))

  @property
  def keep_every(self) -> int | None:
    """Interval, in steps, of additional checkpoints that are kept, or None.

    It is a multiple of `save_every`, because only saved steps can be kept.
    """
    every = self.run.checkpoint.keep_every
    if every is None:
      return None
    return self.save_every * max(1, round(self.count_steps(every) / self.save_every))

  @property
  def log_every(self) -> int:
    """Interval of log lines in steps."""
    return max(1, self.count_steps(self.run.log.every))

  @property
  def state_shapes(self) -> steps.State[jax.ShapeDtypeStruct]:
    """Shapes of the state, with shardings."""
    return self.program.state_shapes

  @functools.cached_property
  def task_shapes(self) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the parameters of the task by path."""
    of_model = self.model.shapes()
    return {path: leaf.shape for path, leaf in self.state_shapes.params.items() if path not in of_model}

  @property
  def batch_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of a batch by name, with shardings."""
    placement = sharding.make_batch_sharding(self.mesh)
    return {
      name: jax.ShapeDtypeStruct((self.run.batch, *shape), kind, sharding=placement)
      for name, (shape, kind) in self.images.shapes.items()
    }

  @property
  def frozen_weight_shapes(self) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
    """Shapes with shardings of the weights that the task reads but does not train, by name and path."""
    return {name: model.shapes for name, model in self.task.frozen_models.items()}

  @functools.cached_property
  def identity(self) -> dict[str, Any]:
    """The code, data and devices that determine the run's states.

    The data are examined once, see `provenance.describe_provenance`.
    """
    return provenance.describe_provenance(self.run, self.images.source, self.mesh)

  def format_overview(self) -> str:
    """Formats the parameters in about a dozen lines, followed by the size of the run."""
    params = {path: leaf for path, leaf in self.state_shapes.params.items() if path not in self.model.statistics}
    arithmetic, order = flops.format_flops(self.forward_flops), self.images.order.about
    return (
      f"{overview.format_table(params)}\n{self.run.model.name}: {count_values(params):,} parameters, {arithmetic}; "
      f"{format_amount(self.epoch_length, 'image')}{order}, batch {self.run.batch}, "
      f"{format_amount(self.total, 'step')} on {sharding.format_mesh(self.mesh)}"
    )

  def find_class_problem(self) -> str | None:
    """Returns a warning if the task learns classes, but the training images have only one class."""
    classes = self.images.source.classes
    if not self.task.classes or len(classes) != 1:
      return None
    return f"all training images are of one class, {classes[0]!r}, so the model learns nothing"

  # Weights.

  def read_initial_weights(self) -> tuple[dict[str, np.ndarray], list[str]]:
    """Reads the weights of `config.init`.

    Returns:
      {path: host array}, with the arrays of scanned layers stacked, and notes on how the weights were adapted. Both are
      empty without `config.init.from`. Parameters of the task are included if the weights contain them with the same
      shape, unless `init.head` is "new". See `task_parameters.fit_task`.

    Raises:
      ConfigError: if the weights cannot be read, or do not fit the model.
    """
    init = self.run.init
    if init.from_ is None:
      return {}, []
    classes = self.images.source.classes
    own = self.task_shapes
    with options.use_form("config.init"):
      arrays, notes = importers.load_fitted(
        init.from_,
        self.model.description,
        init.head,
        init.ema,
        init.prefix,
        classes,
        own if init.head != "new" else {},
        self.task.constants,
      )
    stacked = surgery.stack(arrays, tuple(self.model.shapes()))
    kept = {path: arrays[path] for path in own if path in arrays}
    if own:
      notes += [
        f"{format_amount(len(own), 'parameter')} of task {self.run.task.name!r}: {len(kept)} from the weights, "
        f"{len(own) - len(kept)} with new values"
      ]
    return stacked | kept, [f"weights of {init.from_}", *notes]

  def load_frozen_weights(
    self, expected_digests: dict[str, str] | None = None
  ) -> tuple[dict[str, dict[str, jax.Array]], dict[str, str]]:
    """Loads the weights that the task reads but does not train.

    Args:
      expected_digests: {key of the config: SHA-256} of the weights, from a checkpoint. None skips the comparison.

    Returns:
      The weights {name: {path: array}}, distributed over the devices, and {key of the config: SHA-256}. Both are empty
      for a task without such weights.

    Raises:
      ConfigError: if the weights differ between hosts, or if their digest is not the expected one.
    """
    weights, digests = {}, {}
    for name, model in self.task.frozen_models.items():
      arrays = checkpoints.check_same_arrays(model.load(), model.path)
      params = {path: sharding.place_array(arrays[path], shape.sharding) for path, shape in model.shapes.items()}
      digest = sha256(params, sharding.make_replicated_sharding(self.mesh))
      if expected_digests is not None and (before := expected_digests.get(model.key, "none")) != digest:
        raise ConfigError(
          f"{model.path} differs from the weights that this run started with (SHA-256 {digest[:12]} instead of "
          f"{before[:12]})"
          f"{checkpoints.describe_damage(model.path)}. Restore them, or use another --workdir",
          f"config.{model.key}",
        )
      weights[name], digests[model.key] = params, digest
    return weights, digests

  def create_initial_state(self, weights: Mapping[str, np.ndarray] | None = None) -> steps.State[jax.Array]:
    """Returns the state before the first step, with random initial values and sharded arrays.

    Args:
      weights: {path: host array} of parameters that replace random values. By default, all values are random.
    """
    state, shapes, replacements = self.program.init(), self.state_shapes, weights or {}

    def put(shapes: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
      return {
        path: sharding.place_array(array, shapes[path].sharding)
        for path, array in replacements.items()
        if path in shapes
      }

    return dataclasses.replace(state, params=state.params | put(shapes.params), ema=state.ema | put(shapes.ema))

  # Training and evaluation.

  def open_batches(self, start: int) -> DeviceBatches:
    """Opens the training batches from a step on. The caller must close them.

    Args:
      start: the first step.
    """
    run, placement = self.run, sharding.make_batch_sharding(self.mesh)
    rows = sharding.find_local_rows(placement, run.batch)
    opened = functools.partial(catalog.open_train_examples, run.data, run.seed, self.task.fields, run.batch)
    workers = run.data.create_workers(opened, len(self.images.source))
    batches = run.data.batches(self.images, run.batch, rows.tolist(), start, workers)
    return DeviceBatches(batches, rows, run.batch, placement)

  @property
  def step(self) -> jax.stages.Wrapped:
    """The jitted train step (state, batch, frozen_weights) -> (state, metrics).

    `frozen_weights` is {} for tasks without frozen weights.
    """
    return self.program.step

  def compile(self) -> jax.stages.Compiled:
    """Returns the compiled train step: (state, batch, frozen_weights) -> (state, metrics)."""
    return self.step.lower(self.state_shapes, self.batch_shapes, self.frozen_weight_shapes).compile()

  def find_due_evals(self, step: int) -> dict[str, Eval]:
    """Returns the evaluations that are due at a step before the last one.

    Args:
      step: number of completed steps.
    """
    return {name: each for name, each in self.evals.items() if 0 < step < self.total and step % each.every == 0}

  def evaluate(
    self, due: Mapping[str, Eval], state: steps.State[jax.Array], poll: Callable[[], None]
  ) -> dict[str, Outcome]:
    """Measures the weights of a state and their moving average.

    Args:
      due: the evaluations to run.
      state: the state.
      poll: called between batches. It may raise an exception to stop.

    Returns:
      {prefix of the figures: outcome}, see `outcomes.run_evaluations`.
    """
    measures = {name: each.measure for name, each in due.items()}
    return outcomes.run_evaluations(measures, state.params, state.ema, poll)
