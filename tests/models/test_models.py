"""Tests that every model name accepts a run's arguments, and that tables of a family match all its parameters."""

import inspect
import math
import re

import pytest
from flax import nnx

from tests import modules
from tests.documentation.test_model_pages import ROWS
from vit_jax import models, schema
from vit_jax.models import rotary
from vit_jax.models.attention_outputs import OUTPUTS
from vit_jax.models.vit_choices import ATTENTION, MLP

ONE = {  # family -> arguments that make its models small
  "vit": {"depth": 1},
  "compact": {"depth": 1},
  "mixer": {"depth": 1},
  "bit": {"stages": (1, 1)},
  "swin": {"depths": (1, 1, 1, 1)},
  "efficientnet": {"stages": (1, 1, 1)},
}
DOCUMENTED = {row.name for row in ROWS}  # models that test_model_pages checks


@pytest.mark.parametrize("name", models.names())
def test_every_name_accepts_the_arguments_of_a_run(name):
  function, row = models.lookup(name), models.find(name)
  positional = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
  assert positional == ["image_size", "channels", "classes", "rngs"]
  choice = schema.bind(schema.Choice(name, ONE[row.family]), (function,))
  assert {"dtype"} <= choice.args.keys()  # every run passes it


@pytest.mark.parametrize("name", [name for name in models.names() if name not in DOCUMENTED])
def test_tables_match_parameters_of_names_without_published_weights(name):
  modules.check_tables(modules.abstract(name, **ONE[models.find(name).family]))


@pytest.mark.parametrize(
  "name", ["ViT-Ti/16", "cct_2_3x2_32", "Mixer-S/16", "R26x1", "swin_tiny_patch4_window7_224", "efficientnet_b0"]
)
def test_head_has_the_classes_of_the_run_or_is_absent(name):
  small = ONE[models.find(name).family]
  shapes = modules.abstract(name, classes=7, channels=1, **small).shapes()
  assert shapes["head/kernel"].shape[-1] == 7
  first = next(path for path in shapes if re.fullmatch(r"(root|stem|embedding)(/convolutions/0)?/kernel", path))
  assert shapes[first].shape[2] == 1
  assert not any(path.startswith("head") for path in modules.abstract(name, classes=0, **small).shapes())


POSITIONS = ["learned", "learned_patches", "learned_all", "sincos2d", "factored", "relative", "none"]
POSITIONS += [{"name": name, "at": at} for name in ("learned", "sincos2d", "factored") for at in ("each", "shared")]
OPTIONS = [  # each pooling with learned positions, and each position with zero, one and two prefix tokens
  *({"pool": pool} for pool in ("cls", "gap", "map", "seqpool", "distilled")),
  *({"pool": pool, "position": position} for pool in ("gap", "cls", "distilled") for position in POSITIONS),
]


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_tables_match_parameters_of_every_pooling_and_position(options, scan):
  arguments = {"registers": 2, "layer_scale": 0.1, "scan": scan, "depth": 1} | options
  arguments |= {"pre_logits": 8} if options["pool"] != "distilled" else {}
  modules.check_tables(models.make_functional(models.Description(schema.Choice("ViT-Ti/16", arguments), 32, 7)))


PARTS = {
  "class_token": [True],
  "position": [{"rotary": {"name": name}} for name in rotary.ROTARY],
  "attention": [
    *(name for name in ATTENTION),
    *({"qk_norm": norm} for norm in ("layer", "rms")),
    *({"bias": bias} for bias in ("query_value", "none")),
    *({"output": name} for name in OUTPUTS),
  ],
  "mlp": [*MLP],
  "norm": ["rms", {"order": "post"}, {"order": "parallel"}, {"pooled": True}],
}


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in PARTS.items() for value in values], ids=str)
def test_tables_match_parameters_of_modern_blocks(key, value, scan):
  arguments = {"pool": "gap", "registers": 4, "layer_scale": 0.1, "scan": scan, "depth": 1}
  bound = models.Description(schema.Choice("ViT-Ti/16", arguments | {key: value}), 32, 7).bind()
  modules.check_tables(models.make_functional(bound))


@pytest.mark.parametrize(("hidden", "multiple", "expected"), [(6144, 8, 4096), (2304, 8, 1536), (1000, 64, 704)])
def test_swiglu_has_two_thirds_of_the_width_rounded_up(hidden, multiple, expected):
  arguments = {"mlp": {"name": "swiglu", "multiple": multiple}, "hidden": hidden, "depth": 1}
  shapes = models.make_functional(models.Description(schema.Choice("ViT-Ti/16", arguments), 224, 7)).shapes()
  assert shapes["blocks/0/mlp/up/kernel"].shape == shapes["blocks/0/mlp/gate/kernel"].shape == (192, expected)


@pytest.mark.parametrize("name", ["vit_2_4_32", "cvt_2_4_32_sine", "cct_7_7x2_224", "Mixer-S/16"])
@pytest.mark.parametrize("scan", [False, True])
def test_tables_match_parameters_scanned_or_not(name, scan):
  modules.check_tables(modules.abstract(name, scan=scan, depth=2))


def test_large_matrices_are_sharded_over_fsdp():
  whole = 0
  for path, leaf in modules.shapes("ViT-B/16", scan=True).items():
    axes = next(axes for pattern, axes in models.find_sharding("ViT-B/16") if re.fullmatch(pattern, path))
    whole += 0 if "fsdp" in axes else math.prod(leaf.shape)
  assert whole < 0.005 * 86_567_656


def test_published_sizes_are_the_defaults_of_create():
  shapes = {
    name: nnx.eval_shape(lambda name=name: models.create(name, depth=1)) for name in ("cct_14_7x2_384_fl", "ViT-B/32")
  }
  assert shapes["cct_14_7x2_384_fl"].shape == (384, 384, 3)
  assert shapes["cct_14_7x2_384_fl"].head.kernel.shape == (384, 102)
  assert shapes["ViT-B/32"].shape == (224, 224, 3) and shapes["ViT-B/32"].head.kernel.shape == (768, 1000)
