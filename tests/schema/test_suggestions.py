"""Tests of suggestions for flags of other frameworks.

Suggestions contain the user's values, and this package accepts them.
"""

import shlex

import pytest

from tests import recipes
from vit_jax import config
from vit_jax.config import flags
from vit_jax.schema import aliases, suggestions
from vit_jax.schema.suggestions import Suggestion
from vit_jax.training import build

KNOWN = {"--workdir": True, "--config": True, "--no-report": False}
GROUPS = ["model", "data", "optim", "seed"]


def of_flag(flag, value="", known=KNOWN, groups=GROUPS):
  return str(suggestions.suggest_for_flag(flag, value, known, groups))


@pytest.mark.parametrize(
  ("flag", "value", "advice"),
  [
    ("--data.path", "", " Did you mean --config.data.path?"),
    ("--data.path", "/a b", " Did you mean --config.data.path='/a b'?"),
    ("--optim.lr", "5e-4", " Did you mean --config.optim.lr=5e-4?"),
    ("--lr", "", " Did you mean --config.optim.lr=1e-3?"),
    ("--learning-rate", "3e-4", " Did you mean --config.optim.lr=3e-4?"),
    ("--seed", "7", " Did you mean --config.seed=7?"),
    ("--model", "", " Did you mean --config.model.name=NAME?"),
    ("--model", "ViT-S/16", " Did you mean --config.model.name=ViT-S/16?"),
    ("--output_dir", "", " Did you mean --workdir=DIR?"),
    ("--output_dir", "my runs", " Did you mean --workdir='my runs'?"),
    ("--no_report", "x.png", " Did you mean --no-report?"),
    ("--dataset.root", "$HOME", " Did you mean --config.data.path='$HOME'?"),
    ("--optimizer.type", "adamw", " Did you mean --config.optim.name=adamw?"),
    ("--num-classes", "10", " The number of classes is determined by the data. Remove this key."),
    ("--zzz", "1", ""),
  ],
)
def test_suggestion_for_a_foreign_flag_contains_the_user_s_value(flag, value, advice):
  assert of_flag(flag, value) == advice


def test_command_without_a_config_gets_no_config_key():
  assert of_flag("--lr", "1", {"--weights": True}, []) == ""
  assert of_flag("--checkpoint", "", {"--weights": True}, []) == " Did you mean --weights=PATH?"
  assert of_flag("--checkpoint", "a b.npz", {"--weights": True}, []) == " Did you mean --weights='a b.npz'?"
  assert of_flag("--output-dir", "x", {"--config": True}) == "", "it has no --workdir"


# (name, value, suggestion); the value is empty if the command ends after the name.
TRANSLATED = [
  ("batch_size", "32", "batch=32"), ("batch_size", "all", "batch=128"),
  ("epochs", "300", "total=300ep"), ("epochs", "1.5", "total=1.5ep"), ("epochs", "", "total=90ep"),
  ("max_steps", "2e4", "total=20000"), ("max_steps", "-1", "total=10k"), ("max_steps", "20k", "total=20k"),
  ("warmup_epochs", "5", "optim.warmup=5ep"), ("warmup_ratio", "0.05", "optim.warmup=5%"),
  ("warmup_steps", "1000", "optim.warmup=1000"), ("optimizer", "AdamW", "optim.name=adamw"),
  ("amp", "", "model.dtype=bfloat16"), ("amp", "photo.png", "model.dtype=bfloat16"),
  ("precision", "32", "model.dtype=float32"), ("dtype", "bf16", "model.dtype=bfloat16"),
  ("fp16", "true", "model.dtype=bfloat16"), ("num_workers", "0", "data.workers=0"),
  ("mixup", "0.8", "data.mixing.name=mixup data.mixing.alpha=0.8"), ("mixup", "0", "data.mixing.name=none"),
  ("cutmix_alpha", "1.0", "data.mixing.name=cutmix data.mixing.alpha=1.0"),
  ("reprob", "0.3", "data.erasing.name=random data.erasing.probability=0.3"),
  ("aa", "rand-m9-mstd0.5", "data.policy.name=autoaugment"), ("crop_pct", "0.9",
  "data.test_crop.name=torchvision data.test_crop.ratio=0.9"), ("hflip", "0.5", "data.flip=true"),
  ("hflip", "0.0", "data.flip=false"), ("global_pool", "avg", "model.pool=gap"), ("pool", "map", "model.pool=map"),
  ("mean", "0.1 0.2 0.3", "data.mean=(0.1,0.2,0.3)"), ("std", "(1, 2, 3)", "data.std=(1,2,3)"),
  ("mean", "0.1", "data.mean=(0.485,0.456,0.406)"), ("drop_path", "0.2", "model.stochastic_depth=0.2"),
  ("grad_checkpointing", "true", "model.remat=full"), ("pretrained", "true", "init.from=PATH"),
  ("pretrained", "w/a.npz", "init.from=w/a.npz"), ("val_split", "0.1", "data.val=train[90%:]"),
  ("val_split", "train[80%:]", "data.val=train[80%:]"), ("lr", "nan", "optim.lr=1e-3"), ("lr", "fast", "optim.lr=1e-3"),
  ("data_dir", "/my photos", "data.path=/my photos"), ("scheduler", "Cosine", "optim.schedule.name=cosine"),
]  # fmt: skip
DEPENDENT = {"model.remat": {"model.scan": "true"}, "optim.momentum": {"optim.name": "sgd"}}


@pytest.mark.parametrize(("name", "value", "suggested"), TRANSLATED)
def test_value_is_translated_and_accepted(name, value, suggested):
  found = suggestions.suggest_for_key(name, value)
  pairs = [word.removeprefix("--config.").partition("=") for word in shlex.split(" ".join(found.flags))]
  assert " ".join(f"{key}={text}" for key, _, text in pairs) == suggested
  edited = flags.load_config(recipes.path("folder"), {"data.path": "x", "init.from": "x"})
  for key, _, text in pairs:
    for other, needed in DEPENDENT.get(key, {}).items():
      flags.set_value(edited, other, needed)
    flags.set_value(edited, key, text)
  build.complete(config.resolve(edited))


def test_number_sets_an_argument_of_the_choice_that_its_name_suggests():
  assert aliases.NUMBERS.keys() <= aliases.KEYS.keys()
  for name, (choice, key) in aliases.NUMBERS.items():
    assert key.rpartition(".")[0] == aliases.KEYS[name][0].rpartition(".")[0] and choice.isidentifier()


def test_several_suggestions_are_joined_in_one_line():
  found = [
    suggestions.suggest_for_key("batch_size", "32"),
    Suggestion(remark="Leave it out"),
    suggestions.suggest_for_key("lr", "5e-4"),
  ]
  assert suggestions.join_suggestions(found) == " Did you mean --config.batch=32 --config.optim.lr=5e-4? Leave it out."
  assert suggestions.join_suggestions([Suggestion()]) == ""
