"""Heads for images and patches that share layers: their parameters, and heads found from shapes."""

import jax
import pytest

from vit_jax.schema import ConfigError
from vit_jax.selfsup.head_pairs import find_heads, get_patch_paths, init_heads
from vit_jax.selfsup.heads import ProjectionHead

IMAGES = ProjectionHead(12, prototypes=40, bottleneck=8, hidden=16)
PATCHES = {
  "none": ProjectionHead(12, prototypes=30, bottleneck=6, hidden=10, last="plain"),
  "mlp": ProjectionHead(12, prototypes=30, bottleneck=8, hidden=16),
  "all": IMAGES,
}
LAYERS = [f"layer{i}/{name}" for i in range(3) for name in ("kernel", "bias")]
EXPECTED = {  # the parameters of the head for patches
  "none": ["last/kernel", *LAYERS],
  "mlp": ["last/kernel", "last/scale"],
  "all": [],
}


def shapes_of(sharing):
  params = jax.eval_shape(lambda: init_heads((IMAGES, PATCHES[sharing]), sharing, jax.random.key(0)))
  return {path: leaf.shape for path, leaf in params.items()}


@pytest.mark.parametrize("sharing", PATCHES)
def test_shared_layers_have_one_set_of_parameters(sharing):
  paths = {f"task/head/{name}" for name in ("last/kernel", "last/scale", *LAYERS)}
  assert shapes_of(sharing).keys() == paths | {f"task/patch_head/{name}" for name in EXPECTED[sharing]}


@pytest.mark.parametrize("sharing", PATCHES)
def test_paths_of_patches_are_those_of_their_parameters(sharing):
  mlp, last = get_patch_paths(sharing)
  assert shapes_of(sharing)[f"{mlp}/layer0/kernel"] == (12, PATCHES[sharing].hidden)
  assert shapes_of(sharing)[f"{last}/last/kernel"][1] == PATCHES[sharing].prototypes


@pytest.mark.parametrize("sharing", PATCHES)
def test_heads_are_found_from_shapes(sharing):
  found = find_heads(shapes_of(sharing) | {"cls": (1, 1, 12)}, 12, sharing, "file.pth")
  assert found == (IMAGES, PATCHES[sharing])


@pytest.mark.parametrize(("change", "sharing", "message"), [
  ({"task/head/layer1/bias": None}, "none", r"a head in file\.pth lacks task/head/layer1/bias\. Use weights"),
  ({"task/head/last/odd": (3,)}, "mlp", r"unexpected parameter task/head/last/odd of shape \(3,\)"),
  ({"task/head/layer1/kernel": (16, 17)}, "all", r"unexpected parameter task/head/layer1/kernel of shape \(16, 17\)"),
  ({"task/head/last/kernel": None}, "all", "no heads for images, but the student has sharing='all'"),
])  # fmt: skip
def test_incomplete_or_odd_heads_are_an_error(change, sharing, message):
  shapes = {path: shape for path, shape in (shapes_of(sharing) | change).items() if shape is not None}
  with pytest.raises(ConfigError, match=message):
    find_heads(shapes, 12, sharing, "file.pth")


def test_other_sharing_is_an_error():
  with pytest.raises(ConfigError, match="has heads with sharing='mlp', but the student has sharing='none'"):
    find_heads(shapes_of("mlp"), 12, "none", "file.pth")
