"""Registration of user-defined readers, datasets, tasks, models, evaluations, optimizers and schedules.

A registered name behaves like a built-in name. The keyword-only parameters of the registered function are the keys of
the config, with their types and defaults. An error in a config is reported in one line. The pages in
`docs/extend` show examples.

Example:
  from vit_jax import register

  @register.evaluation("confidence", figures=("mean", "images"))
  def confidence(subject, *, split: str = "test"):
    ...
"""

import dataclasses
import functools
import inspect
import pathlib
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from vit_jax import evals, models, optim, schema, tasks
from vit_jax.config import extensions
from vit_jax.data import augment, catalog, loader, stream
from vit_jax.data.dataset_row import DatasetRow
from vit_jax.models import parameters, table
from vit_jax.models.published.model import Registered
from vit_jax.optim import schedules
from vit_jax.schema import ConfigError, checks, show, suggest_nearest

__all__ = ["dataset", "evaluation", "model", "optimizer", "reader", "schedule", "task"]

Decorated = TypeVar(
  "Decorated", bound=Callable[..., Any]
)  # a decorator returns the function or class that it decorates
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_./+-]*")
_RESERVED = ("none", "default")  # words with a special meaning as the value of a flag
_ROW = {field.name for field in dataclasses.fields(DatasetRow)} - {"reader"}
_TASK = (  # methods and attributes that a task may define
  *("headline", "fields", "classes", "frozen_models", "statistics", "uses_average", "init", "sharding"),
  *("check_metrics", "examples", "objective", "predict"),
)


def reader(name: str, **facts: object) -> Callable[[Decorated], Decorated]:
  """Registers a reader: a function that opens a split of labelled images.

  The function is called as `function(name, row, split, **keys)`. The arguments are the registered name, its row of the
  catalog, and "train", "val", "test" or a split string. It must return a `vit_jax.data.sources.Source`. Its
  keyword-only parameters are keys of `config.data`. It must have the parameters `train`, `val` and `test`, the split
  strings that a config may set.

  Args:
    name: the value of `config.data.name`.
    **facts: fields of `vit_jax.data.dataset_row.DatasetRow` that hold for all data of this reader, such as `exif=True`.

  Returns:
    A decorator that returns the function unchanged.

  Raises:
    ConfigError: the name is invalid or used, a fact is unknown, or the config does not support the signature.
  """

  def decorate(function: Decorated) -> Decorated:
    _check_signature("reader", function, ("name", "row", "split"), ("train", "val", "test"))
    others = (stream.train_examples, stream.eval_examples, loader.batches, loader.processes, augment.build)
    _check_free("reader", function, ("weight",), *others)
    _add_entry("reader", name, catalog.CATALOG, _make_row("reader", function, facts), function)
    return function

  return decorate


def dataset(name: str, like: str, **facts: object) -> None:
  """Registers a dataset: a name for an existing reader with other facts and defaults.

  Args:
    name: the value of `config.data.name`.
    like: name of a reader, or of a dataset with the same reader, such as "folder" or "tfds".
    **facts: fields of `vit_jax.data.dataset_row.DatasetRow`, and defaults of the reader's keys such as
      `path="/data/birds"`. A plan without data needs fields such as `classes=3` and `splits={"train": 900}`.

  Raises:
    ConfigError: the name is invalid or used, or the reader or a fact is unknown.

  Example:
    register.dataset("birds", "folder", path="/data/birds", classes=3)
  """
  if like not in catalog.PARTS:
    own = f" If {show(like)} is a reader of your own, register it before its datasets." if _is_name(like) else ""
    raise _make_error("dataset", f"unknown reader {show(like)}.{suggest_nearest(like, catalog.PARTS)}{own}")
  function = catalog.CATALOG[like].reader
  keys = {key: value for key, value in facts.items() if key in schema.read_keywords(function) and key not in _ROW}
  known = {field.name: getattr(catalog.CATALOG[like], field.name) for field in dataclasses.fields(DatasetRow)}
  rest = {key: value for key, value in facts.items() if key not in keys}
  merged = {key: value for key, value in known.items() if key not in ("reader", "builder")} | rest
  row = _make_row("dataset", schema.preset(function, **keys), merged)
  _add_entry("reader", name, catalog.CATALOG, row, None, by="dataset")


def task(name: str) -> Callable[[Decorated], Decorated]:
  """Registers a task: a training objective, see `vit_jax.tasks.Task`.

  The decorated class, or a function that returns such an object, is called with `vit_jax.tasks.TaskContext` and the
  keys of `config.task`, which are its keyword-only parameters.

  Args:
    name: the value of `config.task.name`.

  Returns:
    A decorator that returns the class unchanged.

  Raises:
    ConfigError: the name is invalid or used, the class lacks a member of `vit_jax.tasks.Task`, or the config does not
      support the signature.
  """

  def decorate(made: Decorated) -> Decorated:
    if inspect.isclass(made):
      known = {*dir(made), *getattr(made, "__dataclass_fields__", ())}
      abstract = getattr(made, "__abstractmethods__", ())
      if lacking := [member for member in _TASK if member not in known or member in abstract]:
        raise _make_error("task", f"{made.__name__} lacks {', '.join(lacking)}. Derive it from vit_jax.tasks.Task")
      if not isinstance(getattr(made, "classes", None), bool):
        raise _make_error("task", f"{made.__name__}.classes is not a class attribute. Set it to True or False")
    _check_signature("task", made, ("supplied",))
    _add_entry("task", name, tasks.TASKS, made, made)
    return made

  return decorate


def model(
  name: str,
  *,
  image_size: int,
  classes: int = 1000,
  sharding: models.ShardingRules = (),
  order: parameters.Order = parameters.ORDER,
) -> Callable[[Decorated], Decorated]:
  """Registers a model: a function that builds a Flax NNX module.

  The function is called as `function(image_size, channels, classes, rngs, **keys)`. Its keyword-only parameters are the
  keys of `config.model`. The parameter `dtype: Dtype` is required. The module must have a method `outputs(images, key)`
  that returns `vit_jax.models.Output`; see `vit_jax.models.output.classify`. With `classes=0` the module must not
  have a head. Attributes are optional. `vit_jax.models.contract` checks the attributes that this package uses.

  Args:
    name: the value of `config.model.name`.
    image_size: default image size of `models.create` in pixels.
    classes: default number of classes of `models.create`.
    sharding: rows (regular expression of a whole parameter path, mesh axis of each dimension). They are added to the
      rows of all models (`vit_jax.models.parameters.SHARDING`). Exactly one row must match each parameter.
    order: the parameters that precede, form and follow the blocks. `layer_decay` and new heads depend on it.

  Returns:
    A decorator that returns the function unchanged.

  Raises:
    ConfigError: the name is invalid or used, the sharding table is invalid, or the config does not support the
      signature.
  """
  for row in sharding:
    if not (isinstance(row, tuple) and len(row) == 2 and isinstance(row[0], str) and isinstance(row[1], tuple)):
      raise _make_error(
        "model", f"{show(row)} is not a row of a sharding table. Write (r'head/kernel', ('fsdp', None))"
      )

  def decorate(function: Decorated) -> Decorated:
    _check_signature("model", function, ("image_size", "channels", "classes", "rngs"), ("dtype",))
    rows = (*sharding, *(row for row in parameters.SHARDING if row[0] not in {pattern for pattern, _ in sharding}))
    row = Registered("extension:" + name, (), {}, image_size, classes, function, rows, order)
    _add_entry("model", name, table.TABLE, row, function)
    return function

  return decorate


def evaluation(
  name: str, *, figures: Sequence[str] | Callable[[Mapping[str, Any]], list[str]]
) -> Callable[[Decorated], Decorated]:
  """Registers an evaluation: a function of a `vit_jax.evals.EvalContext` that prepares a measurement.

  The function is called as `function(subject, **keys)` before training starts. It returns a function
  `(params, poll) -> vit_jax.evals.Outcome`, which is called at each evaluation. Its keyword-only parameters are the
  keys of the entry in `config.evals`.

  Args:
    name: the `name` of an entry in `config.evals`.
    figures: names of the figures, or a function that returns them for the bound arguments. A sweep may rank trials by
      any of them. Figures with names that end in "loss" or "rmse" are numbers. All others are shares from 0 to 1.

  Returns:
    A decorator that returns the function unchanged.

  Raises:
    ConfigError: the name is invalid or used, or the config does not support the signature.
  """
  names = figures if callable(figures) else functools.partial(_return_names, list(figures))

  def decorate(function: Decorated) -> Decorated:
    _check_signature("evaluation", function, ("subject",))
    _check_free("evaluation", function, (), evals.interval)
    _add_entry("evaluation", name, evals.KINDS, evals.EvalDefinition(function, names), function)
    return function

  return decorate


def optimizer(name: str) -> Callable[[Decorated], Decorated]:
  """Registers an update rule: a function of keyword-only parameters that returns an `optax.GradientTransformation`.

  The rule converts gradients to a direction. Learning rate, schedule, weight decay, clipping and frozen parameters are
  common to all rules, see `vit_jax.optim.optimizer`.

  Args:
    name: the value of `config.optim.name`.

  Returns:
    A decorator that returns the function unchanged.

  Raises:
    ConfigError: the name is invalid or used, or the config does not support the signature.
  """

  def decorate(function: Decorated) -> Decorated:
    _check_signature("optimizer", function, ())
    _check_free("optimizer", function, (), optim.optimizer)
    _add_entry("optimizer", name, optim.RULES, (function, optim.optimizer), function)
    return function

  return decorate


def schedule(name: str) -> Callable[[Decorated], Decorated]:
  """Registers a schedule: a function `(peak, total, warmup, steps, **keys)` that returns `step -> learning rate`.

  `peak` is `config.optim.lr`. `total` and `warmup` are numbers of steps. `steps` converts a `schema.Duration` to steps.

  Args:
    name: the value of `config.optim.schedule.name`.

  Returns:
    A decorator that returns the function unchanged.

  Raises:
    ConfigError: the name is invalid or used, or the config does not support the signature.
  """

  def decorate(function: Decorated) -> Decorated:
    _check_signature("schedule", function, ("peak", "total", "warmup", "steps"))
    _add_entry("schedule", name, schedules.SCHEDULES, function, function)
    return function

  return decorate


def _return_names(names: Sequence[str], args: object) -> Sequence[str]:
  """Returns the names and ignores the arguments."""
  del args
  return names


def _make_row(kind: str, function: Callable[..., object], facts: dict[str, Any]) -> DatasetRow:
  """Builds a row of the catalog. Raises ConfigError for an unknown fact."""
  for key in facts:
    if key not in _ROW:
      raise _make_error(kind, f"unknown fact {show(key)}.{suggest_nearest(key, sorted(_ROW))}")
  return DatasetRow(function, **facts)


def _add_entry(kind: str, name: str, names: Iterable[str], entry: object, made: object, by: str | None = None) -> None:
  """Adds an entry to its table, with the file that called this module. `by` is the name of the called function."""
  if not _is_name(name):
    raise _make_error(
      by or kind, f"{show(name)} is not a valid name. Use letters, digits and _./+-, with a letter first"
    )
  frame = _find_caller()
  definition = f"{getattr(made, '__qualname__', kind)}:{frame.f_lineno}"
  extensions.add(kind, name, names, entry, frame.f_globals, definition, _describe_location(by or kind))


def _is_name(name: object) -> bool:
  """Returns whether a name may be registered."""
  return isinstance(name, str) and bool(_NAME.fullmatch(name)) and name not in _RESERVED


def _find_caller() -> types.FrameType:
  """Returns the frame of the user's code that called this module."""
  frame = sys._getframe(1)
  while frame.f_back and frame.f_globals.get("__name__") == __name__:
    frame = frame.f_back
  return frame


def _describe_location(function: str) -> str:
  """Returns the file, the line and the called function, as the start of a message."""
  frame = _find_caller()
  file = pathlib.Path(frame.f_code.co_filename)
  here = pathlib.Path.cwd()
  if not file.is_file():  # a notebook
    return f"register.{function}"
  return f"{file.relative_to(here) if file.is_relative_to(here) else file}, line {frame.f_lineno}: register.{function}"


def _make_error(function: str, problem: str) -> ConfigError:
  """Returns the error for a call of a function of this module, with the location of the call."""
  return ConfigError(f"{_describe_location(function)}: {problem}")


def _check_signature(
  kind: str, function: Callable[..., object], positional: Sequence[str], needed: Sequence[str] = ()
) -> None:
  """Raises ConfigError unless a function has these positional parameters, and keyword-only parameters of supported
  types.
  """
  called = getattr(function, "__name__", show(function))
  if not callable(function):
    raise _make_error(kind, f"{called} is not a function or class. Put the decorator above one")
  arguments = inspect.signature(function).parameters.values()
  first = [p for p in arguments if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
  rest = [p for p in arguments if p not in first and p.kind is not p.KEYWORD_ONLY]
  if len(first) != len(positional) or rest:
    form = ", ".join([*positional, "*", *(needed or ["..."])])
    raise _make_error(
      kind,
      f"{called}{inspect.signature(function)} does not have the parameters of a {kind}. Write def {called}({form}), "
      "with all "
      "keys of the config after *",
    )
  keys = schema.read_keywords(function)
  if lacking := [key for key in needed if key not in keys]:
    raise _make_error(kind, f"{called} lacks the keyword-only parameter {lacking[0]!r}. Add it after *")
  with schema.enter_key(f"{_describe_location(kind)}: {called}"):
    checks.check_types(function)


def _check_free(
  kind: str, function: Callable[..., object], words: Sequence[str], *others: Callable[..., object]
) -> None:
  """Raises ConfigError if a parameter of the function has the name of another key of the config."""
  taken = {*words, *(key for other in others for key in schema.read_keywords(other))}
  if used := [key for key in schema.read_keywords(function) if key in taken]:
    name = function.__name__
    raise _make_error(
      kind, f"{name} has the parameter {used[0]!r}, which every {kind} already has. Rename the parameter"
    )
