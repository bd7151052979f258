"""How the arrays of attention lie in a TPU: heads in groups of 128 lanes, tokens in 32-bit words, steps of a grid."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from vit_jax import schema
from vit_jax.schema import amount
from vit_jax.shapes import Tensor

LANES = 128
VMEM = 15.5 * 2**20  # bytes for a step, of 16 MiB
SPILLED = 8, 14  # bytes that the compiler lays aside for a score, and for an element of 128 lanes of a head: measured
ODD = -0x10000  # mask of the bfloat16 in a word's upper half


class Layout(NamedTuple):
  """How arrays are cut: a step takes `images` by `lanes` of `rows` tokens, and of the queries `chunk` tokens."""

  tokens: int
  size: int  # K
  width: int  # heads * K
  packed: bool  # bfloat16, two tokens in a word
  rows: int  # tokens, filled up to whole tiles
  chunk: int
  images: int
  lanes: int


def cut(query, key, value, heads: int, placed: bool = False) -> Layout:
  """The layout of [B, N, heads * K]; ConfigError where there is none. `placed`: there are tables of tokens too."""
  advice = 'or take attention="xla"'
  shapes, dtypes = [x.shape for x in (query, key, value)], {x.dtype.name for x in (query, key, value)}
  if len(set(shapes)) > 1 or len(shapes[0]) != 3 or 0 in shapes[0]:
    raise schema.ConfigError(
      f"fused attention takes query, key and value of one shape [B, N, D], not {shapes}; {advice}"
    )
  if len(dtypes) > 1 or not dtypes <= {"bfloat16", "float32"}:
    raise schema.ConfigError(f"fused attention takes bfloat16 or float32, not {sorted(dtypes)}; {advice}")
  batch, tokens, width = shapes[0]
  if heads < 1 or width % heads or width // heads > LANES:
    raise schema.ConfigError(
      f"fused attention of width {width} in {amount(heads, 'head')}; allowed: heads of equal size "
      f"up to {LANES}; {advice}"
    )
  size, rows, itemsize = width // heads, -(-tokens // 16) * 16, query.dtype.itemsize

  def memory(images, chunk, lanes):
    """Bytes of the backward pass: arrays of this step and the next, sums over chunks, the unrolled program's."""
    arrays = 2 * itemsize * lanes * (4 * rows + 3 * chunk) + 2 * 4 * LANES * chunk
    sums = 2 * 4 * lanes * rows if chunk < rows else 0
    scores, head = chunk * -(-rows // LANES) * LANES, rows * LANES
    spilled = (min(lanes, width) // size) * (SPILLED[0] * scores + SPILLED[1] * head)
    tables = 2 * 2 * 4 * LANES * (rows + chunk) if placed else 0  # of cosines and sines, this step's and the next's
    return images * (arrays + sums + spilled) + tables

  # Whole heads in whole groups of lanes that divide the width, or all of the width; queries uncut where possible.
  unit = math.lcm(size, LANES)
  choices = [lanes for lanes in range(unit, width, unit) if width % lanes == 0] + [-(-width // LANES) * LANES]
  choices = [
    lanes for lanes in choices if min(lanes, width) // size <= LANES
  ]  # each head has a lane for its normalizer
  chunks = [-(-rows // 16 // n) * 16 for n in range(1, rows // 16 + 1)]
  fitting = [(chunk, lanes) for chunk in chunks for lanes in choices if memory(1, chunk, lanes) <= VMEM]
  if not fitting:
    raise schema.ConfigError(
      f"{tokens} tokens in {amount(heads, 'head')} of {size} are too many for fused attention; {advice}"
    )
  chunk, lanes = max(fitting)
  most = -(-12 * size // lanes)  # about twelve heads a step keep the matrix unit busy
  images = max(n for n in range(1, most + 1) if batch % n == 0 and memory(n, chunk, lanes) <= VMEM)
  return Layout(tokens, size, width, "bfloat16" in dtypes, rows, chunk, images, lanes)


class Head(NamedTuple):
  """Where a head lies: its mask [1, 128] in each group of lanes, the union of these, the lane after its last."""

  groups: dict
  mask: jax.Array
  end: int


def lane() -> jax.Array:
  """Numbers of lanes, [1, 128]."""
  return jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)


def heads(layout: Layout) -> list[Head]:
  """The heads of a step."""
  found = []
  for number in range(min(layout.lanes, layout.width) // layout.size):
    group, start = divmod(number * layout.size, LANES)
    end = start + layout.size
    masks = {group: (lane() >= start) & (lane() < end)}
    if end > LANES:
      masks[group + 1] = lane() < end - LANES
    found.append(Head(masks, functools.reduce(jnp.logical_or, masks.values()), end % LANES))
  return found


def at(group: int) -> slice:
  """The lanes of a group."""
  return slice(group * LANES, (group + 1) * LANES)


def gather(head: Head, groups: dict) -> Tensor:
  """The 128 lanes among which a head's are, from the groups it lies in."""
  first, *second = head.groups
  return jnp.where(head.groups[first], groups[first], groups[second[0]]) if second else groups[first]


def scatter(head: Head, x: Tensor, groups: dict):
  """Writes a head's lanes of [rows, 128] into its groups."""
  for group, mask in head.groups.items():
    groups[group] = jnp.where(mask, x, groups.get(group, 0.0))


def spread(x: Tensor, head: Head, size: int) -> jax.Array:
  """Copies what stands in all lanes foreign to a head, of size 64 or less, into its own."""
  return jnp.where(head.mask, pltpu.roll(x, LANES - size, 1), x)


def load(ref, image: int, group: int, layout: Layout) -> jax.Array:
  """One group of lanes, float32 [rows, 128], zero beyond the last token and the last lane."""
  words = pltpu.bitcast(ref[image, :, at(group)], jnp.int32)
  rows, part = words.shape[0], ref.shape[1] < layout.rows
  # Beyond an array's end is anything, so it is cut off bit by bit, in the one tile where it ends if that is known.
  tokens = layout.tokens - pl.program_id(2) * layout.chunk if part else layout.tokens
  full, half = (tokens >> 1, tokens & 1) if layout.packed else (tokens, 0)
  edge = 0 if part else full // 8 * 8
  if edge < rows:
    row = jax.lax.broadcasted_iota(jnp.int32, (rows - edge, 1), 0) + edge
    keep = jnp.where(row < full, -1, jnp.where(row < full + half, ~ODD, 0))
    words = jnp.concatenate([words[:edge], words[edge:] & keep]) if edge else words & keep
  if layout.width < min(layout.lanes, (group + 1) * LANES):
    words &= jnp.where(lane() < layout.width - group * LANES, -1, 0)
  if layout.packed:
    words = jnp.concatenate([words << 16, words & ODD])
  return pltpu.bitcast(words, jnp.float32)


def store(ref, image: int, group: int, x: Tensor, layout: Layout):
  """Writes what `load` reads."""
  if layout.packed:
    # Half a last place up, then cut: rounding to even, but for exact ties, in a quarter of its operations.
    even, odd = jnp.split(pltpu.bitcast(x, jnp.int32) + 0x8000, 2)
    x = pltpu.bitcast(jax.lax.shift_right_logical(even, 16) | (odd & ODD), jnp.bfloat16)
  ref[image, :, at(group)] = x


def add(ref, index, x: Tensor, layout: Layout) -> jax.Array:
  """Sums over the chunks of queries in `ref`; -> the sum so far."""
  if layout.chunk < layout.rows:
    x += jnp.where(pl.program_id(2) == 0, 0.0, ref[index])
  ref[index] = x
  return x
