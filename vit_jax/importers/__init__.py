"""Published weights in, weights out: files of other codes to parameters by our paths, and back.

`recognise` tells what a file's tensors are, `load` reads all of them or none, `export` names them for another code.
"""

import functools
import importlib
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from vit_jax import checkpoints, extensions, paths, schema
from vit_jax.importers import containers, hub, layout, surgery, tables
from vit_jax.importers.layout import Layout, Tensors
from vit_jax.importers.processing import Beside
from vit_jax.importers.tensors import Tensor
from vit_jax.models import Description, finite
from vit_jax.schema import Choice, ConfigError, show
from vit_jax.schema.errors import NotFiniteError, some

# Files of this folder that have layouts, in the order in which these are tried.
_FILES = (
  "vit_google",
  "vit_transformers",
  "vit_siglip",
  "vit_hf",
  "vit_dino",
  "vit_originals",
  "vit_eva",
  "vit_parallel",
  "vit_torch",
  "compact",
  "mixer",
  "bit",
  "swin",
  "efficientnet",
)


@functools.cache
def layouts() -> tuple[Layout, ...]:
  """All layouts; their files are imported when they are first asked for."""
  return tuple(one for name in _FILES for one in importlib.import_module(f"vit_jax.importers.{name}").LAYOUTS)


class Recognised(NamedTuple):
  """What was recognised: tensors under the names of `layout`'s rows, what they describe, and what else is known."""

  layout: Layout
  description: Description
  tensors: Tensors
  notes: list[str]
  beside: Beside = Beside()

  def read(self) -> dict[str, np.ndarray]:
    """All parameters by our paths, float32, layer by layer; ConfigError for a tensor too few, too many or misshapen."""
    return layout.read(self.layout, self.tensors, self.description)

  def lazily(self) -> dict[str, Tensor]:
    """As `read`, of parameters that are read when their values are needed."""
    return layout.lazily(self.layout, self.tensors, self.description)

  def check(self) -> None:
    """ConfigError where `read` would raise one, by names and shapes alone."""
    layout.match(self.layout, self.tensors, self.description)


def recognise(tensors: Tensors, hints: Mapping[str, Any] | None = None) -> Recognised:
  """The layout of the tensors and the model they are of; ConfigError for tensors of no known model.

  Args:
    tensors: by the names in the file.
    hints: what tensors do not show: heads, norm_eps, gelu ("tanh", "erf"), padding, image_size, name; input_size, where
      nothing else says the image size. With `width`, heads are those of models of that width only. What is `said` must
      be true of the model.
  """
  hints = dict(hints or {})
  if isinstance(hints.get("image_size"), list):
    hints["image_size"] = tuple(hints["image_size"])
  header = Description.from_json(hints["description"]) if "description" in hints else None
  if header:
    hints["image_size"] = header.image_size
  tensors = containers.without_prefix(dict(tensors))
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
      description = _stored(header, candidate, named) if header else candidate.describe(named, hints)
      description = _with_resampling(description, candidate, hints, header)
      hub.check(description, hints.get("said", {}))
      said = hub.beside(hints)
      notes = [*hub.notes(said.normalised), *layout.notes(candidate, named, hints)]
      return Recognised(candidate, description, named, notes, said)
    except ConfigError:
      raise
    except (KeyError, StopIteration) as error:
      raise ConfigError(f"the tensors look like a {candidate.family} of {candidate.name}, but lack {error}") from error
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:
      raise ConfigError(
        f"the tensors look like a {candidate.family} of {candidate.name}, but their shapes do not: {error}"
      ) from error
  raise ConfigError(
    f"the tensors are those of no known model: {len(tensors)} of them, such as {some(sorted(tensors)[:4])}. "
    "Known: " + ", ".join(sorted({f"{known.family} ({known.name})" for known in layouts()}))
  )


def _with_resampling(description, candidate, hints, header):
  """Returns the description with the publisher's rule for position tables, unless the file's header has one."""
  rule = hints.get("resampling")
  if rule is None and not header and (rule := candidate.resampling) and description.arguments().get("registers"):
    # DINOv2 with registers, by its authors and in Transformers.
    rule = {"dinov2": "bicubic_antialiased", "hf": "bicubic_antialiased"}.get(candidate.name, rule)
  if rule is None or description.arguments().get("resampling", rule) == rule:
    return description
  args = {**description.model.args, "resampling": rule}
  return description.replaced(model=Choice(description.model.name, args))


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
  path: str | pathlib.Path, hints: Mapping[str, Any] | None = None, ema: bool = False
) -> tuple[Description, dict[str, np.ndarray]]:
  """What a file of weights holds, or the newest checkpoint of a workdir, and its parameters by our paths.

  `ema` takes the moving average that a workdir may hold beside the parameters.
  """
  return _load(paths.path(path), hints, ema)[:2]


def _load(path, hints, ema, likely=None):
  """What `load` gives, and what else is known of a file; `likely` as of `inspect`."""
  if is_workdir(path):
    arrays, about = checkpoints.read_weights(path, ema)
    extensions.restore_of(path, about)
    try:
      finite.check_weights({f"parameter {name}": array for name, array in arrays.items()})
    except ConfigError as error:
      raise NotFiniteError(f"{path}: {error}") from error
    description = Description.from_json(about.get("model")).unscanned()
    return description, surgery.unstack(arrays, layout.shapes(description)), []
  check_average(path, ema)
  recognised = inspect(path, hints, likely)
  try:
    return recognised.description, recognised.read(), recognised.notes
  except ConfigError as error:
    raise ConfigError(f"{path}: {error}") from error


def check_average(path: pathlib.Path, ema: bool) -> None:
  """ConfigError where the moving average of a file is wanted."""
  if ema:
    raise ConfigError(f"{path}: a moving average is in workdirs only; a file has one set of weights; leave it out")


def frozen(
  path: str, image_size: int, dtype: str, ema: bool = False
) -> tuple[Description, Callable[[], dict[str, np.ndarray]]]:
  """The model in a file or workdir, for images of a size and computed in `dtype`, and a function reading its weights.

  Of a file only names and shapes are read before that.
  """
  have = load(path, ema=ema)[0] if is_workdir(paths.path(path)) else inspect(path).description
  want = have.replaced(image_size=image_size).bound()
  if "dtype" in want.model.args:
    want = want.replaced(model=Choice(want.model.name, {**want.model.args, "dtype": dtype}))

  def arrays():
    _, tensors = load(path, ema=ema)
    return surgery.fit(tensors, have, want, "keep")[0]

  return want, arrays


def is_workdir(path: pathlib.Path) -> bool:
  """Whether a path is a workdir of this project, with checkpoints."""
  with containers.reading(path):
    return (path / "checkpoints").is_dir()


def fitted(
  path: str, want: Description, head: str = "auto", ema: bool = False
) -> tuple[dict[str, np.ndarray], list[str]]:
  """A file's parameters made to fit the model `want`, layer by layer, and what was done; see `surgery.fit`."""
  shapes = layout.shapes(want)
  # Heads do not show in tensors; they are most likely those of the model that is wanted, if widths are the same.
  likely = {} if isinstance(want.image_size, int) else {"image_size": want.image_size}
  if query := shapes.get("blocks/0/attention/query/kernel"):
    likely |= {"width": query[0], "heads": query[1]}
  have, arrays, known = _load(paths.path(path), None, ema, likely)
  try:
    fitting, notes = surgery.fit(arrays, have, want, head)
    return fitting, [*notes, *known]
  except ConfigError as error:
    raise ConfigError(f"{path}: {error}") from error


def inspect(
  path: str | pathlib.Path, hints: Mapping[str, Any] | None = None, likely: Mapping[str, Any] | None = None
) -> Recognised:
  """As `recognise`, of a file; its tensors are not read yet. `likely` are hints of what nothing else says."""
  tensors, beside = containers.read(paths.path(path))
  known = beside | dict(hints or {})
  guessed = {key: value for key, value in (likely or {}).items() if key != "width" or "heads" not in known}
  try:
    return recognise(tensors, guessed | known)
  except ConfigError as error:
    raise ConfigError(f"{path}: {error}") from error


def export(arrays: Mapping[str, np.ndarray], description: Description, name: str) -> dict[str, np.ndarray]:
  """The tensors of a file in the layout of that name."""
  return layout.write(layout_of(description, name), arrays, description)


def layout_of(description: Description, name: str) -> Layout:
  """The layout of that name for the described model, or a ConfigError with those that have a place for it."""
  family = [one for one in layouts() if one.family == description.published.family]
  if name not in (one.name for one in family):
    raise ConfigError(
      f"layout {name!r} is not known for {description.model.name}.{schema.nearest(name, _names(description))}"
    )
  held = [one for one in family if one.name == name and one.holds(description)]
  why = layout.refusal(held[-1], description) if held else f"layout {name!r} has no place for {description}"
  if why:
    raise ConfigError(f"{why}; allowed: {', '.join(_names(description)) or 'none but a directory, which is a workdir'}")
  return held[-1]


def layouts_of(description: Description) -> list[Layout]:
  """The layouts in which models of this family are published, and that have a place for this one."""
  family = [one for one in layouts() if one.family == description.published.family and one.holds(description)]
  return [one for one in family if layout.refusal(one, description) is None]


def _names(description):
  return dict.fromkeys(one.name for one in layouts_of(description))
