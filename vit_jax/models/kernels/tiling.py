"""The layout of attention's arrays in a TPU: heads in groups of 128 lanes, tokens in 32-bit words, steps of a grid."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from vit_jax import schema
from vit_jax.schema import format_amount
from vit_jax.shapes import Tensor

Shape = Tensor | jax.ShapeDtypeStruct
Ref = Any  # a reference to an array in the kernel's memory, whose type Pallas does not export
LANES = 128
VMEM = 15.5 * 2**20  # bytes available to a step, of 16 MiB
SPILLED = 8, 14  # bytes that the compiler spills per score, and per element of 128 lanes of a head, measured
ODD = -0x10000  # mask of the bfloat16 in the upper half of a word


class Layout(NamedTuple):
  """The partition of the arrays. Each step of the grid processes a part of them.

  Attributes:
    tokens: number of tokens.
    size: size K of a head.
    width: heads * K.
    packed: whether a 32-bit word contains bfloat16 values of two tokens.
    rows: number of tokens, rounded up to whole tiles.
    chunk: number of query tokens of a step.
    images: number of images of a step.
    lanes: number of lanes of a step.
  """

  tokens: int
  size: int
  width: int
  packed: bool
  rows: int
  chunk: int
  images: int
  lanes: int


def cut(query: Shape, key: Shape, value: Shape, heads: int, placed: bool = False) -> Layout:
  """Returns the layout for queries, keys and values.

  Args:
    query: queries, (B, N, heads * K).
    key: keys, (B, N, heads * K).
    value: values, (B, N, heads * K).
    heads: number of heads.
    placed: whether the kernel also needs tables for the rotation of all tokens.

  Raises:
    ConfigError: if the kernel does not support the shapes or types, or if the tokens do not fit into memory.
  """
  advice = 'or use attention="xla"'
  shapes, dtypes = [x.shape for x in (query, key, value)], {x.dtype.name for x in (query, key, value)}
  if len(set(shapes)) > 1 or len(shapes[0]) != 3 or 0 in shapes[0]:
    raise schema.ConfigError(
      f"fused attention needs query, key and value of one shape [B, N, D], not {shapes}. Reshape them, {advice}"
    )
  if len(dtypes) > 1 or not dtypes <= {"bfloat16", "float32"}:
    raise schema.ConfigError(
      f"fused attention supports only bfloat16 and float32, not {sorted(dtypes)}. Convert the inputs, {advice}"
    )
  batch, tokens, width = shapes[0]
  if heads < 1 or width % heads or width // heads > LANES:
    raise schema.ConfigError(
      f"fused attention does not support width {width} with {format_amount(heads, 'head')}. Use heads of equal size "
      f"up to {LANES}, {advice}"
    )
  size, rows, itemsize = width // heads, -(-tokens // 16) * 16, query.dtype.itemsize

  def memory(images: int, chunk: int, lanes: int) -> int:
    """Returns the memory of the backward pass in bytes.

    It includes the arrays of this step and the next, sums over chunks, and the spilled values of the unrolled program.
    """
    arrays = 2 * itemsize * lanes * (4 * rows + 3 * chunk) + 2 * 4 * LANES * chunk
    sums = 2 * 4 * lanes * rows if chunk < rows else 0
    scores, head = chunk * -(-rows // LANES) * LANES, rows * LANES
    spilled = (min(lanes, width) // size) * (SPILLED[0] * scores + SPILLED[1] * head)
    tables = 2 * 2 * 4 * LANES * (rows + chunk) if placed else 0  # cosines and sines of this step and the next
    return images * (arrays + sums + spilled) + tables

  # Lanes are whole groups with whole heads that divide the width, or the whole width. Queries are not cut if possible.
  unit = math.lcm(size, LANES)
  choices = [lanes for lanes in range(unit, width, unit) if width % lanes == 0] + [-(-width // LANES) * LANES]
  choices = [
    lanes for lanes in choices if min(lanes, width) // size <= LANES
  ]  # each head has a lane for its normalizer
  chunks = [-(-rows // 16 // n) * 16 for n in range(1, rows // 16 + 1)]
  fitting = [(chunk, lanes) for chunk in chunks for lanes in choices if memory(1, chunk, lanes) <= VMEM]
  if not fitting:
    raise schema.ConfigError(
      f"{tokens} tokens in {format_amount(heads, 'head')} of {size} are too many for fused attention. Use smaller "
      f"images, {advice}"
    )
  chunk, lanes = max(fitting)
  most = -(-12 * size // lanes)  # about twelve heads per step keep the matrix unit busy
  images = max(n for n in range(1, most + 1) if batch % n == 0 and memory(n, chunk, lanes) <= VMEM)
  return Layout(tokens, size, width, "bfloat16" in dtypes, rows, chunk, images, lanes)


class Head(NamedTuple):
  """The lanes of a head.

  Attributes:
    groups: {number of a group of lanes: mask [1, 128] of the head in this group}.
    mask: union of the masks, [1, 128].
    end: number of the lane after the last one.
  """

  groups: dict[int, jax.Array]
  mask: jax.Array
  end: int


def number_lanes() -> jax.Array:
  """Returns the numbers of the lanes, [1, 128]."""
  return jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)


def list_heads(layout: Layout) -> list[Head]:
  """Returns the heads of a step."""
  found = []
  for number in range(min(layout.lanes, layout.width) // layout.size):
    group, start = divmod(number * layout.size, LANES)
    end = start + layout.size
    masks = {group: (number_lanes() >= start) & (number_lanes() < end)}
    if end > LANES:
      masks[group + 1] = number_lanes() < end - LANES
    found.append(Head(masks, functools.reduce(jnp.logical_or, masks.values()), end % LANES))
  return found


def slice_group(group: int) -> slice:
  """Returns the slice of the lanes of a group."""
  return slice(group * LANES, (group + 1) * LANES)


def gather(head: Head, groups: dict[int, jax.Array]) -> jax.Array:
  """Returns 128 lanes that contain all lanes of a head.

  Args:
    head: the head.
    groups: {number of a group: its lanes [rows, 128]}.
  """
  first, *second = head.groups
  return jnp.where(head.groups[first], groups[first], groups[second[0]]) if second else groups[first]


def scatter(head: Head, x: jax.Array, groups: dict[int, jax.Array]) -> None:
  """Writes the lanes of a head into its groups.

  Args:
    head: the head.
    x: 128 lanes that contain the lanes of the head, [rows, 128].
    groups: {number of a group: its lanes [rows, 128]}, which is modified.
  """
  for group, mask in head.groups.items():
    groups[group] = jnp.where(mask, x, groups.get(group, 0.0))


def spread(x: jax.Array, head: Head, size: int) -> jax.Array:
  """Copies a value from the lanes of other heads to the lanes of a head.

  Args:
    x: lanes [rows, 128] with the same value in all lanes outside of the head.
    head: the head.
    size: size of the head, at most 64.
  """
  return jnp.where(head.mask, pltpu.roll(x, LANES - size, 1), x)


def load(ref: Ref, image: int, group: int, layout: Layout) -> jax.Array:
  """Loads one group of lanes as float32 [rows, 128], with zeros after the last token and the last lane.

  Args:
    ref: reference to an array in memory.
    image: number of the image in the step.
    group: number of the group of lanes.
    layout: layout of the array.
  """
  words = pltpu.bitcast(ref[image, :, slice_group(group)], jnp.int32)
  rows, part = words.shape[0], ref.shape[1] < layout.rows
  # Memory after the end of an array contains arbitrary bits, which are masked. If the end is known, only its tile is
  # masked.
  tokens = layout.tokens - pl.program_id(2) * layout.chunk if part else layout.tokens
  full, half = (tokens >> 1, tokens & 1) if layout.packed else (tokens, 0)
  edge = 0 if part else full // 8 * 8
  if edge < rows:
    row = jax.lax.broadcasted_iota(jnp.int32, (rows - edge, 1), 0) + edge
    keep = jnp.where(row < full, -1, jnp.where(row < full + half, ~ODD, 0))
    words = jnp.concatenate([words[:edge], words[edge:] & keep]) if edge else words & keep
  if layout.width < min(layout.lanes, (group + 1) * LANES):
    words &= jnp.where(number_lanes() < layout.width - group * LANES, -1, 0)
  if layout.packed:
    words = jnp.concatenate([words << 16, words & ODD])
  return pltpu.bitcast(words, jnp.float32)


def store(ref: Ref, image: int, group: int, x: jax.Array, layout: Layout) -> None:
  """Stores one group of lanes, the inverse of `load`.

  Args:
    ref: reference to an array in memory.
    image: number of the image in the step.
    group: number of the group of lanes.
    x: values, float32 [rows, 128].
    layout: layout of the array.
  """
  if layout.packed:
    # Adding half a unit in the last place and truncating equals rounding to even, except for exact ties. It takes a
    # quarter of the operations.
    even, odd = jnp.split(pltpu.bitcast(x, jnp.int32) + 0x8000, 2)
    x = pltpu.bitcast(jax.lax.shift_right_logical(even, 16) | (odd & ODD), jnp.bfloat16)
  ref[image, :, slice_group(group)] = x


def add(ref: Ref, index: tuple[int, slice, slice], x: jax.Array, layout: Layout) -> jax.Array:
  """Adds values to the sum over chunks of queries in `ref`, and returns the sum so far.

  Args:
    ref: reference to the sums.
    index: index of the sum.
    x: values of this chunk.
    layout: layout of the arrays.
  """
  if layout.chunk < layout.rows:
    x += jnp.where(pl.program_id(2) == 0, 0.0, ref[index])
  ref[index] = x
  return x
