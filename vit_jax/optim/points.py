"""Update rules that do not compute gradients at the parameters: Schedule-Free, and the type that SAM returns.

The parameters of a state are always the ones to evaluate, save and convert. These rules only change the point at which
a step computes its gradient.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from vit_jax.optim.schedules import Schedule
from vit_jax.schema import Momentum, Positive

FindPoint = Callable[[optax.OptState, Any], Any]  # (optimizer state, parameters) -> parameters for the gradient


class PointRule(NamedTuple):
  """An update rule with the point at which its gradients are computed.

  Attributes:
    direction: transformation of gradients to directions, without a learning rate.
    interpolation: weight of the average x in the point y of Schedule-Free. None: the rule does not average.
    radius: length of SAM's ascent step before the gradient. None: the rule has no ascent step.
  """

  direction: optax.GradientTransformation
  interpolation: float | None = None
  radius: float | None = None


class ScheduleFreeState(NamedTuple):
  """The state of `average_iterates`. It does not contain the sequence x, because the parameters are x.

  Attributes:
    step: number of completed steps, int32 scalar.
    weight_sum: sum of the weights of all z so far.
    offset: z - x for each parameter.
    inner: state of the averaged transformation.
  """

  step: jax.Array
  weight_sum: jax.Array
  offset: Any
  inner: optax.OptState


def schedule_free(*, b1: Momentum = 0.9, b2: Momentum = 0.999, eps: Positive = 1e-8) -> PointRule:
  """Returns Schedule-Free AdamW (Defazio et al. 2024, arXiv:2405.15682), which needs no decay of the learning rate.

  A step with the learning rate r(t) computes three sequences:

    y = (1 - b1) z + b1 x                               the point of the gradient and of the weight decay
    z = z - r(t) (Adam's direction without momentum + weight_decay y)
    x = (1 - c) x + c z                                 c = r(t)^2 / (r(0)^2 + ... + r(t)^2)

  The parameters of the run are x. Evaluations, checkpoints and exports therefore use x. The training loss is measured
  at y. The state stores z - x instead of z, and has the size of AdamW's state. The schedule must be "constant", with or
  without `warmup`. The authors recommend a warm-up, and 1 to 10 times the rate of AdamW with a schedule.

  Args:
    b1: weight of x in y. It replaces Adam's first moment.
    b2: decay rate of the second moment.
    eps: added to the root of the second moment.
  """
  return PointRule(optax.scale_by_rms(b2, eps, eps_in_sqrt=False, bias_correction=True), interpolation=b1)


def average_iterates(
  transformation: optax.GradientTransformation, interpolation: float, rate: Schedule
) -> optax.GradientTransformationExtraArgs:
  """Returns a transformation whose parameters are the average x of the iterates z of another transformation.

  `optax.contrib.schedule_free` stores y and z, and computes x = (y - (1 - b1) z) / b1 for evaluations. Here x is exact,
  and the state does not depend on the initial parameters.

  Args:
    transformation: computes the updates of z from the gradient at y and from y.
    interpolation: weight of x in y.
    rate: function from step to learning rate. The weight of an iterate is the square of its rate.
  """
  transformation = optax.with_extra_args_support(transformation)

  def init(params: Any) -> ScheduleFreeState:
    offset = jax.tree.map(jnp.zeros_like, params)
    return ScheduleFreeState(jnp.zeros((), jnp.int32), jnp.zeros(()), offset, transformation.init(params))

  def update(
    gradients: optax.Updates, state: ScheduleFreeState, params: Any = None, **extra: object
  ) -> tuple[optax.Updates, ScheduleFreeState]:
    point = _interpolate(params, state.offset, interpolation)
    updates, inner = transformation.update(gradients, state.inner, point, **extra)
    ahead = jax.tree.map(jnp.add, state.offset, updates)  # the new z minus the old x
    weight = jnp.square(jnp.asarray(rate(state.step), jnp.float32))
    total = state.weight_sum + weight
    share = jnp.where(total > 0, weight / total, 0)  # the first rate of a warm-up is 0
    offset = jax.tree.map(lambda a: (1 - share) * a, ahead)
    step = optax.safe_increment(state.step)
    return jax.tree.map(lambda a: share * a, ahead), ScheduleFreeState(step, total, offset, inner)

  return optax.GradientTransformationExtraArgs(init, update)


def make_find_point(interpolation: float) -> FindPoint:
  """Returns the function that computes y from the parameters x and an optimizer state of `average_iterates`.

  Args:
    interpolation: weight of x in y.
  """

  def find_point(state: optax.OptState, params: Any) -> Any:
    leaves = jax.tree.leaves(state, is_leaf=lambda each: isinstance(each, ScheduleFreeState))
    (own,) = (each for each in leaves if isinstance(each, ScheduleFreeState))
    return _interpolate(params, own.offset, interpolation)

  return find_point


def _interpolate(params: Any, offset: Any, interpolation: float) -> Any:
  """Returns y. Frozen parameters have no offset."""
  return jax.tree.map(
    lambda x, d: x if isinstance(d, optax.MaskedNode) else x + (1 - interpolation) * d, params, offset
  )
