"""Results on one and on eight devices, with the first axis of the arguments split."""

import re

import jax
import numpy as np

from vit_jax import config
from vit_jax.parallel import sharding


def make_mesh(devices, **sizes):
  """A mesh of the first devices; `data` takes those that no other axis takes."""
  return sharding.make_mesh(config.Mesh(**{"data": -1, **sizes}), jax.devices()[:devices])


def compare(function, *arguments, gathered=0, rtol=2e-5):
  """Runs a function with split arguments on 1 and 8 devices.

  Args:
    function: function of arrays.
    *arguments: arrays with a first axis that 8 divides.
    gathered: largest number of values that a device may collect from others at a time.
    rtol: largest difference, as a share of the largest value of each result.

  Returns:
    The result on one device.
  """
  results = []
  for devices in (1, 8):
    place = sharding.make_batch_sharding(make_mesh(devices))
    placed = [jax.device_put(each, place) for each in arguments]
    compiled = jax.jit(function).lower(*placed).compile()
    results.append(jax.device_get(compiled(*placed)))
    for collected in find_gathered(compiled.as_text()):
      assert collected <= gathered, f"{collected} values are gathered"
  for one, many in zip(*map(jax.tree.leaves, results), strict=True):
    if one.dtype == bool or np.issubdtype(one.dtype, np.integer):
      np.testing.assert_array_equal(many, one)
    else:
      np.testing.assert_allclose(many, one, rtol=0, atol=rtol * max(np.abs(one).max(), 1e-30))
  return results[0]


def find_gathered(program):
  """Yields the number of values of each result of all-gather, all-to-all and collective-permute in a program."""
  for shapes in re.findall(r"= (\S.*?) (?:all-gather|all-to-all|collective-permute)(?:-start)?\(", program):
    for sizes in re.findall(r"\w+\[([\d,]*)\]", shapes):
      yield int(np.prod([int(size) for size in sizes.split(",") if size], initial=1))
