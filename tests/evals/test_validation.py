"""Tests that runs on user files have a validation split by default, and that other runs are unchanged."""

import pytest

from tests import runs
from vit_jax import config
from vit_jax.config import migrations
from vit_jax.evals import selection, validation
from vit_jax.schema import Choice, to_plain
from vit_jax.training import build


def run_of(**changes):
  """Returns the completed recipe for folders, without reading any file."""
  return runs.run("configs/folder.py", {"model.name": "ViT-Ti/16", "data.path": "photos"}, **changes)


def splits(run):
  """Returns {evaluation: (split, every)}."""
  return {name: (choice.args["split"], str(choice.args["every"])) for name, choice in run.evals.items()}


def test_folder_has_a_validation_split_and_test_is_evaluated_once():
  run = run_of()
  assert run.data.args["validation"] == 0.1
  assert splits(run) == {"val": ("val", "20%"), "test": ("test", "100%")}
  assert selection.select_criterion(to_plain(run), ["top1", "val/top1"]) == ("val/top1", "val")


@pytest.mark.parametrize(
  ("changes", "share", "expected"),
  [
    ({"data__validation": "0.3"}, 0.3, {"val": ("val", "20%"), "test": ("test", "100%")}),
    ({"data__validation": "25%"}, 0.25, {"val": ("val", "20%"), "test": ("test", "100%")}),
    ({"data__validation": "0"}, 0.0, {"test": ("test", "20%")}),
    ({"evals__test__every": "5%"}, 0.1, {"val": ("val", "5%"), "test": ("test", "5%")}),
    ({"data__val": "valid"}, 0.0, {"val": ("val", "20%"), "test": ("test", "100%")}),
    ({"data__train": "train[:50%]"}, 0.0, {"test": ("test", "20%")}),
    ({"evals__test__split": "val"}, 0.1, {"test": ("val", "20%")}),
    (
      {"evals__val__name": "accuracy", "evals__val__split": "val", "evals__val__every": "50%"},
      0.1,
      {"test": ("test", "100%"), "val": ("val", "50%")},
    ),
  ],
)
def test_validation_share_and_evaluations_follow_the_config(changes, share, expected):
  run = run_of(**changes)
  assert run.data.args["validation"] == share and splits(run) == expected


def test_recipes_with_a_protocol_keep_it():
  run = runs.run("configs/finetune.py", {}, init__from="x")
  assert splits(run) == {"val": ("val", "10%"), "test": ("test", "100%")}
  digits = runs.run(small={})
  assert splits(digits) == {"test": ("test", "100%")}  # evaluated once; its training images stay the same
  assert list(runs.imagenet().evals) == ["minival", "test"] or "val" not in runs.imagenet().evals


def test_completing_a_run_again_does_not_change_it():
  run = run_of()
  assert build.complete(run) == run
  assert build.complete(config.resolve(to_plain(run))) == run


def test_older_run_resumes_without_a_validation_split():
  now = to_plain(run_of(data__validation="0"))
  stored = {**now, "data": {key: value for key, value in now["data"].items() if key != "validation"}}
  assert migrations.list_former_defaults(stored)["data.validation"] == "0"
  again = build.complete(config.resolve(migrations.migrate_run(stored)))
  assert again.data.args["validation"] == 0 and splits(again) == {"test": ("test", "20%")}


def test_data_without_the_key_are_unchanged():
  data, evals = Choice("digits", {}), {"test": Choice("accuracy")}
  assert validation.add_share(data, evals) is data
  assert validation.add_share(Choice("folder", {"path": "x"}), {}) == Choice("folder", {"path": "x"})
  masked = validation.add_share(Choice("folder", {}), {"test": Choice("masked", {})})
  assert masked.args == {"validation": 0.1}


def test_partial_evaluation_keeps_the_other_keys_of_the_default():
  run = run_of(evals__val__every="10%")
  expected = run_of(evals__val__name="accuracy", evals__val__split="val", evals__val__every="10%")
  assert to_plain(run) == to_plain(expected)
  assert splits(run) == {"test": ("test", "100%"), "val": ("val", "10%")}
  both = run_of(evals__test__every="5%", evals__test__batch="8", evals__val__every="10%")
  assert splits(both) == {"test": ("test", "5%"), "val": ("val", "10%")}
  assert both.evals["val"].args["batch"] == 8


@pytest.mark.parametrize("name", ["val", "train", "test"])
def test_evaluation_named_like_a_split_uses_it(name):
  edited = config.recipe(model={"name": "ViT-Ti/16"}, data={"name": "folder", "path": "x"}, optim={"name": "sgd"})
  edited.update({"total": "1ep", "batch": 8, "evals": {name: {"name": "accuracy"}}})
  edited.optim.lr = 0.1
  run = build.complete(config.resolve(edited))
  assert run.evals[name].args["split"] == name
  other = build.complete(config.resolve({**edited.to_dict(), "evals": {name: {"name": "accuracy", "split": "all"}}}))
  assert other.evals[name].args["split"] == "all"


def test_evaluation_with_its_own_data_keeps_its_split():
  choice = Choice("accuracy", {"data": {"name": "digits"}})
  assert validation.add_splits(Choice("folder", {}), {"val": choice}) == {"val": choice}


@pytest.mark.parametrize("args", [{"split": "val", "every": "50%"}, {"every": "50%"}])
def test_single_evaluation_of_val_uses_the_default_share(args):
  base = run_of()
  run = build.complete(
    runs.changed(base, data=Choice("folder", {"path": "x"}), evals={"val": Choice("accuracy", args)})
  )
  assert run.data.args["validation"] == 0.1 and splits(run) == {"val": ("val", "50%")}
