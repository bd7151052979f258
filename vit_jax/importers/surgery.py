"""Adaptation of weights to another model: resolution, head and stacked layers. All functions are pure."""

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from vit_jax.importers import layout, position_tables
from vit_jax.importers.resampling import resample
from vit_jax.models import Description
from vit_jax.schema import ConfigError, format_amount

Shapes = Mapping[str, tuple[int, ...]]


def compute_grid(tokens: int, image_size: int | tuple[int, int]) -> tuple[int, int]:
  """Returns the rows and columns of a grid of patches.

  Args:
    tokens: number of patches.
    image_size: side of the image in pixels, or (height, width). It determines the proportions of the grid.

  Raises:
    ConfigError: if the patches do not fill a grid.
  """
  height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
  rows = max(round(math.sqrt(tokens * height / width)), 1)
  if tokens % rows:
    raise ConfigError(f"{tokens} patches do not fill a grid for images of {height} x {width} pixels")
  return rows, tokens // rows


def stack(arrays: Mapping[str, np.ndarray], paths: Iterable[str]) -> dict[str, np.ndarray]:
  """Returns parameters for a model that may be scanned: blocks/0/x, blocks/1/x and so on become blocks/x.

  Args:
    arrays: parameters by path, layer by layer.
    paths: paths of the model that may be scanned.
  """
  result = {}
  for path in paths:
    if path in arrays:
      result[path] = arrays[path]
      continue
    stem, _, rest = path.partition("/")
    layers = sum(re.fullmatch(rf"{stem}/\d+/{re.escape(rest)}", name) is not None for name in arrays)
    if layers:
      result[path] = np.stack([arrays[f"{stem}/{i}/{rest}"] for i in range(layers)])
  return result


def unstack(arrays: Mapping[str, np.ndarray], paths: Iterable[str]) -> dict[str, np.ndarray]:
  """Splits stacked layers into single layers. This is the inverse of `stack`.

  Args:
    arrays: parameters by path of a model that may be scanned.
    paths: paths of the unscanned model.
  """
  result = {}
  for path in paths:
    match = re.fullmatch(r"(\w+)/(\d+)/(.*)", path)
    if path in arrays:
      result[path] = arrays[path]
    elif match and f"{match[1]}/{match[3]}" in arrays:
      result[path] = arrays[f"{match[1]}/{match[3]}"][int(match[2])]
  return result


def fit(
  arrays: Mapping[str, np.ndarray],
  source: Description,
  target: Description,
  head: Literal["auto", "keep", "new"] = "auto",
) -> tuple[dict[str, np.ndarray], list[str]]:
  """Adapts the parameters of one model to another model.

  Tables that belong to a grid of patches are resampled. Any other difference between the models is an error.

  Args:
    arrays: parameters of `source` by path, layer by layer.
    source: the model of the parameters.
    target: the model to adapt the parameters to.
    head: "keep" keeps the head. "new" initialises the head again, with zero kernels (Dosovitskiy et al. 2021, section
      3.2). "auto" keeps the head if the number of classes is equal.

  Returns:
    The parameters of `target`, and notes about all changes. Parameters that must be initialised are missing.

  Raises:
    ConfigError: if the models differ in anything else. The message lists the differences.
  """
  shapes = layout.compute_shapes(target)
  placed, source = position_tables.convert_position(arrays, source, target.settings().get("position"))
  moved = [f"{position_tables.TABLE}: rows of tokens before the patches moved"] if placed is not arrays else []
  arrays, anew, notes = _fit_head(placed, source, target, head, shapes)
  arrays, resampled = _fit_grids(arrays, source, target, shapes)
  _check_equal(arrays, source, target, shapes, anew)
  return arrays, [*moved, *notes, *resampled, *_differing_arguments(source, target)]


def _fit_head(
  arrays: Mapping[str, np.ndarray], source: Description, target: Description, head: str, shapes: Shapes
) -> tuple[dict[str, np.ndarray], set[str], list[str]]:
  """Returns (arrays with the head of `target`, paths that are initialised again, notes)."""
  if head == "keep" and source.classes != target.classes:
    known = (
      f"the file's head has {format_amount(source.classes, 'class', 'classes')}"
      if source.classes
      else "the file has no head for classes"
    )
    raise ConfigError(f"{known}, but this model has {target.classes}. To train a new head, set init.head=new")
  if target.classes and head != "new" and source.classes == target.classes:
    return dict(arrays), set(), []
  of_head = re.compile(target.published.order.head).fullmatch
  notes = []
  if target.classes and source.classes:
    notes.append(
      f"head: new weights for {format_amount(target.classes, 'class', 'classes')}; the file's {source.classes} are "
      "left out"
    )
  anew = {path for path in shapes if of_head(path)}
  arrays = {path: array for path, array in arrays.items() if not of_head(path)}
  if "pre_logits/kernel" not in shapes and arrays.pop("pre_logits/kernel", None) is not None:
    del arrays["pre_logits/bias"]
    notes.append("pre_logits: left out together with the head")
  zeros = {path: np.zeros(shapes[path], np.float32) for path in anew if path.endswith("kernel")}
  if "pre_logits/kernel" not in arrays:
    anew |= {path for path in shapes if path.startswith("pre_logits/")}
  return arrays | zeros, anew, notes


def _fit_grids(
  arrays: Mapping[str, np.ndarray], source: Description, target: Description, shapes: Shapes
) -> tuple[dict[str, np.ndarray], list[str]]:
  """Returns (arrays with position tables resampled to the grids of `target`, notes)."""
  tokens, method = target.published.order.positioned, target.settings().get("resampling", "zoom")
  result, notes = dict(arrays), []
  for path, array in arrays.items():
    if path not in shapes or array.shape == shapes[path]:
      continue
    if re.fullmatch(r"(blocks/\d+/)?position/table", path) and array.shape[1] == shapes[path][1]:
      leading, others = (
        _count_leading_rows(params, one, tokens) for params, one in ((arrays, source), (shapes, target))
      )
      if leading != others:
        continue
      old = compute_grid(array.shape[0] - leading, source.image_size)
      new = compute_grid(shapes[path][0] - leading, target.image_size)
      rest = resample(array[leading:], old, new, method)
      result[path] = np.concatenate([array[:leading], rest])
    elif re.fullmatch(r"(blocks/\d+/)?position/(rows|columns)", path) and array.shape[1] == shapes[path][1]:
      old, new = ((rows[0], 1) for rows in (array.shape, shapes[path]))
      result[path] = resample(array, old, new, method)
    elif path.endswith("attention/table"):
      old, new = (2 * (math.isqrt(rows[0]),) for rows in (array.shape, shapes[path]))
      result[path] = resample(array, old, new, method)
    else:
      continue
    notes.append(f"{path}: {old[0]} x {old[1]} resampled to {new[0]} x {new[1]} ({method})")
  return result, notes


def _count_leading_rows(params: Container[str], description: Description, tokens: Sequence[str]) -> int:
  """Returns the number of rows in front of the rows of patches in position tables."""
  position = description.settings().get("position")
  count = 0 if position == "learned_patches" else sum(token in params for token in tokens)
  return count + (description.settings()["registers"] if position == "learned_all" else 0)


def _check_equal(
  arrays: Mapping[str, np.ndarray], source: Description, target: Description, shapes: Shapes, anew: set[str]
) -> None:
  """Raises ConfigError if the arrays differ from those of `target`, except for paths that are initialised again."""
  differences = [f"missing: {path}" for path in shapes if path not in arrays and path not in anew]
  differences += [f"left over: {path}" for path in arrays if path not in shapes]
  differences += [
    f"{path} is {arrays[path].shape} in the file, {shape} in the model"
    for path, shape in shapes.items()
    if path in arrays and arrays[path].shape != shape
  ]
  resized = source.model.name == target.model.name and source.essential() == target.essential()
  if differences and resized and source.image_size != target.image_size and shapes.keys() - anew <= arrays.keys():
    raise ConfigError(
      f"{differences[0]}: the weights of {source.model.name} are for images of {source.image_size} pixels alone, and "
      f"have no positions to resample to {target.image_size}. Do not change the size"
    )
  if differences:
    more = len(differences) - layout.LISTED
    raise ConfigError(
      f"the file contains {source}, but this model is {target}. They differ in {len(differences)}:\n  "
      + "\n  ".join(differences[: layout.LISTED])
      + (f"\n  and {more} more" if more > 0 else "")
      + f"\nTo take the file's model: {source.flags()}"
    )


def _differing_arguments(source: Description, target: Description) -> list[str]:
  """Returns notes on arguments that differ between the models and change the logits, but not the shapes."""
  theirs, ours = source.settings(), target.settings()
  return [
    f"model.{key}: the file's model has {theirs[key]}, but this model has {ours[key]}"
    for key in ("gelu", "eps", "norm.eps", "norm_order", "norm.order", "padding", "position", "position.at")
    if key in theirs and key in ours and theirs[key] != ours[key]
  ]
