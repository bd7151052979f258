"""Rotary positions: queries and keys are turned, two channels at a time, by angles that follow from where a patch is.

Channel i of a head is turned with channel i + K / 2. Codes that turn neighbours, 2 i with 2 i + 1, have the same model
with channels in another order, which importers change. Class and distillation tokens are not turned.
"""

import dataclasses
import math
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.schema import ConfigError, NonNegative, Positive, Range, amount
from vit_jax.shapes import Array, Float, PRNGKey, Tensor

Side = Annotated[int, Range(1, 2**12)]


@dataclasses.dataclass(frozen=True)
class Axial:
  """Half of the pairs turn by the row of a patch, the others by its column, with K / 4 fixed frequencies each.

  Args:
    heads: of attention.
    size: K, channels of a head.
    grid: (rows, columns) of the images that the model is built for.
    temperature: frequency i is this to the power of -4 i / K.
    first: which coordinate the first half of the pairs turns by.
    reference: side of the grid on which other grids are laid: coordinates then run to this side whatever the image.
      None leaves them whole numbers; 0 takes the side that the model is built for.
    registers: the temperature by which registers turn, that have places on a square of their own; None: they stay.
  """

  heads: int
  size: int
  grid: tuple[int, int]
  _: dataclasses.KW_ONLY
  temperature: Positive = 100.0
  first: Literal["rows", "columns"] = "rows"
  reference: Annotated[int, Range(0, 2**12)] | None = None
  registers: Positive | None = None

  def __post_init__(self):
    _check(self, 4)

  def coordinates(self, rows: int, columns: int, key: PRNGKey | None) -> Float[np.ndarray, "{rows*columns} 2"]:
    """(row, column) of each patch."""
    sides = self.grid if self.reference == 0 else (self.reference or rows, self.reference or columns)
    return _grid(*(np.arange(n) * (side / n) for n, side in zip((rows, columns), sides, strict=True)))

  def init(self, key: PRNGKey) -> None:
    """No parameters."""

  def angles(self, coordinates: Float[Tensor, "*B N 2"], frequencies: None) -> Float[Tensor, "*B N 1 K2"]:
    """Of each pair of channels."""
    return _axial(coordinates, self.temperature, self.size, self.first)

  def of_registers(self, count: int) -> Float[np.ndarray, "{count} 1 K2"]:
    """Angles of the registers."""
    if self.registers is None:
      return np.zeros((count, 1, self.size // 2), np.float32)
    side = math.isqrt(count)
    if side * side != count:
      raise ConfigError(f"model.registers: {count}; those that turn are a square: 1, 4, 9, 16, ...")
    return _axial(_grid(np.arange(side), np.arange(side)), self.registers, self.size, self.first)


@dataclasses.dataclass(frozen=True)
class Mixed:
  """Every pair turns by row and column, with frequencies that each head of each layer learns (Heo et al. 2024).

  Args:
    heads: of attention.
    size: K, channels of a head.
    grid: (rows, columns) of the images that the model is built for.
    temperature: of the initial frequencies.
  """

  heads: int
  size: int
  grid: tuple[int, int]
  _: dataclasses.KW_ONLY
  temperature: Positive = 10.0

  def __post_init__(self):
    _check(self, 4)

  def coordinates(self, rows: int, columns: int, key: PRNGKey | None) -> Float[np.ndarray, "{rows*columns} 2"]:
    """(row, column) of each patch."""
    return _grid(np.arange(rows), np.arange(columns))

  def init(self, key: PRNGKey) -> Float[Array, "2 H K2"]:
    """Frequencies of columns and rows: axial ones, turned by an angle of each head's own."""
    turn = jax.random.uniform(key, (self.heads, 1), maxval=2 * math.pi)
    size = self.temperature ** (-4 * np.arange(self.size // 4) / self.size)
    across = [size * jnp.cos(turn), size * jnp.cos(turn + math.pi / 2)]
    down = [size * jnp.sin(turn), size * jnp.sin(turn + math.pi / 2)]
    return jnp.stack([jnp.concatenate(across, axis=-1), jnp.concatenate(down, axis=-1)]).astype(jnp.float32)

  def angles(
    self, coordinates: Float[Tensor, "*B N 2"], frequencies: Float[Tensor, "2 H K2"]
  ) -> Float[Array, "*B N H K2"]:
    """Of each pair of channels."""
    row, column = (jnp.asarray(coordinates)[..., i, None, None] for i in range(2))
    return column * frequencies[0] + row * frequencies[1]

  def of_registers(self, count: int) -> Float[np.ndarray, "{count} 1 K2"]:
    """Registers stay."""
    return np.zeros((count, 1, self.size // 2), np.float32)


@dataclasses.dataclass(frozen=True)
class Centred:
  """Axial, on coordinates from -1 to 1 whatever the grid, which training moves (DINOv3, Siméoni et al. 2025).

  Args:
    heads: of attention.
    size: K, channels of a head.
    grid: (rows, columns) of the images that the model is built for.
    temperature: pair i turns once round in this to the power of 4 i / K.
    normalise: "separate": each side of an image runs from -1 to 1; "max", "min": the longer or the shorter one does.
    shift: in training both coordinates of all patches move by up to this, each by its own draw.
    jitter: in training both are scaled by up to this factor or its inverse, each by its own draw.
    rescale: the same with one draw for both.
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

  def __post_init__(self):
    _check(self, 4)

  def coordinates(self, rows: int, columns: int, key: PRNGKey | None) -> Float[Tensor, "{rows*columns} 2"]:
    """(row, column) of each patch's centre; with a key moved, all images of a batch alike."""
    sides = {"separate": (rows, columns), "max": [max(rows, columns)] * 2, "min": [min(rows, columns)] * 2}
    steps = ((np.arange(n) + 0.5) / side for n, side in zip((rows, columns), sides[self.normalise], strict=True))
    places = 2 * _grid(*steps) - 1
    if key is None or (self.shift, self.jitter, self.rescale) == (0.0, 1.0, 1.0):
      return places
    keys = jax.random.split(key, 3)
    places = places + jax.random.uniform(keys[0], (2,), minval=-self.shift, maxval=self.shift)
    for one, factor, draws in ((keys[1], self.jitter, 2), (keys[2], self.rescale, 1)):
      limit = math.log(factor)
      places = places * jnp.exp(jax.random.uniform(one, (draws,), minval=-limit, maxval=limit))
    return places

  def init(self, key: PRNGKey) -> None:
    """No parameters."""

  def angles(self, coordinates: Float[Tensor, "*B N 2"], frequencies: None) -> Float[Tensor, "*B N 1 K2"]:
    """Of each pair of channels."""
    return _axial(2 * math.pi * coordinates, self.temperature, self.size, "rows")

  def of_registers(self, count: int) -> Float[np.ndarray, "{count} 1 K2"]:
    """Registers stay."""
    return np.zeros((count, 1, self.size // 2), np.float32)


def none(heads: int, size: int, grid: tuple[int, int]) -> None:
  """Nothing is turned."""


ROTARY = {"none": none, "axial": Axial, "mixed": Mixed, "dinov3": Centred}


def _check(rotary, parts):
  if rotary.size % parts:
    raise ConfigError(
      f"a head has {amount(rotary.size, 'channel')}, of which rows and columns turn two at a time; allowed: "
      f"multiples of {parts}. Take another width or number of heads"
    )


def _grid(rows, columns):
  """[N, 2] of the coordinates of rows and columns, row by row."""
  return np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2).astype(np.float32)


def _axial(coordinates, temperature, size, first):
  """Angles [..., N, 1, K / 2]: those of one coordinate, then those of the other."""
  frequencies = (temperature ** (-4 * np.arange(size // 4) / size)).astype(np.float32)
  order = (0, 1) if first == "rows" else (1, 0)
  xp = jnp if isinstance(coordinates, jax.Array) else np
  return xp.concatenate([coordinates[..., i, None, None] * frequencies for i in order], axis=-1)


def turn(x: Float[Tensor, "B N H K"], angles: Float[Tensor, "*#B N #H K2"]) -> Float[Array, "B N H K"]:
  """Each pair of channels by its angle, computed in float32."""
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
