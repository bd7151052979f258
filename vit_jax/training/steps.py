"""The training state and the train step: pure functions of flat parameters, `{path: array}`."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from einops import rearrange

from vit_jax import rng
from vit_jax.schema import Count, Momentum


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
  """The complete contents of a checkpoint. Data order and random keys follow from `step`.

  Attributes:
    step: number of completed steps, int32 scalar.
    params: {path: array}, including the statistics of batch norms, which gradients do not update.
    ema: moving average of params. Empty if the run does not average.
    optimizer: state of the optimizer.
  """

  step: jax.Array
  params: dict[str, jax.Array]
  ema: dict[str, jax.Array]
  optimizer: optax.OptState


def init_state(seed: int, parameters: Callable, transformation: optax.GradientTransformation, averaged: bool) -> State:
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


def make_gradient(loss: Callable, frozen: frozenset[str]) -> Callable:
  """Returns a function that computes the gradients of a task's loss.

  Args:
    loss: function (params, examples, key) -> (loss, (metrics, statistics)).
    frozen: paths of the parameters that are not trained. Their gradients are zeros and need no backward pass.

  Returns:
    A function (params, examples, key) -> (gradients, metrics, statistics).
  """

  def function(params, examples, key):
    held = {path: value for path, value in params.items() if path in frozen}
    moving = {path: value for path, value in params.items() if path not in frozen}
    differentiate = jax.value_and_grad(lambda moving: loss(held | moving, examples, key), has_aux=True)
    (value, (metrics, statistics)), gradients = differentiate(moving)
    return gradients | jax.tree.map(jnp.zeros_like, held), {"loss": value, **metrics}, statistics

  return function


def accumulate_gradients(gradient: Callable, sharding: jax.sharding.Sharding, *, accumulate: Count = 1) -> Callable:
  """Returns a function that averages the results of `make_gradient` over micro-batches.

  The micro-batches are computed one after another.

  Each micro-batch has its own dropout key. Micro-batch i contains the rows i, i + accumulate, i + 2 accumulate, ...
  Each device therefore splits its own rows, and no rows are moved between devices.

  Args:
    gradient: function (params, examples, key) -> pytree of arrays.
    sharding: sharding of the examples as [micro-batch, row, ...].
    accumulate: number of micro-batches. 1 returns `make_gradient` unchanged.
  """
  if accumulate == 1:
    return gradient

  def function(params, examples, key):
    def cut(x):
      return jax.lax.with_sharding_constraint(rearrange(x, "(b n) ... -> n b ...", n=accumulate), sharding)

    def add(total, index_and_examples):
      index, micro = index_and_examples
      return jax.tree.map(jnp.add, total, gradient(params, micro, jax.random.fold_in(key, index))), None

    micro = jax.tree.map(cut, examples)
    first = jax.tree.map(lambda x: x[0], micro)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(gradient, params, first, key))
    total, _ = jax.lax.scan(add, zeros, (jnp.arange(accumulate), micro))
    return jax.tree.map(lambda x: x / accumulate, total)

  return function


def make_train_step(
  seed: int,
  examples: Callable,
  gradient: Callable,
  transformation: optax.GradientTransformation,
  hold: Callable = lambda params: params,
  spread: Callable | None = None,
  *,
  ema: Momentum | None = None,
) -> Callable:
  """Returns the function that performs one optimizer step. Its result depends only on its arguments.

  Args:
    seed: seed of the run.
    examples: function (batch, frozen, key, step) -> examples, which augments the images.
    gradient: function (params, examples, key) -> (gradients, metrics, statistics).
    transformation: the optimizer.
    hold: function that constrains {path: parameter} to the parameters' shardings.
    spread: function that distributes a function of rows over the devices, see `sharding.shard_rows`. Update rules that
      support
      `spread` receive it as an extra argument.
    ema: decay of the moving average. It is required if the state contains an average.

  Returns:
    A function (state, batch, frozen) -> (state, metrics). `frozen` {path: array} are weights that the task reads but
    does not train, such as those of a teacher.
  """

  update, extra = optax.with_extra_args_support(transformation).update, {"spread": spread} if spread else {}

  def step(
    state: State, batch: dict[str, jax.Array], frozen: dict[str, jax.Array]
  ) -> tuple[State, dict[str, jax.Array]]:
    drawn = examples(batch, frozen, rng.derive_key(seed, state.step, "augment"), state.step)
    gradients, metrics, statistics = gradient(state.params, drawn, rng.derive_key(seed, state.step, "dropout"))
    updates, optimizer = update(gradients, state.optimizer, state.params, **extra)
    params = optax.apply_updates(state.params, updates) | statistics
    # The average is split over more devices than the parameters. Without `hold`, XLA would split the whole update in
    # the same way and gather its result.
    held = hold(params) if state.ema else {}
    averages = {path: ema * mean + (1 - ema) * held[path] for path, mean in state.ema.items()}
    # The norm of the updates is not reported. XLA would write all updates to memory for it, which costs 2.5 % of a
    # ViT-B/16's step.
    metrics |= {"gradient_norm": optax.tree.norm(gradients)}
    return State(state.step + 1, params, averages, optimizer), metrics

  return step
