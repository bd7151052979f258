"""Tests of registration by users: names behave like built-in names, and errors are one line."""

import dataclasses
import pathlib
import re
import sys
from typing import ClassVar

import numpy as np
import optax
import pytest

from tests import runs
from tests.extension_files import forget
from vit_jax import evals, models, optim, register, schema, tasks
from vit_jax.config import extensions
from vit_jax.data import catalog
from vit_jax.schema import Choice, ConfigError
from vit_jax.training import build

EXAMPLE = runs.ROOT / "examples/extend"


@pytest.fixture(autouse=True)
def clean(tmp_path_factory, monkeypatch):
  """Starts with no registered names, and restores the import path."""
  monkeypatch.setattr(sys, "path", list(sys.path))
  forget()
  yield
  forget()


# Objects that users can register.


def reader(name, row, split, *, size: int = 3, train: str = "train", val: str | None = None, test: str = "test"): ...


def model(image_size, channels, classes, rngs, *, dtype: models.ShardingRules = (), wide: bool = False): ...


def test_registered_reader_is_in_all_tables():
  register.reader("own", exif=True, flip=False)(reader)
  for table in (catalog.READERS, catalog.DATA, catalog.EVAL_DATA, catalog.PARTS):
    assert "own" in table and schema.read_keywords(schema.lookup(table, "own")[0])["size"] == 3
  bound = schema.bind(Choice("own", {"image_size": 8}), schema.lookup(catalog.DATA, "own"))
  assert bound.args["exif"] is True and bound.args["flip"] is False and bound.args["size"] == 3
  with pytest.raises(ConfigError, match=r"unknown key for 'own', value 1\. Did you mean 'size'\?"):
    schema.bind(Choice("own", {"siz": 1, "image_size": 8}), schema.lookup(catalog.DATA, "own"))
  with pytest.raises(ConfigError, match=r"unknown name 'owm'\. Did you mean 'own'\?"):
    schema.lookup(catalog.DATA, "owm")


def test_dataset_is_registered_in_one_line():
  register.dataset("birds", "folder", path="/data/birds", classes=3, splits={"train": 9}, exif=False)
  bound = schema.bind(Choice("birds", {"image_size": 8}), schema.lookup(catalog.DATA, "birds"))
  assert bound.args["path"] == "/data/birds" and bound.args["exif"] is False and bound.args["holdout"] == 0.2
  assert catalog.CATALOG["birds"].classes == 3 and "3 classes" in catalog.describe_dataset("birds")
  with pytest.raises(ConfigError, match="no folder '/data/birds'"):
    catalog.open_split(bound, "train")


@pytest.mark.heavy
def test_optimizer_and_schedule_are_one_function_each():
  @register.optimizer("sign")
  def sign(*, scale: schema.Positive = 1.0):
    return optax.chain(optax.scale_by_sign(), optax.scale(scale))

  @register.schedule("flat")
  def flat(peak, total, warmup, steps, *, share: schema.Fraction = 1.0):
    return lambda step: share * peak

  choice = Choice("sign", {"lr": 0.1, "schedule": {"name": "flat", "share": 0.5}})
  bound = schema.bind(choice, schema.lookup(build.OPTIM, "sign"), build.OPTIM)
  params = {"kernel": np.ones(2, np.float32)}
  made = optim.create_optimizer(bound, params, 10, lambda duration: 0)
  rule = made.transformation
  updates, _ = rule.update({"kernel": np.array([3.0, -2.0], np.float32)}, rule.init(params), params)
  assert made.schedule(3) == pytest.approx(0.05)
  np.testing.assert_allclose(updates["kernel"], [-0.05, 0.05], rtol=1e-6)


def test_registered_evaluation_names_its_figures():
  @register.evaluation("own", figures=lambda args: [f"at_{args['k']}"])
  def own(subject, *, k: int = 3): ...

  bound = evals.bind_evaluation(Choice("own", {}), evals.REPEATED, {})
  assert evals.list_figure_names(bound) == ["at_3"] and bound.args["every"] == schema.Duration("20%")


# Errors.


def bad_arguments(name, row, split, path, *, train: str = "train", val: str | None = None, test: str = "test"): ...


def bad_catch_all(name, row, split, **keys): ...


def bad_missing(name, row, split, *, train: str = "train"): ...


def bad_taken(
  name, row, split, *, image_size: int, train: str = "train", val: str | None = None, test: str = "test"
): ...


def bad_type(name, row, split, *, size: dict, train: str = "train", val: str | None = None, test: str = "test"): ...


@dataclasses.dataclass(frozen=True)
class NoTask:
  supplied: tasks.TaskContext


@dataclasses.dataclass(frozen=True)
class HalfTask(tasks.Task):
  supplied: tasks.TaskContext

  classes: ClassVar[bool] = True
  headline: ClassVar[str] = "top1"


def register_model(image_size, channels, classes, rngs): ...


MISTAKES = {
  "four arguments": (
    lambda: register.reader("own")(bad_arguments),
    r"^register\.reader: bad_arguments\(.*Write def bad_arguments\(name, row, split, \*, train, val, test\)",
  ),
  "any keys": (lambda: register.reader("own")(bad_catch_all), r"does not have the parameters of a reader"),
  "no split strings": (
    lambda: register.reader("own")(bad_missing),
    r"bad_missing lacks the keyword-only parameter 'val'",
  ),
  "a key of all data": (
    lambda: register.reader("own")(bad_taken),
    r"bad_taken has the parameter 'image_size', which every reader already has",
  ),
  "a type of no config": (
    lambda: register.reader("own")(bad_type),
    r"^register\.reader: bad_type\.size: a config cannot contain a <class 'dict'>",
  ),
  "an unknown fact": (
    lambda: register.reader("own", exiv=True)(reader),
    r"unknown fact 'exiv'\. Did you mean 'exif'\?",
  ),
  "a built-in reader": (
    lambda: register.reader("folder")(reader),
    r"^register\.reader: 'folder' is a name of vit_jax itself\. Choose another",
  ),
  "a built-in model": (
    lambda: register.model("ViT-S/16", image_size=8)(model),
    r"^register\.model: 'ViT-S/16' is a name of vit_jax itself",
  ),
  "a built-in task": (lambda: register.task("classify")(tasks.TASKS["distill"]), r"'classify' is a name of vit_jax"),
  "no name": (lambda: register.reader("a b")(reader), r"^register\.reader: 'a b' is not a valid name. Use letters"),
  "a reserved name": (lambda: register.reader("none")(reader), r"'none' is not a valid name"),
  "an unknown reader": (
    lambda: register.dataset("own", "foldr"),
    r"^register\.dataset: unknown reader 'foldr'\. Did you mean 'folder'\?.* If 'foldr' is a reader of your own",
  ),
  "a dataset with a bad name": (
    lambda: register.dataset("my digits", "folder"),
    r"^register\.dataset: 'my digits' is not a valid name. Use letters",
  ),
  "a dataset with an unknown fact": (
    lambda: register.dataset("own", "folder", clases=3),
    r"^register\.dataset: unknown fact 'clases'\. Did you mean 'classes'\?",
  ),
  "a built-in dataset": (
    lambda: register.dataset("digits", "folder"),
    r"^register\.dataset: 'digits' is a name of vit_jax itself",
  ),
  "a model with a bad name": (
    lambda: register.model("a b", image_size=8)(model),
    r"^register\.model: 'a b' is not a valid name",
  ),
  "no task": (
    lambda: register.task("own")(NoTask),
    r"^register\.task: NoTask lacks headline, fields, classes,",
  ),
  "a task without its methods": (
    lambda: register.task("own")(HalfTask),
    r"^register\.task: HalfTask lacks fields, examples, objective, predict\. Derive it",
  ),
  "no dtype": (
    lambda: register.model("own", image_size=8)(register_model),
    r"^register\.model: register_model lacks the keyword-only parameter 'dtype'",
  ),
  "no sharding row": (
    lambda: register.model("own", image_size=8, sharding=("head",)),
    r"^register\.model: 'head' is not a row of a sharding table",
  ),
  "no function": (lambda: register.evaluation("own", figures=())(3), r"3 is not a function or class"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_invalid_registration_is_an_error_of_one_line(case):
  attempt, problem = MISTAKES[case]
  here = rf"^{re.escape(str(pathlib.Path(__file__).relative_to(pathlib.Path.cwd())))}, line \d+: register\."
  with pytest.raises(ConfigError, match=here) as error:
    attempt()
  assert re.search(problem, str(error.value).partition(": ")[2])
  assert "\n" not in str(error.value) and extensions.list_registered() == []


def source(name, body=""):
  return f"""
from vit_jax import register
@register.schedule({name!r})
def first(peak, total, warmup, steps):
  return lambda step: peak
{body}
"""


def test_second_registration_of_a_name_is_an_error(tmp_path):
  (tmp_path / "a.py").write_text(source("own"))
  (tmp_path / "b.py").write_text(source("own"))
  extensions.run_file(tmp_path / "a.py")
  with pytest.raises(
    ConfigError,
    match=rf"^{tmp_path}/b\.py, line 3: register\.schedule: {tmp_path}/a\.py already registered 'own'\. Choose",
  ):
    extensions.run_file(tmp_path / "b.py")
  twice = source("two", "register.schedule('two')(lambda peak, total, warmup, steps: None)")
  (tmp_path / "c.py").write_text(twice)
  with pytest.raises(ConfigError, match=r"already registered 'two'"):
    extensions.run_file(tmp_path / "c.py")


def test_registration_error_names_file_and_line_of_the_call(tmp_path, monkeypatch):
  file = tmp_path / "own.py"
  file.write_text('from vit_jax import register\n\nregister.dataset(\n  "my digits", "my_arrays", path="x"\n)\n')
  with pytest.raises(
    ConfigError, match=rf"^{file}, line 3: register\.dataset: unknown reader 'my_arrays'\..* If 'my_ar"
  ):
    extensions.run_file(file)
  file.write_text(file.read_text().replace("my_arrays", "folder"))
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ConfigError, match=r"^own\.py, line 3: register\.dataset: 'my digits' is not a valid name\."):
    extensions.run_file(file)


def test_registration_error_of_code_without_a_file_has_no_place():
  with pytest.raises(ConfigError, match=r"^register\.dataset: 'a b' is not a valid name\."):
    exec(compile("register.dataset('a b', 'folder')", "<cell>", "exec"), {"register": register})
