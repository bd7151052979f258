"""State, the train step and what it is made of: pure functions over flat dicts of parameters, `{path: array}`."""

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
  """All that a checkpoint holds. Data order and random keys follow from `step`."""

  step: jax.Array  # int32 scalar: steps done
  params: dict[str, jax.Array]  # with the statistics of batch norms, which no gradient moves
  ema: dict[str, jax.Array]  # moving average of params; empty where the run keeps none
  optimizer: optax.OptState


def init(seed: int, parameters: Callable, transformation: optax.GradientTransformation, averaged: bool) -> State:
  """State before the first step. `parameters(key)` draws the parameters."""
  params = parameters(rng.stream(seed, 0, "init"))
  ema = {path: value.copy() for path, value in params.items()} if averaged else {}
  return State(jnp.zeros((), jnp.int32), params, ema, transformation.init(params))


def gradient(loss: Callable, frozen: frozenset[str]) -> Callable:
  """(params, examples, key) -> (gradients, metrics, statistics), of a task's loss.

  Frozen parameters get zeros and cost no backward pass.
  """

  def function(params, examples, key):
    held = {path: value for path, value in params.items() if path in frozen}
    moving = {path: value for path, value in params.items() if path not in frozen}
    differentiate = jax.value_and_grad(lambda moving: loss(held | moving, examples, key), has_aux=True)
    (value, (metrics, statistics)), gradients = differentiate(moving)
    return gradients | jax.tree.map(jnp.zeros_like, held), {"loss": value, **metrics}, statistics

  return function


def accumulated(gradient: Callable, sharding: jax.sharding.Sharding, *, accumulate: Count = 1) -> Callable:
  """Mean of all that `gradient` gives over micro-batches, one after another, each with its own dropout key.

  Of `accumulate` micro-batches number i is every such row from row i on, so each device cuts its own rows and none
  move.
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


def train_step(
  seed: int,
  examples: Callable,
  gradient: Callable,
  transformation: optax.GradientTransformation,
  hold: Callable = lambda params: params,
  spread: Callable | None = None,
  *,
  ema: Momentum | None = None,
) -> Callable:
  """(state, batch, frozen) -> (state, metrics): one optimizer step, a function of its arguments alone.

  `frozen` {path: array} are weights that the task reads and nothing trains, such as a teacher's. `hold` pins
  {path: parameter} where the parameters are; `spread`, for rules that want it, shares out a function of rows as
  `mesh.spread` does. `ema` is the decay of the moving average of a state that has one.
  """

  update, extra = optax.with_extra_args_support(transformation).update, {"spread": spread} if spread else {}

  def step(
    state: State, batch: dict[str, jax.Array], frozen: dict[str, jax.Array]
  ) -> tuple[State, dict[str, jax.Array]]:
    drawn = examples(batch, frozen, rng.stream(seed, state.step, "augment"), state.step)
    gradients, metrics, statistics = gradient(state.params, drawn, rng.stream(seed, state.step, "dropout"))
    updates, optimizer = update(gradients, state.optimizer, state.params, **extra)
    params = optax.apply_updates(state.params, updates) | statistics
    # Held: the average is split over more devices, and XLA would split the whole update with it and gather the result.
    held = hold(params) if state.ema else {}
    averages = {path: ema * mean + (1 - ema) * held[path] for path, mean in state.ema.items()}
    # Not the norm of the updates: XLA would write them all to memory for it, which costs 2.5 % of a ViT-B/16's step.
    metrics |= {"gradient_norm": optax.tree.norm(gradients)}
    return State(state.step + 1, params, averages, optimizer), metrics

  return step
