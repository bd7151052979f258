"""Tests of published models: the function that builds one, and its defaults."""

import inspect
import subprocess
import sys

import pytest

from vit_jax.models import bit, parameters
from vit_jax.models.published.model import make_published

pytestmark = pytest.mark.heavy


def test_model_keeps_its_function_s_schema_and_sets_its_own_defaults():
  made = make_published("bit:bit", (1, (2, 2)), image_size=96, stages=(1,))
  assert made.make.func is bit.bit and made.make.args == ((1, (2, 2)),)
  assert made.make.__annotations__ == bit.bit.__annotations__
  signature = inspect.signature(made.make).parameters
  assert signature["stages"].default == (1,) and signature["width_factor"].default is None
  positional = [p.name for p in signature.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
  assert positional == ["image_size", "channels", "classes", "rngs"]
  assert (made.image_size, made.classes, made.family) == (96, 1000, "bit")
  assert made.sharding is bit.SHARDING and isinstance(made.order, parameters.Order)


def test_family_is_imported_at_its_first_lookup():
  code = """
import sys
from vit_jax import models
families = {"vit", "compact", "mixer", "bit", "swin", "efficientnet"}
def loaded():
  return families & {name.rpartition(".")[2] for name in sys.modules if name.count(".") == 2}
print(sorted(loaded()), len(models.names()) > 100)
models.lookup("cct_2_3x2_32")
print(sorted(loaded()), "vit_jax.models.kernels" in sys.modules)
"""
  printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
  assert printed.splitlines() == ["[] True", "['compact'] False"]
