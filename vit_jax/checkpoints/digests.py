"""Digests of arrays: fingerprints that devices compute, and SHA-256 of the bytes."""

import hashlib
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np


def fingerprint(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
  """Computes a fingerprint of each array on its devices.

  A fingerprint is the sum modulo 2**32 of the words of an array, each mixed with its position. Integer sums do not
  depend on the order, so equal values have equal fingerprints on every mesh. The mixing function is the finalizer of
  MurmurHash3 (Appleby 2011), so any changed bit changes the sum.

  Args:
    arrays: maps paths to arrays with elements of 1, 2 or 4 bytes.

  Returns:
    {path: uint32 scalar}.
  """

  def mix(x: jax.Array) -> jax.Array:
    width = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
    words = jax.lax.bitcast_convert_type(x, width).astype(jnp.uint32).ravel()
    h = words ^ (jax.lax.iota(jnp.uint32, words.size) * jnp.uint32(0x9E3779B1))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
      h = (h ^ (h >> shift)) * jnp.uint32(factor)
    return jnp.sum(h ^ (h >> 16), dtype=jnp.uint32)

  return {path: mix(x) for path, x in arrays.items()}


def fingerprint_on_host(array: np.ndarray) -> int:
  """Returns the number that `fingerprint` computes for an array, without a device."""
  words = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}").astype(np.uint32)
  h = words ^ (np.arange(words.size, dtype=np.uint32) * np.uint32(0x9E3779B1))
  for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
    h = (h ^ (h >> np.uint32(shift))) * np.uint32(factor)
  return int(np.sum(h ^ (h >> np.uint32(16)), dtype=np.uint32))


def sha256(params: Mapping[str, jax.Array], replicated: jax.sharding.Sharding) -> str:
  """Returns the SHA-256 digest of the little-endian bytes of all parameters in path order, as hexadecimal text.

  Args:
    params: maps paths to arrays, which may be sharded. One array at a time is gathered.
    replicated: sharding of an array that is complete on every device.
  """
  gather = jax.jit(lambda x: x, out_shardings=replicated)
  digest = hashlib.sha256()
  for _, value in sorted(params.items()):
    whole = np.asarray(gather(value))
    digest.update(whole.astype(whole.dtype.newbyteorder("<")).tobytes())
  return digest.hexdigest()


def sha256_on_host(arrays: Mapping[str, np.ndarray]) -> str:
  """Returns the SHA-256 digest of paths and bytes of arrays on the host, in path order, as hexadecimal text."""
  digest = hashlib.sha256()
  for path, array in sorted(arrays.items()):
    digest.update(path.encode() + np.ascontiguousarray(array).tobytes())
  return digest.hexdigest()
