"""Tests of rotary positions against complex numbers, patch by patch, and of their effect on attention."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import modules
from vit_jax.models import rotary
from vit_jax.schema import Choice, ConfigError, make

rng = np.random.default_rng(0)
GRID = (3, 4)


def make_rotary(name, heads=2, size=8, grid=GRID, **arguments):
  return make(Choice(name, arguments), rotary.ROTARY, heads, size, grid)


def rotate(x, angles):
  """Multiplies the complex numbers of channels i and i + K / 2 by exp(i angle)."""
  half = x.shape[-1] // 2
  z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * np.asarray(angles, np.float64))
  return np.concatenate([z.real, z.imag], axis=-1)


@pytest.mark.heavy
def test_channel_pairs_rotate_like_complex_numbers():
  x, angles = rng.standard_normal((2, 5, 3, 8)), rng.standard_normal((5, 1, 4))
  np.testing.assert_allclose(
    rotary.apply_rotary(x.astype(np.float32), angles.astype(np.float32)), rotate(x, angles), atol=1e-5
  )


@pytest.mark.parametrize("first", ["rows", "columns"])
def test_axial_angles_depend_on_row_and_column_of_the_patch(first):
  one = make_rotary("axial", temperature=50.0, first=first)
  angles = one.compute_angles(one.compute_coordinates(*GRID, None), None)
  for n, (row, column) in enumerate(np.ndindex(*GRID)):
    ends = (row, column) if first == "rows" else (column, row)
    expected = [place / 50 ** (i / 2) for place in ends for i in range(2)]
    np.testing.assert_allclose(angles[n, 0], expected, rtol=1e-6)


@pytest.mark.parametrize(("reference", "side"), [(None, None), (0, (3, 4)), (16, (16, 16))])
def test_coordinates_are_scaled_to_the_reference_grid(reference, side):
  one = make_rotary("axial", reference=reference)
  places = one.compute_coordinates(6, 8, None).reshape(6, 8, 2)
  rows, columns = side or (6, 8)
  np.testing.assert_allclose(places[:, 0, 0], np.arange(6) * rows / 6, rtol=1e-6)
  np.testing.assert_allclose(places[0, :, 1], np.arange(8) * columns / 8, rtol=1e-6)


def test_registers_rotate_on_their_own_square_grid_or_not_at_all():
  one = make_rotary("axial", registers=7.0)
  for n, (row, column) in enumerate(np.ndindex(2, 2)):
    expected = [place / 7 ** (i / 2) for place in (row, column) for i in range(2)]
    np.testing.assert_allclose(one.compute_register_angles(4)[n, 0], expected, rtol=1e-6)
  with pytest.raises(ConfigError, match=r"registers: 3; rotary registers must form a square"):
    one.compute_register_angles(3)
  assert (
    not make_rotary("axial").compute_register_angles(3).any()
    and not make_rotary("mixed").compute_register_angles(3).any()
  )


@pytest.mark.heavy
def test_mixed_angles_use_the_frequencies_of_each_head():
  one = make_rotary("mixed", heads=3)
  frequencies = rng.standard_normal((2, 3, 4)).astype(np.float32)
  angles = np.asarray(one.compute_angles(one.compute_coordinates(*GRID, None), frequencies))
  for n, (row, column) in enumerate(np.ndindex(*GRID)):
    np.testing.assert_allclose(angles[n], column * frequencies[0] + row * frequencies[1], rtol=1e-5, atol=1e-6)


@pytest.mark.heavy
def test_initial_mixed_frequencies_are_rotated_axial_frequencies():
  across, down = np.asarray(make_rotary("mixed", heads=200, size=16).init(jax.random.key(0)), np.float64)
  sizes = 10 ** (-np.arange(4) / 4)
  for half in (slice(0, 4), slice(4, 8)):
    np.testing.assert_allclose(np.hypot(across[:, half], down[:, half]), np.tile(sizes, (200, 1)), rtol=1e-5)
  angle = np.arctan2(down, across)
  np.testing.assert_allclose(np.cos(angle[:, 4:] - angle[:, :4]), 0, atol=1e-4)  # at right angles
  assert np.ptp(angle[:, :4], axis=1).max() < 1e-4 and angle[:, 0].std() > 1.5


@pytest.mark.parametrize(("normalise", "sides"), [("separate", (3, 4)), ("max", (4, 4)), ("min", (3, 3))])
def test_dinov3_angles_use_coordinates_between_minus_one_and_one(normalise, sides):
  one = make_rotary("dinov3", normalise=normalise)
  angles = one.compute_angles(one.compute_coordinates(*GRID, None), None)
  for n, (row, column) in enumerate(np.ndindex(*GRID)):
    places = [2 * (place + 0.5) / side - 1 for place, side in zip((row, column), sides, strict=True)]
    expected = [2 * math.pi * place / 100 ** (i / 2) for place in places for i in range(2)]
    np.testing.assert_allclose(angles[n, 0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.heavy
def test_coordinates_change_within_bounds_in_training_only():
  one = make_rotary("dinov3", shift=0.2, jitter=1.5, rescale=2.0)
  still = one.compute_coordinates(*GRID, None)
  np.testing.assert_array_equal(still, make_rotary("dinov3").compute_coordinates(*GRID, jax.random.key(0)))
  moved = np.stack([one.compute_coordinates(*GRID, key) for key in modules.keys(300)])
  steps = moved[:, -1] - moved[:, 0]  # scaled, and not shifted
  scale = steps / (still[-1] - still[0])
  assert scale.min() > 1 / 3.01 and scale.max() < 3.01 and scale.max() > 2 and scale.min() < 0.5
  ratio = scale[:, 0] / scale[:, 1]  # of the independent factors of both coordinates
  assert 1 / 2.26 < ratio.min() < 0.6 and 1.7 < ratio.max() < 2.26
  shift = moved.mean(1) / scale
  assert 0.15 < np.abs(shift).max() < 0.2001 and abs(shift.mean()) < 0.03


@pytest.mark.parametrize("name", ["axial", "mixed", "dinov3"])
def test_head_size_that_is_not_a_multiple_of_four_is_an_error(name):
  with pytest.raises(ConfigError, match=re.escape("a head has 6 channels")):
    make_rotary(name, size=6)


ROTARIES = [
  {"name": "axial", "first": "columns", "reference": 5},
  {"name": "axial", "registers": 9.0},
  {"name": "mixed"},
  {"name": "dinov3"},
]


@pytest.mark.heavy
@pytest.mark.parametrize("choice", ROTARIES, ids=str)
def test_attention_rotates_queries_and_keys_except_the_class_token(choice):
  arguments = {"qkv_bias": "all", "qk_norm": "rms", "registers": 4, "rotary": choice, "depth": 1}
  model = modules.model(**arguments)
  attention = model.blocks[0].attention
  x = rng.standard_normal((2, 1 + 4 + 16, 16)).astype(np.float32)
  places = attention.query_key.rotary.compute_coordinates(4, 4, None)

  def projected(part):
    return np.einsum("bnd,dhk->bnhk", x, part.kernel[...]) + part.bias[...]

  def normed(y, scale):
    return y / np.sqrt(np.square(y).mean(-1, keepdims=True) + 1e-6) * scale[...]

  frequencies = np.asarray(attention.frequencies[...]) if hasattr(attention, "frequencies") else None
  angles = np.asarray(attention.query_key.rotary.compute_angles(places, frequencies))
  prefix = np.concatenate([np.zeros((1, 1, 4)), attention.query_key.rotary.compute_register_angles(4)])
  angles = np.concatenate([np.broadcast_to(prefix, (5, *angles.shape[1:])), angles])
  q, k = (
    rotate(normed(projected(part), norm.scale), angles)
    for part, norm in ((attention.query, attention.query_norm), (attention.key, attention.key_norm))
  )
  weights = modules.softmax(np.einsum("bqhk,bnhk->bhqn", q, k) / 8**0.5)
  context = np.einsum("bhqn,bnhk->bqhk", weights, projected(attention.value))
  expected = np.einsum("bqhk,hkd->bqd", context, attention.out.kernel[...]) + attention.out.bias[...]
  np.testing.assert_allclose(attention(x, coordinates=places), expected, atol=2e-5)


@pytest.mark.heavy
@pytest.mark.parametrize("choice", [{"name": "axial"}, {"name": "mixed"}, {"name": "dinov3"}], ids=str)
def test_scores_depend_on_distances_and_not_on_absolute_positions(choice):
  one = make_rotary(choice["name"], size=8)
  frequencies = one.init(jax.random.key(0))
  x = rng.standard_normal((1, 12, 2, 8)).astype(np.float32)
  y = rng.standard_normal((1, 12, 2, 8)).astype(np.float32)
  scores = []
  for shift in (0.0, 2.5):
    angles = jnp.asarray(one.compute_angles(one.compute_coordinates(*GRID, None) + np.float32(shift), frequencies))
    scores.append(np.einsum("bqhk,bnhk->bhqn", rotary.apply_rotary(x, angles), rotary.apply_rotary(y, angles)))
  np.testing.assert_allclose(*scores, atol=1e-4)


@pytest.mark.heavy
@pytest.mark.parametrize("choice", ROTARIES, ids=str)
def test_model_without_position_table_accepts_any_image_size(choice):
  arguments = {"position": "none", "registers": 4, "rotary": choice, "pool": "gap", "depth": 2}
  model = modules.model(**arguments)
  larger = np.random.default_rng(1).standard_normal((2, 24, 12, 3), dtype=np.float32)
  logits = modules.run(model, larger)
  if choice.get("reference") != 5 and choice["name"] != "mixed":
    built = modules.model(**arguments, image_size=(24, 12))
    np.testing.assert_allclose(logits, modules.run(built, larger), atol=1e-5)
  with pytest.raises(ValueError, match="multiples of 4"):
    model(larger[:, :22])
  with pytest.raises(ValueError, match="the model was built for"):
    modules.model(rotary=choice)(larger)
