"""Fixtures of an image folder and of its corpus, which tests only read."""

import pytest

from tests.corpora import folders


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
  root = folders.folder(tmp_path_factory.mktemp("photos"), 30)
  return folders.folder(root, 6, split="test")


@pytest.fixture(scope="module")
def corpus(photos, tmp_path_factory):
  root = tmp_path_factory.mktemp("data")
  output = folders.made(photos, root, shards=3)
  assert output[0] == f"corpus is prepared at {root}/corpus/1.0.0"
  assert any(line.startswith("train: 60 images in 3 files") for line in output)
  return root
