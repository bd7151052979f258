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

from vit_jax import checkpoints, evals, flops, identity, importers, mesh, models, optim, rng, steps, tasks
from vit_jax.capacity import check_batch, check_memory
from vit_jax.config import Run
from vit_jax.data import augment, catalog, loader, stream
from vit_jax.data.device_batches import DeviceBatches
from vit_jax.digests import sha256
from vit_jax.importers import adoption, options, surgery
from vit_jax.models import overview
from vit_jax.schema import ConfigError, Derived, Duration, amount, arguments, at, bind, lookup, make
from vit_jax.tasks import cost
from vit_jax.trees import count
from vit_jax.validation import with_evaluations, with_share, with_splits

OPTIM = Derived(optim.RULES, lambda name, functions: (*functions, steps.accumulated, steps.train_step))


class Eval(NamedTuple):
  """An evaluation and its interval.

  Attributes:
    every: interval in steps.
    measure: function (params, poll) -> evals.Outcome. It calls `poll` between batches.
  """

  every: int
  measure: Callable


@dataclasses.dataclass(frozen=True)
class Parts:
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
    """The code, data and devices that determine the run's states. The data are examined once, see `identity.of`."""
    return identity.of(self.run, self.images.source, self.mesh)

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
    arrays = checkpoints.same(frozen.load(), frozen.path)
    params = {path: mesh.place(arrays[path], shape.sharding) for path, shape in self.frozen_shapes.items()}
    digest = sha256(params, mesh.replicated(self.mesh))
    if expected is not None and (before := expected.get(frozen.key, "none")) != digest:
      raise ConfigError(
        f"{frozen.path} differs from the weights that this run started with (SHA-256 {digest[:12]} instead of "
        f"{before[:12]})"
        f"{checkpoints.damage(frozen.path)}. Restore them, or use another --workdir",
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
      return {path: mesh.place(array, shapes[path].sharding) for path, array in weights.items() if path in shapes}

    shapes = self.state_shapes
    return dataclasses.replace(state, params=state.params | put(shapes.params), ema=state.ema | put(shapes.ema))

  def overview(self) -> str:
    """Formats the parameters in about a dozen lines, followed by the size of the run."""
    params = {path: leaf for path, leaf in self.state_shapes.params.items() if path not in self.model.statistics}
    arithmetic, order = flops.in_words(self.forward_flops), self.images.order.about
    return (
      f"{overview.table(params)}\n{self.run.model.name}: {count(params):,} parameters, {arithmetic}; "
      f"{amount(self.examples, 'image')}{order}, batch {self.run.batch}, {amount(self.total, 'step')} on "
      f"{mesh.in_words(self.mesh)}"
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
  run = adoption.adopt(run) if adopt else run
  # These choices are bound here, because `config.Run` cannot import their tables, which are in higher layers.
  parts = {}
  with at("config.model"):
    parts["model"] = models.bind(run.model)
  run = dataclasses.replace(run, evals=with_splits(run.data, run.evals))
  run = dataclasses.replace(run, data=with_share(run.data, run.evals))
  for key, table in (("data", catalog.DATA), ("optim", OPTIM), ("task", tasks.TASKS)):
    choice = getattr(run, key)
    with at(f"config.{key}"):
      parts[key] = bind(choice, lookup(table, choice.name), table)
  prepared, measured = evals.preparation(parts["data"]), {}
  for name, choice in with_evaluations(parts["data"], run.evals).items():
    with at(f"config.evals.{name}"):
      measured[name] = evals.bind(choice, evals.REPEATED, prepared)
  return dataclasses.replace(run, **parts, evals=measured)


def build(run: Run, devices, open_split: Callable = catalog.open_split, training: bool = True) -> Parts:
  """Assembles a run on devices, which may be the devices of a TPU topology that is not attached.

  Args:
    run: a completed run.
    devices: devices of the mesh.
    open_split: function (data choice, split) -> images. A plan passes `catalog.known_split`, which needs no images.
    training: whether to build the components that only training needs, including the frozen weights of the task.

  Returns:
    All components of the run.

  Raises:
    ConfigError: if the arguments are not compatible with the data, the model or the devices.
  """
  grid = mesh.make(run.mesh, devices)
  with at("config.data"):
    source = loader.stamped_once(open_split(run.data, "train"))
  check_batch(run, grid, len(source) if training else run.batch)
  total = _total(run, source.epoch_length)

  def steps_of(duration: Duration) -> int:
    return duration.steps(run.batch, source.epoch_length, total)

  model = models.functional(description(run, source.classes)).on(grid)
  task = make_task(run, model, grid, steps_of, source.classes)
  shapes = model.shapes() | jax.eval_shape(lambda: task.init(rng.key(0)))
  params = mesh.parameters((*models.sharding(run.model.name), *task.sharding), shapes, grid)
  with at("config.optim"):
    transformation, schedule = optim.create(run.optim, shapes, total, steps_of, model.statistics, model.layers_above())
  init, state_shapes = _state(run, model, task, transformation, params, grid)
  step = _step(run, model, task, transformation, state_shapes, grid)
  with at("config.data"):
    opened = functools.partial(catalog.train_examples, run.data, run.seed, task.patch if training else None, run.batch)
    examples = opened(source)
  subject = evals.Subject(model, grid, run.data, run.batch, open_split, task.predict, source.classes)
  save_every, keep_every = max(1, steps_of(run.checkpoint.every)), run.checkpoint.keep_every
  parts = Parts(
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
    weights=functools.partial(_weights, run.init, model.description, tuple(model.shapes()), source.classes),
    init=init,
    step=step,
    state_shapes=state_shapes,
    batch_shapes={
      name: jax.ShapeDtypeStruct((run.batch, *shape), kind, sharding=mesh.batch(grid))
      for name, (shape, kind) in examples.shapes.items()
    },
    batches=functools.partial(_train_batches, run, examples, opened, mesh.batch(grid)),
    evals=_evals(run, subject, steps_of),
    forward_flops=0,
  )
  if not training:
    return parts
  # Tracing the step reports errors here, before the devices are used.
  jax.eval_shape(step, state_shapes, parts.batch_shapes, parts.frozen_shapes)
  alone = make_task(run, models.functional(model.description), grid, steps_of, source.classes)
  return dataclasses.replace(parts, forward_flops=_forward_flops(parts, alone, shapes))


def description(run: Run, classes: Sequence[str]) -> models.Description:
  """Returns the description of a run's model. The model has no head if the task does not train one.

  Args:
    run: a completed run.
    classes: class names of the data.
  """
  head = len(classes) if tasks.TASKS[run.task.name].classes else 0
  return models.Description(run.model, run.data.args["image_size"], head)


def _total(run, epoch_length) -> int:
  """Returns the number of steps of a run. Raises ConfigError if the number is out of range."""
  total = run.total.steps(run.batch, epoch_length)
  if not 0 < total < 2**31:
    raise ConfigError(
      f"config.total: {run.total!s} is {total:,} steps of {amount(run.batch, 'image')}. Allowed: 1 to 2**31 - 1"
    )
  return total


def _forward_flops(parts, alone, shapes) -> int:
  """Returns the FLOPs of the task for one image. `alone` is a copy of the task for which the model is not sharded."""
  key = jax.eval_shape(lambda: rng.key(0))
  batch = parts.batch_shapes, parts.frozen_shapes, key, parts.state_shapes.step
  return cost.forward_flops(alone.objective, shapes, jax.eval_shape(parts.task.examples, *batch))


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
    with at("config.data"):
      return augment.build(dtype, run.seed, patch, steps_of, **arguments(run.data, augment.build))

  pixels = functools.partial(augment.pixels, **arguments(run.data, augment.pixels))
  normalised = arguments(run.data, augment.pixels)
  freeze = functools.partial(_frozen, run, grid, classes)
  supplied = tasks.Supplied(model, patch, augmentation, freeze, pixels, normalised)
  with at("config.task"):
    return make(run.task, tasks.TASKS, supplied)


def _frozen(run, grid, classes, key, path, ema, prefix) -> tasks.Frozen:
  """Returns a description of the weights in a file or workdir, for images of the run's size.

  Reads only names and shapes.
  """
  with at(f"config.{key}"), options.form(f"config.{key.rpartition('.')[0]}"):
    have = importers.frozen(path, run.data.args["image_size"], run.model.args["dtype"], ema, prefix, classes)
  model = models.functional(have.description).on(grid)
  shardings = mesh.parameters(models.sharding(have.description.model.name), model.shapes(), grid)
  return tasks.Frozen(model, mesh.sharded(model.shapes(), shardings), have.load, key, path, have.notes)


def _state(run, model, task, transformation, params, grid):
  """Returns the jitted function () -> State with sharded results, and the state's shapes with shardings."""

  def parameters(key):
    return model.init(key) | task.init(rng.stream(run.seed, 0, "task"))

  init = functools.partial(steps.init, run.seed, parameters, transformation, run.optim.args["ema"] is not None)
  shapes = jax.eval_shape(init)
  shardings = steps.State(
    step=mesh.replicated(grid),
    params=params,
    ema=mesh.averages(shapes.ema, params, grid),
    optimizer=mesh.optimizer(transformation, shapes.params, params, grid),
  )
  check_memory(run, grid, shapes, shardings)
  return jax.jit(init, out_shardings=shardings), mesh.sharded(shapes, shardings)


def _step(run, model, task, transformation, state_shapes, grid):
  """Returns the jitted train step: (state, batch, frozen) -> (state, metrics)."""
  with at("config.optim"):
    fixed = optim.frozen_paths(run.optim.args["frozen"], state_shapes.params, model.statistics)
  gradient = steps.gradient(task.objective, fixed)
  gradient = steps.accumulated(gradient, mesh.micro_batches(grid), **arguments(run.optim, steps.accumulated))
  shardings = jax.tree.map(lambda shape: shape.sharding, state_shapes)
  hold = functools.partial(jax.lax.with_sharding_constraint, shardings=shardings.params)
  averaged = arguments(run.optim, steps.train_step)
  step = steps.train_step(run.seed, task.examples, gradient, transformation, hold, mesh.spread(grid), **averaged)
  return jax.jit(step, donate_argnums=0, out_shardings=(shardings, mesh.replicated(grid)))


def _weights(init, description, paths, classes):
  """Returns ({path: host array} of `config.init`, notes). The arrays of scanned layers are stacked."""
  if init.from_ is None:
    return {}, []
  with options.form("config.init"):
    arrays, notes = importers.fitted(init.from_, description, init.head, init.ema, init.prefix, classes)
  return surgery.stack(arrays, paths), [f"weights of {init.from_}", *notes]


def _train_batches(run, examples, opened, placement, start) -> DeviceBatches:
  rows = mesh.local_rows(placement, run.batch)
  workers = loader.processes(opened, len(examples.source), **arguments(run.data, loader.processes))
  batches = loader.batches(examples, run.batch, rows, start, workers, **arguments(run.data, loader.batches))
  return DeviceBatches(batches, rows, run.batch, placement)


def _evals(run, subject, steps_of) -> dict[str, Eval]:
  result = {}
  for name, choice in run.evals.items():
    with at(f"config.evals.{name}"):
      every = evals.interval(steps_of, **arguments(choice, evals.interval))
      result[name] = Eval(every, evals.make(choice, subject))
  return result
