"""Import and export of published weights, between the files of other code bases and parameters by path.

`recognise` determines the model of a set of tensors. `load` reads all parameters of a file. `export_tensors` renames
parameters for another code base.
"""

import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from vit_jax import checkpoints
from vit_jax.checkpoints import provenance, reading
from vit_jax.config import extensions
from vit_jax.importers import (
  class_order,
  layout,
  normalisation,
  position_tables,
  row_names,
  subtrees,
  surgery,
  task_parameters,
)
from vit_jax.importers.formats import containers
from vit_jax.importers.formats.lazy_tensors import Tensor
from vit_jax.importers.hints import Hints
from vit_jax.importers.hub import contradictions, metadata
from vit_jax.importers.hub.preprocessing import ImageMetadata
from vit_jax.importers.known import export_tensors as export_tensors
from vit_jax.importers.known import find_layout as find_layout
from vit_jax.importers.known import find_layouts as find_layouts
from vit_jax.importers.known import load_layouts as load_layouts
from vit_jax.importers.layout import Layout, Tensors
from vit_jax.models import Description, finite
from vit_jax.schema import Choice, ConfigError, Duration, show
from vit_jax.schema.errors import NotFiniteError, format_names
from vit_jax.storage import hub_files


class RecognisedModel(NamedTuple):
  """A known model, with its tensors under the names of the layout's rows.

  It also contains notes for the user, the metadata of images and classes, and parameters of self-distillation by path.
  The tensors may not have been read yet.
  """

  layout: Layout
  description: Description
  tensors: Tensors
  notes: list[str]
  image_metadata: ImageMetadata = ImageMetadata()
  task: Mapping[str, Tensor] = {}

  def image_notes(self) -> list[str]:
    """Returns notes about the normalisation of the images for these weights, as flags for a config."""
    return metadata.describe_normalisation(self.image_metadata.normalised)

  def read(self) -> dict[str, np.ndarray]:
    """Reads all parameters.

    Returns:
      {path: float32 array}, layer by layer.

    Raises:
      ConfigError: if a tensor is missing, unexpected or has a wrong shape.
    """
    return layout.read(self.layout, self.tensors, self.description)

  def read_lazily(self) -> dict[str, Tensor]:
    """Returns the same parameters as `read`, but reads each parameter only when its values are used."""
    return layout.read_lazily(self.layout, self.tensors, self.description)

  def check(self) -> None:
    """Raises ConfigError if `read` would raise it because of names or shapes. No values are read."""
    layout.match_tensors(self.layout, self.tensors, self.description)


def recognise(
  tensors: Tensors, hints: Hints | None = None, ema: bool | None = None, prefix: str | None = None
) -> RecognisedModel:
  """Determines the layout and the model of a set of tensors.

  Args:
    tensors: tensors by their names in the file.
    hints: facts that the tensors do not determine. The keys are "heads", "norm_eps", "gelu" ("tanh" or "erf"),
      "padding", "image_size" and "name". "input_size" is used if the image size is unknown otherwise. If "width" is
      present, "heads" applies only to models of this width. "description" is the model that this project stored in the
      file. "notes" are added to the notes of the result. `metadata.read_hints` returns further keys, which must not
      contradict the model (see `contradictions.check`).
    ema: True requires averaged weights, False requires raw weights. See `subtrees.choose_tensors`.
    prefix: common prefix of the parameter names to read, for a file that contains several models.

  Returns:
    The model with its tensors, under the names of the layout.

  Raises:
    ConfigError: if the tensors do not belong to a known model.
  """
  hints = {**hints} if hints else {}
  if isinstance(size := hints.get("image_size"), list):
    hints["image_size"] = tuple(size)
  header = Description.from_json(hints["description"]) if "description" in hints else None
  if header:
    hints["image_size"] = header.image_size
  tensors, taken, task = subtrees.choose_tensors(dict(tensors), _find_layouts, ema, prefix)
  if odd := next(filter(re.compile(r"\d{5}").search, tensors), None):
    raise ConfigError(f"a tensor is named {show(odd)}, but no model has that many layers")
  for candidate in load_layouts():
    if not candidate.recognises(tensors):
      continue
    try:
      if not candidate.fits(tensors, hints) or (
        header and header.published.family == candidate.family and not candidate.holds(header)
      ):
        continue
      named = candidate.canonical(tensors, hints)
      row_names.check_dimensions(candidate, named)
      description = _read_stored(header, candidate, named) if header else candidate.describe(named, hints)
      description = position_tables.add_resampling(description, candidate, hints, header)
      noted = contradictions.check(description, hints, candidate)
      image_metadata = metadata.merge_image_metadata(hints)
      notes = [*taken, *layout.describe_ignored(candidate, named, hints), *hints.get("notes", []), *noted]
      return RecognisedModel(candidate, description, named, notes, image_metadata, task)
    except ConfigError:
      raise
    except (KeyError, StopIteration) as error:
      raise ConfigError(f"the tensors look like a {candidate.family} of {candidate.name}, but lack {error}") from error
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:
      row_names.check_dimensions(candidate, tensors)
      raise ConfigError(
        f"the tensors have the names of a {candidate.family} of {candidate.name}, but other shapes: {error}"
      ) from error
  raise ConfigError(
    f"the tensors match no known model: {len(tensors)} tensors, such as {format_names(sorted(tensors)[:4])}. "
    f"Known: " + ", ".join(sorted({f"{known.family} ({known.name})" for known in load_layouts()}))
  )


def _find_layouts(tensors: Tensors) -> list[Layout]:
  """Returns the layouts that recognise the tensors by their names."""
  return [candidate for candidate in load_layouts() if candidate.recognises(tensors)]


def _read_stored(header: Any, candidate: Layout, named: Any) -> Description:
  """Returns the model that this project stored in a file, with the position table of the layout if it differs."""
  other = position_tables.replace_position(header, candidate.position)
  if other != header:
    try:
      layout.match_tensors(candidate, named, header)
    except ConfigError:
      return other
  return header


def load(
  path: str | pathlib.Path,
  hints: Hints | None = None,
  ema: bool | None = None,
  prefix: str | None = None,
) -> tuple[Description, dict[str, np.ndarray]]:
  """Reads the parameters of a weight file, or of the newest checkpoint of a workdir.

  Args:
    path: weight file or workdir.
    hints: facts that the tensors do not determine. See `recognise`.
    ema: True requires averaged weights, False requires raw weights. The default is averaged weights for a file that
      contains them, and for a workdir with the average as teacher. Otherwise, raw weights are read.
    prefix: common prefix of the parameter names to read, for a file that contains several models.

  Returns:
    The description of the model, and its parameters {path: float32 array}. `read` also returns notes.

  Raises:
    ConfigError: if the file cannot be read as exactly one known model.

  Example:
    from vit_jax import importers

    description, arrays = importers.load("model.npz")
    print(description, len(arrays))
  """
  return read(path, hints, ema, prefix)[:2]


class Weights(NamedTuple):
  """A model and its parameters.

  Attributes:
    description: the model.
    arrays: float32 parameters by path.
    notes: messages for the user about how the weights were read.
    classes: class names in the order of the outputs, or () if they are unknown.
    task: parameters of a task by path, such as a decoder or a projection head. Those of a file are read when their
      values are used.
    normalised: "mean" and "std" of the images, as far as they are known.
  """

  description: Description
  arrays: dict[str, np.ndarray]
  notes: list[str]
  classes: tuple[str, ...]
  task: Mapping[str, np.ndarray | Tensor]
  normalised: Mapping[str, tuple[float, ...]]


def read(
  path: str | pathlib.Path,
  hints: Hints | None = None,
  ema: bool | None = None,
  prefix: str | None = None,
  likely: Hints | None = None,
) -> Weights:
  """Reads the same weights as `load`, and also returns notes and class names.

  Args:
    path: weight file or workdir.
    hints: facts that the tensors do not determine. See `recognise`.
    ema: True requires averaged weights, False requires raw weights. See `load`.
    prefix: common prefix of the parameter names to read, for a file that contains several models.
    likely: hints that are used only if no other source provides the value. See `inspect`.

  Raises:
    ConfigError: if the file cannot be read as exactly one known model.
    NotFiniteError: if a parameter of a workdir is NaN or infinite.
  """
  path = hub_files.resolve_weights(path)
  if is_workdir(path):
    check_prefix(path, prefix)
    arrays, about = checkpoints.read_weights(path, ema)
    extensions.restore_for_workdir(path, about)
    try:
      finite.check_weights({f"parameter {name}": array for name, array in arrays.items()})
    except ConfigError as error:
      raise NotFiniteError(f"{path}: {error}") from error
    description = Description.from_json(about.get("model")).unscan()
    parameters = surgery.unstack(arrays, layout.compute_shapes(description))
    task = task_parameters.find_workdir_parameters(arrays, provenance.read_stored_config(path, about))
    images = normalisation.read_workdir_image_metadata(path, about)
    return Weights(description, parameters, [], class_order.read_class_names(about), task, images.normalised)
  recognised = inspect(path, hints, likely, ema, prefix)
  try:
    notes = [*recognised.notes, *recognised.image_notes()]
    labels = recognised.image_metadata.labels
    normalised = normalisation.find_normalisation(recognised)
    return Weights(recognised.description, recognised.read(), notes, labels, recognised.task, normalised)
  except ConfigError as error:
    raise ConfigError(f"{path}: {error}") from error


def check_prefix(workdir: pathlib.Path, prefix: str | None) -> None:
  """Raises ConfigError if a prefix is used with a workdir, because its checkpoints contain a single model."""
  if prefix is not None:
    raise ConfigError(f"{workdir}: a workdir contains one model. Remove the prefix {show(prefix)}")


class LazyWeights(NamedTuple):
  """A model with weights that are read later.

  Attributes:
    description: the model.
    load: function that reads the weights, including the parameters of the task.
    notes: messages for the user about how the weights are read.
    task: shapes of the selected float32 parameters of the task by path.
    normalised: "mean" and "std" of the images, as far as they are known.
  """

  description: Description
  load: Callable[[], dict[str, np.ndarray]]
  notes: list[str]
  task: dict[str, tuple[int, ...]]
  normalised: Mapping[str, tuple[float, ...]]


def open_weights(
  path: str,
  image_size: int,
  dtype: str,
  ema: bool | None = None,
  prefix: str | None = None,
  classes: Sequence[str] = (),
  task_paths: Sequence[str] = (),
) -> LazyWeights:
  """Returns the model of a file or workdir, and a function that reads its weights.

  Only names and shapes are read from a file until the returned function is called. A workdir is read twice, so that its
  arrays do not stay in memory.

  Args:
    path: weight file or workdir.
    image_size: side of the images in pixels. Position embeddings are resampled to it.
    dtype: type in which the model computes.
    ema: True requires averaged weights, False requires raw weights. See `load`.
    prefix: common prefix of the parameter names to read, for a file that contains several models.
    classes: class names of the data. The outputs are reordered to match them. See `load_fitted`.
    task_paths: patterns of the paths of the task parameters to read, see `task_parameters.select_parameters`.

  Raises:
    ConfigError: if the file cannot be read as exactly one known model, or is not compatible with the image size or
      classes.
  """
  if is_workdir(hub_files.resolve_weights(path)):
    found = read(path, None, ema, prefix)
    source, names, normalised = found.description, found.classes, found.normalised
    notes = [*found.notes, *_describe_progress(hub_files.resolve_weights(path))]
    selected = task_parameters.select_parameters(found.task, task_paths)
    del found
  else:
    recognised = inspect(path, ema=ema, prefix=prefix)
    source, notes, names = recognised.description, recognised.notes, recognised.image_metadata.labels
    selected = task_parameters.select_parameters(recognised.task, task_paths)
    normalised = normalisation.find_normalisation(recognised)
  task = {name: array.shape for name, array in selected.items()}
  del selected
  target = source.replace(image_size=image_size).bind()
  if "dtype" in target.model.args:
    target = target.replace(model=Choice(target.model.name, {**target.model.args, "dtype": dtype}))

  def arrays() -> dict[str, np.ndarray]:
    again = read(path, None, ema, prefix)
    fitted, _ = surgery.fit(again.arrays, source, target, "keep")
    arranged = class_order.arrange_outputs(fitted, target, names, classes)[0]
    return arranged | {name: np.asarray(again.task[name]) for name in task}

  try:
    notes = [*notes, *class_order.arrange_outputs({}, target, names, classes)[1]]
    return LazyWeights(target, arrays, notes, task, normalised)
  except ConfigError as error:
    raise ConfigError(f"{path}: {error}") from error


def is_workdir(path: pathlib.Path) -> bool:
  """Returns true if a path is a workdir of this project with checkpoints."""
  with containers.convert_read_errors(path):
    return (path / "checkpoints").is_dir()


def _describe_progress(path: pathlib.Path) -> list[str]:
  """Returns a warning if a path is the workdir of a run that has not finished."""
  if not is_workdir(path):
    return []
  about = checkpoints.read_description(path) or {}
  if not (stored := provenance.read_stored_config(path, about)):
    return []
  total, step = Duration(stored["total"]), reading.list_steps(path)[-1]
  records = about["identity"]["data"]["records"] if "identity" in about else None
  if records and stored["data"]["name"] != "mixture":  # an epoch of a mixture is not the number of its records
    steps = total.count_steps(stored["batch"], records)
    finished, count = step >= steps, f"{steps:,}"
  else:
    finished, count = (path / "result.json").exists(), str(total)
  if finished:
    return []
  return [f"warning: the run in {path} has not finished: its weights are those of step {step:,} of {count}"]


def load_fitted(
  path: str,
  target: Description,
  head: Literal["auto", "keep", "new"] = "auto",
  ema: bool | None = None,
  prefix: str | None = None,
  classes: Sequence[str] = (),
  task_shapes: Mapping[str, tuple[int, ...]] | None = None,
  task_constants: Mapping[str, float] | None = None,
) -> tuple[dict[str, np.ndarray], list[str]]:
  """Returns the parameters of a file, adapted to a model.

  If the head is kept, its outputs are reordered to the positions of `classes`. See `class_order.arrange_outputs`.

  Args:
    path: weight file or workdir.
    target: the model to adapt the parameters to.
    head: "auto", "keep" or "new". See `surgery.fit`.
    ema: True requires averaged weights, False requires raw weights. See `load`.
    prefix: common prefix of the parameter names to read, for a file that contains several models.
    classes: class names of the data.
    task_shapes: shapes of the parameters of a task that the weights may contain, by path. See
      `task_parameters.fit_task`.
    task_constants: constants of the task by path, see `tasks.Task.constants`.

  Returns:
    The parameters by path, layer by layer, and notes about all changes.

  Raises:
    ConfigError: if the parameters cannot be adapted.
  """
  shapes = layout.compute_shapes(target)
  # Tensors do not determine the number of heads. If the widths are equal, the number of the wanted model is most
  # likely.
  likely: Hints = {} if isinstance(target.image_size, int) else {"image_size": target.image_size}
  if query := shapes.get("blocks/0/attention/query/kernel"):
    likely |= {"width": query[0], "heads": query[1]}
  found = read(path, None, ema, prefix, likely)
  try:
    fitting, notes = surgery.fit(found.arrays, found.description, target, head)
    names = found.classes if head != "new" and found.description.classes == target.classes else ()
    fitting, moved = class_order.arrange_outputs(fitting, target, names, classes, strict=head == "keep")
    kept_task, new = task_parameters.fit_task(found.task, task_shapes or {}, task_constants)
    return fitting | kept_task, [
      *notes,
      *moved,
      *found.notes,
      *new,
      *_describe_progress(hub_files.resolve_weights(path)),
    ]
  except ConfigError as error:
    raise ConfigError(f"{path}: {error}") from error


def inspect(
  path: str | pathlib.Path,
  hints: Hints | None = None,
  likely: Hints | None = None,
  ema: bool | None = None,
  prefix: str | None = None,
) -> RecognisedModel:
  """Determines the layout and the model of a weight file, without reading the values of its tensors.

  Args:
    path: the weight file.
    hints: facts that the tensors do not determine. See `recognise`.
    likely: hints that are used only if no other source provides the value.
    ema: True requires averaged weights, False requires raw weights. See `load`.
    prefix: common prefix of the parameter names to read, for a file that contains several models.

  Raises:
    ConfigError: if the file cannot be read as exactly one known model.

  Example:
    from vit_jax import importers

    recognised = importers.inspect("model.npz")
    print(recognised.layout.name, recognised.description)
  """
  tensors, found = containers.read(hub_files.resolve_weights(path))
  known: Hints = {**found, **(hints or {})}
  guessed: Hints = {**(likely or {})}
  if "heads" in known:
    guessed.pop("width", None)
  try:
    return recognise(tensors, {**guessed, **known}, ema, prefix)
  except ConfigError as error:
    raise ConfigError(f"{path}: {error}") from error
