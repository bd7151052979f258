"""vit_jax/importers: layouts are loaded when a file is read, and refusals name the tensors."""

import subprocess
import sys

import numpy as np
import pytest

from tests.importers.test_layout import SMALL, example
from vit_jax import importers
from vit_jax.importers import layout
from vit_jax.schema import ConfigError

pytestmark = pytest.mark.heavy


def test_no_layout_is_imported_before_a_file_is_read():
  code = """
import sys
from vit_jax import importers
names = {"bit", "compact", "efficientnet", "mixer", "swin", "vit", "vit_google", "vit_torch"}
print(sorted(names & {name.rpartition(".")[2] for name in sys.modules if name.startswith("vit_jax.importers.")}))
print({one.family for one in importers.layouts()} == {"vit", "compact", "mixer", "bit", "swin", "efficientnet"})
"""
  printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
  assert printed.splitlines() == ["[]", "True"]


def test_a_norm_after_the_mean_is_another_model_and_refused():
  written, description, arrays = example("timm", "ViT-S/8", SMALL | {"gelu": "erf", "pool": "gap"}, 32, 3)
  tensors = layout.write(written, arrays, description)
  theirs = {name.replace("norm.", "fc_norm.") if name.startswith("norm.") else name: t for name, t in tensors.items()}
  with pytest.raises(ConfigError, match=r"missing \(2\): norm.bias, norm.weight\n.*left over \(2\): fc_norm"):
    importers.recognise(theirs, {"heads": 2}).check()
  assert np.array_equal(importers.recognise(tensors, {"heads": 2}).read()["norm/scale"], arrays["norm/scale"])
