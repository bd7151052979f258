"""Optimizers of tests: transformations from configs, a small ViT's parameters and gradients, updates compared."""

import jax
import numpy as np
import optax

from vit_jax import optim, trees
from vit_jax.models import parameters
from vit_jax.schema import Choice, bind, enter_key, lookup

STEPS = 5


def make(params, total=10, statistics=frozenset(), **args):
  """Transformation and schedule for a config, durations being plain steps."""
  args = {"name": "adamw", "lr": 1e-2, "schedule": Choice("constant")} | args
  above = parameters.count_layers_above(parameters.ORDER, trees.flatten(params))
  with enter_key("config.optim"):
    choice = bound(args.pop("name"), args)
    made = optim.create_optimizer(
      choice, params, total, lambda duration: duration.steps(1, 1, total), statistics, above
    )
    return made.transformation, made.schedule


def bound(name, args):
  return bind(Choice(name, args), lookup(optim.RULES, name))


def walk(transformation, params, gradients):
  """Parameters after some steps, and the update of each."""
  state, updates = transformation.init(params), []
  for gradient in gradients:
    step, state = transformation.update(gradient, state, params)
    params = optax.apply_updates(params, step)
    updates.append(step)
  return params, updates, state


def example(scanned=False, seed=0):
  """A small ViT's parameters and gradients, as flat dicts by path."""
  rng = np.random.default_rng(seed)
  # Two shapes only: every further one costs a compilation of each operation.
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
  """Differences are shares of the largest update of a path."""
  for step, (ours, theirs) in enumerate(zip(updates, expected, strict=True), 1):
    assert ours.keys() == theirs.keys()
    for path in theirs:
      limit = tolerance * max(np.abs(np.asarray(e[path], np.float32)).max() for e in expected)
      difference = np.abs(np.asarray(ours[path] - theirs[path], np.float32)).max()
      assert difference <= limit, f"step {step}, {path}: {difference} > {limit}"


def bytes_of(tree):
  """Of all arrays together."""
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
