"""Random streams by name: every draw follows from (seed, name, step), so a restart has no random state to restore."""

import zlib

import jax
import numpy as np


def stream(seed: int, step, name: str) -> jax.Array:
  """Key of the stream `name` at `step` (an int or a traced scalar)."""
  return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode())), step)


def generator(seed: int, name: str, *numbers: int) -> np.random.Generator:
  """NumPy generator of the stream `name` at `numbers`, for example (epoch, record): host-side draws."""
  return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, zlib.crc32(name.encode()), *numbers))))
