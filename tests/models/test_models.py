"""vit_jax/models: names, their schemas, and sharding tables that fit every parameter of every model."""

import inspect
import re

import jax
import numpy as np
import pytest
from flax import nnx

from vit_jax import models, rng, schema
from vit_jax.models import compact, vit

ONE = {  # family -> what makes a model of it small
  "vit": {"depth": 1},
  "compact": {"depth": 1},
  "mixer": {"depth": 1},
  "bit": {"stages": (1, 1)},
  "swin": {"depths": (1, 1, 1, 1)},
  "efficientnet": {"stages": (1, 1, 1)},
}
ANY = ("fsdp", "tensor", None)


def test_all_registered_names_are_listed():
  assert set(compact.VARIANTS) <= set(models.names())
  assert {f"ViT-{size}/16" for size in ("Ti", "S", "B", "L", "H", "g", "G")} <= set(models.names())


@pytest.mark.parametrize("name", models.names())
def test_every_name_binds_and_builds_with_what_a_run_supplies(name):
  function, row = models.lookup(name), models.find(name)
  positional = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
  assert positional == ["image_size", "channels", "classes", "rngs"]
  choice = schema.bind(schema.Choice(name, ONE[row.family]), (function,))
  assert {"dtype"} <= choice.args.keys()  # what every run asks of a model
  args = schema.arguments(choice, function)
  model = nnx.eval_shape(lambda: function(row.image_size, 1, 7, rng.Keys(jax.random.key(0)), **args))
  assert model.head.kernel.shape[-1] == 7
  assert model.shape == (row.image_size, row.image_size, 1)
  check_sharding(name, model, scan=False)


@pytest.mark.parametrize(
  ("spelling", "name"),
  [
    ("ViT-B_16", "ViT-B/16"),
    ("B_16", "ViT-B/16"),
    ("R50+ViT-B_16", "R50+B/16"),
    ("R_Ti_16", "R+Ti/16"),
    ("R26_S_32", "R26+S/32"),
    ("Mixer-L_16", "Mixer-L/16"),
    ("BiT-M-R101x3", "R101x3"),
    ("BiT-M-R50x1-ILSVRC2012", "R50x1"),
    ("BiT-R152x4", "R152x4"),
    ("EfficientNet-B7", "tf_efficientnet_b7"),
    ("timm/vit_small_patch16_224.augreg_in21k", "vit_small_patch16_224"),
    ("deit_tiny_patch16_224.fb_in1k", "deit_tiny_patch16_224"),
    ("timm/swin_tiny_patch4_window7_224", "swin_tiny_patch4_window7_224"),
  ],
)
def test_published_spellings_are_other_names_of_the_same_models(spelling, name):
  assert models.find(spelling) is models.find(name)


@pytest.mark.parametrize(
  "name", ["ViT-Ti/16", "cct_2_3x2_32", "Mixer-S/16", "R26x1", "swin_tiny_patch4_window7_224", "efficientnet_b0"]
)
def test_without_classes_there_is_no_head(name):
  assert nnx.eval_shape(lambda: models.create(name, classes=0, **ONE[models.find(name).family])).head is None


def check_sharding(name, model, scan):
  for path, variable in nnx.to_flat_state(nnx.state(model)):
    path = "/".join(map(str, path))
    rows = [axes for pattern, axes in models.sharding(name) if re.fullmatch(pattern, path)]
    assert len(rows) == 1, path
    assert len(rows[0]) + (scan and path.startswith("blocks/")) == len(variable.shape), path
    assert all(axis in ANY for axis in rows[0])
    named = [axis for axis in rows[0] if axis]
    assert len(named) == len(set(named)), path  # one dimension an axis
    assert variable.dtype == np.float32 and isinstance(variable, nnx.Param | nnx.BatchStat), path


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("head", ["cls", "gap", "map", "seqpool"])
def test_every_option_of_a_vit_is_in_its_sharding_table(head, scan):
  for position in ("learned", "sincos2d", "factored", "relative", "none"):
    arguments = {"head": head, "position": position, "layer_scale": 0.1, "pre_logits": 8, "scan": scan, "depth": 1}
    model = nnx.eval_shape(lambda arguments=arguments: models.create("ViT-Ti/16", 32, **arguments))
    check_sharding("ViT-Ti/16", model, scan)


@pytest.mark.parametrize("name", ["vit_2_4_32", "cvt_2_4_32_sine", "cct_7_7x2_224"])
def test_scanned_compact_models_are_in_their_sharding_table(name):
  check_sharding(name, nnx.eval_shape(lambda: models.create(name, scan=True, depth=2)), scan=True)


def test_big_matrices_are_split_over_fsdp():
  model = nnx.eval_shape(lambda: models.create("ViT-B/16", scan=True))
  whole = 0
  for path, variable in nnx.to_flat_state(nnx.state(model)):
    axes = next(
      axes for pattern, axes in models.sharding("ViT-B/16") if re.fullmatch(pattern, "/".join(map(str, path)))
    )
    whole += 0 if "fsdp" in axes else int(np.prod(variable.shape))
  assert whole < 0.005 * 86_567_656


def test_any_patch_size_works():
  assert models.lookup("ViT-S/7") is not None
  model = nnx.eval_shape(lambda: models.create("ViT-S/7", image_size=21, depth=1))
  assert model.embedding.kernel.shape == (7, 7, 3, 384) and model.position.table.shape == (10, 384)


@pytest.mark.parametrize(
  ("name", "message"),
  [
    (
      "ViT-Q/16",
      r"name: 'ViT-Q/16' has unknown size 'Q'.* Allowed: mu, Ti, S, M, B, L, So400m, H, g,",
    ),
    ("ViT-b/16", r"unknown size 'b'"),
    ("ViT-S/0", r"patch '0'; allowed: a whole number from 1"),
    ("ViT-S/-4", r"patch '-4'"),
    ("ViT-S/4.5", r"patch '4.5'"),
    ("ViT-S/", r"patch ''"),
    ("ViT-S/1６", r"patch '1６'"),
    ("ViT-S/99999999999999999999", r"patch '9+'"),
    ("cct_2_3x2_33", r"unknown name 'cct_2_3x2_33'. Did you mean 'cct_2_3x2_32'"),
    ("ViT-S16", r"unknown name 'ViT-S16'. Did you mean 'ViT-S/16'"),
    ("cct_14_7x2_224_sine", r"unknown name"),
    ("", r"unknown name ''"),
  ],
)
def test_unknown_names_say_what_there_is(name, message):
  with pytest.raises(schema.ConfigError, match=message):
    models.lookup(name)


def test_published_sizes_are_the_defaults_of_create():
  shapes = {
    name: nnx.eval_shape(lambda name=name: models.create(name, depth=1)) for name in ("cct_14_7x2_384_fl", "ViT-B/32")
  }
  assert shapes["cct_14_7x2_384_fl"].shape == (384, 384, 3)
  assert shapes["cct_14_7x2_384_fl"].head.kernel.shape == (384, 102)
  assert shapes["ViT-B/32"].shape == (224, 224, 3) and shapes["ViT-B/32"].head.kernel.shape == (768, 1000)


def test_widths_match_the_tables():
  assert compact.SIZES[14] == (384, 14, 6, 1152) and vit.SIZES["G"] == (1664, 48, 16, 8192)
  assert all(width // heads == 64 for width, _, heads, _ in compact.SIZES.values())
