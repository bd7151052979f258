"""Published BiT models: sizes under the names of the paper."""

from vit_jax.models.published.model import make_published

SIZES = {  # factor of all widths, number of units of each stage
  "R26x1": (1, (2, 2, 2, 2)),
  "R50x1": (1, (3, 4, 6, 3)),
  "R50x3": (3, (3, 4, 6, 3)),
  "R101x1": (1, (3, 4, 23, 3)),
  "R101x3": (3, (3, 4, 23, 3)),
  "R152x2": (2, (3, 8, 36, 3)),
  "R152x4": (4, (3, 8, 36, 3)),
}

NAMES = {name: make_published("bit:bit", row) for name, row in SIZES.items()}
