"""Tests that find the nearest published size of a model, and the sizes that differ from it."""

import pytest

from vit_jax.importers.layouts import published_sizes

SIZES = {"a": (8, 2), "b": (16, 4), "c": (24, 4)}


@pytest.mark.parametrize(
  ("values", "expected"),
  [
    ((16, 4), ("b", {})),
    ((16, 5), ("b", {"depth": 5})),
    ((20, 4), ("b", {"width": 20})),  # two sizes are equally near: the first one is chosen
    ((23, 4), ("c", {"width": 23})),
    ((9, 3), ("a", {"width": 9, "depth": 3})),
  ],
)
def test_unpublished_size_is_the_nearest_size_with_overrides(values, expected):
  assert published_sizes.find_nearest_size(SIZES, values, ("width", "depth")) == expected
