"""Tests of vit_jax/reports/inside.py for every family, against captured weights of whole batches and NumPy."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import modules
from vit_jax import models
from vit_jax.data.bound_data import EvalData
from vit_jax.inference.predictor import Predictor
from vit_jax.models import positions, swin
from vit_jax.reports import embeddings, inside, page
from vit_jax.schema import Choice

pytestmark = pytest.mark.heavy

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
SMALL = {"width": 16, "depth": 2, "heads": 2, "hidden": 24}
# name, arguments, side of images, side of the grid, prefix tokens, tokens that give the output if they are not patches
ATTENDING = {
  "class token": ("ViT-S/4", SMALL, 16, 4, 1, [0]),
  "distilled with registers": ("ViT-S/4", {**SMALL, "pool": "distilled", "registers": 3}, 16, 4, 5, [0, 1]),
  "mean, fused": ("ViT-S/4", {**SMALL, "pool": "gap", "position": "factored", "attention": "fused"}, 16, 4, 0, []),
  "probe": (
    "ViT-S/4",
    {**SMALL, "pool": "map", "position": "relative", "registers": 2, "scan": True, "dtype": "bfloat16"},
    16,
    4,
    2,
    [],
  ),
  "hybrid": ("R+Ti/16", {**SMALL, "position": "sincos2d"}, 64, 2, 1, [0]),
  "CCT": ("cct_2_3x2_32", SMALL, 32, 8, 0, []),
  "ViT-Lite": ("vit_7_4_32_sine", SMALL, 16, 4, 1, [0]),
}
WINDOWS = ("swin_tiny_patch4_window7_224", {"width": 16, "depths": (2, 2), "heads": (2, 4), "window": 4}, 32)
OTHERS = {
  "Mixer": ("Mixer-S/16", {"depth": 1, "width": 16, "hidden": 16, "token_hidden": 8}, 32, "no position embeddings"),
  "BiT": ("R26x1", {"stages": (1,)}, 32, "no tokens"),
  "EfficientNet": ("efficientnet_b0", {"stages": (1,)}, 32, "no tokens"),
}


def predictor(name, args, side) -> Predictor:
  """Returns a model with random parameters and sharp attention."""
  description = models.Description(Choice(name, args), side, 3).bind()
  draw = np.random.default_rng(0)
  shapes = models.make_functional(description).shapes()
  params = {
    path: jnp.asarray(draw.normal(0, 0.5, leaf.shape) + path.endswith("scale")) for path, leaf in shapes.items()
  }
  return Predictor(description, ("a", "b", "c"), params, EvalData("images", {"mean": MEAN, "std": STD}), "softmax")


def squares(side, count=2):
  return list(modules.pictures(count, side, side))


def captured(model, pictures):
  """Returns {name: weights [B, H, T, T]} of all images at once, from the formulation that exposes them."""
  args = {key: value for key, value in model.description.model.args.items() if key not in ("attention", "dtype")}
  plain = models.make_functional(model.description.replace(model=Choice(model.description.model.name, args)))
  batch = ((np.stack(pictures) / 255 - MEAN) / STD).astype(np.float32)
  capture = jax.jit(models.capture(lambda x: plain.outputs(model.params, x)[0].logits, ".*weights"))
  return {name: np.asarray(value, np.float64) for name, value in capture(batch)[1].items()}


def far(rows, side):
  """Computes the distance of one head by loops. Rows are [N, N], of patches."""
  grid = math.isqrt(len(rows))
  total = 0
  for query, row in enumerate(rows):
    apart = [math.dist(divmod(query, grid), divmod(key, grid)) * side for key in range(len(rows))]
    total += float(np.dot(row, apart)) / row.sum()
  return total / len(rows)


@pytest.fixture(scope="module", params=ATTENDING)
def looked(request):
  """Returns (row of the table, inspection, captured weights, model)."""
  name, args, side, *rest = ATTENDING[request.param]
  model, pictures = predictor(name, args, side), squares(side)
  return (side, *rest), inside.inspect_model(model, pictures), captured(model, pictures), model


def shares(captured, prefix, own, tokens):
  """Returns the shares [B, T] of tokens in the output."""
  pooled = captured.get("pool/weights")
  if "pool/attention/weights" in captured:
    pooled = captured["pool/attention/weights"].mean((1, 2))
  if pooled is None:
    chosen = own or range(prefix, tokens)
    pooled = np.tile(np.isin(np.arange(tokens), chosen) / len(chosen), (2, 1))
  return np.pad(pooled, ((0, 0), (tokens - pooled.shape[1], 0)))


def test_distances_maps_and_rollout_match_the_captured_attention(looked):
  (side, grid, prefix, own), found, weights, _ = looked
  layers = [weights[f"blocks/{i}/attention/weights"] for i in range(2)]
  tokens = layers[0].shape[-1]
  assert tokens == prefix + grid**2
  pooling = shares(weights, prefix, own, tokens)
  for number, head in np.ndindex(2, 2):
    apart = [far(one[head, prefix:, prefix:], side / grid) for one in layers[number]]
    np.testing.assert_allclose(found.distance[number, head], np.mean(apart), rtol=1e-5)
    expected = np.einsum("bt,btn->bn", pooling, layers[1][:, head])[:, prefix:]
    np.testing.assert_allclose(found.maps[:, head].reshape(2, -1), expected, rtol=0, atol=1e-5)
  for image in range(2):
    mixed = [layer[image].mean(0) / 2 + np.eye(tokens) / 2 for layer in layers]
    expected = (pooling[image] @ mixed[1] @ mixed[0])[prefix:].reshape(grid, grid)
    np.testing.assert_allclose(found.rollout[image], expected, rtol=0, atol=1e-5)
  everywhere = far(np.ones((grid**2, grid**2)), side / grid)
  np.testing.assert_allclose(found.alike, [everywhere] * 2, rtol=1e-5)


def test_learned_pooling_weights_match_the_pool(looked):
  (_, grid, prefix, own), found, weights, _ = looked
  if not {"pool/weights", "pool/attention/weights"} & set(weights):
    assert found.pooling is None and "no learned weights" in found.absent["pooling"]
    return
  expected = shares(weights, prefix, own, prefix + grid**2)[:, prefix:]
  np.testing.assert_allclose(found.pooling.reshape(2, -1), expected, rtol=0, atol=1e-5)
  np.testing.assert_allclose(found.pooling.sum((1, 2)), 1, rtol=1e-5)


def test_similarity_matches_the_positions_and_is_absent_if_relative(looked):
  (_, grid, _, _), found, _, model = looked
  match model.description.settings()["position"]:
    case "learned":
      table = np.asarray(model.params["position/table"])
    case "sine":
      table = positions.compute_sine(grid**2 + 1, 16)
    case "sincos2d":
      table = positions.compute_sincos2d(grid, grid, 16)
    case "factored":
      pairs = [(j, i) for i in range(grid) for j in range(grid)]
      columns, rows = (np.asarray(model.params[f"position/{name}"]) for name in ("columns", "rows"))
      table = np.stack([np.concatenate([columns[j], rows[i]]) for j, i in pairs])
    case "relative":
      assert found.similarity is None and "relative positions" in found.absent["similarity"]
      return
  np.testing.assert_allclose(found.similarity, embeddings.compute_similarity(table, (grid, grid)), atol=1e-5)
  assert "similarity" not in found.absent


def test_filters_match_the_first_convolution(looked):
  *_, found, _, model = looked
  kernels = ("stem/root/kernel", "embedding/convolutions/0/kernel", "embedding/kernel")
  kernel = np.asarray(next(model.params[path] for path in kernels if path in model.params), np.float64)
  if kernel.shape[:3] == (7, 7, 3):  # the kernel of a hybrid is standardised before it is applied
    kernel = (kernel - kernel.mean((0, 1, 2))) / kernel.std((0, 1, 2))
  np.testing.assert_allclose(found.filters, embeddings.compute_filters(kernel).filters, atol=2e-4)


def test_window_attention_has_distances_but_no_rollout():
  name, args, side = WINDOWS
  model, pictures = predictor(name, args, side), squares(side)
  found, weights = inside.inspect_model(model, pictures), captured(model, pictures)
  assert len(weights) == 4 and found.distance.shape == (4, 4)
  for number, (path, heads, patch) in enumerate(
    [(f"stages/{i}/blocks/{j}/attention/weights", 2 + 2 * i, 4 + 4 * i) for i in range(2) for j in range(2)]
  ):
    assert weights[path].shape[1] == heads
    for head in range(heads):
      apart = [far(window[head], patch) for window in weights[path]]
      np.testing.assert_allclose(found.distance[number, head], np.mean(apart), rtol=1e-5)
    assert np.isnan(found.distance[number, heads:]).all()
  # The windows of the second block are shifted, and windows at the border are cut.
  cut = [far(window.astype(float), 4) for window in swin.compute_visibility((8, 8), (4, 4), (2, 2))]
  whole = far(np.ones((16, 16)), 4)
  np.testing.assert_allclose(found.alike, [whole, np.mean(cut), 2 * whole, 2 * whole], rtol=1e-5)
  assert found.rollout is None and "windows" in found.absent["rollout"] and "windows" not in found.absent["pooling"]
  text = page.render_page("Swin", "", [inside.make_chapter(model, [(pictures[0], ["a.jpg"])])])
  assert text.count("<use") >= 12 and "inside windows that shift" in text


@pytest.mark.parametrize("family", OTHERS)
def test_model_without_attention_has_filters_and_explains_the_rest(family):
  name, args, side, message = OTHERS[family]
  model = predictor(name, args, side)
  found = inside.inspect_model(model, squares(side))
  assert found.filters.shape[-1] == 3 and found.similarity is None and found.distance is None
  assert message in found.absent["similarity"] and found.absent["rollout"] == f"{name} has no attention."
  chapter = inside.make_chapter(model, [(picture, []) for picture in squares(side)])
  assert [type(part) for part in chapter.parts] == [page.Gallery, page.Paragraph]
  assert chapter.parts[1].text.splitlines() == [found.absent["similarity"], found.absent["rollout"]]


def test_chapter_shows_eight_images_and_every_head():
  name, args, side, grid, *_ = ATTENDING["CCT"]
  model = predictor(name, args, side)
  pictures = [(square, [f"<b>{i}</b>.jpg"]) for i, square in enumerate(squares(side, 9))]
  chapter = inside.make_chapter(model, pictures)
  filters, similar, distance, looks, heads = chapter.parts
  assert len(filters.pictures) == 27 and "100%" in filters.about  # of 3 x 3 pixels in three colours
  assert f"all {grid} x {grid}" in similar.about and "9 pictures" in distance.about
  assert len(looks.pictures) == 8 and len(heads.pictures) == 2
  assert looks.pictures[0].pixels.shape == (128, 4 * 128 + 3 * 4, 3)  # 32 pixels, enlarged four times
  text = page.render_page("CCT", "", [chapter])
  assert "&lt;b&gt;7&lt;/b&gt;.jpg" in text and "<b>" not in text
  assert len(re.findall("data:image/jpeg", text)) == 10, "eight strips and two heads"
  assert len(text) < 400_000  # the images are noise


def test_inspection_without_images_has_filters_and_positions():
  name, args, side, *_ = ATTENDING["class token"]
  found = inside.inspect_model(predictor(name, args, side), [])
  assert found.similarity.shape == (4, 4, 4, 4) and found.distance is None
  assert "no pictures were given" in found.absent["distance"] and "similarity" not in found.absent


def test_images_not_cropped_for_the_model_are_refused():
  name, args, side, *_ = ATTENDING["class token"]
  model = predictor(name, args, side)
  for bad in (squares(side + 4)[0], squares(side)[0].astype(np.float32)):
    with pytest.raises(ValueError, match=r"the model needs uint8 \[16, 16, 3\]\. Crop the picture first"):
      inside.inspect_model(model, [bad])


def test_diverged_weights_are_reported_in_one_line():
  name, args, side, *_ = ATTENDING["class token"]
  model = predictor(name, args, side)
  broken = dataclasses.replace(model, params={**model.params, "norm/bias": jnp.full(16, jnp.nan)})
  [words] = inside.make_chapter(broken, [(squares(side)[0], [])]).parts
  assert words.text == "Parameters that are not finite: 1 of 40, such as norm/bias."
  with pytest.raises(ValueError, match="norm/bias"):
    inside.inspect_model(broken, squares(side))


def test_attention_that_is_not_finite_is_reported_without_a_map():
  name, args, side, *_ = ATTENDING["class token"]
  model = predictor(name, args, side)
  params = {path: value * 1e30 if path.endswith("query/kernel") else value for path, value in model.params.items()}
  params |= {path: value * 1e30 for path, value in model.params.items() if path.endswith("key/kernel")}
  [words] = inside.make_chapter(dataclasses.replace(model, params=params), [(squares(side)[0], [])]).parts
  assert "picture 0: attention is not finite" in words.text
