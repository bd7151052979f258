"""Tests of vit_jax/models/contract.py: minimal modules, and modules with attributes of another meaning."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax import models, trees
from vit_jax.models import contract
from vit_jax.models.output import Output, classify
from vit_jax.schema import Choice, ConfigError

pytestmark = pytest.mark.heavy


class Least(nnx.Module):
  """A minimal model that maps the mean colour to logits. Keyword arguments become attributes."""

  def __init__(self, classes=3, **attributes):
    self.layer = nnx.Linear(3, classes, rngs=nnx.Rngs(0))
    for name, value in attributes.items():
      setattr(self, name, value)

  def outputs(self, images, key=None):
    assert images.ndim == 4, "images must be whole"
    tokens = images.reshape(images.shape[0], -1, images.shape[-1])
    return classify(tokens, tokens.mean(1), self.layer)


def check(module, prefix=None, classes=3):
  contract.check_outputs("own", module, 8, 3, classes, "float32", prefix or {})


def test_patch_attribute_alone_does_not_enable_patch_inputs():
  assert contract.find_patch("least", Least(patch=4)) is None
  assert contract.find_patch("least", Least(patch=4, accepts_patches=True)) == 4
  assert contract.find_patch("least", Least()) is None
  with pytest.raises(ConfigError, match="model least: Least has `accepts_patches`, but no attribute `patch`"):
    contract.find_patch("least", Least(accepts_patches=True))
  assert models.make_functional(models.Description(Choice("ViT-Ti/16"), 32, 3)).patch == 16


def test_prefix_of_another_type_is_an_error():
  assert contract.find_prefix("own", Least()) == {}
  assert contract.find_prefix("own", Least(prefix=nnx.data({"cls": 1}))) == {"cls": 1}
  for value in ("own/", 1, {"cls": 0}, {"cls": True}, {1: 1}):
    with pytest.raises(ConfigError, match=r"model own: Least\.prefix is .* Expected a dictionary .* rename it"):
      contract.find_prefix("own", Least(prefix=nnx.data(value) if isinstance(value, dict) else value))


def test_minimal_module_is_accepted():
  check(Least())
  check(Least(), {"cls": 1})


def make_module(value):
  """Returns a module with a method `outputs` that returns `value(images)`."""
  module = Least()
  return type("Own", (Least,), {"outputs": lambda self, images, key=None: value(images)})(), module


TOKENS = jnp.zeros((2, 5, 4))
BAD = {
  "an array": (lambda images: images, r"outputs of Own returned a .*Tracer\. Return a vit_jax\.models\.Output"),
  "logits without classes": (
    lambda images: Output(TOKENS, TOKENS[:, 0], jnp.zeros((2, 4)), {}),
    r"outputs\.logits has the shape \(2, 4\) for 2 images\. It must be \(2, 3\)",
  ),
  "a mean over the images": (
    lambda images: Output(TOKENS, TOKENS.mean(0), jnp.zeros((2, 3)), {}),
    r"outputs\.features has the shape \(5, 4\) for 2 images\. It must be \(2, 4\)",
  ),
  "a map": (
    lambda images: Output(images, TOKENS[:, 0], jnp.zeros((2, 3)), {}),
    r"outputs\.tokens has the shape \(2, 8, 8, 3\)\. It must be \[images, tokens, width\]",
  ),
  "half precision": (
    lambda images: Output(TOKENS, TOKENS[:, 0], jnp.zeros((2, 3), jnp.bfloat16), {}),
    r"outputs\.logits has the type bfloat16\. Convert it to float32",
  ),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_outputs_are_an_error_of_one_line(case):
  value, problem = BAD[case]
  with pytest.raises(ConfigError, match=f"^model own: {problem}") as error:
    check(make_module(value)[0])
  assert "\n" not in str(error.value)


def test_missing_outputs_method_and_too_few_tokens_are_errors():
  with pytest.raises(ConfigError, match=r"^model own: Linear has no method outputs\(images, key\)\. Add one"):
    check(nnx.Linear(1, 1, rngs=nnx.Rngs(0)))
  with pytest.raises(ConfigError, match=r"It must be \[images, more than 64 tokens, width\]"):
    check(Least(), {"registers": 64})


def test_outputs_are_checked_without_computing_them():
  abstract = nnx.eval_shape(lambda: Least())
  check(abstract)
  assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in trees.flatten(nnx.state(abstract)).values())
  with pytest.raises(ConfigError, match=r"It must be \(2, 3\)"):
    check(nnx.eval_shape(lambda: Least(classes=7)), classes=0)
  np.testing.assert_array_equal(Least().outputs(jnp.ones((1, 2, 2, 3))).features, [[1, 1, 1]])
