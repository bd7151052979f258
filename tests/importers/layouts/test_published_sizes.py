"""vit_jax/importers/layouts/published_sizes.py: the nearest published size, and what differs from it."""

import pytest

from vit_jax.importers.layouts import published_sizes

SIZES = {"a": (8, 2), "b": (16, 4), "c": (24, 4)}


@pytest.mark.parametrize(
  ("values", "expected"),
  [
    ((16, 4), ("b", {})),
    ((16, 5), ("b", {"depth": 5})),
    ((20, 4), ("b", {"width": 20})),  # two sizes are as near, the first one counts
    ((23, 4), ("c", {"width": 23})),
    ((9, 3), ("a", {"width": 9, "depth": 3})),
  ],
)
def test_a_size_that_no_table_has_is_the_nearest_one_with_overrides(values, expected):
  assert published_sizes.find_nearest_size(SIZES, values, ("width", "depth")) == expected
