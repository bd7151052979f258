"""Tests of model sizes and patch grids, and of the errors for sizes that do not fit."""

import pytest

from vit_jax import schema
from vit_jax.models import sizes


def test_invalid_sizes_and_grids_are_errors_with_allowed_values():
  assert sizes.size((8, 2, 2, 16), width=None, depth=4, heads=None, hidden=None) == (8, 4, 2, 16)
  with pytest.raises(schema.ConfigError, match=r"width 9 is not a multiple of heads 2. Allowed heads: 1, 3, 9"):
    sizes.size((8, 2, 2, 16), width=9, depth=None, heads=None, hidden=None)
  assert sizes.grid(32, 8) == (4, 4)
  with pytest.raises(schema.ConfigError, match="nearest image sizes: 24, 32"):
    sizes.grid(30, 8)
