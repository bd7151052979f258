"""Configs: what is accepted, how flags are read, and that every mistake names place, value and what is allowed."""

import copy
import json
from typing import Annotated, Literal

import pytest

from vit_jax import config, flags, schema
from vit_jax.config import recipe, required, resolve
from vit_jax.schema import Choice, ConfigError, Count, Duration, Pattern, Range, Rate


def small():
  return recipe(model=dict(name="m"), data=dict(name="d"), optim=dict(name="o", lr=1e-3), total="10ep", batch=64)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("500", 500), (500, 500), ("10k", 10_000), ("1.5k", 1_500), ("90ep", 900), ("0.5ep", 5), ("6400ex", 100),
        ("1Mex", 15625), ("5%", 10), ("0", 0), ("0%", 0), ("0.001ep", 1), ("7st", 7), ("1ex", 1),
    ],
)  # fmt: skip
def test_durations_become_the_nearest_number_of_steps(text, steps):
  assert Duration(text).steps(batch=64, examples=640, total=200) == steps


@pytest.mark.parametrize("text", ["", "ten", "5q", "-5", "5 %%", "1e3", True, None, "k", "ep", "9" * 30])
def test_what_is_not_a_duration_is_refused(text):
  with pytest.raises(ConfigError, match=r"not a duration|longer than any run"):
    Duration(text)


def test_the_length_of_the_run_cannot_be_a_share_of_itself():
  with pytest.raises(ConfigError, match="of what"):
    Duration("5%").steps(64, 640)


def test_a_run_starts_from_weights_by_a_word_that_python_keeps_for_itself():
  c = recipe(model=dict(name="m"), data=dict(name="d"), optim=dict(name="o"), total=1, batch=1, init={"from": "x.npz"})
  flags.edit(c, "init.head", "new")
  run = resolve(c)
  assert (run.init.from_, run.init.head, run.init.ema) == ("x.npz", "new", False)
  assert schema.plain(run)["init"] == {"from": "x.npz", "head": "new", "ema": False}
  assert resolve(json.loads(config.dumps(run))) == run
  flags.edit(c, "init.from", "default")
  assert resolve(c).init.from_ is None


def test_flags_are_read_by_the_schema():
  c = small()
  for key, text in {"seed": "3", "mesh.fsdp": "2", "log.every": "5%", "checkpoint.keep_every": "none"}.items():
    flags.edit(c, key, text)
  run = resolve(c)
  assert (run.seed, run.mesh.fsdp, run.log.every, run.checkpoint.keep_every) == (3, 2, "5%", None)


def test_the_text_default_takes_a_value_of_the_file_back():
  c = recipe(model=dict(name="m"), data=dict(name="d"), optim=dict(name="o"), total="1ep", batch=1, mesh=dict(fsdp=4))
  flags.edit(c, "mesh.fsdp", "default")
  assert resolve(c).mesh.fsdp == 1


@pytest.mark.parametrize(
  ("key", "text", "says"),
  [
    ("bacth", "1", r"config.bacth: unknown key.*value '1'.*Did you mean 'batch'"),
    ("mehs.data", "1", r"no group 'mehs'.*Did you mean 'mesh'"),
    ("batch", "many", r"config.batch: cannot read 'many'"),
    ("batch", "6.5", r"config.batch: 6.5 is a float; it takes a int"),
    ("batch", "0", r"config.batch: 0 is out of range; allowed: \[1"),
    ("batch", "True", r"config.batch: True is a bool"),
    ("total", "5 epochs", r"config.total: '5 epochs' is not a duration"),
    ("seed", "-1", r"config.seed: -1 is out of range"),
    ("seed", "none", r"config.seed: cannot read"),
    ("model", "ViT-S/16", r"config.model: 'ViT-S/16' is not a choice; write dict\(name="),
    ("mesh", "3", r"config.mesh: '3' is not a set of named values"),
    ("optim.", "3", r"ends in a dot"),
    ("optim.lr.x", "3", r"config.optim has no group 'lr'"),
  ],
)
def test_a_mistake_names_the_place_the_value_and_what_is_allowed(key, text, says):
  c = small()
  with pytest.raises(ConfigError, match=says):
    flags.edit(c, key, text)
    resolve(c)


def test_a_missing_field_is_named():
  with pytest.raises(ConfigError, match=r"config.batch: missing; a Run needs it"):
    resolve(recipe(model=dict(name="m"), data=dict(name="d"), optim=dict(name="o"), total="1ep"))


def test_what_a_recipe_leaves_to_its_user_must_be_given():
  def file():
    given = dict(model=dict(name="m"), data=dict(name="d"), optim=dict(name="o"), total=1, batch=1)
    return recipe(**given, init={"from": required, "head": "new"})

  edited = file()
  assert str(edited.init["from"]) == schema.plain(edited)["init"]["from"] == str(required)
  assert edited.init.ema is False
  with pytest.raises(ConfigError) as error:
    resolve(edited)
  missing = "config.init.from: missing; an Init needs it. Add it to the config or as --config.init.from=..."
  assert str(error.value) == missing
  for copied in (copy.deepcopy(edited), edited.copy_and_resolve_references(), edited.to_dict()):
    with pytest.raises(ConfigError, match=r"config\.init\.from: missing"):
      resolve(copied)
  flags.edit(edited, "init.from", "x.npz")
  run = resolve(edited)
  assert (run.init.from_, run.init.head) == ("x.npz", "new")
  assert type(run.init.from_) is str
  with pytest.raises(ConfigError, match=r"config\.model\.width: missing; 'm' needs it\."):
    schema.bind(Choice("m", {"width": required}), (sample,), "config.model")
  flags.edit(edited, "init.from", "none")  # said, so meant
  assert resolve(edited).init.from_ is None
  with pytest.raises(ConfigError, match=r"config\.init\.from: missing"):
    resolve(file())


def sample(
  supplied,
  *,
  width: Count,
  rate: Rate = 0.1,
  kind: Literal["a", "b"] = "a",
  on: bool = True,
  pairs: tuple[tuple[Pattern, float], ...] = (),
  area: tuple[float, float] = (0.5, 1.0),
  path: str | None = None,
  inner: Choice = Choice("x"),
  half_open: Annotated[float, Range(0, 1, open_low=True)] = 1.0,
):
  """A callee whose signature is the schema."""


def test_a_choice_is_completed_from_the_signature():
  bound = schema.bind(Choice("s", {"width": 3, "pairs": [["a.*", 1]], "path": "2024"}), (sample,), "config.s")
  assert bound.args == {
      "width": 3, "rate": 0.1, "kind": "a", "on": True, "pairs": (("a.*", 1.0),), "area": (0.5, 1.0), "path": "2024",
      "inner": Choice("x"), "half_open": 1.0,
  }  # fmt: skip
  assert schema.arguments(bound, sample) == bound.args


def test_flag_text_follows_the_type_of_the_argument():
  text = {"width": "3", "on": "false", "path": "2024", "area": "(0.1, 0.2)", "rate": "0", "pairs": "[('k', 2)]"}
  bound = schema.bind(Choice("s", {k: schema.Text(v) for k, v in text.items()}), (sample,), "config.s")
  got = [bound.args[k] for k in text]
  assert got == [3, False, "2024", (0.1, 0.2), 0.0, (("k", 2.0),)]
  assert type(bound.args["path"]) is str
  assert schema.bind(Choice("s", {"width": 1, "path": schema.Text("None")}), (sample,), "c").args["path"] is None


@pytest.mark.parametrize(
  ("args", "says"),
  [
    ({}, "config.s.width: missing"),
    ({"width": 1, "widht": 2}, "unknown key for 's'.*Did you mean 'width'"),
    ({"width": 1, "supplied": 2}, "unknown key"),
    ({"width": 1, "rate": 1.0}, r"1.0 is out of range; allowed: \[0, 1\)"),
    ({"width": 1, "rate": float("nan")}, "nan is not a finite number"),
    ({"width": 1, "rate": 10**400}, "not a finite number"),
    ({"width": 1, "kind": "c"}, "'c' is not a choice.*Allowed: a, b"),
    ({"width": 1, "pairs": [["(", 1]]}, "not a regular expression"),
    ({"width": 1, "pairs": [["a", 1, 2]]}, "has 3 values; it takes 2"),
    ({"width": 1, "area": 3}, "not a list"),
    ({"width": 1, "path": 3}, "3 is a int; it takes a str"),
    ({"width": 1, "on": 1}, "1 is a int; it takes a bool"),
    ({"width": "1"}, "'1' is a str"),
    ({"width": 1, "half_open": 0}, r"0.0 is out of range; allowed: \(0, 1\]"),
  ],
)
def test_wrong_arguments_are_refused(args, says):
  with pytest.raises(ConfigError, match=says):
    schema.bind(Choice("s", args), (sample,), "config.s")


def test_the_resolved_config_survives_json():
  run = resolve(small())
  assert resolve(json.loads(config.dumps(run))) == run


def test_an_unknown_name_shows_the_nearest():
  with pytest.raises(ConfigError, match=r"config.optim.name: unknown name 'adamv'. Did you mean 'adamw'"):
    schema.lookup({"adamw": 1, "sgd": 2}, "adamv", "config.optim")
