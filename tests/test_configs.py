"""Every shipped config: it resolves, it builds, and shrunk it trains two steps. Bad values end in one clear error."""

import inspect
import itertools
import json
import random

import cv2
import jax
import numpy as np
import pytest
import tiny

from vit_jax import build, config, flags, train
from vit_jax.prepare import prepare

FILES = sorted((tiny.ROOT / "configs").glob("*.py"))
SHRUNK = {
  "optim.accumulate": "1",
  "batch": "8",
  "total": "2",
  "model.depth": "2",
  "log.every": "1",
  "data.image_size": "32",
}


@pytest.fixture(scope="module", autouse=True)
def prepared():
  prepare("digits")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
  """Three classes of ten photographs without split folders."""
  root = tmp_path_factory.mktemp("photos")
  draw = np.random.default_rng(0)
  for name, i in itertools.product(("a cat", "dög", "bird"), range(10)):
    (root / name).mkdir(exist_ok=True)
    cv2.imwrite(str(root / name / f"{i}.jpg"), draw.integers(0, 255, (40, 50, 3), np.uint8))
  return root


def load(file, photos):
  edited = flags.load(str(file))
  if edited.data.name == "folder":
    edited.data.path = str(photos)
  return edited


def shrunk(file, photos, **changes):
  edited = load(file, photos)
  for key, text in (SHRUNK | changes).items():
    flags.edit(edited, key, text)
  return edited


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_a_config_trains_two_steps(file, photos, tmp_path):
  run = build.complete(config.resolve(shrunk(file, photos)))
  result = train.train(build.build(run, jax.devices()), tmp_path)
  assert result["steps"] == 2
  assert np.isfinite(result["loss"])


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_a_config_builds_as_it_is(file, photos):
  run = build.complete(config.resolve(load(file, photos)))
  if file.stem == "folder":
    run = tiny.changed(run, batch=24)
  parts = build.build(run, jax.devices())
  assert parts.total > 0
  assert run.model.name in parts.overview()


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_a_config_says_how_to_start_it(file):
  module, _ = flags.module(str(file))
  assert f"configs/{file.name}" in module.__doc__
  assert inspect.getdoc(module.get_config)
  for changes in getattr(module, "sweep", list)():
    edited = flags.load(str(file))
    for key, value in changes.items():
      flags.edit(edited, key, str(value))
    config.resolve(edited)


def test_the_digits_sweep_names_three_seeds():
  module, _ = flags.module(str(tiny.ROOT / "configs/digits.py"))
  assert [changes["seed"] for changes in module.sweep()] == [0, 1, 2]


# Mistakes. Values of every kind in every place: either the run builds, or there is one error that names the place.

VALUES = (
  "-1",
  "0",
  "0.5",
  "1e30",
  "nan",
  "none",
  "true",
  "nonsense",
  "[]",
  "(1,2)",
  "{}",
  "''",
  "10ep",
  "3",
  "[('x', 1)]",
)


def leaves(value, path=""):
  if isinstance(value, dict):
    for key, inner in value.items():
      yield from leaves(inner, f"{path}.{key}" if path else key)
  else:
    yield path


def mutations():
  run = build.complete(config.resolve(flags.load(str(tiny.ROOT / "configs/digits.py"))))
  keys = sorted(leaves(json.loads(config.dumps(run))))
  everything = [(key, value) for key in keys for value in VALUES]
  misspelled = [(key[:-1] + ("x" if key[-1] != "x" else "y"), "1") for key in keys]
  return random.Random(0).sample(everything, 300) + misspelled


def test_no_mutated_config_ends_in_a_traceback():
  wrong = []
  for key, text in mutations():
    edited = flags.load(str(tiny.ROOT / "configs/digits.py"))
    try:
      flags.edit(edited, key, text)
      build.build(build.complete(config.resolve(edited)), jax.devices())
    except config.ConfigError as error:
      said = str(error)
      if key.split(".")[-1] not in said and key.split(".")[0] not in said:
        wrong.append(f"{key}={text}: the message does not say where: {said}")
    except Exception as error:
      wrong.append(f"{key}={text}: {type(error).__name__}: {error}")
  assert not wrong, "\n".join(wrong)


MISTAKES = {
  "an unknown model": ({"model.name": "cct_2_3x3_32"}, "Did you mean 'cct_2_3x2_32'"),
  "an unknown size": ({"model.name": "ViT-Q/16"}, "unknown size 'Q'"),
  "an unknown dataset": ({"data.name": "digit"}, "Did you mean 'digits'"),
  "an unknown optimizer": ({"optim.name": "adamv"}, "Did you mean 'adamw'"),
  "an unknown schedule": ({"optim.schedule.name": "cosin"}, "Did you mean 'cosine'"),
  "a batch that does not divide": ({"batch": "12"}, "12 does not divide over 8 devices"),
  "a batch larger than the data": ({"batch": "1440"}, "1440 is more than the 1437 images"),
  "a patch that does not divide": ({"model.name": "ViT-Ti/5"}, "32"),
  "a split that is not there": ({"data.train": "trian"}, "Did you mean 'train'"),
  "a mesh that does not fit": ({"mesh.fsdp": "3"}, "does not fit 8 devices"),
  "micro-batches that do not divide": ({"optim.accumulate": "16"}, "does not divide"),
  "a pattern without effect": ({"optim.frozen": "['haed/.*']"}, "matches no parameter"),
  "a model too large for the machine": ({"model.width": "32768", "model.heads": "16", "model.depth": "2"}, "GiB"),
  "no step": ({"total": "0"}, "is 0 steps"),
  "all frozen": ({"optim.frozen": "['.*']"}, "nothing is left to train"),
  "a length beyond int32": ({"total": "5000000M"}, "config.total"),
  "heads that do not divide": ({"model.heads": "3"}, "3"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_error(name):
  changes, says = MISTAKES[name]
  edited = flags.load(str(tiny.ROOT / "configs/digits.py"))
  for key, text in changes.items():
    flags.edit(edited, key, text)
  with pytest.raises(config.ConfigError) as error:
    build.build(build.complete(config.resolve(edited)), jax.devices())
  assert says in str(error.value)


@pytest.mark.parametrize("flag", ["data.mixing.name=mixup", "optim.schedule.name=linear", "evals.train.name=accuracy"])
def test_a_choice_that_the_file_does_not_mention_can_be_made_by_a_flag(flag):
  edited = flags.load(str(tiny.ROOT / "configs/digits.py"))
  flags.edit(edited, *flag.split("="))
  run = build.complete(config.resolve(edited))
  assert flag.split("=")[1] in config.dumps(run)


def test_a_mistake_exits_with_2_before_the_workdir_exists(tmp_path):
  message = tiny.finish(tiny.command("train", *tiny.words(tmp_path / "run", **{"optim.lrr": "1"})), 2)
  assert "Did you mean 'lr'" in message
  assert "Traceback" not in message
  assert not (tmp_path / "run").exists()
  message = tiny.finish(tiny.command("train", *tiny.words(tmp_path / "run", batch=12), devices=8), 2)
  assert "12 does not divide over 8 devices" in message
  assert not (tmp_path / "run").exists()
