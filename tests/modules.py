"""Small models and images with random values everywhere, so that layers initialised to zero affect the output.

Initial values are drawn without compiling a program.
"""

import functools
import math
import re

import jax
import numpy as np
from flax import nnx

from vit_jax import models
from vit_jax.schema import Choice

SIZE = {"image_size": 16, "classes": 5, "width": 16, "depth": 3, "heads": 2, "hidden": 24}


def filled(module, seed=0, std=0.3):
  """Returns a module, given by its shapes, with normally distributed parameters. Scales of norms are around 1."""
  rng = np.random.default_rng(seed)
  graph, state = nnx.split(module)
  values = []
  for path, variable in nnx.to_flat_state(state):
    value = std * rng.standard_normal(variable.shape) + (path[-1] == "scale")
    values.append((path, variable.replace(jax.numpy.asarray(value, np.float32))))
  return nnx.merge(graph, nnx.from_flat_state(values))


def layer(build, seed=0, std=0.3):
  """Returns the module of `build(rngs)` with random parameters."""
  return filled(nnx.eval_shape(lambda: build(nnx.Rngs(0))), seed, std)


def model(name="ViT-S/4", seed=0, **arguments):
  """Returns a model with a few thousand random parameters."""
  return filled(nnx.eval_shape(lambda: models.create(name, **(SIZE | arguments))), seed)


def images(size=16, batch=3, seed=0):
  return np.random.default_rng(seed).standard_normal((batch, size, size, 3), dtype=np.float32)


def keys(count, seed=0):
  """Returns one random key for each image."""
  return jax.random.split(jax.random.key(seed), count)


def pictures(batch=6, height=9, width=9, seed=0):
  """Returns uint8 images, as the host sends them."""
  return np.random.default_rng(seed).integers(0, 256, (batch, height, width, 3), dtype=np.uint8)


def compiled(module):
  """Returns the module as a compiled function of its arguments."""
  graph, params = nnx.split(module)
  function = jax.jit(lambda params, *arguments: nnx.merge(graph, params)(*arguments))
  return lambda *arguments: np.asarray(function(params, *arguments))


def run(module, *arguments):
  """Calls the compiled module once."""
  return compiled(module)(*arguments)


def stacked(unrolled, scanned):
  """Returns the model `scanned` with the parameters of `unrolled`."""
  layers = {}
  flat = dict(nnx.to_flat_state(nnx.state(unrolled)))
  for path in flat:
    if path[0] == "blocks":
      layers.setdefault(path[2:], []).append(flat[path])
  values = [(path, variable) for path, variable in flat.items() if path[0] != "blocks"]
  for path, variables in layers.items():
    values.append((("blocks", *path), variables[0].replace(np.stack([v[...] for v in variables]))))
  return nnx.merge(nnx.graphdef(scanned), nnx.from_flat_state(values))


@functools.cache
def shapes(name, image_size=None, classes=None, channels=3, **arguments):
  """Returns {path: shape and type} of a model. Image size and classes default to the published values."""
  return abstract(name, image_size, classes, channels, **arguments).shapes()


@functools.cache
def abstract(name, image_size=None, classes=None, channels=3, **arguments):
  """Returns a functional model, which is created once in a process. Arguments must be hashable."""
  row = models.find(name)
  classes = row.classes if classes is None else classes
  return models.make_functional(
    models.Description(Choice(name, arguments), image_size or row.image_size, classes, channels)
  )


def count(name, image_size=None, classes=None, **arguments):
  """Returns the number of values in all trained parameters."""
  model = abstract(name, image_size, classes, **arguments)
  return sum(math.prod(leaf.shape) for path, leaf in model.shapes().items() if path not in model.statistics)


def check_tables(model):
  """Checks that each parameter has one sharding row of its rank and one place in the order of parameters."""
  published, scan = model.description.published, model.description.model.args.get("scan", False)
  for path, leaf in model.shapes().items():
    rows = [axes for pattern, axes in published.sharding if re.fullmatch(pattern, path)]
    assert len(rows) == 1, path
    assert len(rows[0]) + (scan and path.startswith("blocks/")) == len(leaf.shape), path
    named = [axis for axis in rows[0] if axis]
    assert set(named) <= {"fsdp", "tensor"} and len(named) == len(set(named)), path  # at most one dimension per axis
    assert leaf.dtype == np.float32, path
    order = published.order
    places = [
      pattern for pattern in (order.before, order.blocks, order.after, order.head) if re.fullmatch(pattern, path)
    ]
    assert len(places) == 1, path


def softmax(x):
  """Computes the softmax over the last axis."""
  e = np.exp(x - x.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True)


def attention(module, x, memory):
  """Computes softmax(q k / sqrt(K)) v in NumPy, one query and one head at a time."""

  def project(part, x):
    return np.einsum("bnd,dhk->bnhk", x, part.kernel[...]) + (0 if part.bias is None else part.bias[...])

  q, k, v = project(module.query, x), project(module.key, memory), project(module.value, memory)
  size, out = q.shape[-1], np.zeros((*x.shape[:2], x.shape[2]))
  for b, p, h in np.ndindex(q.shape[:3]):
    logits = np.array([q[b, p, h] @ k[b, n, h] for n in range(memory.shape[1])])
    if hasattr(module, "offsets"):
      table = np.asarray(module.offsets[...])
      # Row j of the table is the offset p - n = N - 1 - j.
      logits = logits + [q[b, p, h] @ table[memory.shape[1] - 1 - (p - n)] for n in range(memory.shape[1])]
    weights = softmax(logits / math.sqrt(size))
    out[b, p] += (weights @ v[b, :, h]) @ np.asarray(module.out.kernel[h])
  return out + module.out.bias[...]
