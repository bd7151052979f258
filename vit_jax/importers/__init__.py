"""Published weights in, weights out: files of other codes to parameters by our paths, and back.

`recognise` tells what a file's tensors are, `load` reads all of them or none, `export` names them for another code.
"""

import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax import checkpoints, extensions, paths
from vit_jax.importers import (
  class_order,
  containers,
  contradictions,
  hub,
  layout,
  row_names,
  subtrees,
  surgery,
  tables,
)
from vit_jax.importers.known import export as export
from vit_jax.importers.known import layout_of as layout_of
from vit_jax.importers.known import layouts as layouts
from vit_jax.importers.known import layouts_of as layouts_of
from vit_jax.importers.layout import Layout, Tensors
from vit_jax.importers.processing import Beside
from vit_jax.importers.tensors import Tensor
from vit_jax.models import Description, finite
from vit_jax.schema import Choice, ConfigError, show
from vit_jax.schema.errors import NotFiniteError, some


class Recognised(NamedTuple):
  """What was recognised: tensors under the names of `layout`'s rows, what they describe, and what else is known."""

  layout: Layout
  description: Description
  tensors: Tensors
  notes: list[str]
  beside: Beside = Beside()

  def image_notes(self) -> list[str]:
    """Notes on how the images of these weights were normalised, as flags for a config."""
    return hub.notes(self.beside.normalised)

  def read(self) -> dict[str, np.ndarray]:
    """All parameters by our paths, float32, layer by layer; ConfigError for a tensor too few, too many or misshapen."""
    return layout.read(self.layout, self.tensors, self.description)

  def lazily(self) -> dict[str, Tensor]:
    """As `read`, of parameters that are read when their values are needed."""
    return layout.lazily(self.layout, self.tensors, self.description)

  def check(self) -> None:
    """ConfigError where `read` would raise one, by names and shapes alone."""
    layout.match(self.layout, self.tensors, self.description)


def recognise(
  tensors: Tensors, hints: Mapping[str, Any] | None = None, ema: bool | None = None, prefix: str | None = None
) -> Recognised:
  """The layout of the tensors and the model they are of; ConfigError for tensors of no known model.

  Args:
    tensors: by the names in the file.
    hints: what tensors do not show: heads, norm_eps, gelu ("tanh", "erf"), padding, image_size, name; input_size, where
      nothing else says the image size. With `width`, heads are those of models of that width only. What is `said` must
      be true of the model, see `contradictions.check`. `notes` are returned.
    ema: True requires averaged weights, False raw ones; see `subtrees.choose`.
    prefix: the beginning of the names to read, of a file with several models.
  """
  hints = dict(hints or {})
  if isinstance(hints.get("image_size"), list):
    hints["image_size"] = tuple(hints["image_size"])
  header = Description.from_json(hints["description"]) if "description" in hints else None
  if header:
    hints["image_size"] = header.image_size
  tensors, taken = subtrees.choose(dict(tensors), _recognising, ema, prefix)
  if odd := next(filter(re.compile(r"\d{5}").search, tensors), None):
    raise ConfigError(f"a tensor is called {show(odd)}; no model has so many layers")
  for candidate in layouts():
    if not candidate.recognises(tensors):
      continue
    try:
      if not candidate.fits(tensors, hints) or (
        header and header.published.family == candidate.family and not candidate.holds(header)
      ):
        continue
      named = candidate.canonical(tensors, hints)
      row_names.check_dimensions(candidate, named)
      description = _stored(header, candidate, named) if header else candidate.describe(named, hints)
      description = tables.with_resampling(description, candidate, hints, header)
      noted = contradictions.check(description, hints, candidate)
      said = hub.beside(hints)
      notes = [*taken, *layout.notes(candidate, named, hints), *hints.get("notes", []), *noted]
      return Recognised(candidate, description, named, notes, said)
    except ConfigError:
      raise
    except (KeyError, StopIteration) as error:
      raise ConfigError(f"the tensors look like a {candidate.family} of {candidate.name}, but lack {error}") from error
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:
      row_names.check_dimensions(candidate, tensors)
      raise ConfigError(
        f"the tensors look like a {candidate.family} of {candidate.name}, but their shapes do not: {error}"
      ) from error
  raise ConfigError(
    f"the tensors are those of no known model: {len(tensors)} of them, such as {some(sorted(tensors)[:4])}. "
    "Known: " + ", ".join(sorted({f"{known.family} ({known.name})" for known in layouts()}))
  )


def _recognising(tensors):
  """Returns the layouts that recognise the tensors by their names."""
  return [candidate for candidate in layouts() if candidate.recognises(tensors)]


def _stored(header, candidate, named):
  """The model of a file of ours; where its code stores the table of positions in another way, with that."""
  other = tables.with_position(header, candidate.position)
  if other != header:
    try:
      layout.match(candidate, named, header)
    except ConfigError:
      return other
  return header


def load(
  path: str | pathlib.Path,
  hints: Mapping[str, Any] | None = None,
  ema: bool | None = None,
  prefix: str | None = None,
) -> tuple[Description, dict[str, np.ndarray]]:
  """Reads a file of weights, or the newest checkpoint of a workdir.

  Args:
    path: of the file or the workdir.
    hints: as of `recognise`.
    ema: True requires averaged weights, False raw ones. By default averaged ones of a file that has them, and raw ones
      of a workdir.
    prefix: the beginning of the names to read, of a file with several models.

  Returns:
    The description of the model and its parameters by our paths, float32. `read` returns notes as well.

  Raises:
    ConfigError: if the file cannot be read as one known model.
  """
  return read(path, hints, ema, prefix)[:2]


class Weights(NamedTuple):
  """A model, its parameters by our paths, and notes for the user about how they were read."""

  description: Description
  arrays: dict[str, np.ndarray]
  notes: list[str]
  classes: tuple[str, ...]  # names, in the order of the outputs; () if they are unknown


def read(
  path: str | pathlib.Path,
  hints: Mapping[str, Any] | None = None,
  ema: bool | None = None,
  prefix: str | None = None,
  likely: Mapping[str, Any] | None = None,
) -> Weights:
  """Does the same as `load`, and returns notes for the user; `likely` as of `inspect`."""
  path = paths.path(path)
  if is_workdir(path):
    check_prefix(path, prefix)
    arrays, about = checkpoints.read_weights(path, bool(ema))
    extensions.restore_of(path, about)
    try:
      finite.check_weights({f"parameter {name}": array for name, array in arrays.items()})
    except ConfigError as error:
      raise NotFiniteError(f"{path}: {error}") from error
    description = Description.from_json(about.get("model")).unscanned()
    parameters = surgery.unstack(arrays, layout.shapes(description))
    return Weights(description, parameters, [], class_order.stored(about))
  recognised = inspect(path, hints, likely, ema, prefix)
  try:
    notes = [*recognised.notes, *recognised.image_notes()]
    return Weights(recognised.description, recognised.read(), notes, recognised.beside.labels)
  except ConfigError as error:
    raise ConfigError(f"{path}: {error}") from error


def check_prefix(workdir: pathlib.Path, prefix: str | None) -> None:
  """Raises ConfigError for a prefix with a workdir, whose checkpoints contain one model."""
  if prefix is not None:
    raise ConfigError(f"{workdir}: a workdir contains one model. Remove the prefix {show(prefix)}")


class FrozenWeights(NamedTuple):
  """A model, a function that reads its weights, and notes for the user."""

  description: Description
  load: Callable[[], dict[str, np.ndarray]]
  notes: list[str]


def frozen(
  path: str,
  image_size: int,
  dtype: str,
  ema: bool | None = None,
  prefix: str | None = None,
  classes: Sequence[str] = (),
) -> FrozenWeights:
  """The model in a file or workdir, for images of a size and computed in `dtype`, and a function reading its weights.

  Only names and shapes are read from a file before that function is called. `classes` as of `fitted`.
  """
  if is_workdir(paths.path(path)):
    have, _, notes, names = read(path, None, ema, prefix)
  else:
    recognised = inspect(path, ema=ema, prefix=prefix)
    have, notes, names = recognised.description, recognised.notes, recognised.beside.labels
  want = have.replaced(image_size=image_size).bound()
  if "dtype" in want.model.args:
    want = want.replaced(model=Choice(want.model.name, {**want.model.args, "dtype": dtype}))

  def arrays():
    _, tensors = load(path, ema=ema, prefix=prefix)
    return class_order.arranged(surgery.fit(tensors, have, want, "keep")[0], want, names, classes)[0]

  try:
    return FrozenWeights(want, arrays, [*notes, *class_order.arranged({}, want, names, classes)[1]])
  except ConfigError as error:
    raise ConfigError(f"{path}: {error}") from error


def is_workdir(path: pathlib.Path) -> bool:
  """Whether a path is a workdir of this project, with checkpoints."""
  with containers.reading(path):
    return (path / "checkpoints").is_dir()


def fitted(
  path: str,
  want: Description,
  head: str = "auto",
  ema: bool | None = None,
  prefix: str | None = None,
  classes: Sequence[str] = (),
) -> tuple[dict[str, np.ndarray], list[str]]:
  """A file's parameters made to fit the model `want`, layer by layer, and what was done; see `surgery.fit`.

  A head that is kept gets its outputs at the positions of the `classes` of the data, see `class_order.arranged`.
  """
  shapes = layout.shapes(want)
  # Heads do not show in tensors; they are most likely those of the model that is wanted, if widths are the same.
  likely = {} if isinstance(want.image_size, int) else {"image_size": want.image_size}
  if query := shapes.get("blocks/0/attention/query/kernel"):
    likely |= {"width": query[0], "heads": query[1]}
  have, arrays, known, names = read(path, None, ema, prefix, likely)
  try:
    fitting, notes = surgery.fit(arrays, have, want, head)
    kept = head != "new" and have.classes == want.classes
    fitting, moved = class_order.arranged(fitting, want, names if kept else (), classes, strict=head == "keep")
    return fitting, [*notes, *moved, *known]
  except ConfigError as error:
    raise ConfigError(f"{path}: {error}") from error


def inspect(
  path: str | pathlib.Path,
  hints: Mapping[str, Any] | None = None,
  likely: Mapping[str, Any] | None = None,
  ema: bool | None = None,
  prefix: str | None = None,
) -> Recognised:
  """Does the same as `recognise` for a file, without reading the values of its tensors.

  Args:
    path: of the file.
    hints: as of `recognise`.
    likely: hints that count if nothing else gives the value.
    ema: as of `load`.
    prefix: as of `load`.
  """
  tensors, beside = containers.read(paths.path(path))
  known = beside | dict(hints or {})
  guessed = {key: value for key, value in (likely or {}).items() if key != "width" or "heads" not in known}
  try:
    return recognise(tensors, guessed | known, ema, prefix)
  except ConfigError as error:
    raise ConfigError(f"{path}: {error}") from error
