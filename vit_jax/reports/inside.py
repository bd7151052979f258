"""Inside a model: learned weights and attention, as arrays and as a chapter of a report."""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax import models
from vit_jax.data import augment
from vit_jax.inference.predictor import Predictor
from vit_jax.models import Description, compact, finite, resnet, swin
from vit_jax.models.intermediates import record
from vit_jax.models.published.model import Registered
from vit_jax.models.transformer import Block, Transformer
from vit_jax.reports import attention, embeddings, heatmaps, page
from vit_jax.schema import format_amount
from vit_jax.schema.errors import NotFiniteError

_CALLED = "inside/logits"  # recorded by this module, because a user's model may record no intermediate values
_ANNOUNCED = rf"{_CALLED}|embedding|(.*/)?attention/weights|pool/weights"
_LAYER = r"(blocks|stages/\d+/blocks)/\d+/attention/weights"
Pair = tuple[int, int]
_DRAWN, _HEADS = 8, 16  # maximum number of images, and of heads of one image, in a chapter


@dataclasses.dataclass(frozen=True, eq=False)
class ModelInspection:
  """Weights of a model and its attention to B images, as float32 arrays.

  A value that the model does not have is None, with a reason in `absent`.

  Attributes:
    filters: principal components of the filters that process pixels (K, P, P, 3), see `embeddings.compute_filters`.
    shares: share of each component in the variance of the filters (K,).
    similarity: similarity of position embeddings (h, w, h, w), see `embeddings.compute_similarity`.
    distance: attention distance in pixels (L, H), mean over images, see `attention.measure_head_distances`. Layers
      with fewer heads are padded with NaN.
    alike: distance with equal attention to all visible patches (L,).
    maps: attention maps of the last layer (B, H, h, w), see `attention.compute_attention_maps`.
    rollout: attention rollout (B, h, w), see `attention.compute_rollout`.
    pooling: learned weights of the patches in the output (B, h, w). For an attention probe, the mean of its heads.
    absent: maps the name of each value that is None to a sentence with the reason.
  """

  filters: np.ndarray | None
  shares: np.ndarray | None
  similarity: np.ndarray | None
  distance: np.ndarray | None
  alike: np.ndarray | None
  maps: np.ndarray | None
  rollout: np.ndarray | None
  pooling: np.ndarray | None
  absent: Mapping[str, str]


def inspect_model(predictor: Predictor, squares: Sequence[np.ndarray]) -> ModelInspection:
  """Computes the analysis of a model that `vit_jax.load` returns.

  Images are processed one by one, and the attention of each layer is reduced immediately. The attention of a large
  model at 384 pixels would take gigabytes. Computations use float32 and no fused kernel, independently of the training.

  Args:
    predictor: the model.
    squares: images, uint8 (S, S, 3), cropped and scaled for the model. Without images, attention is not analysed.

  Raises:
    ValueError: images have another size or type, or the weights are not finite.

  Example:
    model = vit_jax.load("runs/a")
    looked = inside.inspect_model(model, [model.square("photo.jpg")])
    print(looked.distance, looked.absent)
  """
  side = predictor.description.image_size
  for square in squares:
    if square.shape != (side, side, 3) or square.dtype != np.uint8:
      raise ValueError(
        f"a picture is {square.dtype} {list(square.shape)}; the model needs uint8 [{side}, {side}, 3]. Crop the "
        "picture first"
      )
  if broken := _find_broken_weights(predictor):
    raise ValueError(broken)
  model = models.make_functional(_make_plain_model(predictor.description))
  module = model.create(predictor.params)
  normalised = predictor.data.normalisation
  look = jax.jit(
    functools.partial(_inspect_image, model, _find_windows(module), _count_prefix_tokens(module), normalised)
  )
  shown = squares if isinstance(module, (Transformer, swin.Swin)) else ()  # other models do not record attention
  seen = [jax.device_get(look(predictor.params, square[None])) for square in shown]
  for number, one in enumerate(seen):
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(one)):
      raise NotFiniteError(f"picture {number}: attention is not finite. {finite.ADVICE}")
  kernel = _find_first_kernel(module, model.description.channels)
  filters, shares = (None, None) if kernel is None else embeddings.compute_filters(np.asarray(kernel))
  values = {"filters": filters, "shares": shares, "similarity": _compute_similarity(module)} | _combine_images(seen)
  return ModelInspection(**values, absent=_explain_absent(model.description, module, values, len(squares)))


def make_chapter(
  predictor: Predictor, pictures: Sequence[tuple[np.ndarray, Sequence[str]]], title: str = "Inside"
) -> page.Chapter:
  """Returns a chapter with the figures of the ViT and CCT papers for a model, and the reasons for missing figures.

  Args:
    predictor: the model.
    pictures: images as for `inspect_model`, each with its caption. Distances are means over all images. The first
      eight are drawn.
    title: title of the chapter, which also makes the names of its charts unique.
  """
  if broken := _find_broken_weights(predictor):
    return page.Chapter(title, [page.Paragraph(broken)], str(predictor.description))
  try:
    inside = inspect_model(predictor, [square for square, _ in pictures])
  except NotFiniteError as error:
    return page.Chapter(title, [page.Paragraph(f"{error}.")], str(predictor.description))
  side = predictor.description.image_size
  parts: list[page.Part] = []
  if inside.filters is not None and inside.shares is not None:
    parts.append(_show_filters(inside.filters, inside.shares))
  if inside.similarity is not None:
    parts.append(_show_positions(inside.similarity, title))
  if inside.distance is not None and inside.alike is not None:
    parts.append(_show_distances(inside.distance, inside.alike, side, len(pictures), title))
  if inside.rollout is not None and inside.maps is not None:
    parts.append(_show_attention(inside.maps, inside.rollout, inside.pooling, pictures[:_DRAWN]))
    parts.append(_show_heads(inside.maps[0], *pictures[0]))
  reasons = dict.fromkeys(reason for name, reason in inside.absent.items() if name != "pooling")
  if reasons:
    parts.append(page.Paragraph("\n".join(reasons)))
  return page.Chapter(title, parts, str(predictor.description))


def _find_broken_weights(predictor: Predictor) -> str:
  """Returns a sentence that names weights that are not finite, or ""."""
  paths = [path for path, value in predictor.params.items() if not bool(jnp.isfinite(value).all())]
  if not paths:
    return ""
  return f"Parameters that are not finite: {len(paths):,} of {len(predictor.params):,}, such as {paths[0]}."


def _make_plain_model(description: Description) -> Description:
  """Returns the same model in float32, and without the fused kernel, which does not record attention."""
  fused = description.settings().get("attention") == "fused"
  return description.change({"dtype": "float32"} | ({"attention": "xla"} if fused else {}))


def _count_prefix_tokens(module: nnx.Module) -> int:
  """Returns the number of prefix tokens that form the output, or 0 if the patches form the output."""
  if not isinstance(module, Transformer):
    return 0
  return (module.cls is not None) + (module.distillation is not None)


def _find_windows(module: nnx.Module) -> list[tuple[Pair, Pair]]:
  """Returns (window, shift) of each layer with windowed attention."""
  if not isinstance(module, swin.Swin):
    return []
  blocks = [block for stage in module.stages for block in stage.blocks if isinstance(block, Block)]
  layers = [block.attention for block in blocks if isinstance(block.attention, swin.WindowAttention)]
  return [(layer.window, layer.shift) for layer in layers]


def _find_first_kernel(module: nnx.Module, channels: int) -> jax.Array | np.ndarray | None:
  """Returns the effective kernel that processes pixels (P, P, C, D), or None if no attribute has one."""
  stem = getattr(module, "stem", None)
  layer = getattr(module if stem is None else stem, "root", None)
  if layer is None:
    layer = getattr(module, "embedding", None) if stem is None else stem
  if isinstance(layer, compact.Convolutions):
    layer = layer.convolutions[0]
  variable = getattr(layer, "kernel", None)
  kernel = variable[...] if isinstance(variable, nnx.Variable) else None
  if kernel is None or kernel.ndim != 4 or kernel.shape[2] != channels:
    return None
  return resnet.standardise(kernel, layer.divisor) if isinstance(layer, resnet.StandardisedConv) else kernel


def _compute_similarity(module: nnx.Module) -> np.ndarray | None:
  if not isinstance(module, Transformer) or module.position is None:
    return None
  table = np.asarray(module.position())
  side = math.isqrt(len(table) - _count_prefix_tokens(module))  # registers have no position
  return embeddings.compute_similarity(table, (side, side))


# Attention to images.


def _inspect_image(
  model: models.Model,
  cuts: Sequence[tuple[Pair, Pair]],
  leading: int,
  normalised: Mapping[str, Any],
  params: Mapping[str, jax.Array],
  square: jax.Array,
) -> dict[str, Any]:
  """Returns the available values for one image, uint8 (1, S, S, 3): distance, alike, maps, rollout and pooling."""

  def logits(images: jax.Array) -> jax.Array | np.ndarray:
    return record(_CALLED, model.outputs(params, images)[0].logits)

  _, announced = models.capture(logits, _ANNOUNCED)(augment.normalise(square, **normalised))
  layers = [weights for name, weights in announced.items() if re.fullmatch(_LAYER, name)]
  side = square.shape[1]
  if cuts:
    return _measure_window_distances(layers, cuts, side)
  if not layers or "embedding" not in announced:  # a subclass may compute outputs differently
    return {}
  count = announced["embedding"].shape[1]
  grid = (math.isqrt(count),) * 2
  learned, pooling = _find_pooling(announced, leading, layers[0].shape[-1], count)
  return {
    "distance": [attention.measure_head_distances(weights, grid, side / grid[0])[0] for weights in layers],
    "alike": [attention.measure_patch_distances(grid, side / grid[0]).mean()] * len(layers),
    "maps": attention.compute_attention_maps(layers[-1], pooling, grid)[0],
    "rollout": attention.compute_rollout(layers, pooling, grid)[0],
    **({"pooling": pooling[0, -count:].reshape(grid)} if learned else {}),
  }


def _find_pooling(announced: Mapping[str, jax.Array], leading: int, tokens: int, count: int) -> tuple[bool, jax.Array]:
  """Returns (whether the shares are learned, shares (1, T) of the tokens in the output)."""
  weights = announced.get("pool/weights")
  if "pool/attention/weights" in announced:
    weights = announced["pool/attention/weights"].mean(1)[:, 0]
  if weights is not None:
    return True, jnp.pad(weights.astype(jnp.float32), ((0, 0), (tokens - count, 0)))
  number = np.arange(tokens)[None]
  chosen = number < leading if leading else number >= tokens - count
  return False, jnp.asarray(chosen / chosen.sum(), jnp.float32)


def _measure_window_distances(
  layers: Sequence[jax.Array], cuts: Sequence[tuple[Pair, Pair]], side: int
) -> dict[str, Any]:
  """Returns distances inside windows. `cuts` contains the (window, shift) of each layer."""
  distances, alike = [], []
  for weights, (window, shift) in zip(layers, cuts, strict=True):
    windows, _, count, _ = weights.shape
    rows = math.isqrt(windows * count)
    sees = swin.compute_visibility((rows, rows), window, shift)[:, None].astype(np.float32)
    far, wherever = (attention.measure_head_distances(x, window, side / rows).mean(0) for x in (weights, sees))
    distances.append(far)
    alike.append(wherever[0])
  return {"distance": distances, "alike": alike}


def _combine_images(seen: list[dict[str, Any]]) -> dict[str, np.ndarray | None]:
  """Combines the values of all images."""
  first = seen[0] if seen else {}
  values: dict[str, np.ndarray] = {
    name: np.stack([one[name] for one in seen]) for name in ("maps", "rollout", "pooling") if name in first
  }
  if "distance" in first:
    layers = [np.mean(layer, axis=0) for layer in zip(*(one["distance"] for one in seen), strict=True)]
    heads = max(map(len, layers))
    values["distance"] = np.stack([np.pad(x, (0, heads - len(x)), constant_values=np.nan) for x in layers])
    values["alike"] = np.stack(first["alike"])
  return {name: values.get(name) for name in ("distance", "alike", "maps", "rollout", "pooling")}


def _explain_absent(
  description: Description, module: nnx.Module, values: Mapping[str, object], pictures: int
) -> dict[str, str]:
  """Returns the reason for each value that is None."""
  name, position = description.model.name, description.settings().get("position")
  own = isinstance(description.published, Registered) and not isinstance(module, (Transformer, swin.Swin))
  unknown = f"{name} is not built from vit_jax.models.transformer.Transformer: its positions and attention are unknown."
  reasons = {"similarity": f"{name} adds no position embeddings to its tokens."}
  reasons |= dict.fromkeys(
    ("filters", "shares"), f"{name} has no layer `embedding` or `stem` with a kernel [P, P, {description.channels}, D]."
  )
  if own:
    reasons["similarity"] = unknown
  elif isinstance(module, swin.Swin):
    reasons["similarity"] = f"{name} has a bias for each offset inside a window, and no position embeddings."
  elif position == "relative":
    reasons["similarity"] = f"{name} has relative positions inside its attention, and no position embeddings."
  elif not isinstance(module, Transformer):
    reasons["similarity"] = f"{name} has no tokens, and so no position embeddings."
  reason = f"{name} has no attention."
  if own:
    reason = unknown
  elif not pictures:
    reason = "Attention maps need pictures, but no pictures were given."
  reasons |= dict.fromkeys(("distance", "alike", "maps", "rollout", "pooling"), reason)
  if values["distance"] is not None:
    shifted = f"{name} attends inside windows that shift from layer to layer, and no token represents the output."
    reasons |= dict.fromkeys(("maps", "rollout"), shifted)
    reasons["pooling"] = f"{name} has no learned weights of patches in its output."
  return {name: reasons[name] for name, value in values.items() if value is None}


# The chapter.


def _show_filters(filters: np.ndarray, shares: np.ndarray) -> page.Gallery:
  pictures = [page.Picture(pixels) for pixels in heatmaps.draw_filters(filters)]
  about = (
    f"The first {len(pictures)} principal components of the filters that process pixels, as in figure 7 (left) of "
    f"Dosovitskiy et al. 2021; they explain {shares.sum():.0%} of the filters' variance. Grey is 0."
  )
  return page.Gallery("Filters of the embedding, RGB", pictures, about, 56)


def _show_positions(similarity: np.ndarray, title: str) -> page.Chart:
  rows, columns = similarity.shape[:2]
  step = heatmaps.select_rows(rows).step
  about = (
    f"Each map shows the similarity between the position embedding of one patch and those of all {rows} x {columns}, "
    f"as in "
    "figure 7 (centre) of the same paper"
    + (f"; drawn are those of every {step}th row and column." if step > 1 else ".")
  )
  return page.Chart(
    "Similarity of position embeddings", heatmaps.draw_similarity(similarity, f"{title} similarity"), about
  )


def _show_distances(
  distance: np.ndarray, alike: np.ndarray, side: int | tuple[int, int], count: int, title: str
) -> page.Chart:
  about = (
    "Mean distance in pixels between a patch and all patches, weighted by its attention, averaged over patches and "
    f"{format_amount(count, 'picture')}, as in figure 7 (right) of the same paper. Other tokens are ignored."
  )
  drawn = heatmaps.draw_distances(distance, alike, side, f"{title} distance")
  return page.Chart("Attention distance by layer and head", drawn, about)


def _show_attention(
  maps: np.ndarray,
  rollout: np.ndarray,
  pooling: np.ndarray | None,
  pictures: Sequence[tuple[np.ndarray, Sequence[str]]],
) -> page.Gallery:
  strips = []
  for number, (square, lines) in enumerate(pictures):
    pixels = heatmaps.scale_image(square)
    shown = [maps[number].mean(0), rollout[number], *([] if pooling is None else [pooling[number]])]
    drawn = heatmaps.join_images([pixels, *(heatmaps.draw_overlay(pixels, weights) for weights in shown)])
    strips.append(page.Picture(drawn, lines))
  about = (
    "Attention of the output in the last layer, mean of heads; attention rollout through all layers (Abnar and Zuidema "
    "2020)"
    + ("" if pooling is None else "; the learned weights that pool the patches (Hassani et al. 2021)")
    + ". Black is 0, and yellow is the largest value of a map."
  )
  columns = ["picture", "last layer", "rollout", *(["pooling weights"] if pooling is not None else [])]
  return page.Gallery("Where the model looks", strips, about, 116 * len(columns) - 4, columns)


def _show_heads(maps: np.ndarray, square: np.ndarray, lines: Sequence[str]) -> page.Gallery:
  pixels, heads = heatmaps.scale_image(square), enumerate(maps[:_HEADS], 1)
  pictures = [page.Picture(heatmaps.draw_overlay(pixels, each), [f"head {i}"]) for i, each in heads]
  about = f"Attention of the output in the last layer, by head, of the first picture: {', '.join(lines)}"
  return page.Gallery("Heads of the last layer", pictures, about.rstrip(": "), 112)
