"""Tests of exact evaluation: padding never counts, and batch size and devices do not change any figure."""

import types

import jax
import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from tests import runs
from vit_jax import evals, schema
from vit_jax.data import catalog, sources
from vit_jax.data.bound_data import EvalData
from vit_jax.training import build

pytestmark = pytest.mark.heavy


def source(length, classes, labels=1):
  """Returns a split without images."""
  names = tuple(map(str, range(classes)))
  return sources.Source("made", "test", names, length, lambda i: (b"", 0), str, labels)


def subject(found, classes, batches, names=None):
  """Returns a model with the outputs `found` {name: rows}, over batches of row numbers."""
  return types.SimpleNamespace(
    compile_predictions=lambda data, logits, classes=None: (
      lambda params, batch: {name: rows[batch["row"]] for name, rows in found.items()}
    ),
    open_images=lambda data, split: source(10, classes, found["label"].ndim),
    choose_data=lambda data: EvalData("made", {"image_size": 8, "test_crop": schema.Choice("resize")}),
    open_batches=lambda data, source, size: (batch for batch in batches),
    choose_batch_size=lambda size: size or 4,
    classes=classes,
    names=tuple(map(str, range(classes))) if names is None else names,
  )


def test_padding_does_not_count_and_every_batch_is_polled():
  batches = [{"row": np.arange(i, i + 4)} for i in (0, 4, 8)]
  label = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 9, 9])
  best = np.stack([label % 3, (label + 1) % 3], 1)
  best[[1, 5]] = [[2, 0], [0, 1]]
  mask = (np.arange(12) < 10).astype(np.float32)
  mask[3] = 0  # could not be decoded
  real = mask > 0
  rows = {"label": label, "best": best, "loss": np.arange(12, dtype=np.float32), "valid": mask}
  polls = []
  measure = evals.accuracy(subject(rows | {"confidence": np.ones(12)}, 3, batches))
  figures, (_, predictions, _) = measure({}, lambda: polls.append(1))
  assert figures["images"] == 9
  assert figures["top1"] == 7 / 9
  assert figures["loss"] == np.arange(12)[real].mean()
  np.testing.assert_array_equal(predictions.position, [0, 1, 2, 4, 5, 6, 7, 8, 9])
  expected = precision_recall_fscore_support(label[real], best[real, 0], average="macro", zero_division=0)[2]
  assert figures["f1_macro"] == pytest.approx(expected, abs=1e-12)
  assert len(polls) == 3


def test_prediction_may_match_any_of_several_labels():
  label = np.array([[0, 2, -1], [1, -1, -1], [3, 4, 5], [-1, -1, -1]])
  best = np.array([[2, 1], [0, 1], [6, 0], [0, 1]])
  mask = np.array([1.0, 1, 1, 0])
  rows = {"label": label, "best": best, "loss": np.zeros(4), "confidence": np.ones(4), "valid": mask}
  measure = evals.accuracy(subject(rows, 7, [{"row": np.arange(4)}]))
  found = measure({}, lambda: None).figures
  assert (found["images"], found["top1"], found["top5"]) == (3, 1 / 3, 2 / 3)


def test_images_without_any_label_are_not_scored():
  label = np.array([[0, 2, -1], [1, -1, -1], [-1, -1, -1], [-1, -1, -1]])
  rows = {"label": label, "best": np.array([[2, 1], [0, 1], [0, 1], [1, 0]]), "loss": np.arange(4.0)}
  rows |= {"confidence": np.ones(4), "valid": np.ones(4), "logits": np.eye(4, 7)}
  outcome = evals.accuracy(subject(rows, 7, [{"row": np.arange(4)}]))({}, lambda: None)
  figures = outcome.figures
  assert (figures["images"], figures["top1"], figures["loss"]) == (2, 1 / 2, 0.5)
  np.testing.assert_array_equal(outcome.details.predictions.position, [0, 1])
  assert len(outcome.details.predictions.logits) == 2


@pytest.mark.parametrize(("classes", "way"), [("all", "1000_way_"), ("subset", "200_way_")])
@pytest.mark.parametrize("name", ["imagenet_a", "imagenet_r"])
def test_names_of_figures_contain_the_number_of_competing_logits(name, classes, way):
  asked = []
  rows = {"label": np.array([6, 11]), "best": np.array([[6], [13]]), "loss": np.zeros(2), "confidence": np.ones(2)}
  model = subject(rows | {"valid": np.ones(2)}, 1000, [{"row": np.arange(2)}])
  model.choose_data, predictions = lambda data: EvalData(name, data.args), model.compile_predictions
  model.compile_predictions = lambda data, logits, only: asked.append(only) or predictions(data, logits)
  data = EvalData(name, {"image_size": 8, "test_crop": schema.Choice("resize")})
  outcome = evals.accuracy(model, data=data, classes=classes)({}, lambda: None)
  assert asked == [None if classes == "all" else catalog.CATALOG[name].subset]
  assert (outcome.figures[f"{way}top1"], outcome.figures["images"], outcome.details.way) == (1 / 2, 2, way)
  named = evals.list_figure_names(schema.Choice("accuracy", {"data": data, "classes": classes}))
  assert set(outcome.figures) == set(named) - {f"{way}average_precision"}


@pytest.fixture(scope="module")
def reference():
  parts = runs.parts(1)
  return jax.device_get(parts.create_initial_state().params), {}


@pytest.mark.parametrize(("devices", "batch"), [(1, 16), (8, 16), (8, 200), (4, 360), (8, 8)])
def test_batch_size_and_devices_change_no_figure(reference, devices, batch):
  params, seen = reference
  parts = runs.parts(devices, evals__test__batch=batch)
  shardings = jax.tree.map(lambda s: s.sharding, parts.state_shapes.params)
  found = dict(parts.evals["test"].measure(jax.device_put(params, shardings), lambda: None).figures)
  assert found["images"] == 360
  # Figures computed in float32 may differ in the last bits. Counted figures may not.
  rounded = np.array([found.pop("loss"), found.pop("calibration_error")])
  first = seen.setdefault("rounded", rounded), seen.setdefault("figures", found)
  np.testing.assert_allclose(rounded, first[0], atol=1e-6)
  assert found == first[1]


def test_any_split_can_be_evaluated_and_logits_are_kept_on_request(reference):
  run = runs.run(evals__test__split="train[:100]", evals__test__logits="true")
  parts = build.build(run, jax.devices()[:1])
  figures, (images, predictions, _) = parts.evals["test"].measure(reference[0], lambda: None)
  assert figures["images"] == 100
  assert images.split == "train[:100]"
  np.testing.assert_array_equal(predictions.logits.argsort(1)[:, ::-1][:, 0], predictions.best[:, 0])
  odds = np.exp(predictions.logits.astype(np.float64))
  np.testing.assert_allclose(predictions.confidence, odds.max(1) / odds.sum(1), rtol=1e-5)


def test_images_with_several_labels_have_an_average_precision(reference):
  """Uses the digits with two labels each: the digit, and the digit plus one modulo ten."""

  def listed(choice, split):
    found = catalog.open_split(choice, split)

    def read(i):
      data, label = found.read(i)
      return data, (label, (label + 1) % 10)

    return sources.Source("listed", split, found.classes, len(found), read, found.place, 2)

  parts = build.build(runs.run(task__loss="sigmoid"), jax.devices()[:1], listed)
  figures = parts.evals["test"].measure(reference[0], lambda: None).figures
  assert 0 < figures["average_precision"] < 1
  assert figures["recall_macro"] == figures["mean_per_class"]


def test_another_dataset_with_the_same_classes_is_evaluated():
  other = {"name": "digits", "test": "train[:50]"}
  run = runs.run()
  choice = schema.Choice("accuracy", {"data": schema.Choice("digits", {"test": "train[:50]"})})
  parts = build.build(
    build.complete(runs.changed(run, evals={"other": choice})),
    jax.devices()[:1],
  )
  figures = parts.evals["other"].measure(parts.create_initial_state().params, lambda: None).figures
  assert figures["images"] == 50
  assert parts.run.evals["other"].args["data"].args["image_size"] == 32
  assert parts.run.evals["other"].args["data"].args["test"] == other["test"]


def test_other_classes_and_other_sizes_are_refused():
  def built(**data):
    choice = schema.Choice("accuracy", {"data": schema.Choice("digits", data)})
    return build.build(
      build.complete(runs.changed(runs.run(), evals={"other": choice})),
      jax.devices()[:1],
      lambda data, split: source(1437, 10 if split == "train" else 11),
    )

  with pytest.raises(
    schema.ConfigError, match=r"config.evals.other.split: 'test' has 11 classes, but the model has 10"
  ):
    built()
  with pytest.raises(schema.ConfigError, match=r"config.evals.other.data.image_size: 48, but the model needs 32 px"):
    built(image_size=48)


@pytest.mark.parametrize(
  ("choice", "place", "message"),
  [
    ({"split": "tset"}, "split", "no split 'tset'. Did you mean 'test'"),
    ({"split": "val"}, "config.data.val", "Set config.data.val, as"),
    ({"data": {"name": "digits"}, "split": "val"}, "data.val", "Set config.evals.it.data.val, as"),
    ({"data": {"name": "digits"}, "split": "train[:9"}, "split", "'train[:9' is not a split"),
    ({"data": {"name": "digits", "test": "tests"}}, "data.test", "Did you mean 'test'"),
    ({"data": {"name": "digits", "flip": True}}, "data.flip", "unknown key for 'digits'"),
    (
      {"data": {"name": "folder"}},
      "data.path",
      "Give the folder, files or bucket with the data: --config.evals.it.data.path=",
    ),
    (
      {"data": {"name": "digits", "test_crop": {"name": "centre", "resize": 9}}},
      "data.test_crop.resize",
      "9 is smaller",
    ),
    ({"evry": "10%"}, "evry", "Did you mean 'every'"),
    ({"classes": "subset"}, "classes", "'subset' is not defined for digits, which contains all classes. Use 'all'"),
  ],
)
def test_error_in_an_evaluation_names_its_key(choice, place, message):
  with pytest.raises(schema.ConfigError) as caught:
    run = runs.changed(runs.run(), evals={"it": schema.Choice("accuracy", choice)})
    build.build(build.complete(run), jax.devices()[:1])
  assert caught.value.place == (place if place.startswith("config.") else f"config.evals.it.{place}")
  assert message in caught.value.message


@pytest.mark.parametrize("total", [1, 10, 100, 10_000])
def test_default_interval_gives_at_most_five_evaluations(total):
  def count_steps(duration):
    return duration.count_steps(1, 1, total)

  every = evals.interval(count_steps)
  assert len(range(every, total, every)) + 1 <= 5
  assert evals.interval(count_steps, every=schema.Duration("1%")) == max(1, total // 100)


def test_classes_at_other_positions_than_in_training_are_refused():
  found = {"label": np.zeros(1, np.int64)}
  with pytest.raises(schema.ConfigError, match=r"at other positions .*'2' is number 1 and 2, '1' is number 2 and 1"):
    evals.accuracy(subject(found, 3, [], names=("0", "2", "1")))
  evals.accuracy(subject(found, 3, [], names=("zero", "one", "two")))  # other names of the same classes
