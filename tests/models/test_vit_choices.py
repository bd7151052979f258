"""Tests of vit_jax/models/vit_choices.py: choices of a ViT in configs, which keep a published model's arguments."""

import pytest

from vit_jax import models
from vit_jax.config import flags
from vit_jax.config import run as config
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError, Text


def settings(name, **arguments):
  return Description(Choice(name, arguments), 224, 1000).settings()


@pytest.mark.parametrize("attention", ["fused", {"name": "fused"}, Choice("fused"), Text("fused")], ids=str)
def test_changing_the_name_keeps_the_published_arguments(attention):
  bound = settings("vit5_small", attention=attention)
  assert (bound["attention"], bound["attention.qk_norm"], bound["attention.bias"]) == ("fused", "rms", "none")
  assert "attention.dropout" not in bound


def test_changing_one_argument_of_an_inner_choice_keeps_the_rest():
  bound = settings("vit5_small", position={"rotary": {"temperature": 5.0}})
  assert bound["position"] == "learned_patches"
  rotary = bound["position.rotary"]
  assert (rotary.name, rotary.args["temperature"], rotary.args["registers"]) == ("axial", 5.0, 100.0)
  assert settings("vit5_small", position="none")["position.rotary"] == settings("vit5_small")["position.rotary"]


FLAT = [  # flat arguments and the equivalent choices
  ({"qk_norm": "rms", "qkv_bias": "none"}, {"attention": {"qk_norm": "rms", "bias": "none"}}),
  ({"attention": "fused", "attention_dropout": 0.0}, {"attention": "fused"}),
  ({"attention": "xla", "differential": True}, {"attention": "differential"}),
  ({"differential": False, "context_norm": False}, {}),
  ({"context_norm": True, "attention_dropout": 0.2}, {"attention": {"output": "normed", "dropout": 0.2}}),
  ({"position": "sincos2d", "position_at": "each"}, {"position": {"name": "sincos2d", "at": "each"}}),
  ({"position": "none", "position_at": "input"}, {"position": "none"}),
  ({"rotary": {"name": "mixed"}}, {"position": {"rotary": "mixed"}}),
  ({"mlp": "swiglu", "hidden_multiple": 8}, {"mlp": {"name": "swiglu", "multiple": 8}}),
  ({"mlp": "gelu", "hidden_multiple": None}, {"mlp": "gelu"}),
  ({"norm": "rms", "norm_order": "post", "eps": 1e-5}, {"norm": {"name": "rms", "order": "post", "eps": 1e-5}}),
  ({"norm_pooled": True, "norm": {"order": "post"}}, {"norm": {"order": "post", "pooled": True}}),
]


@pytest.mark.parametrize(("flat", "nested"), FLAT, ids=str)
def test_flat_keys_of_older_versions_mean_the_same(flat, nested):
  for name in ("ViT-S/16", "vit_dwee_patch16_reg1_gap_256"):
    if name == "ViT-S/16" or flat.keys() & {"rotary", "hidden_multiple", "norm_order"}:
      assert settings(name, **flat) == settings(name, **nested)


@pytest.mark.parametrize(
  ("key", "text", "expected"),
  [
    ("model.qk_norm", "rms", ("attention.qk_norm", "rms")),
    ("model.attention", "fused", ("attention", "fused")),
    ("model.attention.name", "fused", ("attention", "fused")),
    ("model.rotary.name", "axial", ("position.rotary", "axial")),
    ("model.position", "none", ("position", "none")),
    ("model.norm.eps", "1e-5", ("norm.eps", 1e-5)),
  ],
)
def test_flag_changes_one_argument_of_the_config(key, text, expected):
  bound = models.bind(config.resolve(flags.load_config("configs/vit5.py", {key: text})).model)
  found = Description(bound, 224, 1000).settings()
  key, value = expected
  assert (found[key].name if isinstance(found[key], Choice) else found[key]) == value
  assert found["attention.bias"] == "none" and found["norm"] == "rms"


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (
      {"qk_norm": "layer", "attention": {"qk_norm": "rms"}},
      r"model.qk_norm: 'layer' contradicts attention.qk_norm.*'rms'",
    ),
    ({"attention": "fused", "differential": True}, "'fused' does not support differential=true"),
    ({"attention": "fusd"}, "Did you mean 'fused'"),
    ({"attention": {"qk_nrm": "rms"}}, r"model.attention.qk_nrm: unknown key for 'xla'.*Did you mean 'qk_norm'"),
    ({"multiple": 8}, r"model.multiple: unknown key .*Did you mean 'mlp.multiple'"),
    ({"qk_norms": "rms"}, r"model.qk_norms: unknown key .*Did you mean 'attention.qk_norm'"),
    ({"attention": 3, "qk_norm": "rms"}, r"model.attention: 3 is not a choice"),
    ({"context_norm": "maybe"}, r"model.context_norm: expected true or false"),
  ],
)
def test_invalid_keys_are_errors_with_the_nearest_key(arguments, message):
  with pytest.raises(ConfigError, match=message):
    settings("ViT-S/16", **arguments)
