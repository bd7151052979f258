"""Tests of migrations of stored configs."""

import copy

import pytest

from tests.config.test_run import small
from vit_jax import schema
from vit_jax.config import migrations, resolve
from vit_jax.schema import Choice, ConfigError, Text


def test_keys_of_older_versions_are_migrated():
  stored = {
    "model": {"name": "ViT-S/16", "head": "gap"},
    "optim": {"name": "adamw", "lr": 0.1, "decay": "decoupled"},
    "data": {"name": "digits", "flip": True, "holdout": 0.2, "split_seed": 0, "labels": None, "builder": None},
    "evals": {
      "test": {"name": "accuracy", "data": None},
      "own": {"name": "fewshot", "data": {"name": "folder", "path": "x", "holdout": 0.3, "flip": True, "mixing": {}}},
    },
    "seed": 3,
  }
  before = copy.deepcopy(stored)
  assert migrations.migrate_run(stored) == {
    "model": {"name": "ViT-S/16", "pool": "gap"},
    "optim": {"name": "adamw", "lr": 0.1, "decay": "independent"},
    "data": {"name": "digits", "flip": True},
    "evals": {
      "test": {"name": "accuracy", "data": None},
      "own": {
        "name": "fewshot",
        "data": {"name": "folder", "path": "x", "holdout": 0.3, "exif": False, "class_order": "text"},
      },
    },
    "seed": 3,
  }
  assert stored == before
  assert migrations.migrate_run(migrations.migrate_run(stored)) == migrations.migrate_run(stored)


@pytest.mark.parametrize("value", [3, None, [], "x", {"a": 3}, {"a": {"data": 3}}])
def test_damaged_config_is_left_to_the_schema_to_reject(value):
  stored = dict.fromkeys(("model", "optim", "data", "evals"), value)
  assert migrations.migrate_run(stored).keys() == stored.keys()
  with pytest.raises(ConfigError):
    resolve(migrations.migrate_run(stored))


def test_current_config_is_unchanged():
  run = schema.to_plain(resolve(small()))
  assert migrations.migrate_run(run) == run


def test_older_run_on_image_files_resumes_without_exif():
  own = {"name": "accuracy", "data": {"name": "manifest", "path": "x"}}
  stored = {"data": {"name": "folder"}, "evals": {"own": own, "test": {"name": "accuracy", "data": None}}}
  order = {"data.class_order": "text", "evals.own.data.class_order": "text"}
  exif = {"data.exif": "false", "evals.own.data.exif": "false"}
  assert migrations.list_former_defaults(stored) == {"data.validation": "0"} | exif | order
  assert (
    migrations.list_former_defaults(migrations.migrate_run(stored))
    == migrations.list_former_defaults({"data": {"name": "digits"}})
    == migrations.list_former_defaults({})
    == {}
  )
  assert migrations.migrate_run(stored)["data"]["exif"] is False
  assert migrations.migrate_run({"data": {"name": "folder", "exif": True}})["data"]["exif"] is True
  for value in (3, None, [], {"a": 3}, {"a": {"data": 3}}):
    assert migrations.list_former_defaults({"data": value, "evals": value}) == {}


@pytest.mark.parametrize("ema", [None, True, False])
def test_selection_of_a_frozen_teacher_has_the_names_of_distillation(ema):
  stored = {"task": {"name": "dinov2", "teacher": "runs/large", "teacher_ema": ema}}
  expected = {"name": "dinov2", "teacher": "runs/large", "ema": ema, "prefix": None}
  assert migrations.migrate_run(stored)["task"] == expected
  assert migrations.migrate_run({"task": expected})["task"] == expected


def test_older_run_keeps_its_evaluation_interval():
  evals = {"test": {"name": "accuracy", "every": "10%"}, "own": {"name": "accuracy", "every": "20%"}}
  assert migrations.list_former_defaults({"evals": evals}) == {"evals.test.every": "10%"}


@pytest.mark.parametrize("name", ["folder", "manifest", "tars", "parquet"])
def test_older_run_keeps_its_class_order(name):
  stored = {"data": {"name": name, "exif": False, "validation": 0.0}}
  assert migrations.migrate_run(stored)["data"]["class_order"] == "text"
  assert migrations.list_former_defaults(stored) == {"data.class_order": "text"}
  now = {"data": {"name": name, "exif": False, "validation": 0.0, "class_order": "numeric"}}
  assert migrations.migrate_run(now) == now and migrations.list_former_defaults(now) == {}
  assert migrations.list_former_defaults({"data": {"name": "digits"}}) == {}


OLD = {
  "parts": [{"name": "tars", "path": "a", "weight": 2.0}, {"name": "cifar10"}, {"name": "folder", "path": "b"}],
  "name": "mixture",
}


def test_nested_data_of_an_older_run_keep_their_class_order():
  labelled = {"name": "pseudo_labelled", "labelled": {"name": "folder"}, "images": {"name": "parquet"}, "path": "p"}
  deep = {"name": "pseudo_labelled", "labelled": OLD, "images": None, "exif": False}
  stored = {"data": labelled, "evals": {"own": {"name": "fewshot", "data": OLD}, "deep": {"data": deep}}}
  before = copy.deepcopy(stored)
  now = migrations.migrate_run(stored)
  assert stored == before
  assert now["data"]["labelled"] == {"name": "folder", "class_order": "text"}
  assert now["data"]["images"] == {"name": "parquet", "class_order": "text"}
  parts = now["evals"]["own"]["data"]["parts"]
  assert (
    parts
    == now["evals"]["deep"]["data"]["labelled"]["parts"]
    == [
      {"name": "tars", "path": "a", "weight": 2.0, "class_order": "text"},
      {"name": "cifar10"},
      {"name": "folder", "path": "b", "class_order": "text"},
    ]
  )
  keys = ["data.labelled", "data.images"]
  keys += [f"evals.{name}.parts[{i}]" for name in ("own.data", "deep.data.labelled") for i in (0, 2)]
  assert migrations.list_former_defaults(stored) == {f"{key}.class_order": "text" for key in keys}
  assert migrations.migrate_run(now) == now and migrations.list_former_defaults(now) == {}


def test_explicit_class_order_is_kept():
  parts = [{"name": "tars", "class_order": "numeric"}]
  data = {"name": "mixture", "parts": parts, "exif": False}
  assert (
    migrations.migrate_run({"data": data}) == {"data": data} and migrations.list_former_defaults({"data": data}) == {}
  )


@pytest.mark.parametrize("parts", [3, None, {}, "x", [3, None, "x", []], [[{"name": "tars"}]]])
def test_damaged_parts_are_left_to_the_schema_to_reject(parts):
  stored = {"data": {"name": "mixture", "parts": parts}}
  assert migrations.migrate_run(stored) == stored and migrations.list_former_defaults(stored) == {}
  with pytest.raises(ConfigError):
    resolve(migrations.migrate_run(stored))


def test_keys_of_other_readers_are_kept():
  data = {"name": "segmentation", "path": "x", "holdout": 0.3, "split_seed": 1, "images": "i", "exif": False}
  assert migrations.migrate_run({"data": data}) == {"data": data}
  own = {"name": "users_own", "holdout": 0.3, "labels": None, "exif": False}  # registered by a user
  assert migrations.migrate_run({"data": own, "evals": {"a": {"data": own}}}) == {
    "data": own,
    "evals": {"a": {"data": own}},
  }


def test_head_with_the_name_of_a_pooling_becomes_pool():
  assert migrations.migrate_model({"name": "vit_2_4_32", "head": "seqpool"}) == {
    "name": "vit_2_4_32",
    "pool": "seqpool",
  }
  now = {"name": "ViT-S/16", "head": {"name": "gap", "bias": -6.9}}
  assert migrations.migrate_model(now) == now


GAP = {"head": Choice("gap", {"class_token": True, "pre_logits": 8})}
HEADS = [
  ({"pool": "gap", "head_bias": 1.0}, {}, {"head": {"name": "gap", "bias": 1.0}}),
  ({"pool": "cls", "class_token": True, "pre_logits": None}, {}, {"head": {"name": "cls", "pre_logits": None}}),
  ({"pool": "distilled", "class_token": None, "pre_logits": None}, {}, {"head": {"name": "distilled"}}),
  ({"pool": "map", "class_token": None}, {}, {"head": {"name": "map", "class_token": False}}),
  ({"class_token": False}, GAP, {"head": {"class_token": False}}),
  ({"class_token": False}, {}, {}),
  ({"pre_logits": None}, GAP, {"head": {"pre_logits": None}}),
  ({"head": {"std": 0.02}, "pool": Text("gap")}, {}, {"head": {"std": 0.02, "name": "gap"}}),
  ({"head": Text("cls"), "pool": "gap"}, {}, {"head": {"name": "cls"}}),
  ({"head": "map"}, {}, {"head": "map"}),
]


@pytest.mark.parametrize(("flat", "published", "nested"), HEADS)
def test_flat_arguments_of_a_head_are_nested(flat, published, nested):
  assert migrations.nest_vit(flat, published) == nested


def test_head_that_contradicts_a_flat_argument_is_an_error():
  with pytest.raises(ConfigError, match=r"contradicts head\.bias"):
    migrations.nest_vit({"head": {"bias": 1.0}, "head_bias": 2.0}, {})
