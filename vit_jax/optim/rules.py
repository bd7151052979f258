"""Optimizers: update rules with weight decay, gradient clipping, frozen parameters and layer-wise learning rates.

`RULES` contains the update rules and `schedules.SCHEDULES` the learning rate schedules. The keyword-only parameters of
their functions are the keys of `config.optim`. Several keys select parameters with patterns for whole parameter paths
(see `trees`). A pattern that has no effect raises an error.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax import trees
from vit_jax.optim import clipping, matrices, points, schedules, value_schedules
from vit_jax.optim.matrices import Params, muon
from vit_jax.optim.points import PointRule, schedule_free
from vit_jax.schema import (
  Bound,
  Choice,
  ConfigError,
  Count,
  Duration,
  Momentum,
  NonNegative,
  Pattern,
  Positive,
  Range,
  format_amount,
  lookup,
  make,
  preset,
)

Precision = Literal["float32", "bfloat16"]
Value = TypeVar("Value")
Scale = float | np.floating | np.ndarray
# {path: number of layers between the parameter and the logits}. A scanned stack has an array, one number per layer.
LayersAbove = Mapping[str, int | np.ndarray | None] | None


class Optimizer(NamedTuple):
  """An optimizer for certain parameters.

  Attributes:
    transformation: the gradient transformation.
    schedule: function from step to learning rate.
    paths_without_gradients: paths that gradients do not update, see `list_paths_without_gradients`.
    find_point: function (optimizer state, parameters) to the point at which the gradient is computed. None: the
      parameters.
    radius: length of SAM's ascent step from this point. None: no ascent step.
  """

  transformation: optax.GradientTransformation
  schedule: schedules.Schedule
  paths_without_gradients: frozenset[str]
  find_point: points.FindPoint | None = None
  radius: float | None = None


def create_optimizer(
  choice: Bound,
  params: Params,
  total: int,
  steps: Callable[[Duration], int],
  statistics: frozenset[str] = frozenset(),
  layers_above: LayersAbove = None,
) -> Optimizer:
  """Returns the `optimizer` that a choice names.

  Args:
    choice: name and arguments from `config.optim`, bound by `schema.bind`.
    params: nested parameters, as arrays or as shapes.
    total: number of steps of the run.
    steps: function that converts a duration to a number of steps.
    statistics: paths that the model updates itself, such as running averages.
    layers_above: number of layers between each parameter and the logits, by path. See
      `models.parameters.count_layers_above`.

  Raises:
    ConfigError: if an argument is not compatible with the model or the run.

  Example:
    import jax.numpy as jnp
    import optax
    from vit_jax import optim, schema

    choice = schema.Choice("adamw", {"lr": 1e-3, "weight_decay": 0.1})
    choice = schema.bind(choice, optim.RULES["adamw"], optim.RULES)
    params = {"head": {"kernel": jnp.ones((3, 2)), "bias": jnp.zeros(2)}}
    optimizer = optim.create_optimizer(choice, params, total=100, steps=int)
    state = optimizer.transformation.init(params)
    updates, state = optimizer.transformation.update(params, state, params)
    params = optax.apply_updates(params, updates)
    float(optimizer.schedule(50))  # 0.0005, half of the cosine
  """
  rule, around = lookup(RULES, choice.name)
  if rule is muon:
    matrices.check_matrices(trees.flatten(params))
  return choice.call(around, choice.call(rule), params, total, steps, statistics, layers_above)


def optimizer(
  rule: optax.GradientTransformation | PointRule,
  params: Params,
  total: int,
  steps: Callable[[Duration], int],
  statistics: frozenset[str] = frozenset(),
  layers_above: LayersAbove = None,
  *,
  lr: Positive,
  schedule: Annotated[Choice, schedules.SCHEDULES] = Choice("cosine"),
  warmup: Duration = Duration("0"),
  weight_decay: NonNegative = 0.0,
  weight_decay_schedule: Annotated[Choice, value_schedules.SCHEDULES_FROM_START] = Choice("constant"),
  decay: Literal["times_lr", "independent"] = "times_lr",
  decay_on: tuple[tuple[Pattern, NonNegative], ...] = ((Pattern(".*kernel"), 1.0),),
  frozen: tuple[Pattern, ...] = (),
  lr_multipliers: tuple[tuple[Pattern, NonNegative], ...] = (),
  delay: tuple[tuple[Pattern, Duration], ...] = (),
  layer_decay: Annotated[float, Range(0, 1, open_low=True)] | None = None,
  trust_ratio: Literal["none", "decayed", "all"] = "none",
  clip: Positive | None = None,
  clip_by: Literal["global", "tensor", "module"] = "global",
) -> Optimizer:
  """Returns the complete gradient transformation around an update rule, and its learning rate schedule.

  The update combines these values:

  - u: the result of the rule for the clipped gradient.
  - p: the parameter.
  - r(t): the learning rate of the schedule at step t.
  - m: the learning rate multiplier of the parameter's path.

  The two settings of `decay` compute:

    times_lr:    update = -r(t) m (u + weight_decay p)          (torch; Loshchilov & Hutter 2019 with the rate inside)
    independent: update = -r(t) m u - r(t) / lr weight_decay p  (big_vision: here decay is independent of lr)

  Frozen parameters have no optimizer state, their update is zero, and `clip` ignores their gradients. The same is true
  for `statistics`. Patterns are not compared with the paths of `statistics`.

  Args:
    rule: transformation of gradients to directions, without a learning rate. It may have another point for its
      gradients, see `points`.
    params: nested parameters, as arrays or as shapes.
    total: number of steps of the run.
    steps: function that converts a duration to a number of steps.
    statistics: paths that the model updates itself.
    layers_above: number of layers between each parameter and the logits, by path. None for models with unequal layers.
    lr: peak learning rate.
    schedule: learning rate as a function of the step.
    warmup: length of the linear warm-up from 0.
    weight_decay: decay factor. For each parameter, the factor is multiplied by the value of the parameter in
      `decay_on`.
    weight_decay_schedule: decay factor as a function of the step. `weight_decay` is its value at step 0.
    decay: "times_lr" multiplies the decay by the learning rate. "independent" multiplies it by r(t) / lr.
    decay_on: pairs of pattern and decay multiplier. The first pattern that matches a path counts. Other paths have 0.
    frozen: patterns of the parameters that are not trained.
    lr_multipliers: pairs of pattern and learning rate multiplier. The first match counts. Other paths have 1.
    delay: pairs of pattern and duration. The update of a parameter is zero until the duration of the first match has
      passed. The state of the rule, such as moments, follows the gradients from the first step.
    layer_decay: multiplies the learning rate of a parameter by layer_decay ** layers_above[path]. None disables it.
    trust_ratio: multiplies v = u + weight_decay p by |p| / |v|. (With "independent", v = u.) "all" adapts all
      parameters, "decayed" adapts only parameters with weight decay. Each parameter and each layer of a stack has its
      own ratio. The ratio turns Adam into LAMB and SGD into LARS (You et al. 2020).
    clip: limit of the gradient norm. None disables clipping.
    clip_by: arrays that share a norm: all of them ("global"), each one ("tensor"), or those of the model and of each
      module of the task ("module"). See `clipping`.

  Raises:
    ConfigError: if a pattern has no effect, all parameters are frozen, or an argument does not fit the model.
  """
  rate = schedules.create_schedule(schedule, lr, total, steps(warmup), steps)
  own = rule if isinstance(rule, PointRule) else PointRule(rule)
  if own.interpolation is not None:
    _check_average(schedule, steps, statistics)
  paths = _select_trainable(params, statistics)
  scales: dict[str, Scale] = {**_match_patterns("lr_multipliers", lr_multipliers, paths, 1.0)}
  if layer_decay is not None:
    if layers_above is None:
      raise ConfigError(
        "the layers of this model do not all have the same structure. Use lr_multipliers", "layer_decay"
      )
    for path in paths:
      above = layers_above.get(path, 0)
      if above is None:
        raise ConfigError(
          f"the order of this model's layers does not include the parameter {path!r}. Pass order= to register.model",
          "layer_decay",
        )
      scales[path] = scales[path] * _compute_power(layer_decay, above)
  scheduled = weight_decay_schedule.name != "constant"
  decays = {}
  if weight_decay or scheduled:
    factor = 1.0 if scheduled else weight_decay
    decays = {k: factor * v for k, v in _match_patterns("decay_on", decay_on, paths, 0.0).items() if v}
  decaying = _add_decayed(decays)
  if scheduled:
    factors = value_schedules.create_weight_decay_schedule(weight_decay_schedule, weight_decay, total, steps)
    decaying = _schedule_updates(lambda step, path, u, p: u + factors(step) * decays[path] * p, decays)
  if trust_ratio == "decayed" and not decays:
    raise ConfigError("'decayed' has no effect if weight_decay is 0. Set weight_decay, or use 'all'", "trust_ratio")
  stacked = frozenset(path for path, above in (layers_above or {}).items() if isinstance(above, np.ndarray))
  trust = {"none": [], "decayed": [_scale_by_trust(decays, stacked)], "all": [_scale_by_trust(paths, stacked)]}[
    trust_ratio
  ]
  if decay == "times_lr":
    after = [decaying, *trust, _scale_updates(scales), optax.scale_by_schedule(lambda step: -rate(step))]
  else:
    scales = {path: lr * scale for path, scale in scales.items()}
    after = [
      *trust,
      _scale_updates(scales),
      decaying,
      optax.scale_by_schedule(lambda step: -rate(step) / lr),
    ]
  if delay:
    starts = _find_starts(delay, paths, total, steps)
    after.append(_schedule_updates(lambda step, path, u, _: jnp.where(step >= starts[path], u, 0), starts))
  chain: optax.GradientTransformation = optax.chain(*_create_clipping(clip, clip_by, stacked), own.direction, *after)
  find_point = None
  if own.interpolation is not None:
    chain = points.average_iterates(chain, own.interpolation, rate)
    find_point = points.make_find_point(own.interpolation)

  paths_without_gradients = list_paths_without_gradients(frozen, params, statistics)
  if paths_without_gradients:
    labels = trees.map_named(lambda path, _: "frozen" if path in paths_without_gradients else "trained", params)
    chain = optax.partition({"trained": chain, "frozen": optax.set_to_zero()}, labels)
  return Optimizer(chain, rate, paths_without_gradients, find_point, own.radius)


def list_paths_without_gradients(
  patterns: Sequence[str], params: Params, statistics: frozenset[str] = frozenset()
) -> frozenset[str]:
  """Returns the paths that gradients do not update: the frozen parameters and all statistics.

  Args:
    patterns: regular expressions of `config.optim.frozen`. Each is compared with the whole path of a parameter.
    params: nested parameters, as arrays or as shapes.
    statistics: paths that the model updates itself. Patterns are not compared with these paths.

  Raises:
    ConfigError: if a pattern has no effect, or if the patterns match all parameters.
  """
  paths = _select_trainable(params, statistics)
  held = _match_patterns("frozen", [(pattern, True) for pattern in patterns], paths, False)
  if all(held.values()):
    raise ConfigError(f"{patterns} matches every parameter, so no parameter would be trained", "frozen")
  return statistics | {path for path in paths if held[path]}


def _select_trainable(params: Params, statistics: frozenset[str]) -> dict[str, Any]:
  return {path: leaf for path, leaf in trees.flatten(params).items() if path not in statistics}


# Update rules: transformations of gradients to directions, without a learning rate.


def adamw(
  *, b1: Momentum = 0.9, b2: Momentum = 0.999, eps: Positive = 1e-8, mu_dtype: Precision = "float32"
) -> optax.GradientTransformation:
  """Returns the Adam rule (Kingma & Ba 2015). Together with the `weight_decay` of `optimizer`, the rule is AdamW.

  Args:
    b1: decay rate of the first moment.
    b2: decay rate of the second moment.
    eps: added to the root of the second moment.
    mu_dtype: type in which the first moment is stored.
  """
  return optax.scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype)


def nadamw(
  *, b1: Momentum = 0.9, b2: Momentum = 0.999, eps: Positive = 1e-8, mu_dtype: Precision = "float32"
) -> optax.GradientTransformation:
  """Returns the Adam rule with Nesterov momentum (Dozat 2016). With `weight_decay`, the rule is NadamW.

  At step t = 1, 2, ..., the first moment m and the gradient g give the corrected moment
  b1 m / (1 - b1 ** (t + 1)) + (1 - b1) g / (1 - b1 ** t). AlgoPerf's baseline divides both terms by 1 - b1 ** t. With
  b1 = 0.9, the two formulas differ by less than 1 % after 40 steps.

  Args:
    b1: decay rate of the first moment m.
    b2: decay rate of the second moment.
    eps: added to the root of the second moment.
    mu_dtype: type in which the first moment is stored.
  """
  return optax.scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype, nesterov=True)


def sgd(
  *, momentum: Momentum = 0.9, nesterov: bool = False, accumulator_dtype: Precision = "float32"
) -> optax.GradientTransformation:
  """Returns the rule of stochastic gradient descent with momentum: v = momentum v + g.

  Args:
    momentum: factor of the accumulated gradient v. With 0 the direction is the gradient g.
    nesterov: whether the direction is g + momentum v instead of v.
    accumulator_dtype: type in which v is stored.
  """
  return optax.trace(momentum, nesterov, accumulator_dtype) if momentum else optax.identity()


def adafactor(
  *,
  b2_exponent: Positive = 0.8,
  b2_cap: Momentum = 0.999,
  momentum: Momentum = 0.9,
  momentum_dtype: Precision = "bfloat16",
  factored_from: Count = 32,
  clipping: Positive | None = None,
) -> optax.GradientTransformation:
  """Returns the Adafactor rule of ViT-G (Zhai et al. 2022, section 3.4).

  Unlike the original Adafactor, the rule does not rescale updates by the size of the parameters.

  Args:
    b2_exponent: second moments decay by min(b2_cap, 1 - t ** -b2_exponent) at steps t = 1, 2, ...
    b2_cap: largest decay rate of the second moments.
    momentum: decay rate of the average of updates, momentum m + (1 - momentum) u, without bias correction. 0 disables
      the average.
    momentum_dtype: type in which the average is stored.
    factored_from: second moments are factored over the two largest axes if both have at least this many entries.
    clipping: limit of the root mean square of each array, applied before the average. None disables it.
  """
  return optax.chain(
    optax.scale_by_factored_rms(
      decay_rate=b2_exponent,
      min_dim_size_to_factor=factored_from,
      decay_rate_fn=lambda step, exponent: jnp.minimum(b2_cap, 1 - (step + 1.0) ** -exponent),
    ),
    *([optax.clip_by_block_rms(clipping)] if clipping is not None else []),
    *([optax.ema(momentum, debias=False, accumulator_dtype=momentum_dtype)] if momentum else []),
  )


def lion(*, b1: Momentum = 0.9, b2: Momentum = 0.99, mu_dtype: Precision = "float32") -> optax.GradientTransformation:
  """Returns the Lion rule (Chen et al. 2023), which needs a 3 to 10 times smaller `lr` than Adam.

  The direction is the sign of b1 m + (1 - b1) g. Afterwards m becomes b2 m + (1 - b2) g.

  Args:
    b1: weight of the momentum m in the direction.
    b2: decay rate of the momentum m.
    mu_dtype: type in which the momentum is stored.
  """
  return optax.scale_by_lion(b1, b2, mu_dtype=mu_dtype)


def lamb(
  *, b1: Momentum = 0.9, b2: Momentum = 0.999, eps: Positive = 1e-6, mu_dtype: Precision = "float32"
) -> optax.GradientTransformation:
  """Returns the Adam rule of LAMB (You et al. 2020). The choice "lamb" sets trust_ratio="decayed", as in timm and apex.

  The paper and Optax adapt "all" parameters. In this package, query, key and value have separate tensors and ratios.
  Implementations that store them in one tensor use one ratio for all three.

  Args:
    b1: decay rate of the first moment.
    b2: decay rate of the second moment.
    eps: added to the root of the second moment.
    mu_dtype: type in which the first moment is stored.
  """
  return optax.scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype)


BASES = {rule.__name__: rule for rule in (adamw, nadamw, sgd, adafactor, lion)}


def sam(*, rho: Positive = 0.05, rule: Annotated[Choice, BASES] = Choice("adamw")) -> PointRule:
  """Returns sharpness-aware minimisation (Foret et al. 2021, arXiv:2010.01412) around another rule.

  A step computes the gradient g at the parameters p, and then the gradient at p + rho g / |g| for the same images and
  dropout masks. The rule uses the second gradient. Clipping and the logged gradient norm also use the second gradient.
  The training loss and the statistics of batch norms are computed at p. With two gradients, a step takes about twice as
  long as a step of the rule.

  The norm |g| is that of the whole batch, also with `accumulate`. The paper computes it for each device, so its results
  depend on the number of devices. Frozen parameters do not move.

  Args:
    rho: length of the ascent step. ViTs that are trained from scratch need larger values than ResNets (Chen et al.
      2022, arXiv:2106.01548).
    rule: the update rule with its own arguments: "adamw", "nadamw", "sgd", "adafactor" or "lion".
  """
  return PointRule(make(rule, BASES), radius=rho)


ADVICE = {"frozen": """. All but the head: --config.optim.frozen='["(?!head).*"]'"""}  # for a pattern without a match

RULES: dict[str, tuple[Callable[..., Any], Callable[..., Optimizer]]] = {
  rule.__name__: (rule, optimizer) for rule in (*BASES.values(), muon, sam)
}
RULES["lamb"] = (lamb, preset(optimizer, trust_ratio="decayed"))
RULES["schedule_free"] = (schedule_free, preset(optimizer, schedule=Choice("constant")))


def _check_average(schedule: Choice, steps: Callable[[Duration], int], statistics: Collection[str]) -> None:
  """Raises ConfigError if a run cannot use Schedule-Free."""
  if schedule.name != "constant":
    raise ConfigError(
      f"{schedule.name!r} changes the learning rate, but 'schedule_free' needs a constant one. Set "
      "schedule to 'constant'. A warmup is allowed",
      "schedule.name",
    )
  if steps(schedule.args["cooldown"]):
    raise ConfigError(
      f"expected 0, got {schedule.args['cooldown']!s}. 'schedule_free' needs a constant learning rate",
      "schedule.cooldown",
    )
  if statistics:
    raise ConfigError(
      f"'schedule_free' does not support batch norms and centres, such as {min(statistics)!r}. Use 'adamw'",
      "name",
    )


# Multipliers by path.


def _match_patterns(
  key: str, rows: Sequence[tuple[str, Value]], paths: Iterable[str], default: Value
) -> dict[str, Value]:
  """Returns the value of the first pattern that matches each path.

  Raises ConfigError if a pattern is never the first match.
  """
  patterns = [pattern for pattern, _ in rows]
  first = {path: trees.find_first_match(patterns, path) for path in paths}
  for i, pattern in enumerate(patterns):
    if i in first.values():
      continue
    if any(re.fullmatch(pattern, path) for path in paths):
      raise ConfigError(
        f"{pattern!r} has no effect: earlier patterns match all of its parameters. Put it first", f"{key}[{i}]"
      )
    raise ConfigError(
      f"{pattern!r} matches no parameter. A pattern is a regular expression for the whole path. Nearest: "
      f"{', '.join(trees.find_nearest(pattern, paths))}{ADVICE.get(key, '')}",
      f"{key}[{i}]",
    )
  return {path: default if i is None else rows[i][1] for path, i in first.items()}


def _scale_updates(scales: Mapping[str, Scale]) -> optax.GradientTransformation:
  """Multiplies updates by the multiplier of their path: a number, or one number per layer of a stack."""
  # Selected by path, because the tree that arrives here does not contain the frozen parameters.
  scales = {path: scale for path, scale in scales.items() if np.any(scale != 1)}
  return optax.stateless(
    lambda updates, _: trees.map_named(lambda path, u: u * scales[path] if path in scales else u, updates)
  )


def _add_decayed(decays: Mapping[str, float]) -> optax.GradientTransformation:
  """Adds the decay of each path times the parameter to the updates."""
  return optax.stateless(
    lambda updates, params: trees.map_named(
      lambda path, u, p: u + decays[path] * p if path in decays else u, updates, params
    )
  )


def _schedule_updates(
  change: Callable[[Count, str, jax.Array, jax.Array], jax.Array], changed: Collection[str]
) -> optax.GradientTransformation:
  """Applies change(step, path, update, parameter) to the updates with certain paths. The state counts the steps."""

  def update(updates: object, state: optax.ScaleByScheduleState, params: object = None) -> tuple[Any, Any]:
    step = state.count
    updates = trees.map_named(lambda path, u, p: change(step, path, u, p) if path in changed else u, updates, params)
    return updates, optax.ScaleByScheduleState(optax.safe_increment(step))

  return optax.GradientTransformation(lambda _: optax.ScaleByScheduleState(jnp.zeros((), jnp.int32)), update)


def _find_starts(
  delay: Sequence[tuple[str, Duration]], paths: Iterable[str], total: int, steps: Callable[[Duration], int]
) -> dict[str, int]:
  """Returns the number of steps before the first update of each delayed path."""
  rows = [(pattern, steps(duration)) for pattern, duration in delay]
  for i, (_, start) in enumerate(rows):
    if start >= total:
      raise ConfigError(
        f"{format_amount(start, 'step')}, but the run has {total:,}, so these parameters would not be trained. "
        "Shorten the delay, or use frozen",
        f"delay[{i}]",
      )
  return {path: start for path, start in _match_patterns("delay", rows, paths, 0).items() if start}


def _create_clipping(
  clip: float | None, by: Literal["global", "tensor", "module"], stacked: Collection[str]
) -> list[optax.GradientTransformation]:
  if clip is None:
    if by != "global":
      raise ConfigError(f"{by!r} has no effect without clip. Set clip, or remove clip_by", "clip_by")
    return []
  return [optax.clip_by_global_norm(clip) if by == "global" else clipping.clip_norms(clip, by, stacked)]


def _scale_by_trust(adapted: Collection[str], stacked: Collection[str]) -> optax.GradientTransformation:
  """Multiplies the adapted updates by |p| / |u| if neither is 0. Optax's version does not support stacks of layers."""

  def adapt(path: str, u: jax.Array, p: jax.Array) -> jax.Array:
    if path not in adapted:
      return u
    axes = tuple(range(path in stacked, u.ndim))
    squares = (jnp.sum(jnp.square(x.astype(jnp.float32)), axes, keepdims=True) for x in (p, u))
    of_p, of_u = (jnp.sqrt(square) for square in squares)
    return u * jnp.where((of_p > 0) & (of_u > 0), of_p / of_u, 1)

  return optax.stateless(lambda updates, params: trees.map_named(adapt, updates, params))


def _compute_power(decay: float, layers: int | np.ndarray) -> Scale:
  # A stack uses float32, like its updates.
  return (np.float32(decay) if isinstance(layers, np.ndarray) else decay) ** layers
