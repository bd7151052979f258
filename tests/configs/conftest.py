"""Data that recipes are tested with."""

import itertools

import cv2
import numpy as np
import pytest

from vit_jax.corpora.builders import prepare_dataset


@pytest.fixture(scope="module", autouse=True)
def prepared():
  """The digits are on disk."""
  prepare_dataset("digits")


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
  """Three classes of ten photographs without split folders."""
  root = tmp_path_factory.mktemp("photos")
  draw = np.random.default_rng(0)
  for name, i in itertools.product(("a cat", "dög", "bird"), range(10)):
    (root / name).mkdir(exist_ok=True)
    cv2.imwrite(str(root / name / f"{i}.jpg"), draw.integers(0, 255, (40, 50, 3), np.uint8))
  return root
