"""Helpers for tests of optimizers: transformations from configs, a small ViT's gradients, comparison of updates."""

import jax
import numpy as np
import optax

from vit_jax import optim, trees
from vit_jax.models import parameters
from vit_jax.schema import Choice, bind, enter_key, lookup

STEPS = 5


def make(params, total=10, statistics=frozenset(), **args):
  """Returns the transformation and the schedule for a config with durations in steps."""
  made = make_optimizer(params, total, statistics, **args)
  return made.transformation, made.schedule


def make_optimizer(params, total=10, statistics=frozenset(), **args):
  """Returns the optimizer for a config with durations in steps."""
  args = {"name": "adamw", "lr": 1e-2, "schedule": Choice("constant")} | args
  above = parameters.count_layers_above(parameters.ORDER, trees.flatten(params))
  with enter_key("config.optim"):
    choice = bound(args.pop("name"), args)
    return optim.create_optimizer(
      choice, params, total, lambda duration: duration.count_steps(1, 1, total), statistics, above
    )


def bound(name, args):
  return bind(Choice(name, args), lookup(optim.RULES, name))


def walk(transformation, params, gradients):
  """Returns the parameters after all steps, the update of each step, and the state."""
  state, updates = transformation.init(params), []
  for gradient in gradients:
    step, state = transformation.update(gradient, state, params)
    params = optax.apply_updates(params, step)
    updates.append(step)
  return params, updates, state


def example(scanned=False, seed=0):
  """Returns a small ViT's parameters and gradients as flat dictionaries by path."""
  rng = np.random.default_rng(seed)
  # Only two shapes, because each further shape costs a compilation of each operation.
  kernel, vector = (4, 4), (4,)
  block = {"mlp/up/kernel": kernel, "mlp/up/bias": vector, "norm1/scale": vector}
  shapes = {"cls": vector, "embedding/kernel": kernel, "position/table": kernel, "norm/scale": vector}
  shapes |= {"head/kernel": kernel, "head/bias": vector}
  layers = 3
  if scanned:
    shapes |= {f"blocks/{path}": (layers, *shape) for path, shape in block.items()}
  else:
    shapes |= {f"blocks/{i}/{path}": shape for i in range(layers) for path, shape in block.items()}

  def draw(scale):
    return {path: jax.device_put(np.float32(scale * rng.standard_normal(shape))) for path, shape in shapes.items()}

  return draw(1.0), [draw(0.1) for _ in range(STEPS)]


def assert_same_updates(updates, expected, tolerance):
  """Checks that updates differ by at most a share of the largest update of their path."""
  for step, (ours, theirs) in enumerate(zip(updates, expected, strict=True), 1):
    assert ours.keys() == theirs.keys()
    for path in theirs:
      limit = tolerance * max(np.abs(np.asarray(e[path], np.float32)).max() for e in expected)
      difference = np.abs(np.asarray(ours[path] - theirs[path], np.float32)).max()
      assert difference <= limit, f"step {step}, {path}: {difference} > {limit}"


def bytes_of(tree):
  """Returns the bytes of all arrays together."""
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
