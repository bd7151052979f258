"""Tests that every config key has an effect: the build passes each key to a function, and the function uses it."""

import ast
import collections.abc
import contextlib
import dataclasses
import functools
import inspect
import textwrap
import typing

import jax
import pytest

from tests import runs
from vit_jax import config, evals, models, schema, tasks
from vit_jax.config import flags
from vit_jax.data import catalog, sources
from vit_jax.importers import surgery
from vit_jax.models import vit, vit_choices
from vit_jax.training import build

# Functions use their parameters.


def inner(kind) -> typing.Iterator[schema.Table]:
  """Yields the tables that an annotation contains at any depth."""
  if typing.get_origin(kind) is typing.Annotated and isinstance(kind.__metadata__[0], collections.abc.Mapping):
    yield kind.__metadata__[0]
  for part in typing.get_args(kind):
    yield from inner(part)


def functions() -> dict[str, collections.abc.Callable]:
  """Returns the functions of all tables, and of tables in their annotations, by module and name."""
  waiting = [catalog.DATA, catalog.EVAL_DATA, build.OPTIM, tasks.TASKS, evals.REPEATED]
  waiting.append({name: models.lookup(name) for name in models.names()})
  seen = {}
  while waiting:
    table = waiting.pop()
    for name in table:
      for function in schema.lookup(table, name):
        while isinstance(function, functools.partial):
          function = function.func
        key = f"{function.__module__}.{function.__name__}"
        if key not in seen:
          seen[key] = function
          for kind in typing.get_type_hints(function, include_extras=True).values():
            waiting += inner(kind)
  return seen


FUNCTIONS = functions()
# Models accept these keys for other modules: importers read how to resample position tables.
FOR_OTHERS = {"resampling": surgery}


def in_package(function) -> bool:
  """Returns whether the source of a function or class is in the package or in this file."""
  return function.__module__.split(".")[0] in ("vit_jax", __name__.split(".")[0])


def find_unused(function) -> set[str]:
  """Returns keyword-only parameters of a function, or fields of a class, that its body never reads.

  `del` does not count as reading. The body of a class includes its base classes. `vit.vit` reads the fields of the
  classes that it selects.
  """
  bases = function.__mro__[:-1] if isinstance(function, type) else (function,)
  definitions = [ast.parse(textwrap.dedent(inspect.getsource(base))).body[0] for base in bases if in_package(base)]
  statements = [statement for definition in definitions for statement in definition.body]
  if function.__module__ == vit_choices.__name__:
    statements += ast.parse(inspect.getsource(vit)).body
  nodes = [node for statement in statements for node in ast.walk(statement)]
  kind, name = (ast.Attribute, "attr") if isinstance(function, type) else (ast.Name, "id")
  read = {getattr(node, name) for node in nodes if isinstance(node, kind) and isinstance(node.ctx, ast.Load)}
  return set(schema.read_keywords(function)) - read


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_use_every_key_that_they_accept(name):
  assert find_unused(FUNCTIONS[name]) <= set(FOR_OTHERS)


@pytest.mark.parametrize("key", FOR_OTHERS)
def test_keys_for_other_modules_are_read_there(key):
  assert f'"{key}"' in inspect.getsource(FOR_OTHERS[key])


def test_accepted_but_unused_keys_are_detected():
  def optimizer(rule, *, lr, ema=None, accumulate=1):
    """`accumulate` is the train step's."""
    del ema, accumulate
    return rule, lr

  assert find_unused(optimizer) == {"ema", "accumulate"}


def test_functions_of_all_tables_are_found():
  names = {name.removeprefix("vit_jax.") for name in FUNCTIONS}
  assert names >= {
    "models.vit.vit", "optim.rules.lion", "optim.rules.optimizer", "optim.schedules.rsqrt",
    "optim.averages.create_average_decay", "tasks.dinov2_choices.blocks",
    "tasks.classify.Classify", "data.crops.centre", "data.randaugment.none", "data.warping.affine",
    "data.readers.folder.folder", "data.readers.tfds.open_own_copy", "data.loader.batches", "data.augment.normalise",
    "evals.table.interval", "data.mixup.cutmix", "evals.fewshot.fewshot", "evals.dense.dense",
    "data.erasing.no_erasing", "evals.probes.ridge_probe",
    "data.order.blocks",
  }  # fmt: skip


# The build passes every key to a function.


class Recorded(collections.abc.Mapping):
  """Arguments that record which of them were read."""

  def __init__(self, values):
    self.values_, self.read = dict(values), set()

  def __getitem__(self, key):
    self.read.add(key)
    return self.values_[key]

  def __iter__(self):
    return iter(self.values_)

  def __len__(self):
    return len(self.values_)


def load_small(file):
  """Returns a shipped config with a few thousand parameters, for one device."""
  edited = flags.load_config(str(file))
  side = "28" if edited.model.name.endswith("/14") else "32"
  small = {"model.width": "16", "model.heads": "2", "model.hidden": "16", "model.depth": "1", "data.image_size": side}
  small |= {
    "batch": "8",
    "optim.accumulate": "1",
    "total": "2",
    "optim.warmup": "0",
    "mesh.fsdp": "1",
    "init.from": "weights.npz",
  }
  small |= {"data.path": "photos"} if edited.data.name == "folder" else {}
  for key, text in small.items():
    flags.set_value(edited, key, text)
  for part, key, value in (
    (edited.model, "pre_logits", 16),
    (edited.data.get("test_crop", {}), "resize", 36),
    (edited.optim.get("schedule", {}), "cooldown", 0),
  ):
    if key in part:
      part[key] = value
  return build.complete(config.resolve(edited))


def record_reads(choice):
  return dataclasses.replace(choice, args=Recorded(choice.args))


def pictures(choice, split):
  """Returns a source instead of the data, which are not available, and marks the reader's keys as read."""
  keys = choice.select(catalog.READERS[choice.name])
  names = tuple(map(str, range(catalog.CATALOG[choice.name].classes or 3)))
  segments = catalog.CATALOG[choice.name].segments
  masks = segments and sources.Masks(tuple(segments.values), None)
  return sources.Source("made", split, names, 16, None, str, keys.get("labels", 1), masks=masks)


RECIPES = sorted(file for file in (runs.ROOT / "configs").rglob("*.py") if file.stem not in ("fewshot", "probes"))


@pytest.mark.sample(3)
@pytest.mark.heavy
@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_every_key_of_a_config_is_passed_to_a_function(file):
  run = load_small(file)
  kind = "accuracy" if tasks.TASKS[run.task.name].classes else "masked"
  other = schema.Choice(kind, {"data": schema.Choice(run.data.name, {"path": "other"})})
  run = build.complete(runs.changed(run, evals={**run.evals, "other": other}))
  parts = {key: record_reads(getattr(run, key)) for key in ("model", "data", "optim", "task")}
  parts["evals"] = {name: record_reads(choice) for name, choice in run.evals.items()}
  built = build.build(dataclasses.replace(run, **parts), jax.devices()[:1], pictures)
  with contextlib.closing(built.open_batches(0)):
    pass
  choices = {"model": parts["model"], "data": parts["data"], "optim": parts["optim"], "task": parts["task"]}
  choices |= {f"evals.{name}": choice for name, choice in parts["evals"].items()}
  ignored = {place: set(choice.args) - choice.args.read for place, choice in choices.items()}
  if all(choice.args.get("data") for choice in run.evals.values()):  # no evaluation crops the run's own images
    ignored["data"].discard("test_crop")
  assert ignored == {place: set() for place in choices}


def test_every_field_of_a_config_is_read():
  read = set()
  for file in (runs.ROOT / "vit_jax").rglob("*.py"):
    if file.parent.name != "config":
      read |= {node.attr for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)}
  for kind in (config.Run, config.Checkpoint, config.Log, config.Init, config.Measurement, config.Sweep):
    assert {field.name for field in dataclasses.fields(kind)} <= read, kind
