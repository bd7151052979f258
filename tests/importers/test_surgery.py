"""Tests of vit_jax/importers/surgery.py, which fits position tables, heads and stacked layers to another model."""

import numpy as np
import pytest
import scipy.ndimage

from tests import modules
from vit_jax import models
from vit_jax.importers import layout, surgery
from vit_jax.importers.resampling import resample
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError

TINY = {"width": 8, "depth": 2, "heads": 2, "hidden": 12}


def table(rows, columns, width=5, seed=0):
  return np.random.default_rng(seed).standard_normal((rows * columns, width)).astype(np.float32)


def describe(name="ViT-Ti/8", image_size=32, classes=3, **arguments):
  return Description(Choice(name, {**TINY, **arguments}), image_size, classes)


def draw_arrays(description, seed=0):
  rng = np.random.default_rng(seed)
  return {
    path: rng.standard_normal(shape).astype(np.float32) for path, shape in layout.compute_shapes(description).items()
  }


def test_grids_follow_the_proportions_of_the_image():
  assert surgery.compute_grid(196, 224) == (14, 14)
  assert surgery.compute_grid(28, (64, 112)) == (4, 7)
  with pytest.raises(ConfigError, match="10 patches do not fill a grid"):
    surgery.compute_grid(10, 224)


def test_layers_are_stacked_and_unstacked():
  unscanned = describe()
  arrays = draw_arrays(unscanned)
  paths = ["embedding/kernel", "blocks/mlp/up/kernel", "blocks/norm1/scale"]
  stacked = surgery.stack(arrays, paths)
  assert list(stacked) == paths
  np.testing.assert_array_equal(stacked["blocks/mlp/up/kernel"][1], arrays["blocks/1/mlp/up/kernel"])
  apart = surgery.unstack(stacked, ["embedding/kernel", "blocks/0/norm1/scale", "blocks/1/mlp/up/kernel"])
  for path, array in apart.items():
    np.testing.assert_array_equal(array, arrays[path])


@pytest.mark.parametrize("size", [64, (16, 40)])
def test_new_resolution_keeps_the_class_token_and_resamples_patches(size):
  have, want = describe(), describe(image_size=size)
  arrays = draw_arrays(have)
  fitted, notes = surgery.fit(arrays, have, want)
  rows, columns = (8, 8) if size == 64 else (2, 5)
  np.testing.assert_array_equal(fitted["position/table"][0], arrays["position/table"][0])
  expected = resample(arrays["position/table"][1:], (4, 4), (rows, columns))
  np.testing.assert_array_equal(fitted["position/table"][1:], expected)
  assert notes == [f"position/table: 4 x 4 resampled to {rows} x {columns} (zoom)"]
  assert {path: array.shape for path, array in fitted.items()} == layout.compute_shapes(want)


def test_both_leading_tokens_of_a_distilled_model_are_kept():
  have, want = describe(pool="distilled"), describe(pool="distilled", image_size=64)
  arrays = draw_arrays(have)
  fitted, _ = surgery.fit(arrays, have, want)
  np.testing.assert_array_equal(fitted["position/table"][:2], arrays["position/table"][:2])
  assert fitted["position/table"].shape == (66, 8)


def test_compact_models_are_resampled_like_their_official_code():
  sizes = {"width": 8, "depth": 1, "heads": 2, "hidden": 8}
  have, want = (Description(Choice("cct_2_3x2_32", sizes), size, 3) for size in (32, 48))
  arrays = draw_arrays(have)
  fitted, _ = surgery.fit(arrays, have, want)
  expected = resample(arrays["position/table"], (8, 8), (12, 12), "bilinear")
  np.testing.assert_array_equal(fitted["position/table"], expected)


@pytest.mark.parametrize(
  ("head", "classes", "kept"),
  [("auto", 3, True), ("auto", 5, False), ("new", 3, False), ("keep", 3, True), ("auto", 0, None)],
)
def test_head_is_kept_or_replaced_by_zeros_or_omitted(head, classes, kept):
  have, want = describe(), describe(classes=classes)
  arrays = draw_arrays(have)
  fitted, notes = surgery.fit(arrays, have, want, head)
  if kept is None:
    assert "head/kernel" not in fitted
  else:
    np.testing.assert_array_equal(fitted["head/kernel"], arrays["head/kernel"] if kept else np.zeros((8, classes)))
  missing = layout.compute_shapes(want).keys() - fitted.keys()
  assert missing == ({"head/bias"} if kept is False else set())
  assert any("new weights for" in note for note in notes) == (kept is False)


def test_keeping_a_head_of_another_size_is_an_error():
  with pytest.raises(ConfigError, match=r"head has 3 classes, but this model has 5.*init.head=new"):
    surgery.fit(draw_arrays(describe()), describe(), describe(classes=5), "keep")


def test_pre_logits_are_removed_only_together_with_their_head():
  have = describe(pre_logits=6)
  fitted, notes = surgery.fit(draw_arrays(have), have, describe(classes=5))
  assert not any(path.startswith("pre_logits") for path in fitted)
  assert any("pre_logits: left out" in note for note in notes)
  with pytest.raises(ConfigError, match="left over: pre_logits/bias"):
    surgery.fit(draw_arrays(have), have, describe())
  kept, _ = surgery.fit(draw_arrays(have), have, describe(classes=5, pre_logits=6))
  assert "pre_logits/kernel" in kept


@pytest.mark.parametrize(
  ("want", "message"),
  [
    ({"width": 16}, r"blocks/0/attention/key/bias is \(2, 4\) in the file, \(2, 8\) in the model"),
    ({"depth": 3}, "missing: blocks/2/"),
    ({"depth": 1}, "left over: blocks/1/"),
    ({"pool": "gap"}, "left over: cls"),
    ({"image_size": 36, "name": "ViT-Ti/12"}, "embedding/kernel is"),
    ({"name": "Mixer-S/16"}, "missing: blocks/0/tokens/"),
  ],
)
def test_another_model_is_an_error_with_differences_and_flags(want, message):
  have = describe()
  name, size = want.pop("name", "ViT-Ti/8"), want.pop("image_size", 32)
  wanted = Description(Choice(name, want if name.startswith("Mixer") else {**TINY, **want}), size, 3)
  with pytest.raises(ConfigError, match=message) as error:
    surgery.fit(draw_arrays(have), have, wanted)
  assert "--config.model.name=ViT-Ti/8 --config.model.width=8" in str(error.value)


def test_arguments_that_change_outputs_are_noted():
  have, want = describe(gelu="erf"), describe()
  _, notes = surgery.fit(draw_arrays(have), have, want)
  assert notes == ["model.gelu: the file's model has erf, but this model has tanh"]


def test_relative_tables_of_swin_are_resampled_to_the_window():
  sizes = {"width": 8, "depths": (1, 1), "heads": (2, 2)}
  have, want = (
    Description(Choice("swin_tiny_patch4_window7_224", {**sizes, "window": window}), size, 3)
    for window, size in ((4, 32), (8, 64))
  )
  arrays = draw_arrays(have)
  fitted, notes = surgery.fit(arrays, have, want)
  path = next(path for path in arrays if path.endswith("attention/table"))
  np.testing.assert_array_equal(fitted[path], resample(arrays[path], (7, 7), (15, 15), "bicubic"))
  assert "resampled" in notes[0]


@pytest.mark.parametrize(
  ("have", "want", "message"),
  [
    ({}, {"registers": 2}, "missing: registers"),
    ({"registers": 2}, {}, "left over: registers"),
    ({"registers": 2}, {"registers": 4}, r"registers is \(2, \d+\) in the file, \(4, \d+\) in the model"),
  ],
)
def test_another_number_of_registers_is_an_error(have, want, message):
  have, want = describe(**have), describe(**want)
  with pytest.raises(ConfigError, match=message):
    surgery.fit(draw_arrays(have), have, want)


def test_resampling_positions_keeps_registers():
  have, want = describe(registers=2), describe(registers=2, image_size=64)
  given = draw_arrays(have)
  fitted, _ = surgery.fit(given, have, want)
  np.testing.assert_array_equal(fitted["registers"], given["registers"])
  np.testing.assert_array_equal(fitted["position/table"][0], given["position/table"][0])


def test_mixer_at_another_image_size_is_an_error():
  have = Description(Choice("Mixer-S/32", {"depth": 1}), 224, 3)
  arrays = {path: np.zeros(shape, np.float32) for path, shape in layout.compute_shapes(have).items()}
  with pytest.raises(ConfigError, match=r"images of 224 pixels alone.*Do not change the size"):
    surgery.fit(arrays, have, have.replace(image_size=256), "keep")


@pytest.mark.parametrize("position_at", ["input", "each", "shared"])
@pytest.mark.parametrize("position", ["learned", "factored"])
def test_positions_are_resampled_for_every_place_of_addition(position, position_at):
  have, want = (describe(image_size=size, position=position, position_at=position_at) for size in (32, 48))
  arrays = draw_arrays(have)
  fitted, notes = surgery.fit(arrays, have, want)
  assert {path: array.shape for path, array in fitted.items()} == layout.compute_shapes(want)
  paths = [path for path in arrays if "position/" in path]
  assert len(notes) == len(paths) == (2 if position_at == "each" else 1) * (2 if position == "factored" else 1)
  for path in paths:
    rows = arrays[path][1:].reshape(4, 4, -1) if position == "learned" else arrays[path]
    sides = rows.ndim - 1
    expected = scipy.ndimage.zoom(rows, (*[6 / 4] * sides, 1), order=1)
    np.testing.assert_allclose(fitted[path][-(6**sides) :], expected.reshape(-1, rows.shape[-1]), atol=1e-6)


@pytest.mark.parametrize(("kind", "before"), [("learned_patches", 0), ("learned", 1), ("learned_all", 3)])
def test_position_rows_of_prefix_tokens_are_kept(kind, before):
  have, want = (describe(image_size=size, position=kind, registers=2) for size in (32, 48))
  arrays = draw_arrays(have)
  fitted, _ = surgery.fit(arrays, have, want)
  table = arrays["position/table"]
  np.testing.assert_array_equal(fitted["position/table"][:before], table[:before])
  expected = scipy.ndimage.zoom(table[before:].reshape(4, 4, -1), (6 / 4, 6 / 4, 1), order=1)
  np.testing.assert_allclose(fitted["position/table"][before:], expected.reshape(36, -1), atol=1e-6)


@pytest.mark.heavy
def test_tables_with_and_without_a_class_token_row_convert_exactly():
  whole, patches = (describe(position=position) for position in ("learned", "learned_patches"))
  images = modules.images(32, 2)

  def logits(description, arrays):
    return np.asarray(models.make_functional(description).create(arrays)(images))

  for have, want in ((whole, patches), (patches, whole)):
    arrays = draw_arrays(have)
    fitted, notes = surgery.fit(arrays, have, want)
    assert {path: array.shape for path, array in fitted.items()} == layout.compute_shapes(want)
    assert notes == ["position/table: rows of tokens before the patches moved"]
    np.testing.assert_allclose(logits(want, fitted), logits(have, arrays), rtol=1e-4, atol=1e-5)


def test_another_place_of_adding_positions_is_noted():
  have, want = (describe(position_at=position_at) for position_at in ("shared", "input"))
  assert (
    "model.position.at: the file's model has shared, but this model has input"
    in surgery.fit(draw_arrays(have), have, want)[1]
  )


@pytest.mark.parametrize("name", ["timm", "hf", "vit_jax", "big_vision"])
def test_no_layout_can_store_positions_that_every_layer_adds(name):
  from vit_jax import importers

  have = describe(position_at="shared")
  with pytest.raises(ConfigError, match=f"layout '{name}' implies position.at=input, but this model has shared"):
    layout.write(importers.find_layout(have, name), draw_arrays(have), have)
