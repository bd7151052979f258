"""Random streams by name: every draw follows from (seed, name, step), so a restart has no random state to restore."""

import zlib

import jax
import numpy as np


def stream(seed: int, step, name: str) -> jax.Array:
  """Key of the stream `name` at `step` (an int or a traced scalar)."""
  return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode())), step)


class Keys:
  """Keys for initial values, `params()` one after another: the same as those of `flax.nnx.Rngs(params=key)`.

  That one counts in an array of its own, which under tracing takes longer with each key: 13 s for EfficientNet-L2.
  """

  def __init__(self, key: jax.Array):
    self._key, self._count = key, 0

  def params(self) -> jax.Array:
    """The next key."""
    self._count += 1
    return jax.random.fold_in(self._key, self._count - 1)


def generator(seed: int, name: str, *numbers: int) -> np.random.Generator:
  """NumPy generator of the stream `name` at `numbers`, for example (epoch, record): host-side draws."""
  return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, zlib.crc32(name.encode()), *numbers))))
