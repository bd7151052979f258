"""What a state's evaluations give: intervals by the names of the figures; test_evaluate has those of real runs."""

import contextlib
import dataclasses
import json
import types

import numpy as np
import pytest

from tests import photographs, runs
from tests import predictions as made
from vit_jax import checkpoints, evals, importers
from vit_jax.data.images import ImageError
from vit_jax.data.readers.folder import folder
from vit_jax.data.sources import DatasetRow, Source
from vit_jax.evals import Outcome, metrics
from vit_jax.evals.accuracy import AccuracyDetails
from vit_jax.parallel import sharding
from vit_jax.schema import Choice, ConfigError
from vit_jax.training import run_evaluation, steps

STATE = steps.State(np.zeros((), np.int32), {"x": np.ones(3)}, ema={}, optimizer=None)


def measured(**evaluations):
  return run_evaluation.measure_state(evaluations, STATE, lambda: None)


def test_what_is_called_test_is_the_headline_and_else_the_first_by_accuracy():
  shots, val, test = (
    evals.BoundEval(*each)
    for each in (("fewshot", {}), ("accuracy", {"split": "val"}), ("accuracy", {"split": "test"}))
  )
  assert run_evaluation.select_headline({"shots": shots, "real": val, "test": test}) == ("test", test)
  assert run_evaluation.select_headline({"shots": shots, "real": val, "val": test}) == ("real", val)
  assert run_evaluation.select_headline({"test": shots}) == (
    "test",
    evals.bind_evaluation(Choice("accuracy"), evals.REPEATED, {}),
  )


def test_intervals_have_the_names_of_the_figures_they_are_of():
  predictions = made.drawn(0, 50, 4, 4)
  source = Source("set", "test", tuple("abcd"), 50, None, str)
  details = AccuracyDetails(source, predictions, "4_way_")
  outcomes, intervals = measured(
    test=lambda *_: Outcome({"4_way_top1": 0.5}, details), shots=lambda *_: Outcome({"linear_5shot": 0.1}, None)
  )
  assert list(outcomes) == ["", "shots/"] and list(intervals) == [""]
  expected = metrics.compute_intervals(predictions, 4)
  assert intervals[""] == {f"4_way_{name}": ends for name, ends in expected.items()}
  low, high = intervals[""]["4_way_top1"]
  assert low <= np.mean(predictions.label == predictions.best[:, 0]) <= high


def test_an_image_that_cannot_be_decoded_is_a_mistake_of_the_users():
  def bad(*_):
    raise ImageError("test/cat/3.jpg: truncated")

  with pytest.raises(ConfigError, match=r"cat/3\.jpg"):
    measured(test=bad)


def test_a_split_that_trained_images_moved_to_is_named_in_a_warning(tmp_path, caplog):
  path = photographs.write(tmp_path / "photos")
  before, test = photographs.source(path), folder("folder", DatasetRow(folder), "test", path=str(path))
  about = {"identity": photographs.described(before)}
  for i in range(3):
    (path / test.identify(i)).unlink()
  now = photographs.source(path)
  left = folder("folder", DatasetRow(folder), "test", path=str(path))
  moved = {left.identify(i) for i in range(len(left))} & {before.identify(i) for i in range(len(before))}
  parts = types.SimpleNamespace(identity=photographs.described(now), images=types.SimpleNamespace(source=now))
  run_evaluation.warn_of_other_data(parts, about)
  (line,) = caplog.messages
  assert line.startswith(
    f"the data have changed since training: the number of training images was 32 and is {len(now)}"
  )
  moves = f"{len(moved)} of them from split 'train', which was trained on"
  assert moved and f"split 'test': 8 images before, {len(left)} now, {moves}" in line
  run_evaluation.warn_of_other_data(parts, {})
  assert len(caplog.messages) == 1


@pytest.mark.heavy
def test_a_run_without_checkpoint_is_named(tmp_path):
  parts = runs.parts(1)
  with pytest.raises(ConfigError, match="has no checkpoint yet"):
    run_evaluation.restore_newest(parts, tmp_path)
  assert not checkpoints.has_checkpoint(tmp_path)


@pytest.mark.heavy
def test_a2_a_checkpoint_with_a_weight_that_is_not_finite_is_refused(tmp_path):
  parts = runs.parts(1)
  state = parts.create_initial_state()
  params = {**state.params, "head/bias": state.params["head/bias"].at[1].set(np.nan)}
  store = checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(parts.mesh))
  with contextlib.closing(store):
    about = {"images": 0, "seconds": 0.0, "train_seconds": 0.0} | {"model": parts.model.description.to_json()}
    store.save(1, dataclasses.replace(state, params=params), about)
    store.wait()
  with pytest.raises(ConfigError, match=r"parameter head/bias is not finite at \[1\] \(nan\)"):
    run_evaluation.restore_newest(parts, tmp_path)
  with pytest.raises(ConfigError, match=r"parameter head/bias is not finite at \[1\] \(nan\)"):
    importers.load(tmp_path)


@pytest.mark.long
def test_a_run_whose_classes_were_in_another_order_is_not_measured(tmp_path):
  parts = runs.parts(1)
  about = json.loads(json.dumps({"identity": parts.identity, "order": {"positions": [], "records": []}}))
  about |= {"frozen": {}, "evaluated": True, "step_seconds": 0.0, "pending": {"steps": 0, "sums": {}}}
  about |= {"images": 0, "seconds": 0.0, "train_seconds": 0.0}
  classes = about["identity"]["data"]["classes"]
  classes[1:3] = classes[2], classes[1]
  with contextlib.closing(checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(parts.mesh))) as store:
    store.save(1, parts.create_initial_state(), about)
    store.wait()
  with pytest.raises(ConfigError, match=r"classes in another order than the current data \('2' is number 1 and 2, '1'"):
    run_evaluation.restore_newest(parts, tmp_path)
