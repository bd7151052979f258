"""Tests of position tables on other grids: each publisher's rule against SciPy, PyTorch, timm and Transformers."""

import numpy as np
import pytest
import safetensors.numpy
import scipy.ndimage

from tests import peers
from tests.importers import originals
from tests.importers.test_surgery import table
from vit_jax import convert, importers, models
from vit_jax.importers import surgery
from vit_jax.importers.resampling import resample
from vit_jax.inference import stored
from vit_jax.schema import Choice

torch = pytest.importorskip("torch", reason="needs pip install -e '.[test]'")


@pytest.mark.parametrize(("old", "new"), [((4, 4), (7, 7)), ((14, 14), (24, 24)), ((3, 5), (6, 2)), ((24, 14), (1, 1))])
def test_zoom_matches_scipy_on_any_grid(old, new):
  given = table(*old)
  scale = [b / a for a, b in zip(old, new, strict=True)]
  expected = scipy.ndimage.zoom(given.reshape(*old, -1), (*scale, 1), order=1)
  assert expected.shape[:2] == new
  np.testing.assert_allclose(resample(given, old, new), expected.reshape(-1, 5), atol=1e-6)


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("old", "new"), [((4, 4), (7, 7)), ((13, 13), (23, 23)), ((5, 3), (2, 6)), ((8, 8), (3, 3))])
def test_pixel_centred_methods_match_torch(method, old, new):
  given = table(*old)
  planes = torch.tensor(given.reshape(1, *old, -1)).permute(0, 3, 1, 2)
  resized = torch.nn.functional.interpolate(planes, size=new, mode=method, align_corners=False)
  expected = resized.permute(0, 2, 3, 1).reshape(-1, 5).numpy()
  np.testing.assert_allclose(resample(given, old, new, method), expected, atol=2e-6)


@pytest.mark.parametrize("method", ["zoom", "bilinear", "bicubic"])
def test_resampling_to_the_same_grid_changes_no_value(method):
  np.testing.assert_allclose(resample(table(4, 6), (4, 6), (4, 6), method), table(4, 6), atol=1e-6)


def test_table_that_does_not_fill_the_grid_is_an_error():
  with pytest.raises(ValueError, match="12 rows is not a grid of 3 x 3"):
    resample(table(3, 4), (3, 3), (4, 4))


GRIDS = [((37, 37), (16, 16)), ((16, 16), (37, 37)), ((14, 14), (24, 24)), ((14, 14), (7, 7)), ((24, 24), (14, 20)),
         ((5, 3), (2, 6)), ((7, 7), (1, 1)), ((8, 8), (8, 3)), ((37, 37), (36, 38))]  # fmt: skip


def by_torch(given, old, **arguments):
  """Returns the table of `torch.nn.functional.interpolate`."""
  planes = torch.tensor(given.reshape(1, *old, -1)).permute(0, 3, 1, 2)
  resized = torch.nn.functional.interpolate(planes, align_corners=False, **arguments)
  return resized.permute(0, 2, 3, 1).reshape(-1, given.shape[1]).numpy()


@pytest.mark.parametrize(("old", "new"), GRIDS)
@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
def test_antialiased_methods_match_torch(method, old, new):
  expected = by_torch(table(*old), old, size=new, mode=method, antialias=True)
  np.testing.assert_allclose(resample(table(*old), old, new, f"{method}_antialiased"), expected, atol=5e-6)


@pytest.mark.parametrize(("old", "new"), [grids for grids in GRIDS if grids[0][0] == grids[0][1]])
def test_bicubic_offset_matches_the_code_of_dino_and_dinov2(old, new):
  factors = tuple((side + 0.1) / before for before, side in zip(old, new, strict=True))
  expected = by_torch(table(*old), old, scale_factor=factors, mode="bicubic")
  assert len(expected) == new[0] * new[1]
  np.testing.assert_allclose(resample(table(*old), old, new, "bicubic_offset"), expected, atol=5e-6)


@pytest.mark.parametrize(("old", "new"), [grids for grids in GRIDS if grids[0][0] == grids[0][1]])
def test_bicubic_antialiased_matches_the_function_of_timm(old, new):
  timm = peers.timm()
  given = torch.tensor(np.concatenate([np.ones((2, 5), np.float32), table(*old)])[None])
  expected = timm.layers.resample_abs_pos_embed(given, new, old, num_prefix_tokens=2)[0].numpy()
  np.testing.assert_array_equal(expected[:2], 1)
  np.testing.assert_allclose(resample(table(*old), old, new, "bicubic_antialiased"), expected[2:], atol=5e-6)


def at_size(path, side):
  """Returns the imported model of a file at another resolution."""
  description, arrays = importers.load(path)
  want = description.replace(image_size=side)
  fitted, notes = surgery.fit(arrays, description, want, "keep")
  assert any("resampled" in note for note in notes)
  return models.make_functional(want).create(fitted)


def randomise(model):
  """Replaces all weights of a PyTorch model by large random ones, so that positions matter."""
  draw = torch.Generator().manual_seed(0)
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.copy_(0.2 * torch.randn(parameter.shape, generator=draw))
  return model.eval()


def compare(ours, theirs, images):
  found = np.asarray(ours(images.permute(0, 2, 3, 1).numpy()))
  np.testing.assert_allclose(found, theirs.numpy(), rtol=0, atol=1e-5 * float(theirs.abs().max()))


SIZES = {"image_size": 40, "patch_size": 8, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
TRANSFORMERS = {
  "Dinov2": {"mlp_ratio": 2},
  "Dinov2WithRegisters": {"mlp_ratio": 2},
  "ViT": {"intermediate_size": 96},
  "SiglipVision": {"intermediate_size": 96},
}


@pytest.mark.heavy
@pytest.mark.parametrize("side", [56, 24])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_files_match_its_features_at_another_resolution(tmp_path, name, side):
  transformers = peers.transformers()
  made = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**SIZES, **TRANSFORMERS[name]))
  model = randomise(made)
  model.save_pretrained(tmp_path)
  images = torch.randn((2, 3, side, side), generator=torch.Generator().manual_seed(1))
  explicit = {} if name.startswith("Dinov2") else {"interpolate_pos_encoding": True}
  with torch.no_grad():
    theirs = model(pixel_values=images, **explicit).pooler_output
  if name == "ViT":  # its pooled output has a layer with tanh
    description, arrays = importers.load(tmp_path)
    fitted, _ = surgery.fit(arrays, description, description.replace(image_size=side), "keep")
    outputs, _ = models.make_functional(description.replace(image_size=side)).outputs(
      fitted, images.permute(0, 2, 3, 1).numpy()
    )
    np.testing.assert_allclose(outputs.logits, theirs.numpy(), rtol=0, atol=1e-5)
  else:
    compare(at_size(tmp_path, side), theirs, images)


TIMM = (
  "vit_tiny_patch16_224",
  "deit3_small_patch16_224",
  "eva02_tiny_patch14_224",
  "vit_base_patch14_dinov2",
  "vit_base_patch14_reg4_dinov2",
  "vit_small_patch16_dinov3",
  "vit_small_patch16_rope_ape_224",
  "vit_small_patch16_rope_mixed_ape_224",
)


@pytest.mark.heavy
@pytest.mark.parametrize("side", [56, 24])
@pytest.mark.parametrize("name", TIMM)
def test_timm_files_match_its_logits_at_another_resolution(tmp_path, name, side):
  timm = peers.timm()
  sizes = {"img_size": 40, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 5}
  model = randomise(timm.create_model(name, **sizes))
  arrays = {key: value.detach().numpy() for key, value in model.state_dict().items()}
  hints = {"name": name, "heads": 2, "image_size": 40}
  found = importers.recognise(arrays, hints)
  assert found.description.arguments()["resampling"] == "bicubic_antialiased"
  model.set_input_size(img_size=side)
  images = torch.randn((2, 3, side, side), generator=torch.Generator().manual_seed(1))
  with torch.no_grad():
    theirs = model(images)
  want = found.description.replace(image_size=side)
  fitted, _ = surgery.fit(found.read(), found.description, want, "keep")
  compare(models.make_functional(want).create(fitted), theirs, images)


@pytest.mark.parametrize(("registers", "method"), [(0, "bicubic_offset"), (4, "bicubic_antialiased")])
def test_dinov2_files_keep_their_resampling_rule_after_conversion(tmp_path, registers, method):
  _, _, tensors = originals.dinov2(registers, "gelu", None)
  found = importers.recognise(tensors, {"heads": 2})
  assert found.description.arguments()["resampling"] == method
  want = found.description.replace(image_size=48)
  fitted, notes = surgery.fit(found.read(), found.description, want, "keep")
  assert notes == [f"position/table: 4 x 4 resampled to 6 x 6 ({method})"]
  table = found.read()["position/table"]
  rows = len(table) - 16
  np.testing.assert_array_equal(
    fitted["position/table"], [*table[:rows], *resample(table[rows:], (4, 4), (6, 6), method)]
  )
  for folder in "abc":
    (tmp_path / folder).mkdir()
  file, out = tmp_path / "a/a.safetensors", tmp_path / "b/b.safetensors"
  safetensors.numpy.save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, file)
  convert.convert(file, out, "timm", {"heads": 2})
  assert stored.load(out, image_size=48).description.arguments()["resampling"] == method
  convert.convert(file, tmp_path / "c/c.safetensors", "timm", {"heads": 2, "resampling": "zoom"})
  assert importers.load(tmp_path / "c/c.safetensors")[0].arguments()["resampling"] == "zoom"


def test_resampling_rule_of_the_config_overrides_that_of_the_file():
  _, _, tensors = originals.dinov2(0, "gelu", None)
  found = importers.recognise(tensors, {"heads": 2})
  args = {**found.description.model.args, "resampling": "bilinear"}
  want = found.description.replace(image_size=48, model=Choice(found.description.model.name, args))
  fitted, _ = surgery.fit(found.read(), found.description, want, "keep")
  table = found.read()["position/table"]
  np.testing.assert_array_equal(fitted["position/table"][1:], resample(table[1:], (4, 4), (6, 6), "bilinear"))


def test_every_vit_layout_has_the_resampling_rule_of_its_publisher():
  rules = {}
  for one in importers.load_layouts():
    if one.family == "vit":
      rules.setdefault(one.name, set()).add(one.resampling)
  assert rules == {
    "vit_jax": {"zoom"},
    "big_vision": {"zoom"},
    "hf": {"bicubic", None},  # DINOv3 has no table
    "timm": {"bicubic_antialiased"},
    "dinov2": {"bicubic_offset"},  # and antialiased with registers
    "dinov3": {None},
    **{name: {"bicubic"} for name in ("eva02", "rope_vit", "deit3", "vit5")},
  }
  names = {
    "cct_7_3x2_32": "bilinear",
    "ViT-B/16": "zoom",
    "deit3_base_patch16_224": "bicubic_antialiased",
    "swin_tiny_patch4_window7_224": "bicubic",
    "google/vit-base-patch16-224": "bicubic",
  }
  assert {name: models.bind(Choice(name)).args["resampling"] for name in names} == names
