"""Tests of the figure that ranks runs: that of the validation split if it exists, with its name."""

import pytest

from tests import runs
from tests.documentation.test_metrics import keys_in
from vit_jax.evals import selection
from vit_jax.evals.selection import Criterion
from vit_jax.schema import to_plain
from vit_jax.training import loop


def config(**evals):
  """Returns a plain config with the evaluations {name: split}, of data with split strings."""
  choices = {name: {"name": "accuracy", "split": split, "data": None} for name, split in evals.items()}
  return {"data": {"name": "digits", "val": "train[90%:]", "test": "test"}, "evals": choices}


BOTH = config(val="val", test="test")


@pytest.mark.parametrize(
  ("run", "names", "expected"),
  [
    (BOTH, ["top1", "val/top1", "val/ema_top1"], ("val/top1", "val")),
    (BOTH, ["top1", "loss"], ("top1", "test")),
    (config(held="train[90%:]", test="test"), ["top1", "held/top1"], ("held/top1", "val")),
    (config(test="val"), ["top1"], ("top1", "val")),  # an evaluation called test, of the split val
    (config(real="other"), ["real/1000_way_top1"], ("real/1000_way_top1", "other")),
    (config(minival="train[99%:]", test="test"), ["top1", "minival/top1"], ("minival/top1", "val")),  # as in vit_i1k.py
    (config(seen="train", test="test"), ["top1", "seen/top1"], ("top1", "test")),  # images used for training
    (BOTH, ["loss", "val/loss", "val/images"], ("val/loss", "val")),
    ({}, ["top1", "val/top1"], ("val/top1", "val")),  # a missing config
    (config(digits="test"), ["digits/knn_all", "seed", "steps", "train_seconds"], ("digits/knn_all", "test")),
  ],
)
def test_validation_split_comes_before_test(run, names, expected):
  assert selection.select_criterion(run, names) == Criterion(*expected)


def test_other_data_are_not_a_validation_split():
  run = config(val="val")
  run["evals"]["val"]["data"] = {"name": "imagenet_v2"}
  assert selection.describe_role(run, "val") == "imagenet_v2 val"


def test_run_without_evaluations_has_no_criterion():
  assert selection.select_criterion(BOTH, ["seed", "steps", "images_per_second"]) is None


def test_numbers_of_a_result_that_are_not_figures_are_known():
  others = {"config_sha256", "weights_sha256", "packages", "goodput"}  # not numbers
  assert keys_in(loop.collect_metadata) - others | {"skipped_images"} == selection.NOT_FIGURES


def test_runs_share_a_validation_figure_or_are_compared_on_test():
  both = (BOTH, ["top1", "val/top1"])
  assert selection.select_shared_criterion([both, both]) == Criterion("val/top1", "val")
  assert selection.select_shared_criterion([both, (config(test="test"), ["top1"])]) == Criterion("top1", "test")
  assert selection.select_shared_criterion([both, (BOTH, [])]) == Criterion(
    "val/top1", "val"
  )  # this run has no figures yet
  assert selection.select_shared_criterion([]) is None


def test_result_contains_its_criterion_and_the_count_of_test_evaluations():
  about = selection.describe_selection(BOTH, ["val/top1", "top1"], {"val": 6, "test": 1})
  assert about == {"metric": "val/top1", "split": "val", "test_measurements": 1}
  assert (
    selection.format_selection(about) == "Ranked by val/top1 (split 'val'). Training measured 'test' once, at the end."
  )
  never = selection.describe_selection(BOTH, ["val/top1"], {"val": 6, "test": 0})
  assert selection.format_selection(never) == "Ranked by val/top1 (split 'val'). Training did not measure 'test'."
  often = selection.describe_selection(config(test="test"), ["top1"], {"test": 3})
  assert often["test_measurements"] == 3
  assert "there is no validation split" in selection.format_selection(
    often
  ) and "3 times" in selection.format_selection(often)
  assert selection.format_selection(selection.describe_selection(BOTH, [], {})) == ""


@pytest.mark.parametrize("every", range(1, 14))
@pytest.mark.parametrize("done", range(13))
def test_evaluation_counts_of_an_older_checkpoint_match_the_loop(every, done):
  steps = [step for step in range(1, done + 1) if step % every == 0]
  assert selection.count_measurements({"test": every}, done) == {"test": [len(steps), max(steps, default=0)]}


def test_role_of_a_split_in_a_completed_run_is_described():
  assert selection.describe_role(to_plain(runs.run()), "test") == "test"
