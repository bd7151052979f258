"""Tests of names of other frameworks, and of their suggested equivalents."""

import pytest

from tests import recipes
from vit_jax import config
from vit_jax.config import flags
from vit_jax.schema import ConfigError, UnknownKeyError, aliases
from vit_jax.training import build

# Names of the choices with a key that the choices of the base config do not have.
NAMES = {"optim.momentum": {"optim.name": "sgd"}, "model.remat": {"model.scan": "true"}}


def base(**changes):
  """Returns the config of a run on a folder with a plain ViT, as loaded from its file and flags."""
  edited = flags.load_config(recipes.path("folder"), {"data.path": "x", "init.from": "x"})
  for key, text in changes.items():
    flags.set_value(edited, key, text)
  return edited


@pytest.mark.parametrize(("key", "example"), sorted(set(aliases.KEYS.values())))
def test_every_suggested_key_exists_and_accepts_its_example(key, example):
  edited = base(**NAMES.get(key, {}))
  flags.set_value(edited, key, example)
  build.complete(config.resolve(edited))


def message(changes, verb=config.Run):
  with pytest.raises(ConfigError) as error:
    build.complete(config.resolve(base(**changes), verb))
  return str(error.value)


@pytest.mark.parametrize(
  ("word", "flag"),
  [
    ("learning_rate", "optim.lr"), ("lr", "optim.lr"), ("epochs", "total"), ("num_epochs", "total"),
    ("batch_size", "batch"), ("weight_decay", "optim.weight_decay"), ("wd", "optim.weight_decay"),
    ("warmup_steps", "optim.warmup"), ("warmup_epochs", "optim.warmup"), ("image_size", "data.image_size"),
    ("img_size", "data.image_size"), ("crop_size", "data.image_size"), ("data_dir", "data.path"),
    ("dataset", "data.name"), ("optimizer", "optim.name"), ("scheduler", "optim.schedule.name"),
    ("dropout", "model.dropout"), ("drop_path", "model.stochastic_depth"),
    ("label_smoothing", "task.label_smoothing"), ("mixup", "data.mixing.name"), ("cutmix", "data.mixing.name"),
    ("ema_decay", "optim.ema"), ("grad_clip", "optim.clip"), ("precision", "model.dtype"), ("bf16", "model.dtype"),
    ("num_workers", "data.workers"), ("pretrained", "init.from"), ("optim.learning_rate", "lr"),
    ("data.batch_size", "batch"), ("model.img_size", "data.image_size"), ("data.data_dir", "path"),
    ("model.drop_path", "stochastic_depth"), ("LR", "optim.lr"),
  ],
)  # fmt: skip
def test_name_of_another_framework_suggests_the_key(word, flag):
  output = message({word: "1"})
  assert output.startswith(f"config.{word}: unknown key") and output.count("Did you mean") == 1
  assert f"Did you mean --config.{flag}=" in output or f"Did you mean '{flag}=" in output


@pytest.mark.parametrize(
  ("word", "advice"),
  [
    ("num_classes", "The number of classes is determined by the data"),
    ("model.num_classes", "The number of classes is determined by the data"),
    ("output_dir", "Did you mean --workdir=1?"),
    ("log_dir", "Did you mean --workdir=1?"),
    ("resume", "The same command with the same --workdir resumes a run"),
    ("checkpoint", "The same command with the same --workdir resumes a run"),
    ("gpus", "All devices are used"),
  ],
)
def test_name_without_an_equivalent_key_gives_advice(word, advice):
  output = message({word: "1"})
  assert advice in output and "Did you mean '" not in output


@pytest.mark.parametrize(
  ("key", "flag"),
  [
    ("optimizer.lr", "optim.lr"), ("optimizer.type", "optim.name"), ("dataset.path", "data.path"),
    ("scheduler.warmup_steps", "optim.warmup"), ("trainer.max_epochs", "total"), ("augmentation.mixup",
    "data.mixing.name"), ("optimizer.foo", "optim.foo"),
  ],
)  # fmt: skip
def test_group_of_another_framework_suggests_the_group(key, flag):
  with pytest.raises(ConfigError, match=rf"^--config.{key}: config has no group .*Did you mean --config.{flag}\b"):
    base(**{key: "1"})


def test_suggestion_for_a_key_of_another_framework_keeps_its_value():
  assert message({"learning_rate": "5e-4"}).endswith(" Did you mean --config.optim.lr=5e-4?")
  edited = base()
  edited.epochs = 3
  with pytest.raises(ConfigError, match=r"Did you mean 'total=3ep'\? Allowed"):
    config.resolve(edited)
  with pytest.raises(ConfigError, match=r"Did you mean --config\.data\.path='/a b'\?$"):
    base(**{"dataset.root": "/a b"})


def test_key_of_the_config_takes_precedence_over_other_names():
  edited = config.recipe(data=dict(name="d", width=3), optim=1, model=1, total=1, batch=1, width=2)
  with pytest.raises(UnknownKeyError, match=r"Did you mean --config.data.width=2\?$"):
    config.resolve(edited)


def test_required_values_have_a_description():
  assert aliases.describe_value("config.init.from").startswith("the weights to start from")
  assert aliases.describe_value("config.evals.pets.data.path").startswith("the folder")
  assert aliases.describe_value("config.model.depth") is None
