"""Rotary positions: queries and keys are rotated, two channels at a time, by angles that depend on the patch position.

Channel i of a head is rotated with channel i + K / 2. Other implementations rotate channel 2 i with channel 2 i + 1.
These are the same models with a different order of channels, which importers convert. Class and distillation tokens are
not rotated.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.schema import ConfigError, NonNegative, Positive, Range, format_amount
from vit_jax.shapes import Array, Float, Num, PRNGKey, Tensor

Side = Annotated[int, Range(1, 2**12)]
Frequencies = Float[Tensor, "2 H K2"]  # learned frequencies of columns and rows


@dataclasses.dataclass(frozen=True)
class AxialRotary:
  """Rotation of half of the channel pairs by row and of the other half by column, with K / 4 fixed frequencies each.

  Args:
    heads: number of attention heads.
    size: number of channels K of a head.
    grid: (rows, columns) of patches for which the model is built.
    temperature: frequency i is temperature ** (-4 i / K).
    first: coordinate of the first half of the pairs.
    reference: number of rows and columns to which the coordinates of every grid are scaled. 0: size of the model's own
      grid. None disables scaling.
    registers: temperature for the rotation of registers, which are placed on a separate square. None: registers are not
      rotated.
  """

  heads: int
  size: int
  grid: tuple[int, int]
  _: dataclasses.KW_ONLY
  temperature: Positive = 100.0
  first: Literal["rows", "columns"] = "rows"
  reference: Annotated[int, Range(0, 2**12)] | None = None
  registers: Positive | None = None

  def __post_init__(self) -> None:
    _check_size(self, 4)

  def compute_coordinates(self, rows: int, columns: int, key: PRNGKey | None) -> Float[np.ndarray, "{rows*columns} 2"]:
    """Returns the (row, column) of each patch, scaled to the reference grid.

    Args:
      rows: number of rows of patches.
      columns: number of columns of patches.
      key: random key of training, which is not used.

    Returns:
      Coordinates, (rows * columns, 2).
    """
    sides = self.grid if self.reference == 0 else (self.reference or rows, self.reference or columns)
    return _list_coordinates(*(np.arange(n) * (side / n) for n, side in zip((rows, columns), sides, strict=True)))

  def init(self, key: PRNGKey) -> None:
    """Returns None, because there are no parameters."""

  def compute_angles(
    self, coordinates: Float[Tensor, "*B N 2"], frequencies: Frequencies | None
  ) -> Float[Tensor, "*B N 1 K2"]:
    """Returns the angle of each pair of channels.

    Args:
      coordinates: coordinates of the patches, (*B, N, 2).
      frequencies: not used.

    Returns:
      Angles, (*B, N, 1, K / 2).
    """
    return _compute_axial_angles(coordinates, self.temperature, self.size, self.first)

  def compute_register_angles(self, count: int) -> Float[np.ndarray, "{count} 1 K2"]:
    """Returns the angles of the registers.

    Args:
      count: number of registers.

    Returns:
      Angles, (count, 1, K / 2).

    Raises:
      ConfigError: if registers are rotated and their number is not a square.
    """
    if self.registers is None:
      return np.zeros((count, 1, self.size // 2), np.float32)
    side = math.isqrt(count)
    if side * side != count:
      raise ConfigError(f"model.registers: {count}; rotary registers must form a square: 1, 4, 9, 16, ...")
    places = _list_coordinates(np.arange(side), np.arange(side))
    return np.asarray(_compute_axial_angles(places, self.registers, self.size, self.first))


@dataclasses.dataclass(frozen=True)
class MixedRotary:
  """Rotation of every channel pair by row and column, with frequencies that each head learns (Heo et al. 2024).

  Args:
    heads: number of attention heads.
    size: number of channels K of a head.
    grid: (rows, columns) of patches for which the model is built.
    temperature: temperature of the initial frequencies.
  """

  heads: int
  size: int
  grid: tuple[int, int]
  _: dataclasses.KW_ONLY
  temperature: Positive = 10.0

  def __post_init__(self) -> None:
    _check_size(self, 4)

  def compute_coordinates(self, rows: int, columns: int, key: PRNGKey | None) -> Float[np.ndarray, "{rows*columns} 2"]:
    """Returns the (row, column) of each patch.

    Args:
      rows: number of rows of patches.
      columns: number of columns of patches.
      key: random key of training, which is not used.

    Returns:
      Coordinates, (rows * columns, 2).
    """
    return _list_coordinates(np.arange(rows), np.arange(columns))

  def init(self, key: PRNGKey) -> Float[Array, "2 H K2"]:
    """Returns initial frequencies of columns and rows: axial ones, rotated by a random angle of each head.

    Args:
      key: random key.

    Returns:
      Frequencies, (2, H, K / 2).
    """
    phase = jax.random.uniform(key, (self.heads, 1), maxval=2 * math.pi)
    size = self.temperature ** (-4 * np.arange(self.size // 4) / self.size)
    across = [size * jnp.cos(phase), size * jnp.cos(phase + math.pi / 2)]
    down = [size * jnp.sin(phase), size * jnp.sin(phase + math.pi / 2)]
    return jnp.stack([jnp.concatenate(across, axis=-1), jnp.concatenate(down, axis=-1)]).astype(jnp.float32)

  def compute_angles(
    self, coordinates: Float[Tensor, "*B N 2"], frequencies: Frequencies | None
  ) -> Float[Array, "*B N H K2"]:
    """Returns the angle of each pair of channels.

    Args:
      coordinates: coordinates of the patches, (*B, N, 2).
      frequencies: frequencies of columns and rows, (2, H, K / 2).

    Returns:
      Angles, (*B, N, H, K / 2).
    """
    assert frequencies is not None
    row, column = (jnp.asarray(coordinates)[..., i, None, None] for i in range(2))
    return column * frequencies[0] + row * frequencies[1]

  def compute_register_angles(self, count: int) -> Float[np.ndarray, "{count} 1 K2"]:
    """Returns angles of zero, (count, 1, K / 2), because registers are not rotated."""
    return np.zeros((count, 1, self.size // 2), np.float32)


@dataclasses.dataclass(frozen=True)
class CentredRotary:
  """Axial rotation with coordinates from -1 to 1 for every grid, perturbed in training (DINOv3, Siméoni et al. 2025).

  Args:
    heads: number of attention heads.
    size: number of channels K of a head.
    grid: (rows, columns) of patches for which the model is built.
    temperature: the period of pair i is temperature ** (4 i / K).
    normalise: sides of an image that extend from -1 to 1: both sides ("separate"), the longer side ("max") or the
      shorter side ("min").
    shift: in training, a random number between -shift and shift is added to the coordinates, drawn for each axis.
    jitter: in training, coordinates are multiplied by a random factor between 1 / jitter and jitter, drawn for each
      axis.
    rescale: in training, coordinates are multiplied by a random factor between 1 / rescale and rescale, drawn once for
      both axes.
  """

  heads: int
  size: int
  grid: tuple[int, int]
  _: dataclasses.KW_ONLY
  temperature: Positive = 100.0
  normalise: Literal["separate", "max", "min"] = "separate"
  shift: NonNegative = 0.0
  jitter: Annotated[float, Range(1, 1e3)] = 1.0
  rescale: Annotated[float, Range(1, 1e3)] = 1.0

  def __post_init__(self) -> None:
    _check_size(self, 4)

  def compute_coordinates(self, rows: int, columns: int, key: PRNGKey | None) -> Float[Tensor, "{rows*columns} 2"]:
    """Returns the (row, column) of the centre of each patch.

    Args:
      rows: number of rows of patches.
      columns: number of columns of patches.
      key: random key of the perturbations, which are the same for all images of a batch. None disables them.

    Returns:
      Coordinates, (rows * columns, 2).
    """
    sides = {"separate": (rows, columns), "max": [max(rows, columns)] * 2, "min": [min(rows, columns)] * 2}
    steps = ((np.arange(n) + 0.5) / side for n, side in zip((rows, columns), sides[self.normalise], strict=True))
    places = 2 * _list_coordinates(*steps) - 1
    if key is None or (self.shift, self.jitter, self.rescale) == (0.0, 1.0, 1.0):
      return places
    keys = jax.random.split(key, 3)
    places = places + jax.random.uniform(keys[0], (2,), minval=-self.shift, maxval=self.shift)
    for one, factor, draws in ((keys[1], self.jitter, 2), (keys[2], self.rescale, 1)):
      limit = math.log(factor)
      places = places * jnp.exp(jax.random.uniform(one, (draws,), minval=-limit, maxval=limit))
    return places

  def init(self, key: PRNGKey) -> None:
    """Returns None, because there are no parameters."""

  def compute_angles(
    self, coordinates: Float[Tensor, "*B N 2"], frequencies: Frequencies | None
  ) -> Float[Tensor, "*B N 1 K2"]:
    """Returns the angle of each pair of channels.

    Args:
      coordinates: coordinates of the patches, (*B, N, 2).
      frequencies: not used.

    Returns:
      Angles, (*B, N, 1, K / 2).
    """
    return _compute_axial_angles(2 * math.pi * coordinates, self.temperature, self.size, "rows")

  def compute_register_angles(self, count: int) -> Float[np.ndarray, "{count} 1 K2"]:
    """Returns angles of zero, (count, 1, K / 2), because registers are not rotated."""
    return np.zeros((count, 1, self.size // 2), np.float32)


def disable(heads: int, size: int, grid: tuple[int, int]) -> None:
  """Returns None, which disables rotation.

  Args:
    heads, size, grid: not used.
  """


Rotary = AxialRotary | MixedRotary | CentredRotary  # values of rotary positions
ROTARY: dict[str, Callable[..., Rotary | None]] = {
  "none": disable,
  "axial": AxialRotary,
  "mixed": MixedRotary,
  "dinov3": CentredRotary,
}


def _check_size(rotary: Rotary, parts: int) -> None:
  if rotary.size % parts:
    raise ConfigError(
      f"a head has {format_amount(rotary.size, 'channel')}, but rotation needs pairs for rows and columns. Allowed: "
      f"multiples of {parts}. Use another width or number of heads"
    )


def _list_coordinates(rows: Num[np.ndarray, " R"], columns: Num[np.ndarray, " C"]) -> Float[np.ndarray, "R*C 2"]:
  """Returns the coordinates of all patches, [N, 2], row by row."""
  return np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2).astype(np.float32)


def _compute_axial_angles(
  coordinates: Float[Tensor, "*B N 2"], temperature: float, size: int, first: str
) -> Float[Tensor, "*B N 1 K2"]:
  """Returns angles [..., N, 1, K / 2]. The angles of the first coordinate precede those of the second."""
  frequencies = (temperature ** (-4 * np.arange(size // 4) / size)).astype(np.float32)
  order = (0, 1) if first == "rows" else (1, 0)
  xp = jnp if isinstance(coordinates, jax.Array) else np
  return xp.concatenate([coordinates[..., i, None, None] * frequencies for i in order], axis=-1)


def apply_rotary(x: Float[Tensor, "B N H K"], angles: Float[Tensor, "*#B N #H K2"]) -> Float[Array, "B N H K"]:
  """Rotates each pair of channels by its angle, computed in float32.

  Args:
    x: queries or keys, (B, N, H, K).
    angles: angles, (*B, N, H or 1, K / 2).

  Returns:
    Rotated values, (B, N, H, K).
  """
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
