"""Tests of digests and fingerprints against the bytes of the arrays."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import config
from vit_jax.checkpoints import digests
from vit_jax.parallel import sharding

pytestmark = pytest.mark.heavy


def test_fingerprint_depends_on_every_bit_and_the_order():
  x = jnp.arange(12, dtype=jnp.float32).reshape(3, 4)
  base = int(digests.fingerprint({"x": x})["x"])
  flipped = jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(x, jnp.uint32) ^ jnp.uint32(1), jnp.float32)
  for other in (x.at[2, 3].set(12.0), x[::-1], flipped, -x):
    assert int(digests.fingerprint({"x": other})["x"]) != base


def test_digest_of_weights_is_that_of_their_bytes_in_path_order():
  g = sharding.make_mesh(config.Mesh(), jax.devices())
  draw = np.random.default_rng(3)
  arrays = {"blocks/0/kernel": draw.normal(size=(16, 4)), "head/bias": draw.normal(size=(8,))}
  params = {
    path: jax.device_put(array.astype(np.float32), sharding.make_batch_sharding(g)) for path, array in arrays.items()
  }
  expected = hashlib.sha256(b"".join(np.asarray(params[path]).tobytes() for path in sorted(params))).hexdigest()
  assert digests.sha256(params, sharding.make_replicated_sharding(g)) == expected


def test_digest_on_the_host_depends_on_names_and_bytes():
  arrays = {"a": np.zeros(3, np.float32), "b": np.ones(2, np.float32)}
  assert digests.sha256_on_host(arrays) == digests.sha256_on_host(dict(reversed(arrays.items())))
  for other in ({"a": arrays["a"]}, {"c": arrays["a"], "b": arrays["b"]}, arrays | {"b": -arrays["b"]}):
    assert digests.sha256_on_host(other) != digests.sha256_on_host(arrays)


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "bfloat16", "float16", "uint16", "int32", "float32"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 4, 5), (0, 2)])
def test_host_fingerprint_equals_the_device_fingerprint(dtype, shape):
  array = np.asarray(100 * np.random.default_rng(5).random(size=shape)).astype(jnp.dtype(dtype))
  expected = jax.jit(digests.fingerprint)({"x": jnp.asarray(array)})["x"]
  assert digests.fingerprint_on_host(array) == int(expected)
  assert digests.fingerprint_on_host(array[..., ::-1] if array.ndim else array) == int(
    jax.jit(digests.fingerprint)({"x": jnp.asarray(array[..., ::-1] if array.ndim else array)})["x"]
  )
