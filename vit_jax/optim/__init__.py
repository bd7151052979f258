"""Optimizers and schedules: an update rule by name, and around it clipping, decay, frozen parts and layer-wise rates.

`RULES` and `schedules.SCHEDULES` are the choices; their keyword-only parameters are the config schema. Parts of the
network are named by patterns on whole parameter paths (see `trees`); a pattern without effect is an error.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

import jax.numpy as jnp
import numpy as np
import optax

from vit_jax import trees
from vit_jax.optim import matrices, schedules
from vit_jax.optim.matrices import muon
from vit_jax.schema import (
  Choice,
  ConfigError,
  Count,
  Duration,
  Momentum,
  NonNegative,
  Pattern,
  Positive,
  Range,
  arguments,
  lookup,
  preset,
)

Precision = Literal["float32", "bfloat16"]
# Layers between a parameter and the logits, by path; of a scanned stack an array with a number for each of its layers.
LayersAbove = Mapping[str, int | np.ndarray | None] | None


def create(
  choice: Choice,
  params,
  total: int,
  steps: Callable[[Duration], int],
  statistics: frozenset[str] = frozenset(),
  layers_above: LayersAbove = None,
):
  """The `optimizer` of a bound choice for parameters (arrays or shapes) and a run of `total` steps."""
  rule, around = lookup(RULES, choice.name)
  if rule is muon:
    matrices.check(trees.flatten(params))
  return around(
    rule(**arguments(choice, rule)), params, total, steps, statistics, layers_above, **arguments(choice, around)
  )


def optimizer(
  rule: optax.GradientTransformation,
  params,
  total: int,
  steps: Callable[[Duration], int],
  statistics: frozenset[str] = frozenset(),
  layers_above: LayersAbove = None,
  *,
  lr: Positive,
  schedule: Annotated[Choice, schedules.SCHEDULES] = Choice("cosine"),
  warmup: Duration = Duration("0"),
  weight_decay: NonNegative = 0.0,
  decay: Literal["times_lr", "independent"] = "times_lr",
  decay_on: tuple[tuple[Pattern, NonNegative], ...] = ((".*kernel", 1.0),),
  frozen: tuple[Pattern, ...] = (),
  lr_multipliers: tuple[tuple[Pattern, NonNegative], ...] = (),
  layer_decay: Annotated[float, Range(0, 1, open_low=True)] | None = None,
  trust_ratio: Literal["none", "decayed", "all"] = "none",
  clip: Positive | None = None,
) -> tuple[optax.GradientTransformation, schedules.Schedule]:
  """The whole transformation of gradients to updates, and the schedule (step -> learning rate) to log beside it.

  With u what the rule makes of the clipped gradient, p the parameter, r(t) the schedule, m the multiplier of its path:

    times_lr:    update = -r(t) m (u + weight_decay p)          (torch; Loshchilov & Hutter 2019 with the rate inside)
    independent: update = -r(t) m u - r(t) / lr weight_decay p  (big_vision: here decay is independent of lr)

  `decay_on` and `lr_multipliers` are pairs of pattern and multiplier: the first that matches a whole path counts; what
  none matches has 0 and 1. `layer_decay` multiplies the rates by layer_decay ** layers_above[path]. `trust_ratio`
  multiplies what follows m, of "all" parameters or of the "decayed" ones, by |p| over its own norm, for each parameter
  and layer by itself; it makes LAMB of Adam and LARS of SGD (You et al. 2020). Frozen parameters have no state, update
  zero, and no part in the norm that `clip` limits. Neither have `statistics`, the paths that the model moves itself;
  patterns do not see them.
  """
  rate = schedules.create(schedule, lr, total, steps(warmup), steps)
  paths = _trainable(params, statistics)
  scales = _by_pattern("lr_multipliers", lr_multipliers, paths, 1.0)
  if layer_decay is not None:
    if layers_above is None:
      raise ConfigError("this model's layers are not alike; use lr_multipliers", "layer_decay")
    if unknown := [path for path in paths if path in layers_above and layers_above[path] is None]:
      raise ConfigError(
        f"the order of this model's layers has no place for the parameter {unknown[0]!r}. "
        "Pass order= to register.model",
        "layer_decay",
      )
    scales = {path: scale * _power(layer_decay, layers_above.get(path, 0)) for path, scale in scales.items()}
  decays = {}
  if weight_decay:
    decays = {k: weight_decay * v for k, v in _by_pattern("decay_on", decay_on, paths, 0.0).items() if v}

  clipping = [optax.clip_by_global_norm(clip)] if clip is not None else []
  if trust_ratio == "decayed" and not decays:
    raise ConfigError("'decayed' adapts nothing where weight_decay is 0; set that, or take 'all'", "trust_ratio")
  stacked = frozenset(path for path, above in (layers_above or {}).items() if isinstance(above, np.ndarray))
  trust = {"none": [], "decayed": [_trust(decays, stacked)], "all": [_trust(paths, stacked)]}[trust_ratio]
  if decay == "times_lr":
    after = [_add_decayed(decays), *trust, _scale(scales), optax.scale_by_schedule(lambda step: -rate(step))]
  else:
    scales = {path: lr * scale for path, scale in scales.items()}
    after = [*trust, _scale(scales), _add_decayed(decays), optax.scale_by_schedule(lambda step: -rate(step) / lr)]
  chain = optax.chain(*clipping, rule, *after)

  held = frozen_paths(frozen, params, statistics)
  if not held:
    return chain, rate
  labels = trees.map_named(lambda path, _: "frozen" if path in held else "trained", params)
  return optax.partition({"trained": chain, "frozen": optax.set_to_zero()}, labels), rate


def frozen_paths(frozen: Sequence[str], params, statistics: frozenset[str] = frozenset()) -> frozenset[str]:
  """The paths that no gradient moves: the parameters that the patterns hold, and all statistics."""
  paths = _trainable(params, statistics)
  held = _by_pattern("frozen", [(pattern, True) for pattern in frozen], paths, False)
  if all(held.values()):
    raise ConfigError(f"{frozen} matches every parameter; nothing is left to train", "frozen")
  return statistics | {path for path in paths if held[path]}


def _trainable(params, statistics):
  return {path: leaf for path, leaf in trees.flatten(params).items() if path not in statistics}


# Update rules: gradients to directions, without learning rate.


def adamw(*, b1: Momentum = 0.9, b2: Momentum = 0.999, eps: Positive = 1e-8, mu_dtype: Precision = "float32"):
  """Adam (Kingma & Ba 2015); the W is `weight_decay`. `mu_dtype` stores the first moment."""
  return optax.scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype)


def sgd(*, momentum: Momentum = 0.9, nesterov: bool = False, accumulator_dtype: Precision = "float32"):
  """Stochastic gradient descent: v = momentum v + g, direction v, or g + momentum v (Nesterov)."""
  return optax.trace(momentum, nesterov, accumulator_dtype) if momentum else optax.identity()


def adafactor(
  *,
  b2_exponent: Positive = 0.8,
  b2_cap: Momentum = 0.999,
  momentum: Momentum = 0.9,
  momentum_dtype: Precision = "bfloat16",
  factored_from: Count = 32,
  clipping: Positive | None = None,
):
  """Adafactor as ViT-G's (Zhai et al. 2022, section 3.4), so without rescaling by the size of the parameters.

  Second moments decay by min(b2_cap, 1 - t ** -b2_exponent), t = 1, 2, ..., and are factored over the two largest axes
  where both have at least `factored_from` entries. Then each array is limited to the root mean square `clipping`, then
  averaged: momentum m + (1 - momentum) u, without bias correction.
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


def lion(*, b1: Momentum = 0.9, b2: Momentum = 0.99, mu_dtype: Precision = "float32"):
  """Lion (Chen et al. 2023): the sign of b1 m + (1 - b1) g; then m = b2 m + (1 - b2) g. Wants 3-10 times smaller lr."""
  return optax.scale_by_lion(b1, b2, mu_dtype=mu_dtype)


def lamb(*, b1: Momentum = 0.9, b2: Momentum = 0.999, eps: Positive = 1e-6, mu_dtype: Precision = "float32"):
  """LAMB (You et al. 2020): Adam, and by default the trust ratio of the "decayed" parameters, as in timm and apex.

  The paper and Optax adapt "all". What has one tensor there and several here, as query, key and value, has as many
  ratios.
  """
  return optax.scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype)


ADVICE = {"frozen": """. All but the head: --config.optim.frozen='["(?!head).*"]'"""}  # where a pattern matches nothing

RULES = {rule.__name__: (rule, optimizer) for rule in (adamw, sgd, adafactor, lion, muon)}
RULES["lamb"] = (lamb, preset(optimizer, trust_ratio="decayed"))


# Multipliers by path.


def _by_pattern(key: str, rows: Sequence[tuple[str, object]], paths, default) -> dict[str, object]:
  """Value of every path by its first matching pattern. Every pattern must be the first for some path."""
  patterns = [pattern for pattern, _ in rows]
  first = {path: trees.first_match(patterns, path) for path in paths}
  for i, pattern in enumerate(patterns):
    if i in first.values():
      continue
    if any(re.fullmatch(pattern, path) for path in paths):
      raise ConfigError(
        f"{pattern!r} has no effect: earlier patterns take all that it matches; put it first", f"{key}[{i}]"
      )
    raise ConfigError(
      f"{pattern!r} matches no parameter. A pattern is a regular expression for the whole path; nearest: "
      f"{', '.join(trees.nearest(pattern, paths))}{ADVICE.get(key, '')}",
      f"{key}[{i}]",
    )
  return {path: default if i is None else rows[i][1] for path, i in first.items()}


def _scale(scales):
  """Updates times the multiplier of their path: a number, or one for each layer of a stack."""
  # By path, not by a tree of numbers: frozen parts are missing in the tree that arrives here.
  scales = {path: scale for path, scale in scales.items() if np.any(scale != 1)}
  return optax.stateless(
    lambda updates, _: trees.map_named(lambda path, u: u * scales[path] if path in scales else u, updates)
  )


def _add_decayed(decays):
  """Updates plus the decay of their path times the parameter."""
  return optax.stateless(
    lambda updates, params: trees.map_named(
      lambda path, u, p: u + decays[path] * p if path in decays else u, updates, params
    )
  )


def _trust(adapted, stacked):
  """Updates of the adapted paths times |p| / |u|, where neither is 0: timm's, Optax's knows no stacks of layers."""

  def adapt(path, u, p):
    if path not in adapted:
      return u
    axes = tuple(range(path in stacked, u.ndim))
    squares = (jnp.sum(jnp.square(x.astype(jnp.float32)), axes, keepdims=True) for x in (p, u))
    of_p, of_u = (jnp.sqrt(square) for square in squares)
    return u * jnp.where((of_p > 0) & (of_u > 0), of_p / of_u, 1)

  return optax.stateless(lambda updates, params: trees.map_named(adapt, updates, params))


def _power(decay, layers):
  # Of a stack in float32, as its updates are.
  return (np.float32(decay) if isinstance(layers, np.ndarray) else decay) ** layers
