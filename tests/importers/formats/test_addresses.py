"""Tests that names of published files lead to their addresses, which the pages of the models contain."""

import re

import pytest

from tests.runs import ROOT
from vit_jax.importers.formats import addresses


@pytest.mark.parametrize(
  ("name", "address"),
  [
    (
      "dinov2_vits14_reg4_pretrain.pth",
      "https://dl.fbaipublicfiles.com/dinov2/dinov2_vits14/dinov2_vits14_reg4_pretrain.pth",
    ),
    ("dinov2_vitb14_pretrain.pth", "https://dl.fbaipublicfiles.com/dinov2/dinov2_vitb14/dinov2_vitb14_pretrain.pth"),
    (
      "deit_base_patch16_224-b5f2ef4d.pth",
      "https://dl.fbaipublicfiles.com/deit/deit_base_patch16_224-b5f2ef4d.pth",
    ),
    (
      "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0.npz",
      "https://storage.googleapis.com/vit_models/augreg/B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0.npz",
    ),
    ("BiT-M-R50x1.npz", "https://storage.googleapis.com/bit_models/BiT-M-R50x1.npz"),
    ("B_16.npz", None),
    ("dinov2_vits14_head.pth", None),
    ("model.safetensors", None),
  ],
)
def test_name_of_a_published_file_determines_its_address(name, address):
  assert addresses.find_address(name) == address


@pytest.mark.parametrize(("page", "count"), [("dino", 8), ("deit", 8), ("bit", 17)])
def test_files_of_a_page_have_an_address(page, count):
  cells = re.findall(r"`([\w.-]+\.(?:npz|pth))` \|$", (ROOT / f"docs/models/{page}.md").read_text(), re.M)
  assert len(cells) == count and all(map(addresses.find_address, cells))
