"""Assembly of runs: `complete` binds the choices of a run, and `build` creates its components on given devices.

`complete` checks names and arguments without accessing a device. `build` checks everything that depends on the data and
the devices. Both raise ConfigError before anything is written. This is the only module that combines all components.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from vit_jax import evals, importers, models, optim, rng, tasks
from vit_jax.config import Run
from vit_jax.data import catalog, shared_data
from vit_jax.data.augment import Augmentation
from vit_jax.data.views import Fields
from vit_jax.evals.validation import add_evaluations, add_share, add_splits
from vit_jax.importers import adoption, options
from vit_jax.models import flops
from vit_jax.optim.schedules import create_schedule
from vit_jax.parallel import sharding
from vit_jax.parallel.capacity import check_batch, check_int8
from vit_jax.schema import Choice, ConfigError, Duration, bind, enter_key, format_amount, lookup, make
from vit_jax.tasks import cost
from vit_jax.training import steps, time_to_target
from vit_jax.training.bound_run import OPTIM, BoundRun
from vit_jax.training.experiment import Eval, Experiment

LONGEST_RUN = 2**31 - 1  # steps; the step counter has 32 bits


def complete(run: Run, adopt: bool = True) -> BoundRun:
  """Returns the run with all names looked up, and all arguments checked and filled in.

  Args:
    run: a resolved run.
    adopt: whether the arguments of the weights in `init.from` take precedence over defaults, see `importers.adoption`.
      Use False for the run that a workdir stores, which already contains these arguments.

  Raises:
    ConfigError: if a name or an argument is invalid.
  """
  run = adoption.adopt_settings(run) if adopt else run
  fields: dict[str, Any] = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
  with enter_key("config.model"):
    fields["model"] = models.bind(run.model)
  chosen = add_splits(run.data, run.evals)
  fields["data"] = add_share(run.data, chosen)
  # These choices are bound here, because `config.Run` cannot import their tables, which are in higher layers.
  for key, table in (("data", catalog.DATA), ("optim", OPTIM), ("task", tasks.TASKS)):
    choice = fields[key]
    with enter_key(f"config.{key}"):
      fields[key] = bind(choice, lookup(table, choice.name), table)
  data, fields["evals"] = fields["data"], {}
  for name, choice in add_evaluations(data, chosen).items():
    with enter_key(f"config.evals.{name}"):
      fields["evals"][name] = evals.bind_evaluation(choice, evals.REPEATED, data.preparation)
  bound = BoundRun(**fields)
  with enter_key("config.log.target"):
    time_to_target.check_target(bound)
  _check_schedule(bound)
  return bound


def _check_schedule(run: BoundRun) -> None:
  """Raises the errors of the learning rate schedule that do not depend on the number of images.

  The number of images may be unknown. The schedule is therefore created for epochs of one step and for the longest
  epochs that a run of this length may have. If both fail, every length between them fails, because all lengths in steps
  are linear in the length of an epoch.
  """
  longest = int(LONGEST_RUN / max(run.total.amount, 1)) if run.total.unit == "ep" else LONGEST_RUN
  errors = [error for steps in (1, longest) if (error := _find_schedule_error(run, steps * run.batch))]
  if len(errors) < 2:
    return
  short, long = errors
  if short.message == long.message:
    raise short
  cooldown = run.optim.args["schedule"].args.get("cooldown")
  lengths = f"warmup={run.optim.args['warmup']}" + (
    f" and schedule.cooldown={cooldown}" if cooldown and cooldown.amount else ""
  )
  with enter_key(long.place):
    raise ConfigError(f"the run of {run.total} is too short for {lengths}. Shorten them or lengthen the run")


def _find_schedule_error(run: BoundRun, epoch_length: int) -> ConfigError | None:
  """Returns the error of the learning rate schedule for a number of images in an epoch, or None.

  An error in the number of steps is ignored here. `build` reports it.
  """
  args = run.optim.args
  if not {"schedule", "lr", "warmup"} <= args.keys():  # a registered rule without these arguments
    return None
  total = run.total.count_steps(run.batch, epoch_length)
  if not 0 < total <= LONGEST_RUN:
    return None
  try:

    def count_steps(duration: Duration) -> int:
      return duration.count_steps(run.batch, epoch_length, total)

    with enter_key("config.optim"):
      create_schedule(args["schedule"], args["lr"], total, count_steps(args["warmup"]), count_steps)
  except ConfigError as error:
    return error
  return None


def build(
  run: BoundRun,
  devices: Sequence[jax.Device],
  open_split: evals.OpenSplit = catalog.open_split,
  training: bool = True,
) -> Experiment:
  """Assembles a run on devices, which may be the devices of a TPU topology that is not attached.

  Args:
    run: a completed run.
    devices: devices of the mesh.
    open_split: function (data choice, split) -> images. A plan passes `catalog.open_known_split`, which needs no
      images.
    training: whether to build the components that only training needs, including the frozen weights of the task.

  Returns:
    The experiment.

  Raises:
    ConfigError: if the arguments are not compatible with the data, the model or the devices.
  """
  with enter_key("config.data"):
    if training and tasks.TASKS[run.task.name].cuts_views:
      _check_unused(run)
    train_splits = shared_data.SplitRecorder(open_split)
    source = train_splits(run.data, "train")
  grid = sharding.make_mesh(run.mesh, devices)
  check_batch(run.batch, run.optim.accumulate, grid, len(source) if training else run.batch, run.data.split)
  if training and run.model.args.get("matmul") == "int8":
    check_int8(grid)
  total = _count_total_steps(run, source.epoch_length)

  def count_steps(duration: Duration) -> int:
    return duration.count_steps(run.batch, source.epoch_length, total)

  model = models.make_functional(describe_model(run, source.classes)).place_on(grid)
  open_frozen_model = make_frozen_model_opener(run, grid, source.classes)
  task = make_task(run, model, total, count_steps, open_frozen_model)
  if training and bool(task.fields.views) != task.cuts_views:
    raise ConfigError(
      f"config.task.name: {type(task).__name__} has {'views' if task.fields.views else 'no views'}. Set its class "
      f"attribute cuts_views to {bool(task.fields.views)}"
    )
  shapes = model.shapes() | jax.eval_shape(lambda: task.init(rng.make_key(0)))
  params = sharding.find_parameter_shardings((*models.find_sharding(run.model.name), *task.sharding), shapes, grid)
  with enter_key("config.optim"):
    statistics = model.statistics | task.statistics
    optimizer = optim.create_optimizer(run.optim, shapes, total, count_steps, statistics, model.count_layers_above())
    average_decay = run.optim.create_average_decay(total, count_steps)
    if optimizer.find_point and task.uses_average:
      raise ConfigError(
        f"task {run.task.name!r} needs a moving average, but {run.optim.name!r} does not support one. Use 'adamw'",
        "name",
      )
    if optimizer.find_point and average_decay is not None:
      raise ConfigError(f"the parameters of {run.optim.name!r} are already an average. Remove ema", "ema")
    if average_decay is None and task.uses_average:
      raise ConfigError(f"task {run.task.name!r} learns from the moving average. Set a decay such as 0.996", "ema")
  program = steps.make_program(
    run.seed, model, task, optimizer, params, grid, accumulate=run.optim.accumulate, average_decay=average_decay
  )
  with enter_key("config.data"):
    images = catalog.open_train_examples(run.data, run.seed, task.fields if training else Fields(), run.batch, source)
  # Without training, only the classes of the training images are used.
  splits = train_splits if training else shared_data.SplitRecorder(open_split)
  subject = evals.EvalContext(model, grid, run.data, run.batch, splits, task.predict, source.classes)
  measures = _build_evals(run, subject, count_steps)
  experiment = Experiment(run, grid, total, images, model, task, optimizer.schedule, program, measures, splits.opened)
  if not training:
    return experiment
  # Tracing the step reports errors here, before the devices are used.
  jax.eval_shape(experiment.step, experiment.state_shapes, experiment.batch_shapes, experiment.frozen_weight_shapes)
  plain = model.description.change({"remat": "none"}) if "remat" in model.description.model.args else model.description
  unsharded_task = make_task(run, models.make_functional(plain), total, count_steps, open_frozen_model)
  forward, training_flops = _count_flops(experiment, unsharded_task)
  training_flops *= 1 if optimizer.radius is None else 2  # an ascent step needs a gradient of its own
  return dataclasses.replace(experiment, forward_flops=forward, training_flops=training_flops)


def describe_model(run: BoundRun, classes: Sequence[str]) -> models.Description:
  """Returns the description of a run's model. The model has no head if the task does not train one.

  Args:
    run: a completed run.
    classes: class names of the data.
  """
  return models.Description(run.model, run.data.image_size, len(classes) if run.learns_classes else 0)


def make_task(
  run: BoundRun,
  model: models.Model,
  total: int,
  count_steps: Callable[[Duration], int],
  open_frozen_model: tasks.FrozenModelOpener,
) -> tasks.Task:
  """Creates the task of a run.

  Args:
    run: a completed run.
    model: the model on the mesh.
    total: number of steps of the run.
    count_steps: function that converts a duration to a number of steps.
    open_frozen_model: function that opens a frozen model, see `make_frozen_model_opener`.

  Raises:
    ConfigError: if an argument of the task is not compatible with the model or the data.
  """
  patch = model.patch if run.data.warp.name == "none" else None  # warping requires whole images

  def augmentation(patch: int | None) -> Augmentation:
    with enter_key("config.data"):
      return run.data.augmentation(run.dtype, run.seed, patch, count_steps)

  supplied = tasks.TaskContext(
    model,
    patch,
    augmentation,
    open_frozen_model,
    run.data.denormalise,
    functools.partial(run.data.normalise, dtype=run.dtype),
    run.data.normalisation,
    total,
    count_steps,
  )
  with enter_key("config.task"):
    return make(run.task, tasks.TASKS, supplied)


def make_frozen_model_opener(run: BoundRun, grid: jax.sharding.Mesh, classes: Sequence[str]) -> tasks.FrozenModelOpener:
  """Returns the function that a task calls to get a frozen model, such as a teacher.

  Calls with the same arguments open the weights only once.

  Args:
    run: a completed run.
    grid: the mesh.
    classes: class names of the data.
  """
  return functools.cache(functools.partial(_open_frozen_model, run, grid, classes))


def _check_unused(run: BoundRun) -> None:
  """Raises ConfigError if `config.data` contains a crop or an augmentation that has no effect on views."""
  keys = ("crop", "policy", "warp", "mixing", "erasing")
  others = {key: value for key, value in run.data.args.items() if key not in keys}
  defaults = bind(Choice(run.data.name, others), lookup(catalog.DATA, run.data.name), catalog.DATA).args
  for key in keys:
    choice, default = run.data.args[key], defaults[key]
    if choice != default:
      raise ConfigError(
        f"{choice.name!r} has no effect, because task {run.task.name!r} cuts and augments its own crops. Use the "
        f"default {default.name!r}, and the keys of config.task",
        key,
      )


def _open_frozen_model(
  run: BoundRun,
  grid: jax.sharding.Mesh,
  classes: Sequence[str],
  key: str,
  path: str,
  ema: bool | None,
  prefix: str | None,
  rules: models.ShardingRules,
) -> tasks.FrozenModel:
  """Opens the model in a weight file or workdir, for images of the run's size.

  For a weight file, only names and shapes are read. If a head is stored twice, its two last layers are also read and
  compared. For a workdir, the whole checkpoint is read. The result includes the task parameters that match a rule, such
  as projection heads.
  """
  with enter_key(f"config.{key}"), options.use_form(f"config.{key.rpartition('.')[0]}"):
    patterns = [pattern for pattern, _ in rules]
    weights = importers.open_weights(path, run.data.image_size, run.dtype.name, ema, prefix, classes, patterns)
  task = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in weights.task.items()}
  model = models.make_functional(weights.description).place_on(grid)
  shapes = model.shapes() | task
  table = *models.find_sharding(weights.description.model.name), *rules
  shardings = sharding.find_parameter_shardings(table, shapes, grid)
  return tasks.FrozenModel(
    model, sharding.add_shardings(shapes, shardings), weights.load, key, path, weights.notes, weights.normalised
  )


def _count_total_steps(run: Run, epoch_length: int) -> int:
  """Returns the number of steps of a run. Raises ConfigError if the number is out of range."""
  total = run.total.count_steps(run.batch, epoch_length)
  if not 0 < total <= LONGEST_RUN:
    raise ConfigError(
      f"config.total: {run.total!s} is {total:,} steps of {format_amount(run.batch, 'image')}. Allowed: 1 to 2**31 - 1"
    )
  return total


def _build_evals(run: BoundRun, subject: evals.EvalContext, count_steps: Callable[[Duration], int]) -> dict[str, Eval]:
  result = {}
  for name, choice in run.evals.items():
    with enter_key(f"config.evals.{name}"):
      result[name] = Eval(choice.interval(count_steps), choice.build(subject))
  return result


def _count_flops(experiment: Experiment, unsharded_task: tasks.Task) -> tuple[int, int]:
  """Returns the FLOPs of the task for one image: forward pass alone, and forward and backward pass together.

  `unsharded_task` is a copy of the task with a model without sharding and without recomputation.
  """
  _ = unsharded_task.frozen_models  # read before tracing, because the checkpoint of a teacher is verified by a program
  key, shapes = jax.eval_shape(lambda: rng.make_key(0)), experiment.state_shapes
  context = tasks.ContextShapes(
    shapes.step, experiment.frozen_weight_shapes, shapes.ema if unsharded_task.uses_average else {}
  )

  def draw(
    batch: tasks.Batch, key: jax.Array, step: jax.Array, frozen_weights: steps.FrozenWeights, average: steps.Params
  ) -> tasks.Batch:
    return experiment.task.examples(batch, tasks.Context(step, frozen_weights, average), key)

  drawn = jax.eval_shape(draw, experiment.batch_shapes, key, *context)
  examples = {
    name: jax.ShapeDtypeStruct((leaf.shape[0] // experiment.run.optim.accumulate, *leaf.shape[1:]), leaf.dtype)
    for name, leaf in drawn.items()
  }
  forward = cost.count_forward_flops(unsharded_task.objective, shapes.params, context, examples)
  if not (unsharded_task.uses_average or unsharded_task.frozen_models):
    return forward, flops.TRAINING * forward
  return forward, cost.count_training_flops(unsharded_task.objective, shapes.params, context, examples)
