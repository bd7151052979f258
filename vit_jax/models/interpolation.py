"""Interpolation between two numbers of rows, with the rule of each publisher of position tables."""

import math
from collections.abc import Callable

import numpy as np

from vit_jax.models.positions import Resampling
from vit_jax.shapes import Float

OFFSET = 0.1  # number of patches that DINO and DINOv2 add to each side to avoid rounding errors in the number of rows


def compute_weights(old: int, new: int, method: Resampling) -> Float[np.ndarray, "{new} {old}"]:
  """Returns the share of each old row in each new row, in float64. The shares of a new row sum to one.

  Args:
    old: number of old rows.
    new: number of new rows.
    method: rule of the publisher. See `positions.Resampling`.
  """
  match method:
    case "zoom":
      return _compute_interpolation_weights(np.arange(new) * ((old - 1) / max(new - 1, 1)), old, "linear")
    case "bilinear":
      return _compute_interpolation_weights(_compute_centres(new, old / new), old, "linear")
    case "bicubic":
      return _compute_interpolation_weights(_compute_centres(new, old / new), old, "cubic")
    case "bicubic_offset":
      # If a scale factor is given, PyTorch uses its inverse instead of the ratio of the lengths.
      return _compute_interpolation_weights(_compute_centres(new, 1 / ((new + OFFSET) / old)), old, "cubic")
    case "bicubic_antialiased":
      return _compute_antialiased_weights(old, new, 2, lambda x: _compute_cubic_kernel(x, a=-0.5))
    case "bilinear_antialiased":
      return _compute_antialiased_weights(old, new, 1, lambda x: np.maximum(1 - x, 0))


def _compute_centres(new: int, scale: float) -> np.ndarray:
  """Returns the centres of new rows in units of old rows, rounded to float32 after the product as in PyTorch."""
  return (np.float64(np.float32(scale)) * (np.arange(new) + 0.5) - 0.5).astype(np.float32).astype(np.float64)


def _compute_interpolation_weights(centre: np.ndarray, old: int, kind: str) -> np.ndarray:
  """Returns the weights of the two or four old rows next to each centre. Rows at the border are repeated."""
  if kind == "linear":
    centre = np.clip(centre, 0, old - 1)
  first = np.floor(centre).astype(int)
  result = np.zeros((len(centre), old))
  for tap in (-1, 0, 1, 2) if kind == "cubic" else (0, 1):
    distance = np.abs(centre - (first + tap))
    share = _compute_cubic_kernel(distance, a=-0.75) if kind == "cubic" else 1 - distance
    np.add.at(result, (np.arange(len(centre)), np.clip(first + tap, 0, old - 1)), share)
  return result


def _compute_antialiased_weights(
  old: int, new: int, radius: float, kernel: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
  """Returns the weights of a kernel that widens if the grid shrinks. Weights inside the grid sum to one."""
  scale = np.float32(old / new)  # float32, as in PyTorch
  wide = max(scale, np.float32(1))
  result = np.zeros((new, old))
  for row in range(new):
    centre = scale * np.float32(row + 0.5)
    first = max(math.floor(centre - radius * wide + 0.5), 0)
    last = min(math.floor(centre + radius * wide + 0.5), old)
    shares = kernel(np.abs(np.arange(first, last) - centre + 0.5) / wide)
    result[row, first:last] = shares / shares.sum()
  return result


def _compute_cubic_kernel(x: np.ndarray, a: float) -> np.ndarray:
  """Returns the cubic convolution kernel (Keys 1981) at distances x >= 0."""
  near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((x - 5) * x + 8) * x * a - 4 * a
  return np.where(x <= 1, near, np.where(x < 2, far, 0))
