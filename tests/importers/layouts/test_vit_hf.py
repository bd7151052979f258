"""Tests of Hugging Face's ViT files without a head. The round trip of the table is in test_layout."""

import numpy as np

from tests.importers.test_layout import SMALL, example
from vit_jax import importers
from vit_jax.importers import layout


def test_hugging_face_files_without_a_head_have_no_prefix():
  written, description, arrays = example("hf", "ViT-S/8", SMALL | {"pre_logits": 64}, 32, 0)
  bare = {name.removeprefix("vit."): array for name, array in layout.write(written, arrays, description).items()}
  found = importers.recognise(bare, {"heads": 2})
  assert found.description.classes == 0 and found.description.settings()["norm.eps"] == 1e-12
  assert all(np.array_equal(found.read()[path], arrays[path]) for path in arrays)
