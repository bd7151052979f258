"""Mistakes in configs and flags: values of every kind in every place, and those that people make, end in one error."""

import json
import random

import jax
import pytest

from tests import mutations, recipes, runs
from vit_jax import config, schema
from vit_jax.data import catalog
from vit_jax.training import build

# Values of every kind for every key: either the run builds, or there is one error that names the key.


def changes():
  """(key, value) of chance, and each key misspelt."""
  known = dict(sorted(mutations.leaves(json.loads(config.dumps(recipes.run("digits"))))))
  draw = random.Random(0)
  everything = [(key, value) for key in known for value in mutations.VALUES]
  worse = [mutations.mutation(draw, known) for _ in range(30)]
  return draw.sample(everything, 100) + [(mutations.misspelled(key), "1") for key in known] + worse


@pytest.mark.long
def test_no_mutated_config_ends_in_a_traceback():
  wrong, open_split = [], mutations.opener()
  for key, value in changes():
    try:
      edited = recipes.load("digits", **{"model.depth": 1})
      mutations.apply(edited, key, value)
      mutations.built(edited, jax.devices(), open_split)
    except Exception as error:
      if problem := mutations.wrong(error, [key]):
        wrong.append(f"{schema.show(key)}={schema.show(value)}: {problem}")
  assert not wrong, "\n".join(wrong)


def test_an_error_at_a_key_that_nobody_changed_does_not_say_where():
  for error in (schema.ConfigError("is odd", "config.optim.lr[0]"), schema.ConfigError("config.optim.lr: is odd")):
    assert not any(mutations.wrong(error, [key]) for key in ("optim.lr", "optim", "optim.lr.x"))
    assert all(
      mutations.wrong(error, [key]) for key in ("optim.l", "optim.lrx", "optim.decay", "lr", "model.depth", "")
    )
  named = schema.ConfigError("8 micro-batches (config.optim.accumulate)", "config.batch")
  assert mutations.wrong(named, ["optim.accumulate"]) is None and mutations.wrong(named, ["optim.lr"])


MISTAKES = {  # what is changed; the key that the error is at; the value, what is allowed, what to do
  "an unknown model": ({"model.name": "cct_2_3x3_32"}, "model.name", "'cct_2_3x3_32'", "Did you mean 'cct_2_3x2_32'"),
  "an unknown size": ({"model.name": "ViT-Q/16"}, "model.name", "'Q'", "Ti, S, M, B, L"),
  "an unknown dataset": ({"data.name": "digit"}, "data.name", "'digit'", "Did you mean 'digits'"),
  "an unknown optimizer": ({"optim.name": "adamv"}, "optim.name", "'adamv'", "Did you mean 'adamw'"),
  "an unknown schedule": (
    {"optim.schedule.name": "cosin"}, "optim.schedule.name", "'cosin'", "Did you mean 'cosine'",
  ),
  "a batch that does not divide": ({"batch": "12"}, "batch", "12", "8 devices", "Nearest batch sizes: 64"),
  "a batch larger than the data": ({"batch": "1440"}, "batch", "1440", "1,437"),
  "a patch that does not divide": ({"model.name": "ViT-Ti/5"}, "model", "32", "patch 5", "30, 35"),
  "a split that is not there": ({"data.train": "trian"}, "data.train", "'trian'", "Did you mean 'train'"),
  "a mesh that does not fit": ({"mesh.fsdp": "3"}, "mesh", "fsdp=3", "8 devices"),
  "micro-batches that do not divide": ({"optim.accumulate": "16"}, "batch", "64", "optim.accumulate", "sizes: 128"),
  "a pattern without effect": ({"optim.frozen": "['haed/.*']"}, "optim.frozen[0]", "'haed/.*'", "Nearest: head/bias"),
  "a model too large for the machine": (
    {"model.width": "32768", "model.heads": "16", "model.depth": "2"}, "model", "GiB", "config.mesh.fsdp",
  ),
  "no step": ({"total": "0"}, "total", "0", "1 to"),
  "all frozen": ({"optim.frozen": "['.*']"}, "optim.frozen", "'.*'", "no parameter would be trained"),
  "a length beyond int32": ({"total": "5000000M"}, "total", "5000000M", "2**31 - 1"),
  "a key of another optimizer": (
    {"optim.momentum": "0.9"}, "optim.momentum", "value '0.9'", "supported by sgd, adafactor, muon", "Allowed: b1, b2",
  ),
  "a key whose value is another's": ({"model.pooling": "cls"}, "model.pooling", "Did you mean 'pool=cls'"),
  "a pattern without end": (
    {"optim.decay_on": "[('(a+)+b', 1.0)]"}, "optim.decay_on[0][0]", "'(a+)+b'", "several patterns",
  ),
  "a frozen pattern without end": ({"optim.frozen": "['(.*)*k']"}, "optim.frozen[0]", "'(.*)*k'", "Allowed: 1,000,000"),
  "a text without end": ({"data.train": "x" * 100_000}, "data.train", "(100,0", "Allowed"),
  "a size without end": ({"model.depth": "1000000"}, "model.depth", "1000000 is out of range", "[1, 1024]"),
  "heads that do not divide": ({"model.heads": "3"}, "model", "heads 3", "1, 2, 4, 8"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_error(name):
  changes, key, *words = MISTAKES[name]
  with pytest.raises(schema.ConfigError) as error:
    build.build(recipes.run("digits", **changes), jax.devices())
  place, _, message = str(error.value).partition(": ")
  assert place in (f"config.{key}", key)
  assert all(word in message for word in words), message


@pytest.mark.parametrize("flag", ["data.mixing.name=mixup", "optim.schedule.name=linear", "evals.train.name=accuracy"])
def test_a_choice_that_the_file_does_not_mention_can_be_made_by_a_flag(flag):
  key, name = flag.split("=")
  assert name in config.dumps(recipes.run("digits", **{key: name}))


@pytest.mark.parametrize("name", recipes.NAMES)
def test_d3_the_campaign_knows_what_each_recipe_leaves_to_its_user(name):
  given = recipes.needed(name, {"init.from": "weights.npz", "data.path": "photos"})
  assert ("init.from" in given) == (name in ("finetune", "vtab")) and ("data.path" in given) == (name == "folder")
  assert recipes.run(name, **given).batch


# As a user starts them.


@pytest.mark.heavy
def test_without_data_a_plan_stands_and_training_says_what_to_do(tmp_path, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  run = recipes.narrow("vit_jft")
  parts = build.build(run, jax.devices(), catalog.open_known_split)
  assert parts.epoch_length == 302_950_000
  assert parts.batch_shapes["label"].shape == (8, 8)
  own = r"jft300m has no public builder. Give your own copy.*--config\.data\.path=DIR"
  with pytest.raises(schema.ConfigError, match=own):
    next(parts.open_batches(0))
  with pytest.raises(schema.ConfigError, match=own):
    parts.evals["test"].measure(parts.create_initial_state().params, lambda: None)
  with pytest.raises(schema.ConfigError, match=own):
    build.build(run, jax.devices())


@pytest.mark.long
def test_training_without_data_exits_with_45_and_one_error(tmp_path):
  words = ["--config=configs/vit_s16_i1k.py", f"--workdir={tmp_path / 'run'}", f"--config.data.path={tmp_path}"]
  message = runs.finish(runs.command("train", *words, devices=8), 45)
  assert f"prepare it with: python -m vit_jax.prepare imagenet2012 --data_dir={tmp_path}" in message
  assert "Traceback" not in message
  assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_mistake_exits_with_2_before_the_workdir_exists(tmp_path):
  message = runs.finish(runs.command("train", *runs.words(tmp_path / "run", **{"optim.lrr": "1"})), 2)
  assert "Did you mean 'lr'" in message
  assert "Traceback" not in message
  assert not (tmp_path / "run").exists()
  message = runs.finish(runs.command("train", *runs.words(tmp_path / "run", batch=12), devices=8), 2)
  assert "12 cannot be divided over 8 devices" in message
  assert not (tmp_path / "run").exists()
