"""Multi-head attention as one TPU kernel, forward and backward, for the short sequences of image models.

Scores and weights stay in the chip's vector memory. No array of size N x N is written to HBM. The layout has these
reasons:

- A 32-bit word contains the bfloat16 values of two neighbouring tokens. The program separates them with a shift and a
  mask. Even tokens then precede odd tokens, which does not affect attention. Unpacking in the original order took half
  of the kernel's cycles on a v3.
- Heads keep their layout in [B, N, heads * K]. A head uses lanes of at most two groups of 128 lanes, and never the same
  lane in both groups. One select therefore gathers the head into 128 lanes, in rotated order. Query, key and value have
  the same order. Their products are correct if the lanes of other heads are zero in one factor.
- In the value, the lanes of other heads contain ones. For K <= 64, the matrix unit therefore also sums the exponentials
  of each row.
- The forward pass stores the logarithm of that sum for the backward pass, [B, N, 128] in float32 for all heads of a
  step.
- The compiler schedules operations approximately in program order. Therefore the program loads the next head's lanes
  and computes its scores while the matrix unit processes the current head. A step processes as many heads as memory
  allows.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from vit_jax import schema
from vit_jax.models.kernels import query_key, tiling
from vit_jax.models.kernels.query_key import Operations, Transform
from vit_jax.models.kernels.tiling import Ref
from vit_jax.shapes import Array, Float, Tensor

Arrays = tuple[Tensor, ...]
Operands = list[tuple[str, Tensor]]  # pairs of a kind and an array, see `_call`
# Queries and keys of a group before and after the operations, and the factors of the norm.
Placed = tuple[tuple[Array, Array], list[Array], list[Array] | None]
Place = Callable[[int, int], Placed]
Job = tuple[int, tiling.Head, int, list[int]]  # image, head, number of the head, groups that it completes
Saved = tuple[Tensor, Tensor, Tensor, Tensor, Arrays, Arrays, Tensor]  # for the backward pass
BASE = math.log2(math.e)  # converts to base 2, because the chip's exponential has base 2


def fused_attention(
  query: Float[Tensor, "*query"],
  key: Float[Tensor, "*key"],
  value: Float[Tensor, "*value"],
  query_bias: Float[Tensor, "..."] | None,
  value_bias: Float[Tensor, "..."] | None,
  heads: int,
  gains: tuple[Float[Tensor, "..."], Float[Tensor, "..."]] | None = None,
  angles: Float[np.ndarray, "N K2"] | None = None,
  eps: float = 1e-6,
) -> Float[Array, "*query"]:
  """Computes softmax((q + b) k^T / sqrt(K)) v + c for each head.

  The softmax is float32. Products have the precision of float32 products on a TPU by default: operands rounded to
  bfloat16 and sums in float32. (Mosaic does not support a bfloat16 right-hand side on v3, and float32 operands take one
  pass on v3 to v6e.)

  On platforms other than TPU the kernel is interpreted, which is slow. XLA cannot partition the kernel. Under a mesh it
  must be called inside `jax.shard_map`.

  Args:
    query: queries q, bfloat16 or float32, (B, N, heads * K).
    key: keys k, (B, N, heads * K).
    value: values v, (B, N, heads * K).
    query_bias: bias b, float32 (heads * K,), or None. A bias of the keys would have no effect.
    value_bias: bias c, float32 (heads * K,), or None.
    heads: number of heads.
    gains: factors of queries and keys, (heads * K,) each. If given, queries and keys are first divided by the root mean
      square of each head's channels. None disables the norm.
    angles: rotation angles of each token, (N, K / 2). Channel i is rotated with channel i + K / 2 after the norm, see
      `rotary.apply_rotary`. Angles receive no gradient. None disables rotation.
    eps: added to the mean square by the norm.

  Returns:
    Contexts of the type of `query`, (B, N, heads * K).

  Raises:
    ConfigError: if the kernel does not support the shapes or types. Norm and rotation require K = 2, 4, ..., 128.
  """
  operations = Operations(None if gains is None else eps, angles is not None)
  layout = tiling.cut(query, key, value, heads, operations.operands > 0)
  width = query.shape[-1:]
  for name, bias in (("query", query_bias), ("value", value_bias)):
    if bias is not None and bias.shape != width:
      raise schema.ConfigError(f"the {name} bias of fused attention has shape {bias.shape}. Allowed: {width} or None")
  zero = jnp.zeros(width, jnp.float32)
  query_bias, value_bias = (zero if bias is None else bias.astype(jnp.float32) for bias in (query_bias, value_bias))
  if operations.operands and not query_key.supports(layout.size):
    raise schema.ConfigError(
      f"fused attention normalises and rotates only heads of a size that divides {tiling.LANES}, not {layout.size}. "
      "Use "
      'attention="xla"'
    )
  factors = tuple(gain.astype(jnp.float32) for gain in gains or ())
  extra = query_key.list_operands(operations, layout, factors, angles)
  tables = tuple(array for kind, array in extra if kind != "bias")
  kinds = tuple(kind for kind, _ in extra)
  return _attend(query, key, value, query_bias, value_bias, factors, tables, layout, operations, kinds)


# Kernels, unrolled over images and heads.


def _make_reader(
  refs: Sequence[Ref], query_bias: Ref, layout: tiling.Layout, transform: Transform
) -> tuple[Callable[[int, int], tuple[Array, ...]], Callable[[int, tiling.Head], list[Array]], Place]:
  """Returns the functions load(image, group), read(image, head) and place(image, group).

  `load` and `read` return 128 lanes of each of `refs`. Queries include bias and the scale of the softmax. Queries and
  keys are normalised and rotated as specified by `transform`. `place` returns queries and keys before and after these
  operations, and the factors of the norm.
  """

  @functools.cache
  def place(image: int, group: int) -> Placed:
    queries, keys = (tiling.load(ref, image, group, layout) for ref in refs[:2])
    pair = queries + query_bias[:, tiling.slice_group(group)], keys
    made, rates = transform.forward(pair, group)
    return pair, made, rates

  @functools.cache
  def load(image: int, group: int) -> tuple[Array, ...]:
    queries, keys = place(image, group)[1]
    others = (tiling.load(ref, image, group, layout) for ref in refs[2:])
    return queries * (layout.size**-0.5 * BASE), keys, *others

  def read(image: int, head: tiling.Head) -> list[Array]:
    groups = {group: load(image, group) for group in head.groups}
    return [tiling.gather(head, {group: arrays[i] for group, arrays in groups.items()}) for i in range(len(refs))]

  return load, read, place


def _list_jobs(layout: tiling.Layout) -> Iterable[tuple[Job, tuple[int, tiling.Head, int] | None]]:
  """Returns pairs of a job (image, head, number of the head, groups that it completes) and the next job.

  The next job does not contain its groups. It is None after the last job.
  """
  heads = tiling.list_heads(layout)
  jobs = []
  for image in range(layout.images):
    for number, head in enumerate(heads):
      later = heads[number + 1].groups if number + 1 < len(heads) else ()
      jobs.append((image, head, number, [group for group in head.groups if group not in later]))
  return zip(jobs, [*(job[:3] for job in jobs[1:]), None], strict=True)


def _multiply(a: Tensor, b: Tensor, over_a: int, over_b: int) -> Array:
  return jax.lax.dot_general(a, b, (((over_a,), (over_b,)), ((), ())), preferred_element_type=jnp.float32)


def _compute_scores(query: Tensor, key: Tensor, layout: tiling.Layout) -> Array:
  """Returns scores [chunk, rows]. Scores of padding are -infinity."""
  scores = _multiply(query, key, 1, 1)
  if layout.tokens == layout.rows:
    return scores
  token = jax.lax.broadcasted_iota(jnp.int32, (1, layout.rows), 1)
  real = token < layout.tokens
  if layout.packed:
    half = layout.rows // 2
    real = (token < -(-layout.tokens // 2)) | ((token >= half) & (token < half + layout.tokens // 2))
  return jnp.where(real, scores, -jnp.inf)


def _forward_kernel(
  query: Ref,
  key: Ref,
  value: Ref,
  query_bias: Ref,
  value_bias: Ref,
  *refs: Ref,
  layout: tiling.Layout,
  operations: Operations,
) -> None:
  extra, (context, *kept) = refs[: operations.operands], refs[operations.operands :]
  _, read, _ = _make_reader((query, key, value), query_bias, layout, Transform(operations, extra))

  def begin(image: int, head: tiling.Head, _: int) -> tuple[Array, ...]:
    queries, keys, values = read(image, head)
    return _compute_scores(jnp.where(head.mask, queries, 0.0), keys, layout), values

  first, *others = tiling.list_heads(layout)
  started, last, out = begin(0, first, 0), len(others), {}
  tops: Array | float = 0.0
  totals: Array | float = 1.0
  for (image, head, number, complete), following in _list_jobs(layout):
    scores, values = started
    top = scores.max(-1, keepdims=True)
    weights = jnp.exp2(scores - top)
    if following:
      read(*following[:2])
    sums = _multiply(weights, jnp.where(head.mask, values, 1.0), 1, 0)
    if following:
      started = begin(*following)
    # With few lanes of other heads, copying the sum from them costs more than summing again.
    few = layout.size > tiling.LANES // 2
    total = weights.sum(-1, keepdims=True) if few else tiling.spread(sums, head, layout.size)
    tiling.scatter(head, sums * pl.reciprocal(total, approx=layout.packed), out)
    for group in complete:
      tiling.store(context, image, group, out.pop(group) + value_bias[:, tiling.slice_group(group)], layout)
    if kept:
      tops, totals = (jnp.where(tiling.number_lanes() == number, x, y) for x, y in ((top, tops), (total, totals)))
      if number == last:
        kept[0][image] = tops + jnp.log2(totals)


def _backward_kernel(
  query: Ref,
  key: Ref,
  value: Ref,
  query_bias: Ref,
  normalizer: Ref,
  context: Ref,
  *refs: Ref,
  layout: tiling.Layout,
  operations: Operations,
) -> None:
  """Computes gradients. `context` contains the gradient of the context. Bias gradients are sums over one image."""
  extra, results = refs[: operations.operands], refs[operations.operands :]
  d_query, d_key, d_value, d_query_bias, d_value_bias, *rest = results
  of_gains, sums = (rest[:2], rest[2:]) if operations.eps is not None else (rest[:0], rest)
  made = Transform(operations, extra)
  load, read, place = _make_reader((query, key, value, context), query_bias, layout, made)

  def begin(image: int, head: tiling.Head, number: int) -> tuple[Array, ...]:
    """Returns the weights, the gradients of the scores, and the arrays by which these are multiplied."""
    queries, keys, values, contexts = read(image, head)
    scores = _compute_scores(jnp.where(head.mask, queries, 0.0), keys, layout)
    weights = jnp.exp2(scores - normalizer[image, :, number : number + 1])
    slopes = _multiply(jnp.where(head.mask, contexts, 0.0), values, 1, 1)
    return weights, weights * (slopes - (weights * slopes).sum(-1, keepdims=True)), queries, keys, contexts

  started, done = begin(0, tiling.list_heads(layout)[0], 0), ({}, {}, {})
  for (image, head, _, complete), following in _list_jobs(layout):
    weights, slopes, queries, keys, contexts = started
    if following:
      started = begin(*following)
    tiling.scatter(head, _multiply(slopes, keys, 1, 0), done[0])
    tiling.scatter(head, _multiply(slopes, queries, 0, 0), done[1])
    tiling.scatter(head, _multiply(weights, contexts, 0, 0), done[2])
    for group in complete:
      of_query, of_key, of_value = (groups.pop(group) for groups in done)
      of_query, of_key = of_query * layout.size**-0.5, of_key * (1 / BASE)
      index = image, slice(None), tiling.slice_group(group)
      if sums:
        of_key, of_value = (tiling.add(ref, index, x, layout) for ref, x in zip(sums, (of_key, of_value), strict=True))
      if operations.operands:
        (of_query, of_key), gains = made.backward((of_query, of_key), *place(image, group), group)
        if gains:
          tiling.add(of_gains[0], index, gains[0], layout)
          of_gains[1][index] = gains[1]  # gradient from the sum so far; the last chunk writes the final value
      for ref, x in ((d_query, of_query), (d_key, of_key), (d_value, of_value)):
        tiling.store(ref, image, group, x, layout)
      for ref, x in ((d_query_bias, of_query), (d_value_bias, load(image, group)[3])):
        tiling.add(ref, index, x.sum(0, keepdims=True), layout)


# Calls.


def _call(
  kernel: Callable[..., None],
  name: str,
  layout: tiling.Layout,
  operations: Operations,
  products: int,
  operands: Operands,
  outputs: list[tuple[str, jax.ShapeDtypeStruct]],
  scratch: int = 0,
) -> Sequence[Array]:
  """Runs a kernel over the steps of the grid.

  Each array has a kind, which determines the block that a step receives:

  - all: all tokens.
  - chunk: a chunk of the tokens.
  - row: one row for all tokens.
  - bias: a bias.
  - number: a number for each head and token.
  - table, chunk table: a table of all tokens, or of a chunk, for 128 lanes.
  - constant: a matrix of 128 x 128.

  Args:
    kernel: the kernel.
    name: name of the kernel in profiles.
    layout: layout of the arrays.
    operations: operations on queries and keys.
    products: number of matrix products, for the cost estimate.
    operands: pairs (kind, array).
    outputs: pairs (kind, shape).
    scratch: number of arrays that are summed over chunks.
  """
  images, chunk, width = layout.images, layout.chunk, layout.lanes
  specs = {
    "all": pl.BlockSpec((images, layout.rows, width), lambda i, j, c: (i, 0, j)),
    "chunk": pl.BlockSpec((images, chunk, width), lambda i, j, c: (i, c, j)),
    "row": pl.BlockSpec((images, 1, width), lambda i, j, c: (i, 0, j)),
    "bias": pl.BlockSpec((1, width), lambda i, j, c: (0, j)),
    "number": pl.BlockSpec((images, chunk, tiling.LANES), lambda i, j, c: (i, c, j)),
    "table": pl.BlockSpec((layout.rows, tiling.LANES), lambda i, j, c: (0, 0)),
    "chunk table": pl.BlockSpec((chunk, tiling.LANES), lambda i, j, c: (c, 0)),
    "constant": pl.BlockSpec((tiling.LANES, tiling.LANES), lambda i, j, c: (0, 0)),
  }
  arrays = [x for _, x in operands]
  batch, scores = arrays[0].shape[0], arrays[0].shape[0] * layout.width // layout.size * layout.tokens**2
  call = functools.partial(
    pl.pallas_call,
    functools.partial(kernel, layout=layout, operations=operations),
    grid=(batch // images, -(-layout.width // width), -(-layout.rows // chunk)),
    in_specs=[specs[kind] for kind, _ in operands],
    out_specs=[specs[kind] for kind, _ in outputs],
    out_shape=[x for _, x in outputs],
    scratch_shapes=[pltpu.VMEM((images, layout.rows, width), jnp.float32)] * scratch,
    compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
    cost_estimate=pl.CostEstimate(
      flops=2 * products * scores * layout.size,
      transcendentals=scores,
      bytes_accessed=sum(x.size * x.dtype.itemsize for _, x in (*operands, *outputs)),
    ),
    name=name,
  )
  return jax.lax.platform_dependent(*arrays, tpu=call(interpret=False), default=call(interpret=True))


def _pad_row(x: Tensor) -> Array:
  """Returns [1, F], padded with zeros to whole groups of lanes.

  Zeros are needed because the memory after an array may contain NaN, which would affect all products.
  """
  return jnp.pad(x, (0, -len(x) % tiling.LANES))[None]


def _pair_operands(gains: Arrays, tables: Arrays, kinds: tuple[str, ...]) -> Operands:
  """Returns pairs (kind, array) in the order of `query_key.list_operands`, from separate gains and other arrays."""
  rows, others = iter(gains), iter(tables)
  return [(kind, _pad_row(next(rows)) if kind == "bias" else next(others)) for kind in kinds]


def _forward(
  query: Tensor,
  key: Tensor,
  value: Tensor,
  query_bias: Tensor,
  value_bias: Tensor,
  gains: Arrays,
  tables: Arrays,
  layout: tiling.Layout,
  operations: Operations,
  kinds: tuple[str, ...],
  keep: bool,
) -> Sequence[Array]:
  operands = [
    ("chunk", query),
    ("all", key),
    ("all", value),
    ("bias", _pad_row(query_bias)),
    ("bias", _pad_row(value_bias)),
  ]
  operands += _pair_operands(gains, tables, kinds)
  outputs = [("chunk", jax.ShapeDtypeStruct(query.shape, query.dtype))]
  if keep:
    rows, blocks = -(-layout.rows // layout.chunk) * layout.chunk, -(-layout.width // layout.lanes)
    outputs.append(("number", jax.ShapeDtypeStruct((query.shape[0], rows, blocks * tiling.LANES), jnp.float32)))
  return _call(_forward_kernel, "fused_attention_forward", layout, operations, 2, operands, outputs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(7, 8, 9))
def _attend(
  query: Tensor,
  key: Tensor,
  value: Tensor,
  query_bias: Tensor,
  value_bias: Tensor,
  gains: Arrays,
  tables: Arrays,
  layout: tiling.Layout,
  operations: Operations,
  kinds: tuple[str, ...],
) -> Array:
  return _forward(query, key, value, query_bias, value_bias, gains, tables, layout, operations, kinds, keep=False)[0]


def _attend_forward(
  query: Tensor,
  key: Tensor,
  value: Tensor,
  query_bias: Tensor,
  value_bias: Tensor,
  gains: Arrays,
  tables: Arrays,
  layout: tiling.Layout,
  operations: Operations,
  kinds: tuple[str, ...],
) -> tuple[Array, Saved]:
  # The name by which rematerialisation policies store attention's results, as in attention.py.
  context, normalizer = (
    checkpoint_name(x, "attention/averaged")
    for x in _forward(query, key, value, query_bias, value_bias, gains, tables, layout, operations, kinds, keep=True)
  )
  return context, (query, key, value, query_bias, gains, tables, normalizer)


def _attend_backward(
  layout: tiling.Layout, operations: Operations, kinds: tuple[str, ...], saved: Saved, gradient: Tensor
) -> tuple[Array, Array, Array, Array, Array, Arrays, Arrays]:
  query, key, value, query_bias, gains, tables, normalizer = saved
  operands = [("chunk", query), ("all", key), ("all", value), ("bias", _pad_row(query_bias))]
  operands += [("number", normalizer), ("chunk", gradient), *_pair_operands(gains, tables, kinds)]
  like = jax.ShapeDtypeStruct(query.shape, query.dtype)
  rows = jax.ShapeDtypeStruct((query.shape[0], 1, query.shape[2]), jnp.float32)
  outputs = [("chunk", like), ("all", like), ("all", like), *[("row", rows)] * (2 + len(gains))]
  sums = 2 if layout.chunk < layout.rows else 0
  of_query, of_key, of_value, *of_rows = _call(
    _backward_kernel, "fused_attention_backward", layout, operations, 5, operands, outputs, sums
  )
  of_query_bias, of_value_bias, *of_gains = (row.sum((0, 1)) for row in of_rows)
  return of_query, of_key, of_value, of_query_bias, of_value_bias, tuple(of_gains), jax.tree.map(jnp.zeros_like, tables)


_attend.defvjp(_attend_forward, _attend_backward)
