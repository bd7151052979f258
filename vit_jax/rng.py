"""Named random streams: every draw is a function of (seed, name, step), so checkpoints contain no random state."""

import random
import zlib

import jax
import numpy as np

# Specified explicitly, so that JAX_DEFAULT_PRNG_IMPL changes no draw. The value is JAX's default.
_IMPLEMENTATION = "threefry2x32"


def fix_settings() -> None:
  """Sets `jax_threefry_partitionable`, so that the environment variable JAX_THREEFRY_PARTITIONABLE has no effect on
  draws.

  JAX provides no argument for this setting. The value is JAX's default.
  """
  if "jax_threefry_partitionable" in jax.config.values:
    jax.config.update("jax_threefry_partitionable", True)


def make_key(seed: int | jax.Array | np.ndarray) -> jax.Array:
  """Returns the key of a seed. All keys of the package are made here or are derived from these keys."""
  return jax.random.key(seed, impl=_IMPLEMENTATION)


def derive_key(seed: int | jax.Array | np.ndarray, step: int | jax.Array | np.ndarray, name: str) -> jax.Array:
  """Returns the key of a named stream at a step.

  Args:
    seed: seed of the run.
    step: number of the step, which may be traced.
    name: name of the stream, such as "augment".

  Example:
    from vit_jax import rng

    key = rng.derive_key(0, 10, "dropout")  # the same key in every run with this seed
  """
  return jax.random.fold_in(jax.random.fold_in(make_key(seed), zlib.crc32(name.encode())), step)


class Keys:
  """A source of keys for initial values, which produces the same keys as `flax.nnx.Rngs(params=key)`.

  `nnx.Rngs` stores its counter in an array. During tracing, each key therefore takes longer than the previous key: 13 s
  in total for EfficientNet-L2.

  Args:
    key: key from which all others are derived.
  """

  def __init__(self, key: jax.Array) -> None:
    self._key, self._count = key, 0

  def params(self) -> jax.Array:
    """Returns the next key."""
    self._count += 1
    return jax.random.fold_in(self._key, self._count - 1)


def make_python_generator(seed: int, name: str, *numbers: int) -> random.Random:
  """Returns Python's generator of a named stream, for values that are drawn for each example.

  Creating it takes 10 us, compared to 50 us for a NumPy generator. Use only its method `random()`, which is uniform in
  [0, 1). Only for this method does Python's documentation guarantee equal numbers in all Python versions.

  Args:
    seed: seed of the run.
    name: name of the stream.
    *numbers: position in the stream, such as the number of an example. Each must be below 2^64.
  """
  key = seed
  for number in (zlib.crc32(name.encode()), *numbers):
    key = key << 64 | number
  return random.Random(key)


def make_numpy_generator(seed: int, name: str, *numbers: int) -> np.random.Generator:
  """Returns NumPy's generator of a named stream, for draws on the host.

  Args:
    seed: seed of the run.
    name: name of the stream.
    *numbers: position in the stream, such as the epoch.
  """
  return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, zlib.crc32(name.encode()), *numbers))))
