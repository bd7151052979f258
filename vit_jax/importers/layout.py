"""Layouts of weight files, as tables that map tensors to parameters in both directions.

A row contains the name of a tensor, the parameter (or several parameters that the tensor packs), and an einops pattern
that maps their axes. Reading applies the patterns, and writing applies them in reverse.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from einops import rearrange

from vit_jax import models
from vit_jax.importers import unused
from vit_jax.importers.formats.lazy_tensors import Tensor, Tensors
from vit_jax.importers.hints import Hints
from vit_jax.importers.position_tables import TABLE, convert_position
from vit_jax.models import Description, finite, positions
from vit_jax.models.positions import Resampling
from vit_jax.schema import Choice, ConfigError
from vit_jax.schema.errors import format_names

LISTED = 12  # maximum number of tensors of each kind in an error


class TensorRow(NamedTuple):
  """A row of a layout: one tensor, or one tensor for each value of the placeholders.

  Attributes:
    theirs: name in the file. {i1} is the value of placeholder {i} counted from 1.
    ours: path of the parameter, in which {i}, {j} and {l} are placeholders for numbers. If a tensor packs several
      parameters, a tuple of their paths. The first axis on the right of the arrow then enumerates them.
    pattern: einops pattern from the tensor to the parameters. An axis with the name `two` has length 2, so that "(two
      k)" can split a dimension of the parameter.
    requires: path of a parameter that the model must also have for this row to apply.
  """

  theirs: str
  ours: str | tuple[str, ...]
  pattern: str
  requires: str | None = None

  @property
  def paths(self) -> tuple[str, ...]:
    """Returns the paths of the parameters, always as a tuple."""
    return (self.ours,) if isinstance(self.ours, str) else self.ours


class Layout(NamedTuple):
  """The names and shapes with which a code base publishes one family of models.

  Several layouts may have the same name and family. `holds` and `fits` then select one of them.

  Attributes:
    name: name of the code base: vit_jax, big_vision, timm, hf, compact and others.
    family: family of the models, as in `models.find`.
    rows: the rows.
    recognises: function that returns true for the tensors of this layout.
    describe: function from tensors and hints to the description of the model. It uses names and shapes.
    canonical: function from tensors and hints to tensors with the names and contents of the rows. It converts older
      generations of files.
    finish: function from tensors and description to tensors, applied last when a file is written.
    stores_tables: true if files contain position tables that are computed, not learned.
    create_config: function from a description to the JSON values of a file next to the weights, such as config.json.
    computes: model settings that readers of this layout assume. If a setting had another value, readers would
      compute another model. A tuple lists several allowed values.
    ignored: pattern of names of tensors that are not parameters.
    untaken: pattern of names that are used only in training, in addition to mask tokens. See `unused`.
    unneeded: function that returns other names to ignore, by reason.
    holds: function that returns true for the models that are published in this layout.
    fits: function from tensors and hints that returns false if the files next to the weights exclude this layout.
    doubts: function from tensors and hints to notes about other models that a file may contain.
    resampling: rule for position tables at another resolution. None selects the rule of the model's name.
    position: form of the position tables in files, regardless of the model's tokens. See
      `position_tables.convert_position`.
  """

  name: str
  family: str
  rows: tuple[TensorRow, ...]
  recognises: Callable[[Tensors], bool]
  describe: Callable[[Tensors, Hints], Description]
  canonical: Callable[[Tensors, Hints], Tensors] = lambda tensors, hints: tensors
  finish: Callable[[Tensors, Description], Tensors] = lambda tensors, description: tensors
  stores_tables: bool = True
  create_config: Callable[[Description], dict[str, Any]] | None = None
  computes: Mapping[str, Any] = {}
  ignored: str = r"(?!)"
  untaken: str = r"(?!)"
  unneeded: Callable[[Tensors], Mapping[str, Sequence[str]]] = lambda tensors: {}
  holds: Callable[[Description], bool] = lambda description: True
  fits: Callable[[Tensors, Hints], bool] = lambda tensors, hints: True
  doubts: Callable[[Tensors, Hints], list[str]] = lambda tensors, hints: []
  resampling: Resampling | None = None
  position: str | None = None


class TensorEntry(NamedTuple):
  """A tensor that a file must contain.

  Attributes:
    name: name in the file.
    shape: shape in the file.
    paths: paths of the parameters.
    pattern: einops pattern of the row.
    lengths: lengths of the axes in the pattern.
  """

  name: str
  shape: tuple[int, ...]
  paths: tuple[str, ...]
  pattern: str
  lengths: dict[str, int]


def compute_shapes(description: Description) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of a model's parameters by path, layer by layer."""
  return {path: leaf.shape for path, leaf in models.make_functional(description.unscan()).shapes().items()}


def list_entries(layout: Layout, ours: Mapping[str, tuple[int, ...]]) -> list[TensorEntry]:
  """Returns the tensors that a file of a layout must contain.

  Args:
    layout: the layout.
    ours: shapes of the parameters by path.

  Raises:
    ConfigError: if the layout has no row for a parameter.
  """
  compiled = [(row, [_parse_template(path) for path in row.paths]) for row in layout.rows]
  result, taken, unknown = [], set(), []
  for path, shape in ours.items():
    if path in taken:
      continue
    entry = next(
      filter(None, (_create_entry(row, expressions, path, shape, ours) for row, expressions in compiled)), None
    )
    if entry is None:
      unknown.append(path)
    else:
      result.append(entry)
      taken.update(entry.paths)
  if unknown:
    raise ConfigError(f"layout {layout.name!r} cannot store {format_names(unknown, LISTED)}. Choose another layout")
  return result


def _parse_template(template: str) -> Any:
  return re.compile(re.sub(r"\\\{(\w+)\\\}", lambda m: rf"(?P<{m[1]}>\d+)", re.escape(template)))


def _create_entry(row: TensorRow, expressions: Any, path: str, shape: tuple[int, ...], ours: Any) -> TensorEntry | None:
  """Returns the tensor of a row for a parameter, or None if the row is for another parameter or another model."""
  match = next(filter(None, (expression.fullmatch(path) for expression in expressions)), None)
  if match is None:
    return None
  numbers = {key: int(value) for key, value in match.groupdict().items()}
  paths = tuple(template.format(**numbers) for template in row.paths)
  needed = paths if row.requires is None else (*paths, row.requires.format(**numbers))
  if any(p not in ours for p in needed):
    return None
  name = row.theirs.format(**numbers, **{f"{key}1": value + 1 for key, value in numbers.items()})
  theirs, here = map(parse_groups, row.pattern.split("->"))
  shape = shape if len(paths) == 1 else (len(paths), *shape)
  assert len(here) == len(shape), (row, shape)
  lengths = {}
  for group, length in zip(here, shape, strict=True):
    *split, axis = group
    assert split in ([], ["two"]), row
    lengths |= dict.fromkeys(split, 2) | ({} if axis.isdecimal() else {axis: length // 2 ** len(split)})
  outside = tuple(math.prod(1 if axis == "1" else lengths[axis] for axis in group) for group in theirs)
  return TensorEntry(name, outside, paths, row.pattern, lengths)


def parse_groups(side: str) -> list[list[str]]:
  """Returns the names of the axes that make up each dimension, for one side of an einops pattern."""
  return [group.strip("()").split() for group in re.findall(r"\([^)]*\)|\S+", side)]


def read(layout: Layout, tensors: Tensors, description: Description) -> dict[str, np.ndarray]:
  """Returns all parameters of a model by path, in float32.

  Args:
    layout: the layout of the tensors.
    tensors: tensors by the names of the layout.
    description: the model.

  Raises:
    ConfigError: if the tensors do not match the model. See `match_tensors`. This check comes before any values are
      read.
  """
  return {path: np.asarray(tensor) for path, tensor in read_lazily(layout, tensors, description).items()}


def read_lazily(layout: Layout, tensors: Tensors, description: Description) -> dict[str, Tensor]:
  """Returns the same parameters as `read`. Values are read when they are used, and are not kept in memory.

  Args:
    layout: the layout of the tensors.
    tensors: tensors by the names of the layout.
    description: the model.

  Raises:
    ConfigError: if the tensors do not match the model.
  """
  ours, last = compute_shapes(description), []

  def values(entry: TensorEntry, part: int | None) -> np.ndarray:
    if part is None:
      return _to_ours(entry, tensors[entry.name])
    if not last or last[0] is not entry:  # the parts of one tensor are requested in sequence
      last[:] = entry, _to_ours(entry, tensors[entry.name])
    return last[1][part]

  result = {}
  for entry in match_tensors(layout, tensors, description):
    for part, path in enumerate(entry.paths):
      one = len(entry.paths) == 1
      result[path] = Tensor(ours[path], np.dtype(np.float32), functools.partial(values, entry, None if one else part))
  return result


def _to_ours(entry: TensorEntry, tensor: np.ndarray | Tensor) -> Any:
  """Returns the parameters of a tensor."""
  return rearrange(convert_to_float32(entry.name, tensor), entry.pattern, **entry.lengths)


def convert_to_float32(name: str, tensor: np.ndarray | Tensor) -> np.ndarray:
  """Returns the values of a tensor in float32.

  Args:
    name: name of the tensor in its file.
    tensor: the tensor.

  Raises:
    ConfigError: if the type is not floating-point, or a value is NaN, infinite or outside of float32.
  """
  _check_dtype(name, tensor)
  array = np.asarray(tensor)
  with np.errstate(over="ignore"):
    single = array.astype(np.float32, copy=False)
  if single is not array and not np.array_equal(np.isinf(single), np.isinf(array)):
    largest = np.max(np.abs(array), where=np.isfinite(array), initial=0.0)
    raise ConfigError(
      f"tensor {format_names([name])} has values as large as {largest:.3g}. Allowed: up to "
      f"{np.finfo(np.float32).max:.3g}, the largest of float32. Write the file again without these values"
    )
  finite.check_weights({f"tensor {format_names([name])}": single})
  return single


def _to_theirs(entry: TensorEntry, parts: Any) -> np.ndarray:
  """Returns the tensor of these parameters."""
  theirs, here = entry.pattern.split("->")
  array = np.asarray(parts[0]) if len(parts) == 1 else np.stack(parts)
  return np.ascontiguousarray(rearrange(array, f"{here} -> {theirs}", **entry.lengths))


def match_tensors(layout: Layout, tensors: Tensors, description: Description) -> list[TensorEntry]:
  """Returns the tensors that a model needs, after checking names, shapes and types.

  Args:
    layout: the layout of the tensors.
    tensors: tensors by the names of the layout.
    description: the model.

  Raises:
    ConfigError: if tensors are missing, unexpected, of another shape or not floating-point. The message lists them.
  """
  expected = {entry.name: entry for entry in list_entries(layout, compute_shapes(description))}
  # A file may store a table that the model computes. The table is not compared, because one published file has another
  # length.
  computed = _fixed_table(layout, description)
  known = {*expected, *(row.theirs for row in layout.rows if computed and row.ours == TABLE)}
  known |= {name for names in find_ignored(layout, tensors).values() for name in names}
  surplus = [name for name in tensors if name not in known and not re.fullmatch(layout.ignored, name)]
  missing = [name for name in expected if name not in tensors]
  here = [(name, entry, tensors[name]) for name, entry in expected.items() if name in tensors]
  misshapen = [f"{name} {tuple(t.shape)} instead of {entry.shape}" for name, entry, t in here if t.shape != entry.shape]
  if surplus or missing or misshapen:
    raise ConfigError(
      f"the tensors are not those of {description} as {layout.name} names them:"
      + "".join(
        f"\n  {kind} ({len(names)}): {format_names(names, LISTED)}"
        for kind, names in (("missing", missing), ("left over", surplus), ("of another shape", misshapen))
        if names
      )
    )
  for name, _, tensor in here:
    _check_dtype(name, tensor)
  return list(expected.values())


def describe_ignored(layout: Layout, tensors: Tensors, hints: Hints) -> list[str]:
  """Returns notes about ignored tensors, and about other models to which the tensors may belong.

  Args:
    layout: the layout of the tensors.
    tensors: tensors by the names of the layout.
    hints: facts that the tensors do not determine.
  """
  return unused.describe_unused(find_ignored(layout, tensors)) + layout.doubts(tensors, hints)


def find_ignored(layout: Layout, tensors: Tensors) -> dict[str, list[str]]:
  """Returns the names of tensors that do not affect the output, by reason.

  Args:
    layout: the layout of the tensors.
    tensors: tensors by the names of the layout.
  """
  return unused.find_unused(list(tensors), layout.untaken, layout.unneeded(tensors))


def _check_dtype(name: str, tensor: np.ndarray | Tensor) -> None:
  """Raises ConfigError if the type is not floating-point. NumPy files store bfloat16 as two bytes without a type."""
  dtype = np.dtype(tensor.dtype)
  if not ((dtype.kind == "f" and dtype.itemsize <= 8) or dtype in (np.dtype(ml_dtypes.bfloat16), np.dtype("V2"))):
    raise ConfigError(
      f"tensor {format_names([name])} contains {format_names([dtype])}. Allowed: floating-point numbers"
    )


def write(layout: Layout, arrays: Tensors, description: Description) -> dict[str, np.ndarray]:
  """Returns the tensors of a file in a layout.

  Args:
    layout: the layout of the file.
    arrays: all parameters by path.
    description: the model of the parameters.

  Returns:
    {name in the file: array}.

  Raises:
    ConfigError: if readers of this layout would compute another model, or the layout has no row for a parameter.
  """
  return {name: np.asarray(tensor) for name, tensor in write_lazily(layout, arrays, description).items()}


def write_lazily(layout: Layout, arrays: Tensors, description: Description) -> Tensors:
  """Returns the same tensors as `write`. Each tensor is computed when its values are used, and is not kept in memory.

  Args:
    layout: the layout of the file.
    arrays: all parameters by path.
    description: the model of the parameters.

  Raises:
    ConfigError: if readers of this layout would compute another model, or the layout has no row for a parameter.
  """
  arrays, description = convert_position(arrays, description, layout.position)
  bound = description.settings()
  for key, value in layout.computes.items():
    if key in bound and bound[key] not in (value if isinstance(value, tuple) else (value,)):
      means = " or ".join(map(_format_argument, value if isinstance(value, tuple) else (value,)))
      raise ConfigError(
        f"layout {layout.name!r} implies {key}={means}, but this model has {_format_argument(bound[key])}. The "
        "outputs would differ"
      )
  ours = compute_shapes(description)
  computed = _fixed_table(layout, description)
  if computed:
    arrays = {**arrays, TABLE: computed()}
    ours = {**ours, TABLE: arrays[TABLE].shape}
  result = {}
  for entry in list_entries(layout, ours):
    parts = [arrays[path] for path in entry.paths]
    result[entry.name] = Tensor(entry.shape, parts[0].dtype, functools.partial(_to_theirs, entry, parts))
  return layout.finish(result, description)


def check_writable(layout: Layout, description: Description) -> str | None:
  """Returns the reason why `write_lazily` cannot write a model in a layout, or None if it can.

  Args:
    layout: the layout of the file.
    description: the model. Only the shapes of its parameters are used.
  """
  try:
    zero = np.float32(0)
    write_lazily(
      layout, {path: np.broadcast_to(zero, shape) for path, shape in compute_shapes(description).items()}, description
    )
  except ConfigError as error:
    return str(error)
  return None


def _format_argument(value: object) -> str:
  """Returns the text of an argument in an error. A choice is shown by its name."""
  return value.name if isinstance(value, Choice) else str(value)


def _fixed_table(layout: Layout, description: Description) -> Callable[[], np.ndarray] | None:
  """Returns the model's fixed position table, as a function () -> (N, D), if the layout stores such tables."""
  if not layout.stores_tables:
    return None
  model = models.make_functional(description)
  if TABLE in model.shapes():  # a trained table
    return None
  position = getattr(model.create(model.shapes()), "position", None)
  return position if isinstance(position, positions.Fixed) else None


# Pairs of rows.


def torch_linear(theirs: str, ours: str) -> tuple[TensorRow, TensorRow]:
  """Returns the rows for weight (out, in) and bias of torch.nn.Linear.

  Args:
    theirs: name of the layer in the file.
    ours: path of the layer.

  Example:
    from vit_jax.importers import layout

    weight, bias = layout.torch_linear("head.fc", "head")
    print(weight.ours, weight.pattern)  # head/kernel o i -> i o
  """
  return _bias_rows(f"{theirs}.weight", f"{ours}/kernel", "o i -> i o")


def torch_conv(theirs: str, ours: str) -> tuple[TensorRow, TensorRow]:
  """Returns the rows for weight (out, in, height, width) and bias of torch.nn.Conv2d.

  The arguments are those of `torch_linear`.
  """
  return _bias_rows(f"{theirs}.weight", f"{ours}/kernel", "o i p q -> p q i o")


def torch_norm(theirs: str, ours: str) -> tuple[TensorRow, TensorRow]:
  """Returns the rows for weight and bias of a norm in PyTorch.

  The arguments are those of `torch_linear`.
  """
  return _bias_rows(f"{theirs}.weight", f"{ours}/scale", "d -> d")


def flax_linear(theirs: str, ours: str) -> tuple[TensorRow, TensorRow]:
  """Returns the rows for kernel (in, out) and bias of a dense layer in Flax.

  The arguments are those of `torch_linear`.
  """
  return _bias_rows(f"{theirs}/kernel", f"{ours}/kernel", "i o -> i o")


def flax_conv(theirs: str, ours: str) -> tuple[TensorRow, TensorRow]:
  """Returns the rows for kernel (height, width, in, out) and bias of a convolution in Flax.

  The arguments are those of `torch_linear`.
  """
  return _bias_rows(f"{theirs}/kernel", f"{ours}/kernel", "p q i o -> p q i o")


def flax_norm(theirs: str, ours: str) -> tuple[TensorRow, TensorRow]:
  """Returns the rows for scale and bias of a norm in Flax.

  The arguments are those of `torch_linear`.
  """
  return _bias_rows(f"{theirs}/scale", f"{ours}/scale", "d -> d")


def _bias_rows(theirs: str, ours: str, pattern: str) -> tuple[TensorRow, TensorRow]:
  """Returns the row of a parameter and the row of its bias."""
  theirs_bias, ours_bias = (re.sub(r"\w+$", "bias", name) for name in (theirs, ours))
  return TensorRow(theirs, ours, pattern), TensorRow(theirs_bias, ours_bias, "d -> d")
