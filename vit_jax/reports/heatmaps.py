"""Drawing of maps: attention over photographs, filters, similarities of positions, and attention distances."""

import math
from collections.abc import Sequence

import cv2
import matplotlib
import numpy as np
from matplotlib.ticker import MaxNLocator

from vit_jax.reports import drawing

SMALLEST, LARGEST = 112, 224  # smallest and largest size of an image in the page, in pixels
GAP = 4  # pixels between the images of a strip
_GREY = 128
_TILES = 16  # maximum number of maps along a side of the chart of similarities


def scale_image(square: np.ndarray) -> np.ndarray:
  """Scales an image (S, S, 3) for the page. Small images are enlarged by a whole factor, large images are reduced."""
  side = len(square)
  if side > LARGEST:
    return cv2.resize(square, (LARGEST, LARGEST), interpolation=cv2.INTER_AREA)
  times = math.ceil(SMALLEST / side)
  return square.repeat(times, 0).repeat(times, 1)


def draw_overlay(square: np.ndarray, weights: np.ndarray) -> np.ndarray:
  """Draws a map over a grey version of an image, from black (0) to yellow (largest value of the map).

  Args:
    square: image, uint8 (S, S, 3).
    weights: map (h, w).
  """
  share = weights / max(float(weights.max()), np.finfo(np.float32).tiny)
  share = cv2.resize(share.astype(np.float32), square.shape[1::-1], interpolation=cv2.INTER_LINEAR)
  heat = matplotlib.colormaps["inferno"](share)[..., :3] * 255
  return (0.45 * square.mean(-1, keepdims=True) + 0.55 * heat).astype(np.uint8)


def join_images(pictures: Sequence[np.ndarray]) -> np.ndarray:
  """Joins images of equal size side by side, with a grey gap."""
  gap = np.full((len(pictures[0]), GAP, 3), _GREY, np.uint8)
  return np.concatenate([part for picture in pictures for part in (gap, picture)][1:], 1)


def draw_filters(filters: np.ndarray) -> list[np.ndarray]:
  """Converts filters (K, P, P, 3) to uint8 images (P, P, 3). Grey is 0, and each filter has full contrast."""
  largest = np.abs(filters).max((1, 2, 3), keepdims=True)
  return list(np.rint(127.5 + 127.5 * filters / largest).astype(np.uint8))


def select_rows(side: int) -> range:
  """Returns the rows (or columns) of a grid to draw: all, or every second, third, ... row of a large grid."""
  step = math.ceil(side / _TILES)
  return range((side - 1) % step // 2, side, step)


def draw_similarity(values: np.ndarray, name: str) -> str:
  """Draws similarities as a grid of maps, one for each patch: figure 7 (centre) of Dosovitskiy et al. 2021.

  Args:
    values: result of `embeddings.compute_similarity` (h, w, h, w).
    name: name of the figure, unique in the page.
  """
  high, wide = values.shape[:2]
  rows, columns = select_rows(high), select_rows(wide)
  gap = max(1, round(wide / 10))
  coloured = matplotlib.colormaps["viridis"]((values + 1) / 2)  # (h, w, h, w, 4)
  tiles = np.zeros((len(rows), len(columns), high + gap, wide + gap, 4))  # transparent between the maps
  tiles[:, :, :high, :wide] = coloured[np.ix_(rows, columns)]
  image = tiles.swapaxes(1, 2).reshape(len(rows) * (high + gap), len(columns) * (wide + gap), 4)[:-gap, :-gap]
  with drawing.use_style():
    figure, [axes] = drawing.make_figure(5.2, 4.5)
    drawn = axes.imshow(image, interpolation="none")
    every = math.ceil(len(columns) / 8)  # interval of the labels
    for axis, numbers, size in ((axes.xaxis, columns, wide), (axes.yaxis, rows, high)):
      at = [(size - 1) / 2 + i * (size + gap) for i in range(len(numbers))]
      axis.set_ticks(at[::every], [str(number + 1) for number in numbers[::every]])
    axes.set(xlabel="column of the patch", ylabel="row of the patch")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    drawn.set(cmap="viridis", clim=(-1, 1))
    bar = figure.colorbar(drawn, ax=axes, shrink=0.8, label="cosine similarity", ticks=[-1, -0.5, 0, 0.5, 1])
    bar.outline.set_visible(False)
    assert bar.solids is not None
    bar.solids.set_rasterized(True)
    return drawing.render_svg(figure, name)


def draw_distances(values: np.ndarray, alike: np.ndarray, side: int | tuple[int, int], name: str) -> str:
  """Draws the attention distances of all heads: figure 7 (right) of Dosovitskiy et al. 2021.

  Args:
    values: distance of each head (L, H).
    alike: distance of each layer (L,) with equal attention to all patches.
    side: image size in pixels.
    name: name of the figure, unique in the page.
  """
  layers = np.arange(1, len(values) + 1)
  with drawing.use_style():
    figure, [axes] = drawing.make_figure(5.2, 3.2)
    # Heads of one layer are spread horizontally, nearest first, so that equal distances remain visible.
    offsets = np.linspace(-0.18, 0.18, values.shape[1]) if values.shape[1] > 1 else [0]
    axes.scatter(
      (layers[:, None] + offsets).ravel(),
      np.sort(values, 1).ravel(),
      s=16,
      color=drawing.SERIES[0],
      linewidth=0,
      alpha=0.85,
      label="a head",
    )
    edges = np.concatenate([layers - 0.5, layers[-1:] + 0.5])
    equal = "equal attention to all patches"
    axes.stairs(alike, edges, baseline=None, color=drawing.SERIES[1], linestyle="--", label=equal)
    axes.set(xlabel="layer", ylabel=f"attention distance, pixels of {side}", xlim=(0.4, len(values) + 0.6))
    locator = axes.xaxis.get_major_locator()
    assert isinstance(locator, MaxNLocator)
    locator.set_params(integer=True)
    axes.set_ylim(0, 1.25 * np.nanmax([*values.ravel(), *alike]))
    axes.legend(ncols=2, loc="upper left")
    return drawing.render_svg(figure, name)
