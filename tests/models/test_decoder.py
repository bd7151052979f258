"""Tests of the masked autoencoder's decoder against NumPy loops that place each token at its patch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from vit_jax.models import decoder, positions

pytestmark = pytest.mark.heavy

DECODER = decoder.Decoder(
  "task/decoder",
  inputs=8,
  outputs=5,
  grid=(2, 3),
  width=16,
  depth=2,
  heads=2,
  dtype="float32",
  scan=False,
  remat="none",
)
ORDER = np.array([[4, 1, 0, 2, 3, 5], [2, 5, 1, 0, 4, 3]])  # the first two patches of each row are visible


def params():
  """Returns initial parameters plus noise, so that zeros and ones do not hide errors."""
  values = DECODER.init(jax.random.key(0))
  return {path: value + 0.1 * jax.random.normal(jax.random.key(i), value.shape)
          for i, (path, value) in enumerate(values.items())}  # fmt: skip


def tokens(prefix):
  return jax.random.normal(jax.random.key(1), (2, prefix + 2, 8))


def norm(x, values, path):
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  return x * values[f"{path}/scale"] + values[f"{path}/bias"]


def attention(x, values, path):
  result = values[f"{path}/out/bias"].copy() * np.ones_like(x)
  for head in range(2):
    q, k, v = (
      np.einsum("td,dk->tk", x, values[f"{path}/{name}/kernel"][:, head]) + values[f"{path}/{name}/bias"][head]
      for name in ("query", "key", "value")
    )
    scores = np.exp(q @ k.T / np.sqrt(q.shape[-1]))
    result += scores / scores.sum(-1, keepdims=True) @ v @ values[f"{path}/out/kernel"][head]
  return result


def mlp(x, values, path):
  x = x @ values[f"{path}/up/kernel"] + values[f"{path}/up/bias"]
  return x * (1 + erf(x / np.sqrt(2))) / 2 @ values[f"{path}/down/kernel"] + values[f"{path}/down/bias"]


def predict_in_numpy(values, seen, order):
  """Computes the predictions of all patches of one image from its prefix tokens and visible tokens."""
  values = {path.removeprefix("task/decoder/"): np.asarray(value, np.float64) for path, value in values.items()}
  x = np.asarray(seen, np.float64) @ values["embedding/kernel"] + values["embedding/bias"]
  prefix, patches = len(x) - 2, []
  for number in range(6):
    place = list(order).index(number)
    patches.append(x[prefix + place] if place < 2 else values["mask_token"])
  x = np.concatenate([x[:prefix], np.stack(patches) + positions.compute_sincos2d(2, 3, 16)])
  for i in range(2):
    x = x + attention(norm(x, values, f"blocks/{i}/norm1"), values, f"blocks/{i}/attention")
    x = x + mlp(norm(x, values, f"blocks/{i}/norm2"), values, f"blocks/{i}/mlp")
  return (norm(x, values, "norm") @ values["prediction/kernel"] + values["prediction/bias"])[prefix:]


@pytest.mark.long
@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_visible_tokens_keep_their_places_and_mask_tokens_fill_the_rest(prefix):
  values, seen = params(), tokens(prefix)
  got = DECODER(values, seen, jnp.asarray(ORDER[:, :2]), jnp.argsort(ORDER, axis=1))
  expected = [predict_in_numpy(values, seen[i], ORDER[i]) for i in range(2)]
  np.testing.assert_allclose(got, expected, atol=1e-4)


def test_scanning_and_rematerialisation_do_not_change_predictions():
  values, seen = params(), tokens(1)
  arguments = (seen, jnp.asarray(ORDER[:, :2]), jnp.argsort(ORDER, axis=1))
  scanned = dataclasses.replace(DECODER, scan=True, remat="full")
  stacked = {path: value for path, value in values.items() if "/blocks/" not in path}
  for path in scanned.init(jax.random.key(0)).keys() - stacked.keys():
    inside = path.removeprefix("task/decoder/blocks/")
    stacked[path] = jnp.stack([values[f"task/decoder/blocks/{i}/{inside}"] for i in range(2)])
  np.testing.assert_allclose(scanned(stacked, *arguments), DECODER(values, *arguments), atol=1e-5)
