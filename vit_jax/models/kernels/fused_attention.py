"""Multi-head attention as one TPU kernel, forward and backward, for the short sequences of image models.

Scores and weights stay in the chip's vector memory: nothing of [N, N] is written to HBM. Why it is laid out so:

- A word of 32 bits holds a bfloat16 of two neighbouring tokens. Cut by shift and mask, even tokens come before odd
  ones, which attention does not mind; unpacked in order they took half of the kernel's cycles on a v3.
- Heads stay where they lie in [B, N, heads * K]. A head covers at most two groups of 128 lanes and no lane in both, so
  one select gathers it into 128 lanes, rotated. Query, key and value are rotated alike, and their products are right
  once foreign lanes are zero in one factor.
- Foreign lanes of the value are one: the matrix unit then sums the exponentials of a row on the side, for K <= 64.
- The forward pass keeps that sum's logarithm for the backward pass, [B, N, 128] in float32 for all heads of a step.
- The compiler schedules about in the order of the program. So the next head's scores are asked for, and its lanes
  loaded, while the matrix unit has work for this one, and a step takes as many heads as memory allows.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from vit_jax import schema
from vit_jax.models.kernels import placing, tiling
from vit_jax.models.kernels.placing import Placed, Placing
from vit_jax.shapes import Array, Float, Tensor

BASE = math.log2(math.e)  # the chip's exponential has base 2


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
  """softmax((q + b) k^T / sqrt(K)) v + c for each of the heads, three times [B, N, heads * K] -> the same.

  Biases are float32 [heads * K] or None; a key bias would change nothing. The softmax is float32. The others are
  bfloat16 or float32, and products are what a TPU makes of float32 by default: operands rounded to bfloat16, sums in
  float32. (Mosaic takes no bfloat16 right-hand side on v3, and float32 operands are one pass on v3 to v6e alike.)

  With `gains` [heads * K] of queries and keys both are divided by the root mean square of each head's channels first;
  with `angles` [N, K / 2] channel i is then turned with channel i + K / 2, as `rotary.turn` does. Heads are then of 2,
  4, ... or 128 channels. No gradient passes through the angles.

  Elsewhere than on a TPU the kernel is interpreted, which is slow. XLA cannot partition it: under a mesh it belongs
  into `jax.shard_map`. Raises ConfigError for shapes and dtypes that it is not made for.
  """
  placed = Placing(None if gains is None else eps, angles is not None)
  layout = tiling.cut(query, key, value, heads, placed.operands > 0)
  width = query.shape[-1:]
  for name, bias in (("query", query_bias), ("value", value_bias)):
    if bias is not None and bias.shape != width:
      raise schema.ConfigError(f"the {name} bias of fused attention has shape {bias.shape}; allowed: {width} or None")
  zero = jnp.zeros(width, jnp.float32)
  query_bias, value_bias = (zero if bias is None else bias.astype(jnp.float32) for bias in (query_bias, value_bias))
  if placed.operands and not placing.fits(layout.size):
    raise schema.ConfigError(
      f"fused attention normalises and turns heads of a size that divides {tiling.LANES}, not {layout.size}; take "
      'attention="xla"'
    )
  gains = tuple(gain.astype(jnp.float32) for gain in gains or ())
  extra = placing.operands(placed, layout, gains, angles)
  tables = tuple(array for kind, array in extra if kind != "bias")
  kinds = tuple(kind for kind, _ in extra)
  return _attend(query, key, value, query_bias, value_bias, gains, tables, layout, placed, kinds)


# Kernels, unrolled over images and heads.


def _reader(refs, query_bias, layout, placed):
  """-> load(image, group), read(image, head), place(image, group).

  The first two give 128 lanes of each of `refs`: the first, queries, with bias and softmax's scale, keys as they are;
  both as `placed` makes them. The third gives both before and after that, and by what they were divided.
  """

  @functools.cache
  def place(image, group):
    queries, keys = (tiling.load(ref, image, group, layout) for ref in refs[:2])
    pair = queries + query_bias[:, tiling.at(group)], keys
    made, rates = placed.forward(pair, group)
    return pair, made, rates

  @functools.cache
  def load(image, group):
    queries, keys = place(image, group)[1]
    others = (tiling.load(ref, image, group, layout) for ref in refs[2:])
    return queries * (layout.size**-0.5 * BASE), keys, *others

  def read(image, head):
    groups = {group: load(image, group) for group in head.groups}
    return [tiling.gather(head, {group: arrays[i] for group, arrays in groups.items()}) for i in range(len(refs))]

  return load, read, place


def _schedule(layout):
  """Image, head, its number in the step, the groups of lanes that it completes; and the first three of what follows."""
  heads = tiling.heads(layout)
  jobs = []
  for image in range(layout.images):
    for number, head in enumerate(heads):
      later = heads[number + 1].groups if number + 1 < len(heads) else ()
      jobs.append((image, head, number, [group for group in head.groups if group not in later]))
  return zip(jobs, [job[:3] for job in jobs[1:]] + [None], strict=True)


def _product(a, b, over_a, over_b):
  return jax.lax.dot_general(a, b, (((over_a,), (over_b,)), ((), ())), preferred_element_type=jnp.float32)


def _scores(query, key, layout):
  """[chunk, rows], -infinity where no key is."""
  scores = _product(query, key, 1, 1)
  if layout.tokens == layout.rows:
    return scores
  token = jax.lax.broadcasted_iota(jnp.int32, (1, layout.rows), 1)
  real = token < layout.tokens
  if layout.packed:
    half = layout.rows // 2
    real = (token < -(-layout.tokens // 2)) | ((token >= half) & (token < half + layout.tokens // 2))
  return jnp.where(real, scores, -jnp.inf)


def _forward_kernel(query, key, value, query_bias, value_bias, *refs, layout, placed):
  extra, (context, *kept) = refs[: placed.operands], refs[placed.operands :]
  _, read, _ = _reader((query, key, value), query_bias, layout, Placed(placed, extra))

  def begin(image, head, _):
    queries, keys, values = read(image, head)
    return _scores(jnp.where(head.mask, queries, 0.0), keys, layout), values

  first, *others = tiling.heads(layout)
  begun, last, out, tops, totals = begin(0, first, 0), len(others), {}, 0.0, 1.0
  for (image, head, number, complete), following in _schedule(layout):
    scores, values = begun
    top = scores.max(-1, keepdims=True)
    weights = jnp.exp2(scores - top)
    if following:
      read(*following[:2])
    sums = _product(weights, jnp.where(head.mask, values, 1.0), 1, 0)
    if following:
      begun = begin(*following)
    # With few foreign lanes, bringing their sum to the head's own costs more than summing again.
    few = layout.size > tiling.LANES // 2
    total = weights.sum(-1, keepdims=True) if few else tiling.spread(sums, head, layout.size)
    tiling.scatter(head, sums * pl.reciprocal(total, approx=layout.packed), out)
    for group in complete:
      tiling.store(context, image, group, out.pop(group) + value_bias[:, tiling.at(group)], layout)
    if kept:
      tops, totals = (jnp.where(tiling.lane() == number, x, y) for x, y in ((top, tops), (total, totals)))
      if number == last:
        kept[0][image] = tops + jnp.log2(totals)


def _backward_kernel(query, key, value, query_bias, normalizer, context, *refs, layout, placed):
  """`context` is the gradient of what this name says elsewhere; results are gradients, those of biases for an image."""
  extra, results = refs[: placed.operands], refs[placed.operands :]
  d_query, d_key, d_value, d_query_bias, d_value_bias, *rest = results
  of_gains, sums = (rest[:2], rest[2:]) if placed.eps is not None else ((), rest)
  made = Placed(placed, extra)
  load, read, place = _reader((query, key, value, context), query_bias, layout, made)

  def begin(image, head, number):
    """Weights, gradients of scores, and what they are multiplied with."""
    queries, keys, values, contexts = read(image, head)
    scores = _scores(jnp.where(head.mask, queries, 0.0), keys, layout)
    weights = jnp.exp2(scores - normalizer[image, :, number : number + 1])
    slopes = _product(jnp.where(head.mask, contexts, 0.0), values, 1, 1)
    return weights, weights * (slopes - (weights * slopes).sum(-1, keepdims=True)), queries, keys, contexts

  begun, done = begin(0, tiling.heads(layout)[0], 0), ({}, {}, {})
  for (image, head, _, complete), following in _schedule(layout):
    weights, slopes, queries, keys, contexts = begun
    if following:
      begun = begin(*following)
    tiling.scatter(head, _product(slopes, keys, 1, 0), done[0])
    tiling.scatter(head, _product(slopes, queries, 0, 0), done[1])
    tiling.scatter(head, _product(weights, contexts, 0, 0), done[2])
    for group in complete:
      of_query, of_key, of_value = (groups.pop(group) for groups in done)
      of_query, of_key = of_query * layout.size**-0.5, of_key * (1 / BASE)
      index = image, slice(None), tiling.at(group)
      if sums:
        of_key, of_value = (tiling.add(ref, index, x, layout) for ref, x in zip(sums, (of_key, of_value), strict=True))
      if placed.operands:
        (of_query, of_key), gains = made.backward((of_query, of_key), *place(image, group), group)
        if gains:
          tiling.add(of_gains[0], index, gains[0], layout)
          of_gains[1][index] = gains[1]  # of the sum so far: the last one is that of all queries
      for ref, x in ((d_query, of_query), (d_key, of_key), (d_value, of_value)):
        tiling.store(ref, image, group, x, layout)
      for ref, x in ((d_query_bias, of_query), (d_value_bias, load(image, group)[3])):
        tiling.add(ref, index, x.sum(0, keepdims=True), layout)


# Calls.


def _call(kernel, name, layout, placed, products, operands, outputs, scratch=0):
  """Runs a kernel on pairs of kind and array, into pairs of kind and shape, by steps of the grid.

  Kinds are all tokens, a chunk of them, one row for all of them, a bias, a number for each head and token, a table of
  all tokens or of a chunk for 128 lanes, a matrix of these. `products` is how many matrix products there are, `scratch`
  how many arrays add up over chunks.
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
    functools.partial(kernel, layout=layout, placed=placed),
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


def _row(x):
  """[1, F], with zeros up to whole groups of lanes: beyond an array may be no number, which products would spread."""
  return jnp.pad(x, (0, -len(x) % tiling.LANES))[None]


def _extra(gains, tables, kinds):
  """Pairs of kind and array, as `placing.operands` made them, of gains and of what is no gain."""
  gains, tables = iter(gains), iter(tables)
  return [(kind, _row(next(gains)) if kind == "bias" else next(tables)) for kind in kinds]


def _forward(query, key, value, query_bias, value_bias, gains, tables, layout, placed, kinds, keep):
  operands = [("chunk", query), ("all", key), ("all", value), ("bias", _row(query_bias)), ("bias", _row(value_bias))]
  operands += _extra(gains, tables, kinds)
  outputs = [("chunk", jax.ShapeDtypeStruct(query.shape, query.dtype))]
  if keep:
    rows, blocks = -(-layout.rows // layout.chunk) * layout.chunk, -(-layout.width // layout.lanes)
    outputs.append(("number", jax.ShapeDtypeStruct((query.shape[0], rows, blocks * tiling.LANES), jnp.float32)))
  return _call(_forward_kernel, "fused_attention_forward", layout, placed, 2, operands, outputs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(7, 8, 9))
def _attend(query, key, value, query_bias, value_bias, gains, tables, layout, placed, kinds):
  return _forward(query, key, value, query_bias, value_bias, gains, tables, layout, placed, kinds, keep=False)[0]


def _attend_forward(query, key, value, query_bias, value_bias, gains, tables, layout, placed, kinds):
  # Under the name by which rematerialisation keeps what attention gives, as in attention.py.
  context, normalizer = (
    checkpoint_name(x, "attention/averaged")
    for x in _forward(query, key, value, query_bias, value_bias, gains, tables, layout, placed, kinds, keep=True)
  )
  return context, (query, key, value, query_bias, gains, tables, normalizer)


def _attend_backward(layout, placed, kinds, saved, gradient):
  query, key, value, query_bias, gains, tables, normalizer = saved
  operands = [("chunk", query), ("all", key), ("all", value), ("bias", _row(query_bias))]
  operands += [("number", normalizer), ("chunk", gradient), *_extra(gains, tables, kinds)]
  like = jax.ShapeDtypeStruct(query.shape, query.dtype)
  rows = jax.ShapeDtypeStruct((query.shape[0], 1, query.shape[2]), jnp.float32)
  outputs = [("chunk", like), ("all", like), ("all", like), *[("row", rows)] * (2 + len(gains))]
  sums = 2 if layout.chunk < layout.rows else 0
  of_query, of_key, of_value, *of_rows = _call(
    _backward_kernel, "fused_attention_backward", layout, placed, 5, operands, outputs, sums
  )
  of_query_bias, of_value_bias, *of_gains = (row.sum((0, 1)) for row in of_rows)
  return of_query, of_key, of_value, of_query_bias, of_value_bias, tuple(of_gains), jax.tree.map(jnp.zeros_like, tables)


_attend.defvjp(_attend_forward, _attend_backward)
