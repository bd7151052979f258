"""Assembly of runs: `build` creates everything that a run needs on given devices.

`complete` checks names and arguments without accessing a device. `build` checks everything that depends on the data and
the devices. Both raise ConfigError before anything is written. This is the only module that combines all components.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from vit_jax import checkpoints, evals, importers, models, optim, rng, tasks
from vit_jax.checkpoints import provenance
from vit_jax.checkpoints.digests import sha256
from vit_jax.config import Run
from vit_jax.data import augment, catalog, loader, stream
from vit_jax.data.device_batches import DeviceBatches
from vit_jax.evals.validation import add_evaluations, add_share, add_splits
from vit_jax.importers import adoption, options, surgery
from vit_jax.models import flops, overview
from vit_jax.parallel import sharding
from vit_jax.parallel.capacity import check_batch, check_memory
from vit_jax.schema import (
  ConfigError,
  DerivedTable,
  Duration,
  bind,
  enter_key,
  format_amount,
  lookup,
  make,
  select_arguments,
)
from vit_jax.tasks import cost
from vit_jax.training import steps
from vit_jax.trees import count_values

OPTIM = DerivedTable(
  optim.RULES, lambda name, functions: (*functions, steps.accumulate_gradients, steps.make_train_step)
)


class Eval(NamedTuple):
  """An evaluation and its interval.

  Attributes:
    every: interval in steps.
    measure: function (params, poll) -> evals.Outcome. It calls `poll` between batches.
  """

  every: int
  measure: Callable


@dataclasses.dataclass(frozen=True)
class Experiment:
  """The components of a run on given devices.

  Attributes:
    run: the completed run.
    mesh: the device mesh.
    total: number of steps of the run.
    examples: number of images of an epoch.
    images: training images.
    save_every: interval of checkpoints in steps.
    log_every: interval of log lines in steps.
    keep: number of newest checkpoints to keep.
    keep_every: interval, in steps, of additional checkpoints that are kept, or None.
    schedule: function from step to learning rate.
    model: the model on the mesh.
    task: the task.
    weights: function () -> ({path: host array} of `config.init`, notes on how the weights were adapted).
    init: function () -> State with sharded arrays.
    step: jitted function (state, batch, frozen) -> (state, metrics). `frozen` is {} for tasks without frozen weights.
    state_shapes: shapes of the state, with shardings.
    batch_shapes: {name: shape} of a batch, with shardings.
    batches: function from the first step to the batches from that step on.
    evals: {name: evaluation}.
    forward_flops: FLOPs of the task's forward pass for one image, two for each multiply-accumulate. 0 without training.
  """

  run: Run
  mesh: jax.sharding.Mesh
  total: int
  examples: int
  images: stream.Examples
  save_every: int
  log_every: int
  keep: int
  keep_every: int | None
  schedule: Callable
  model: models.Model
  task: tasks.Task
  weights: Callable
  init: Callable
  step: Callable
  state_shapes: steps.State
  batch_shapes: dict[str, jax.ShapeDtypeStruct]
  batches: Callable[[int], DeviceBatches]
  evals: dict[str, Eval]
  forward_flops: int

  def compile(self):
    """Returns the compiled train step: (state, batch, frozen) -> (state, metrics)."""
    return self.step.lower(self.state_shapes, self.batch_shapes, self.frozen_shapes).compile()

  @functools.cached_property
  def identity(self) -> dict[str, Any]:
    """The code, data and devices that determine the run's states.

    The data are examined once, see `provenance.describe_provenance`.
    """
    return provenance.describe_provenance(self.run, self.images.source, self.mesh)

  @property
  def frozen_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes with shardings of the weights that the task reads but does not train, by path."""
    return self.task.frozen.shapes if self.task.frozen else {}

  def frozen(self, expected: dict[str, str] | None = None) -> tuple[dict[str, jax.Array], dict[str, str]]:
    """Loads the weights that the task reads but does not train.

    Args:
      expected: {key of the config: SHA-256} of the weights, from a checkpoint. None skips the comparison.

    Returns:
      The weights {path: array}, distributed over the devices, and {key of the config: SHA-256}. Both are empty for a
      task without such weights.

    Raises:
      ConfigError: if the weights differ between hosts, or if their digest is not the expected one.
    """
    if not (frozen := self.task.frozen):
      return {}, {}
    arrays = checkpoints.check_same_arrays(frozen.load(), frozen.path)
    params = {path: sharding.place_array(arrays[path], shape.sharding) for path, shape in self.frozen_shapes.items()}
    digest = sha256(params, sharding.make_replicated_sharding(self.mesh))
    if expected is not None and (before := expected.get(frozen.key, "none")) != digest:
      raise ConfigError(
        f"{frozen.path} differs from the weights that this run started with (SHA-256 {digest[:12]} instead of "
        f"{before[:12]})"
        f"{checkpoints.describe_damage(frozen.path)}. Restore them, or use another --workdir",
        f"config.{frozen.key}",
      )
    return params, {frozen.key: digest}

  def start(self, weights: dict[str, np.ndarray]) -> steps.State:
    """Returns the state before the first step: random initial values, some of which are replaced by given weights.

    Args:
      weights: {path: host array} of the parameters to replace.
    """
    state = self.init()

    def put(shapes):
      return {
        path: sharding.place_array(array, shapes[path].sharding) for path, array in weights.items() if path in shapes
      }

    shapes = self.state_shapes
    return dataclasses.replace(state, params=state.params | put(shapes.params), ema=state.ema | put(shapes.ema))

  def format_overview(self) -> str:
    """Formats the parameters in about a dozen lines, followed by the size of the run."""
    params = {path: leaf for path, leaf in self.state_shapes.params.items() if path not in self.model.statistics}
    arithmetic, order = flops.format_flops(self.forward_flops), self.images.order.about
    return (
      f"{overview.table(params)}\n{self.run.model.name}: {count_values(params):,} parameters, {arithmetic}; "
      f"{format_amount(self.examples, 'image')}{order}, batch {self.run.batch}, {format_amount(self.total, 'step')} on "
      f"{sharding.format_mesh(self.mesh)}"
    )


def complete(run: Run, adopt: bool = True) -> Run:
  """Returns the run with all names looked up, and all arguments checked and filled in.

  Args:
    run: a resolved run.
    adopt: whether the arguments of the weights in `init.from` take precedence over defaults, see `importers.adoption`.
      Use False for the run that a workdir stores, which already contains these arguments.

  Raises:
    ConfigError: if a name or an argument is invalid.
  """
  run = adoption.adopt_settings(run) if adopt else run
  # These choices are bound here, because `config.Run` cannot import their tables, which are in higher layers.
  parts = {}
  with enter_key("config.model"):
    parts["model"] = models.bind(run.model)
  run = dataclasses.replace(run, evals=add_splits(run.data, run.evals))
  run = dataclasses.replace(run, data=add_share(run.data, run.evals))
  for key, table in (("data", catalog.DATA), ("optim", OPTIM), ("task", tasks.TASKS)):
    choice = getattr(run, key)
    with enter_key(f"config.{key}"):
      parts[key] = bind(choice, lookup(table, choice.name), table)
  prepared, measured = evals.preparation_arguments(parts["data"]), {}
  for name, choice in add_evaluations(parts["data"], run.evals).items():
    with enter_key(f"config.evals.{name}"):
      measured[name] = evals.bind_evaluation(choice, evals.REPEATED, prepared)
  return dataclasses.replace(run, **parts, evals=measured)


def build(run: Run, devices, open_split: Callable = catalog.open_split, training: bool = True) -> Experiment:
  """Assembles a run on devices, which may be the devices of a TPU topology that is not attached.

  Args:
    run: a completed run.
    devices: devices of the mesh.
    open_split: function (data choice, split) -> images. A plan passes `catalog.open_known_split`, which needs no
      images.
    training: whether to build the components that only training needs, including the frozen weights of the task.

  Returns:
    All components of the run.

  Raises:
    ConfigError: if the arguments are not compatible with the data, the model or the devices.
  """
  grid = sharding.make_mesh(run.mesh, devices)
  with enter_key("config.data"):
    source = loader.cache_fingerprint(open_split(run.data, "train"))
  check_batch(run, grid, len(source) if training else run.batch)
  total = _count_steps(run, source.epoch_length)

  def steps_of(duration: Duration) -> int:
    return duration.steps(run.batch, source.epoch_length, total)

  model = models.functional(describe_model(run, source.classes)).on(grid)
  task = make_task(run, model, grid, steps_of, source.classes)
  shapes = model.shapes() | jax.eval_shape(lambda: task.init(rng.make_key(0)))
  params = sharding.find_parameter_shardings((*models.sharding(run.model.name), *task.sharding), shapes, grid)
  with enter_key("config.optim"):
    transformation, schedule = optim.create_optimizer(
      run.optim, shapes, total, steps_of, model.statistics, model.layers_above()
    )
  init, state_shapes = _build_state(run, model, task, transformation, params, grid)
  step = _build_step(run, model, task, transformation, state_shapes, grid)
  with enter_key("config.data"):
    opened = functools.partial(
      catalog.open_train_examples, run.data, run.seed, task.patch if training else None, run.batch
    )
    examples = opened(source)
  subject = evals.EvalContext(model, grid, run.data, run.batch, open_split, task.predict, source.classes)
  save_every, keep_every = max(1, steps_of(run.checkpoint.every)), run.checkpoint.keep_every
  parts = Experiment(
    run=run,
    mesh=grid,
    total=total,
    examples=source.epoch_length,
    images=examples,
    save_every=save_every,
    log_every=max(1, steps_of(run.log.every)),
    keep=run.checkpoint.keep,
    # A multiple of the saving interval, because only saved steps can be kept.
    keep_every=keep_every and save_every * max(1, round(steps_of(keep_every) / save_every)),
    schedule=schedule,
    model=model,
    task=task,
    weights=functools.partial(_load_weights, run.init, model.description, tuple(model.shapes()), source.classes),
    init=init,
    step=step,
    state_shapes=state_shapes,
    batch_shapes={
      name: jax.ShapeDtypeStruct((run.batch, *shape), kind, sharding=sharding.make_batch_sharding(grid))
      for name, (shape, kind) in examples.shapes.items()
    },
    batches=functools.partial(_open_train_batches, run, examples, opened, sharding.make_batch_sharding(grid)),
    evals=_build_evals(run, subject, steps_of),
    forward_flops=0,
  )
  if not training:
    return parts
  # Tracing the step reports errors here, before the devices are used.
  jax.eval_shape(step, state_shapes, parts.batch_shapes, parts.frozen_shapes)
  alone = make_task(run, models.functional(model.description), grid, steps_of, source.classes)
  return dataclasses.replace(parts, forward_flops=_count_forward_flops(parts, alone, shapes))


def describe_model(run: Run, classes: Sequence[str]) -> models.Description:
  """Returns the description of a run's model. The model has no head if the task does not train one.

  Args:
    run: a completed run.
    classes: class names of the data.
  """
  head = len(classes) if tasks.TASKS[run.task.name].classes else 0
  return models.Description(run.model, run.data.args["image_size"], head)


def _count_steps(run, epoch_length) -> int:
  """Returns the number of steps of a run. Raises ConfigError if the number is out of range."""
  total = run.total.steps(run.batch, epoch_length)
  if not 0 < total < 2**31:
    raise ConfigError(
      f"config.total: {run.total!s} is {total:,} steps of {format_amount(run.batch, 'image')}. Allowed: 1 to 2**31 - 1"
    )
  return total


def _count_forward_flops(parts, alone, shapes) -> int:
  """Returns the FLOPs of the task for one image. `alone` is a copy of the task for which the model is not sharded."""
  key = jax.eval_shape(lambda: rng.make_key(0))
  batch = parts.batch_shapes, parts.frozen_shapes, key, parts.state_shapes.step
  return cost.count_forward_flops(alone.objective, shapes, jax.eval_shape(parts.task.examples, *batch))


def make_task(
  run: Run, model: models.Model, grid: jax.sharding.Mesh, steps_of: Callable, classes: Sequence[str]
) -> tasks.Task:
  """Creates the task of a run.

  Args:
    run: a completed run.
    model: the model on the mesh.
    grid: the mesh.
    steps_of: function that converts a duration to a number of steps.
    classes: class names of the data.

  Raises:
    ConfigError: if an argument of the task is not compatible with the model or the data.
  """
  patch = model.patch if run.data.args["warp"].name == "none" else None  # warping requires whole images

  def augmentation(patch):
    dtype = np.dtype(run.model.args["dtype"])
    with enter_key("config.data"):
      return augment.build(dtype, run.seed, patch, steps_of, **select_arguments(run.data, augment.build))

  pixels = functools.partial(augment.denormalise, **select_arguments(run.data, augment.denormalise))
  normalised = select_arguments(run.data, augment.denormalise)
  freeze = functools.partial(_describe_frozen, run, grid, classes)
  supplied = tasks.TaskContext(model, patch, augmentation, freeze, pixels, normalised)
  with enter_key("config.task"):
    return make(run.task, tasks.TASKS, supplied)


def _describe_frozen(run, grid, classes, key, path, ema, prefix) -> tasks.FrozenModel:
  """Returns a description of the weights in a file or workdir, for images of the run's size.

  Reads only names and shapes.
  """
  with enter_key(f"config.{key}"), options.use_form(f"config.{key.rpartition('.')[0]}"):
    have = importers.open_frozen(path, run.data.args["image_size"], run.model.args["dtype"], ema, prefix, classes)
  model = models.functional(have.description).on(grid)
  shardings = sharding.find_parameter_shardings(models.sharding(have.description.model.name), model.shapes(), grid)
  return tasks.FrozenModel(model, sharding.add_shardings(model.shapes(), shardings), have.load, key, path, have.notes)


def _build_state(run, model, task, transformation, params, grid):
  """Returns the jitted function () -> State with sharded results, and the state's shapes with shardings."""

  def parameters(key):
    return model.init(key) | task.init(rng.derive_key(run.seed, 0, "task"))

  init = functools.partial(steps.init_state, run.seed, parameters, transformation, run.optim.args["ema"] is not None)
  shapes = jax.eval_shape(init)
  shardings = steps.State(
    step=sharding.make_replicated_sharding(grid),
    params=params,
    ema=sharding.find_average_shardings(shapes.ema, params, grid),
    optimizer=sharding.find_optimizer_shardings(transformation, shapes.params, params, grid),
  )
  check_memory(run, grid, shapes, shardings)
  return jax.jit(init, out_shardings=shardings), sharding.add_shardings(shapes, shardings)


def _build_step(run, model, task, transformation, state_shapes, grid):
  """Returns the jitted train step: (state, batch, frozen) -> (state, metrics)."""
  with enter_key("config.optim"):
    fixed = optim.list_frozen_paths(run.optim.args["frozen"], state_shapes.params, model.statistics)
  gradient = steps.make_gradient(task.objective, fixed)
  gradient = steps.accumulate_gradients(
    gradient, sharding.make_micro_batch_sharding(grid), **select_arguments(run.optim, steps.accumulate_gradients)
  )
  shardings = jax.tree.map(lambda shape: shape.sharding, state_shapes)
  hold = functools.partial(jax.lax.with_sharding_constraint, shardings=shardings.params)
  averaged = select_arguments(run.optim, steps.make_train_step)
  step = steps.make_train_step(
    run.seed, task.examples, gradient, transformation, hold, sharding.shard_rows(grid), **averaged
  )
  return jax.jit(step, donate_argnums=0, out_shardings=(shardings, sharding.make_replicated_sharding(grid)))


def _load_weights(init, description, paths, classes):
  """Returns ({path: host array} of `config.init`, notes). The arrays of scanned layers are stacked."""
  if init.from_ is None:
    return {}, []
  with options.use_form("config.init"):
    arrays, notes = importers.load_fitted(init.from_, description, init.head, init.ema, init.prefix, classes)
  return surgery.stack(arrays, paths), [f"weights of {init.from_}", *notes]


def _open_train_batches(run, examples, opened, placement, start) -> DeviceBatches:
  rows = sharding.find_local_rows(placement, run.batch)
  workers = loader.processes(opened, len(examples.source), **select_arguments(run.data, loader.processes))
  batches = loader.batches(examples, run.batch, rows, start, workers, **select_arguments(run.data, loader.batches))
  return DeviceBatches(batches, rows, run.batch, placement)


def _build_evals(run, subject, steps_of) -> dict[str, Eval]:
  result = {}
  for name, choice in run.evals.items():
    with enter_key(f"config.evals.{name}"):
      every = evals.interval(steps_of, **select_arguments(choice, evals.interval))
      result[name] = Eval(every, evals.make_evaluation(choice, subject))
  return result
