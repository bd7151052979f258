"""The training state and the train step: pure functions of flat parameters, `{path: array}`."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import optax
from einops import rearrange

from vit_jax import models, optim, rng, tasks
from vit_jax.parallel import sharding
from vit_jax.parallel.capacity import check_memory
from vit_jax.schema import Count
from vit_jax.tasks import step_parts

Leaf = TypeVar("Leaf")
Params = dict[str, jax.Array]  # by path
Examples = tasks.Batch  # arrays of a batch by name
Metrics = dict[str, jax.Array]  # scalars by name
FrozenWeights = Mapping[str, Params]  # parameters of each frozen model, by its name
# (params, context, examples, key) -> (loss, (metrics, statistics))
Loss = Callable[[Params, tasks.Context, Examples, jax.Array], tuple[jax.Array, tuple[Metrics, Params]]]
# (params, context, examples, key) -> (gradients, metrics, statistics)
Gradient = Callable[[Params, tasks.Context, Examples, jax.Array], tuple[Params, Metrics, Params]]
# (state, batch, frozen_weights) -> (state, metrics)
Step = Callable[["State[jax.Array]", Examples, FrozenWeights], tuple["State[jax.Array]", Metrics]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State(Generic[Leaf]):
  """The complete contents of a checkpoint. Data order and random keys follow from `step`.

  The leaves are arrays, or the shapes or shardings of these arrays.

  Attributes:
    step: number of completed steps, int32 scalar.
    params: {path: array}, including the statistics of batch norms, which gradients do not update. Evaluations and
      exports use them. An optimizer may compute gradients at another point, see `optim.points`.
    ema: moving average of params. Empty if the run does not average.
    optimizer: state of the optimizer.
  """

  step: Leaf
  params: dict[str, Leaf]
  ema: dict[str, Leaf]
  optimizer: optax.OptState


@dataclasses.dataclass(frozen=True)
class Program:
  """The jitted functions of a run on its mesh.

  Attributes:
    init: function () -> State with sharded arrays.
    step: function (state, batch, frozen_weights) -> (state, metrics). The arrays of the given state are reused.
    state_shapes: shapes of the state, with shardings.
  """

  init: jax.stages.Wrapped
  step: jax.stages.Wrapped
  state_shapes: State[jax.ShapeDtypeStruct]


def make_program(
  seed: int,
  model: models.Model,
  task: tasks.Task,
  optimizer: optim.Optimizer,
  params: Mapping[str, jax.sharding.NamedSharding],
  grid: jax.sharding.Mesh,
  *,
  accumulate: int,
  average_decay: optim.Schedule | None,
) -> Program:
  """Returns the functions that make the first state and compute a step.

  Args:
    seed: seed of the run.
    model: the model on the mesh.
    task: the task.
    optimizer: the optimizer of all parameters.
    params: shardings of all parameters by path.
    grid: device mesh of the run.
    accumulate: number of micro-batches of a step.
    average_decay: function from step to the decay of the moving average, or None without an average.

  Raises:
    ConfigError: if the state needs more memory than the devices have.
  """

  def parameters(key: jax.Array) -> Params:
    return model.init(key) | task.init(rng.derive_key(seed, 0, "task"))

  init = functools.partial(init_state, seed, parameters, optimizer.transformation, average_decay is not None)
  shapes = jax.eval_shape(init)
  shardings = State(
    step=sharding.make_replicated_sharding(grid),
    params=dict(params),
    ema=sharding.find_average_shardings(shapes.ema, params, grid),
    optimizer=sharding.find_optimizer_shardings(optimizer.transformation, shapes.params, params, grid),
  )
  state_shapes = sharding.add_shardings(shapes, shardings)
  micro_batches, shard_rows = sharding.make_micro_batch_sharding(grid), sharding.shard_rows(grid)
  check_memory(model.description.model.name, grid, state_shapes)
  constrain_params = functools.partial(jax.lax.with_sharding_constraint, shardings=params)
  gradient = make_gradient(task.objective, optimizer.paths_without_gradients)
  gradient = accumulate_gradients(gradient, micro_batches, accumulate=accumulate)
  if optimizer.radius is not None:
    gradient = ascend_before_gradients(gradient, optimizer.radius)
  step = make_train_step(
    seed,
    task.examples,
    gradient,
    optimizer.transformation,
    constrain_params,
    shard_rows,
    average_decay,
    task.uses_average,
    optimizer.find_point,
  )
  # On CPUs, level 1 halves the compile time of this program. The default level gives the same bits.
  option = "xla_backend_optimization_level"
  chosen = grid.devices.flat[0].platform != "cpu" or option in os.environ.get("XLA_FLAGS", "")
  options = None if chosen else {option: 1}
  return Program(
    jax.jit(init, out_shardings=shardings, compiler_options=options),
    jax.jit(step, donate_argnums=0, out_shardings=(shardings, shardings.step)),
    state_shapes,
  )


def init_state(
  seed: int, parameters: Callable[[jax.Array], Params], transformation: optax.GradientTransformation, averaged: bool
) -> State[jax.Array]:
  """Returns the state before the first step.

  Args:
    seed: seed of the run.
    parameters: function that draws the parameters from a key, as {path: array}.
    transformation: the optimizer.
    averaged: whether the state contains a moving average of the parameters.
  """
  params = parameters(rng.derive_key(seed, 0, "init"))
  ema = {path: value.copy() for path, value in params.items()} if averaged else {}
  return State(jnp.zeros((), jnp.int32), params, ema, transformation.init(params))


def make_gradient(loss: Loss, paths_without_gradients: frozenset[str]) -> Gradient:
  """Returns a function that computes the gradients of a task's loss.

  Args:
    loss: function (params, context, examples, key) -> (loss, (metrics, statistics)).
    paths_without_gradients: paths of the parameters that are not trained. Their gradients are zeros and need no
      backward pass.

  Returns:
    A function (params, context, examples, key) -> (gradients, metrics, statistics).
  """

  def function(
    params: Params, context: tasks.Context, examples: Examples, key: jax.Array
  ) -> tuple[Params, Metrics, Params]:
    held = {path: value for path, value in params.items() if path in paths_without_gradients}
    moving = {path: value for path, value in params.items() if path not in paths_without_gradients}
    differentiate = jax.value_and_grad(lambda moving: loss(held | moving, context, examples, key), has_aux=True)
    (value, (metrics, statistics)), gradients = differentiate(moving)
    return gradients | jax.tree.map(jnp.zeros_like, held), {"loss": value, **metrics}, statistics

  return function


def accumulate_gradients(gradient: Gradient, placement: jax.sharding.Sharding, *, accumulate: Count = 1) -> Gradient:
  """Returns a function that averages the results of `make_gradient` over micro-batches.

  The micro-batches are computed one after another.

  Each micro-batch has its own dropout key. Micro-batch i contains the rows i, i + accumulate, i + 2 accumulate, ...
  Each device therefore splits its own rows, and no rows are moved between devices.

  Args:
    gradient: function (params, context, examples, key) -> pytree of arrays.
    placement: sharding of the examples as [micro-batch, row, ...].
    accumulate: number of micro-batches. 1 returns `gradient` unchanged.
  """
  if accumulate == 1:
    return gradient

  def function(
    params: Params, context: tasks.Context, examples: Examples, key: jax.Array
  ) -> tuple[Params, Metrics, Params]:
    def cut(x: jax.Array) -> jax.Array:
      return jax.lax.with_sharding_constraint(rearrange(x, "(b n) ... -> n b ...", n=accumulate), placement)

    def add(total: object, index_and_examples: tuple[jax.Array, Examples]) -> tuple[Any, None]:
      index, micro = index_and_examples
      return jax.tree.map(jnp.add, total, gradient(params, context, micro, jax.random.fold_in(key, index))), None

    micro = jax.tree.map(cut, examples)
    first = jax.tree.map(lambda x: x[0], micro)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(gradient, params, context, first, key))
    total, _ = jax.lax.scan(add, zeros, (jnp.arange(accumulate), micro))
    return jax.tree.map(lambda x: x / accumulate, total)

  return function


def ascend_before_gradients(gradient: Gradient, radius: float) -> Gradient:
  """Returns a function that computes gradients after an ascent step, see `optim.sam`.

  Metrics and statistics are those before the ascent step. Both gradients have the same examples and key. Gradients of
  zero, as of frozen parameters, do not move their parameters.

  Args:
    gradient: function (params, context, examples, key) -> (gradients, metrics, statistics) for the whole batch.
    radius: length of the step.
  """

  def function(
    params: Params, context: tasks.Context, examples: Examples, key: jax.Array
  ) -> tuple[Params, Metrics, Params]:
    gradients, metrics, statistics = gradient(params, context, examples, key)
    norm = optax.tree.norm(gradients)
    length = jnp.where(norm > 0, radius / norm, 0)
    ascended = jax.tree.map(lambda p, g: p + length * g, params, gradients)
    return gradient(ascended, context, examples, key)[0], metrics, statistics

  return function


def make_train_step(
  seed: int,
  examples: Callable[[Examples, tasks.Context, jax.Array], Examples],
  gradient: Gradient,
  transformation: optax.GradientTransformation,
  constrain_params: Callable[[Params], Params] = lambda params: params,
  shard_rows: sharding.ShardRows | None = None,
  average_decay: optim.Schedule | None = None,
  uses_average: bool = False,
  find_point: Callable[[optax.OptState, Params], Params] | None = None,
) -> Step:
  """Returns the function that performs one optimizer step. Its result depends only on its arguments.

  Args:
    seed: seed of the run.
    examples: function (batch, context, key) -> examples, which augments the images.
    gradient: function (params, context, examples, key) -> (gradients, metrics, statistics).
    transformation: the optimizer.
    constrain_params: function that constrains {path: parameter} to the parameters' shardings.
    shard_rows: function that distributes a function of rows over the devices, see `sharding.shard_rows`. Update rules
      that support `shard_rows` receive it as an extra argument.
    average_decay: function from step to the decay of the moving average. It is required if the state contains an
      average.
    uses_average: whether `examples` or `gradient` reads the moving average.
    find_point: function (optimizer state, params) to the parameters at which the gradient is computed. None: params.

  Returns:
    A function (state, batch, frozen_weights) -> (state, metrics). `frozen_weights` {name: {path: array}} are weights
    that the task reads but does not train, such as those of a teacher.
  """
  update, extra = optax.with_extra_args_support(transformation).update, {"shard_rows": shard_rows} if shard_rows else {}

  def update_state(
    state: State[jax.Array], gradients: Params, statistics: Params, metrics: Metrics
  ) -> tuple[State[jax.Array], Metrics]:
    updates, optimizer = update(gradients, state.optimizer, state.params, **extra)
    params = optax.apply_updates(state.params, updates) | statistics
    # The average is split over more devices than the parameters. Without `constrain_params`, XLA would split the whole
    # update in the same way and gather its result.
    averages: Params = {}
    if state.ema:
      assert average_decay is not None, "a state with an average needs a decay"
      averaged, ema = constrain_params(params), average_decay(state.step)
      averages = {path: ema * mean + (1 - ema) * averaged[path] for path, mean in state.ema.items()}
    # The norm of the updates is not reported. XLA would write all updates to memory for it, which costs 2.5 % of a
    # ViT-B/16's step.
    metrics |= {"gradient_norm": optax.tree.norm(gradients)}
    return State(state.step + 1, params, averages, optimizer), metrics

  def step(state: State[jax.Array], batch: Examples, frozen_weights: FrozenWeights) -> tuple[State[jax.Array], Metrics]:
    context = tasks.Context(state.step, frozen_weights, constrain_params(state.ema) if uses_average else {})
    with step_parts.name_part("augmentation"):
      drawn = examples(batch, context, rng.derive_key(seed, state.step, "augment"))
    with step_parts.name_part("forward and backward"):
      key = rng.derive_key(seed, state.step, "dropout")
      point = state.params if find_point is None else find_point(state.optimizer, state.params)
      gradients, metrics, statistics = gradient(point, context, drawn, key)
    with step_parts.name_part("optimizer and average"):
      return update_state(state, gradients, statistics, metrics)

  return step
