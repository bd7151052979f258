"""Tests of configs and flags: every error names the key, the value and the allowed values."""

import copy
import json

import pytest

from vit_jax import config, schema
from vit_jax.config import flags, recipe, required, resolve
from vit_jax.schema import ConfigError


def small():
  return recipe(model=dict(name="m"), data=dict(name="d"), optim=dict(name="o", lr=1e-3), total="10ep", batch=64)


def test_init_from_uses_a_reserved_word_of_python_as_its_key():
  c = recipe(model=dict(name="m"), data=dict(name="d"), optim=dict(name="o"), total=1, batch=1, init={"from": "x.npz"})
  flags.set_value(c, "init.head", "new")
  run = resolve(c)
  assert (run.init.from_, run.init.head, run.init.ema) == ("x.npz", "new", None)
  assert schema.to_plain(run)["init"] == {"from": "x.npz", "head": "new", "ema": None, "prefix": None}
  assert resolve(json.loads(config.dumps(run))) == run
  flags.set_value(c, "init.from", "default")
  assert resolve(c).init.from_ is None


def test_flags_are_converted_by_the_schema():
  c = small()
  for key, text in {"seed": "3", "mesh.fsdp": "2", "log.every": "5%", "checkpoint.keep_every": "none"}.items():
    flags.set_value(c, key, text)
  run = resolve(c)
  assert (run.seed, run.mesh.fsdp, run.log.every, run.checkpoint.keep_every) == (3, 2, "5%", None)


def test_flag_value_default_restores_the_schema_default():
  c = recipe(model=dict(name="m"), data=dict(name="d"), optim=dict(name="o"), total="1ep", batch=1, mesh=dict(fsdp=4))
  flags.set_value(c, "mesh.fsdp", "default")
  assert resolve(c).mesh.fsdp == 1


def test_measurement_has_limits_and_no_keys_of_a_run():
  edited = config.measurement(evals={}, limits={"evaluation": 5})
  assert resolve(edited, config.Measurement).limits == config.Limits(evaluation=5.0)
  with pytest.raises(ConfigError, match=r"config\.init: unknown key"):
    resolve(config.measurement(evals={}, init={"head": "new"}), config.Measurement)


@pytest.mark.parametrize(
  ("key", "text", "message"),
  [
    ("bacth", "1", r"config.bacth: unknown key.*value '1'.*Did you mean 'batch'"),
    ("mehs.data", "1", r"no group 'mehs'. Did you mean --config.mesh.data=1\?$"),
    ("mehs.x", "1", r"no group 'mehs'. Did you mean 'mesh'"),
    ("batch", "many", r"config.batch: expected an integer of at least 1, got 'many'. Write a value such as 128$"),
    ("batch", "6.5", r"config.batch: expected an integer of at least 1, got '6.5'"),
    ("batch", "0", r"config.batch: 0 is out of range. Allowed: \[1"),
    ("batch", "True", r"config.batch: expected an integer of at least 1, got 'True'"),
    ("total", "5 epochs", r"config.total: '5 epochs' is not a length of training"),
    ("seed", "-1", r"config.seed: -1 is out of range"),
    ("seed", "none", r"config.seed: expected an integer of at least 0, got 'none'. Write a value such as 1$"),
    ("model", "ViT-S/16", r"config.model: 'ViT-S/16' is not a choice. Write dict\(name="),
    ("mesh", "3", r"config.mesh: '3' is not a set of named values"),
    (
      "log.target",
      "0.9",
      r"config.log.target: '0.9' is not a set .* --config.log.target.metric=test/top1 --config.log.t",
    ),
    (
      "evals.valid.every",
      "1%",
      r"evals.valid.name=NAME. Existing entries: test. Did you mean --config.evals.test.every=1%",
    ),
    ("optim.", "3", r"ends in a dot"),
    ("optim.lr.x", "3", r"config.optim has no group 'lr'"),
  ],
)
def test_errors_name_the_key_the_value_and_the_allowed_values(key, text, message):
  c = small()
  with pytest.raises(ConfigError, match=message):
    flags.set_value(c, key, text)
    resolve(c)


@pytest.mark.parametrize(
  ("key", "message"),
  [
    ("width", r"config.width: unknown key.*Did you mean --config.data.width=1\?$"),
    ("optim.data.width", r"config has no group 'optim'. Did you mean --config.data.width=1\?$"),
    ("crop.name", r"config has no group 'crop'. Did you mean --config.data.crop.name=1\?$"),
  ],
)
def test_misplaced_key_suggests_its_right_place(key, message):
  c = recipe(data=dict(name="d", width=3, crop=dict(name="x")), optim=1, model=1, total=1, batch=1)
  with pytest.raises(ConfigError, match=message):
    flags.set_value(c, key, "1")
    resolve(c)


def test_missing_field_is_an_error_with_an_example():
  with pytest.raises(
    ConfigError,
    match=r"config.batch: missing. Give the number of images in a step, such as 128: --config.batch=\.\.\.$",
  ):
    resolve(recipe(model=dict(name="m"), data=dict(name="d"), optim=dict(name="o"), total="1ep"))


def test_required_value_of_a_recipe_must_be_set():
  def file():
    given = dict(model=dict(name="m"), data=dict(name="d"), optim=dict(name="o"), total=1, batch=1)
    return recipe(**given, init={"from": required, "head": "new"})

  edited = file()
  assert str(edited.init["from"]) == schema.to_plain(edited)["init"]["from"] == str(required)
  assert edited.init.ema is None
  with pytest.raises(ConfigError) as error:
    resolve(edited)
  missing = (
    "config.init.from: missing. Give the weights to start from, a workdir or a file such as B_16.npz: "
    "--config.init.from=..."
  )
  assert str(error.value) == missing
  for copied in (copy.deepcopy(edited), edited.copy_and_resolve_references(), edited.to_dict()):
    with pytest.raises(ConfigError, match=r"config\.init\.from: missing"):
      resolve(copied)
  flags.set_value(edited, "init.from", "x.npz")
  run = resolve(edited)
  assert (run.init.from_, run.init.head) == ("x.npz", "new")
  assert type(run.init.from_) is str
  flags.set_value(edited, "init.from", "none")  # an explicit value is accepted
  assert resolve(edited).init.from_ is None
  with pytest.raises(ConfigError, match=r"config\.init\.from: missing"):
    resolve(file())


def test_resolved_config_survives_a_json_round_trip():
  run = resolve(small())
  assert resolve(json.loads(config.dumps(run))) == run


def test_empty_key_is_an_error_at_the_config():
  edited = recipe(model=dict(name="m"), data=dict(name="d"), optim=dict(name="o"), total=1, batch=1)
  edited[""] = 3
  with pytest.raises(ConfigError, match=r"^config: unknown key for a Run, value 3\."):
    resolve(edited)


@pytest.mark.parametrize("name", ["a|b", "a b", "a/b", "a\nb", "`a`", ""])
def test_names_of_evaluations_have_no_markup(name):
  edited = small()
  edited["evals"] = {name: {"name": "accuracy"}}
  with pytest.raises(ConfigError, match=r"^config.evals: the name '.*' is invalid. Use letters, digits, '_' and '-'"):
    resolve(edited)
  edited["evals"] = {"cifar-100_v1": {"name": "accuracy"}}
  assert list(resolve(edited).evals) == ["cifar-100_v1"]
