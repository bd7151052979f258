"""Layouts: which tensor of a published file is which parameter here, as tables that are read in both directions.

A row names their tensor, our parameter (or the several that one tensor packs) and, in einops' words, how the axes of
one become those of the other. Reading applies the patterns, writing applies them reversed.
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
from vit_jax.importers.tables import TABLE, placed
from vit_jax.importers.tensors import Tensor, Tensors
from vit_jax.models import Description, finite, positions
from vit_jax.models.positions import Resampling
from vit_jax.schema import Choice, ConfigError
from vit_jax.schema.errors import some

LISTED = 12  # tensors of each kind that an error names


class Row(NamedTuple):
  """One tensor, or one for each value of the placeholders.

  `ours` is a parameter path in which {i}, {j}, {l} stand for numbers; `theirs` is the name in the file, where {i1} is
  the number counted from 1. Where `ours` is a tuple, the first axis to the right of the arrow runs over it. An axis
  called `two` has that length, so that "(two k)" may split one of ours. A row with `beside` is of models that have a
  parameter of that path too.
  """

  theirs: str
  ours: str | tuple[str, ...]
  pattern: str
  beside: str | None = None

  @property
  def paths(self) -> tuple[str, ...]:
    """Our paths, as a tuple in any case."""
    return (self.ours,) if isinstance(self.ours, str) else self.ours


class Layout(NamedTuple):
  """The names and shapes in which one code publishes one family of models."""

  name: str  # of the code: vit_jax, big_vision, timm, hf, compact
  family: str  # of the models, as in `models.find`
  rows: tuple[Row, ...]
  recognises: Callable[[Tensors], bool]
  describe: Callable[[Tensors, Mapping[str, Any]], Description]  # from names, shapes and hints
  # Other generations of names, and of what their tensors hold -> those of the rows.
  canonical: Callable[[Tensors, Mapping[str, Any]], Tensors] = lambda tensors, hints: tensors
  finish: Callable[[dict, Description], dict] = lambda tensors, description: tensors  # the last touch before writing
  stores_tables: bool = True  # also those that are computed, not learned
  beside: Callable[[Description], dict] | None = None  # JSON that stands beside the file, as config.json
  # Arguments without which a code that reads this layout computes another model; of a tuple any will do.
  computes: Mapping[str, Any] = {}
  ignored: str = r"(?!)"  # names that carry no parameters
  untaken: str = r"(?!)"  # names of parameters that only training uses, besides mask tokens: see `unused`
  unneeded: Callable[[Tensors], Mapping[str, Sequence[str]]] = lambda tensors: {}  # other names to leave out, by reason
  # Of several layouts of one name and family: which models are published so, and whether a file may be, where what
  # stands beside it says more than tensors do.
  holds: Callable[[Description], bool] = lambda description: True
  fits: Callable[[Tensors, Mapping[str, Any]], bool] = lambda tensors, hints: True
  doubts: Callable[[Tensors, Mapping[str, Any]], list[str]] = lambda tensors, hints: []  # notes for who reads a file
  resampling: Resampling | None = None  # of position tables at another resolution; None: that of the model's name
  position: str | None = None  # how tables of positions are, whatever tokens those of the model are of: see `placed`


class Entry(NamedTuple):
  """One expected tensor: its name and shape in the file, our paths, and the pattern with its lengths."""

  name: str
  shape: tuple[int, ...]
  paths: tuple[str, ...]
  pattern: str
  lengths: dict[str, int]


def shapes(description: Description) -> dict[str, tuple[int, ...]]:
  """Our paths and shapes of the described model, layer by layer."""
  return {path: leaf.shape for path, leaf in models.functional(description.unscanned()).shapes().items()}


def entries(layout: Layout, ours: Mapping[str, tuple[int, ...]]) -> list[Entry]:
  """What a file of this layout holds for parameters of these shapes, or a ConfigError where it has no place for one."""
  compiled = [(row, [_expression(path) for path in row.paths]) for row in layout.rows]
  result, taken, unknown = [], set(), []
  for path, shape in ours.items():
    if path in taken:
      continue
    entry = next(filter(None, (_entry(row, expressions, path, shape, ours) for row, expressions in compiled)), None)
    if entry is None:
      unknown.append(path)
    else:
      result.append(entry)
      taken.update(entry.paths)
  if unknown:
    raise ConfigError(f"layout {layout.name!r} has no place for {some(unknown, LISTED)}; choose another layout")
  return result


def _expression(template):
  return re.compile(re.sub(r"\\\{(\w+)\\\}", lambda m: rf"(?P<{m[1]}>\d+)", re.escape(template)))


def _entry(row, expressions, path, shape, ours):
  """The row's tensor for a parameter; None where the row is about another, or packs one that the model has not."""
  match = next(filter(None, (expression.fullmatch(path) for expression in expressions)), None)
  if match is None:
    return None
  numbers = {key: int(value) for key, value in match.groupdict().items()}
  paths = tuple(template.format(**numbers) for template in row.paths)
  needed = paths if row.beside is None else (*paths, row.beside.format(**numbers))
  if any(p not in ours for p in needed):
    return None
  name = row.theirs.format(**numbers, **{f"{key}1": value + 1 for key, value in numbers.items()})
  theirs, here = map(groups, row.pattern.split("->"))
  shape = shape if len(paths) == 1 else (len(paths), *shape)
  assert len(here) == len(shape), (row, shape)
  lengths = {}
  for group, length in zip(here, shape, strict=True):
    *split, axis = group
    assert split in ([], ["two"]), row
    lengths |= dict.fromkeys(split, 2) | ({} if axis.isdecimal() else {axis: length // 2 ** len(split)})
  outside = tuple(math.prod(1 if axis == "1" else lengths[axis] for axis in group) for group in theirs)
  return Entry(name, outside, paths, row.pattern, lengths)


def groups(side: str) -> list[list[str]]:
  """The names of the axes that make up each dimension."""
  return [group.strip("()").split() for group in re.findall(r"\([^)]*\)|\S+", side)]


def read(layout: Layout, tensors: Tensors, description: Description) -> dict[str, np.ndarray]:
  """All parameters of the described model by our paths; ConfigError as `match`, before any tensor is read."""
  return {path: np.asarray(tensor) for path, tensor in lazily(layout, tensors, description).items()}


def lazily(layout: Layout, tensors: Tensors, description: Description) -> dict[str, Tensor]:
  """As `read`, of parameters that are read when their values are needed, and not kept."""
  ours, last = shapes(description), []

  def values(entry, part):
    if part is None:
      return _ours(entry, tensors[entry.name])
    if not last or last[0] is not entry:  # the parts of one tensor are wanted one after the other
      last[:] = entry, _ours(entry, tensors[entry.name])
    return last[1][part]

  result = {}
  for entry in match(layout, tensors, description):
    for part, path in enumerate(entry.paths):
      one = len(entry.paths) == 1
      result[path] = Tensor(ours[path], np.float32, functools.partial(values, entry, None if one else part))
  return result


def _ours(entry, tensor):
  """Returns the parameters of a tensor; ConfigError for values outside float32, NotFiniteError for NaN and inf."""
  array = np.asarray(tensor)
  with np.errstate(over="ignore"):
    single = array.astype(np.float32, copy=False)
  if single is not array and not np.array_equal(np.isinf(single), np.isinf(array)):
    largest = np.max(np.abs(array), where=np.isfinite(array), initial=0.0)
    raise ConfigError(
      f"tensor {some([entry.name])} has values as large as {largest:.3g}; allowed: up to "
      f"{np.finfo(np.float32).max:.3g}, the largest of float32; write the file anew without them"
    )
  finite.check_weights({f"tensor {some([entry.name])}": single})
  return rearrange(single, entry.pattern, **entry.lengths)


def _theirs(entry, parts):
  """The tensor of these parameters."""
  theirs, here = entry.pattern.split("->")
  array = np.asarray(parts[0]) if len(parts) == 1 else np.stack(parts)
  return np.ascontiguousarray(rearrange(array, f"{here} -> {theirs}", **entry.lengths))


def match(layout: Layout, tensors: Tensors, description: Description) -> list[Entry]:
  """The tensors that the described model needs. Those that are missing, left over or of another shape are a ConfigError
  that lists them."""
  expected = {entry.name: entry for entry in entries(layout, shapes(description))}
  # A table that the model computes may be stored: of another length in one published file, so it is not compared.
  computed = _computed(layout, description)
  known = {*expected, *(row.theirs for row in layout.rows if computed and row.ours == TABLE)}
  known |= {name for names in left_out(layout, tensors).values() for name in names}
  surplus = [name for name in tensors if name not in known and not re.fullmatch(layout.ignored, name)]
  missing = [name for name in expected if name not in tensors]
  here = [(name, entry, tensors[name]) for name, entry in expected.items() if name in tensors]
  misshapen = [f"{name} {tuple(t.shape)} instead of {entry.shape}" for name, entry, t in here if t.shape != entry.shape]
  if surplus or missing or misshapen:
    raise ConfigError(
      f"the tensors are not those of {description} as {layout.name} names them:"
      + "".join(
        f"\n  {kind} ({len(names)}): {some(names, LISTED)}"
        for kind, names in (("missing", missing), ("left over", surplus), ("of another shape", misshapen))
        if names
      )
    )
  for name, _, tensor in here:
    if not _is_float(tensor.dtype):
      raise ConfigError(f"tensor {some([name])} holds {some([tensor.dtype])}; allowed: floating-point numbers")
  return list(expected.values())


def notes(layout: Layout, tensors: Tensors, hints: Mapping[str, Any]) -> list[str]:
  """What a reader of these tensors should know: what is left out, and what they might be of as well."""
  return unused.notes(left_out(layout, tensors)) + layout.doubts(tensors, hints)


def left_out(layout: Layout, tensors: Tensors) -> dict[str, list[str]]:
  """Returns the names of tensors on which the output does not depend, by reason."""
  return unused.find(list(tensors), layout.untaken, layout.unneeded(tensors))


def _is_float(dtype):
  """Whether numbers of a type are read; NumPy's files say of bfloat16 only that it has two bytes."""
  dtype = np.dtype(dtype)
  return (dtype.kind == "f" and dtype.itemsize <= 8) or dtype in (np.dtype(ml_dtypes.bfloat16), np.dtype("V2"))


def write(layout: Layout, arrays: Tensors, description: Description) -> dict[str, np.ndarray]:
  """The tensors of a file of this layout, from all parameters by our paths.

  ConfigError where a code that reads this layout computes something else, or has no place for a parameter.
  """
  return {name: np.asarray(tensor) for name, tensor in written(layout, arrays, description).items()}


def written(layout: Layout, arrays: Tensors, description: Description) -> Tensors:
  """As `write`, of tensors that are made when their values are needed, and not kept."""
  arrays, description = placed(arrays, description, layout.position)
  bound = description.arguments()
  for key, value in layout.computes.items():
    if bound[key] not in (value if isinstance(value, tuple) else (value,)):
      means = " or ".join(map(_shown, value if isinstance(value, tuple) else (value,)))
      raise ConfigError(
        f"layout {layout.name!r} means {key}={means}; this model has {_shown(bound[key])}: its numbers would differ"
      )
  ours = shapes(description)
  computed = _computed(layout, description)
  if computed:
    arrays = {**arrays, TABLE: computed()}
    ours = {**ours, TABLE: arrays[TABLE].shape}
  result = {}
  for entry in entries(layout, ours):
    parts = [arrays[path] for path in entry.paths]
    result[entry.name] = Tensor(entry.shape, parts[0].dtype, functools.partial(_theirs, entry, parts))
  return layout.finish(result, description)


def refusal(layout: Layout, description: Description) -> str | None:
  """Why `written` has no file for the described model, whatever its values; None where it has."""
  try:
    zero = np.float32(0)
    written(layout, {path: np.broadcast_to(zero, shape) for path, shape in shapes(description).items()}, description)
  except ConfigError as error:
    return str(error)
  return None


def _shown(value):
  """An argument in an error; of a choice its name."""
  return value.name if isinstance(value, Choice) else str(value)


def _computed(layout, description):
  """The model's fixed position table, () -> [N, D], where the layout stores such tables; else None."""
  model = models.functional(description)
  position = getattr(model.create(model.shapes()), "position", None)
  return position if layout.stores_tables and isinstance(position, positions.Fixed) else None


# Rows that come in pairs.


def torch_linear(theirs: str, ours: str) -> tuple[Row, Row]:
  """Weight [out, in] and bias of torch.nn.Linear."""
  return _with_bias(f"{theirs}.weight", f"{ours}/kernel", "o i -> i o")


def torch_conv(theirs: str, ours: str) -> tuple[Row, Row]:
  """Weight [out, in, height, width] and bias of torch.nn.Conv2d."""
  return _with_bias(f"{theirs}.weight", f"{ours}/kernel", "o i p q -> p q i o")


def torch_norm(theirs: str, ours: str) -> tuple[Row, Row]:
  """Weight and bias of a norm of torch."""
  return _with_bias(f"{theirs}.weight", f"{ours}/scale", "d -> d")


def flax_linear(theirs: str, ours: str) -> tuple[Row, Row]:
  """Kernel [in, out] and bias of a dense layer of Flax."""
  return _with_bias(f"{theirs}/kernel", f"{ours}/kernel", "i o -> i o")


def flax_conv(theirs: str, ours: str) -> tuple[Row, Row]:
  """Kernel [height, width, in, out] and bias of a convolution of Flax."""
  return _with_bias(f"{theirs}/kernel", f"{ours}/kernel", "p q i o -> p q i o")


def flax_norm(theirs: str, ours: str) -> tuple[Row, Row]:
  """Scale and bias of a norm of Flax."""
  return _with_bias(f"{theirs}/scale", f"{ours}/scale", "d -> d")


def _with_bias(theirs, ours, pattern):
  """The row of a parameter, and that of the bias which stands beside it."""
  theirs_bias, ours_bias = (re.sub(r"\w+$", "bias", name) for name in (theirs, ours))
  return Row(theirs, ours, pattern), Row(theirs_bias, ours_bias, "d -> d")
