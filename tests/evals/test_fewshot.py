"""Tests of few-shot probes as an evaluation, against least squares on features computed by calling the model."""

import jax
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.preprocessing import StandardScaler

from tests import runs
from tests.image_files import decoded
from vit_jax import config, models
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.data import catalog, crops
from vit_jax.evals import probes
from vit_jax.schema import Choice, ConfigError
from vit_jax.training import build, probe_setup

pytestmark = pytest.mark.heavy

SHOTS, SEEDS = (1, 4), (0, 1)


def wanted(**changes):
  args = {"shots": SHOTS, "seeds": SEEDS, "data": {"name": "digits", "train": "train[:300]", "test": "test[:96]"}}
  edited = config.measurement(evals={"digits": {"name": "fewshot"} | args | changes}, batch=16)
  return config.resolve(edited, config.Measurement)


@pytest.fixture(scope="module")
def weights():
  """Returns a narrow CCT with its initial parameters."""
  prepare_dataset("digits")
  run = runs.run()
  description = models.Description(run.model, 32, 10)
  parameters = models.make_functional(description).init(jax.random.key(3))
  return description, {path: np.asarray(value) for path, value in parameters.items()}


@pytest.fixture(scope="module")
def outcome(weights):
  measured = probe_setup.build(wanted(), *weights, jax.devices()[:1])
  return measured.evals["digits"](measured.params, lambda: None)


def by_hand(weights, split, mean=False):
  """Computes the features, or means of patches, and the labels of a split of the digits."""
  description, arrays = weights
  source = catalog.open_split(Choice("digits"), split)
  headless = {path: array for path, array in arrays.items() if "head" not in path}
  model = models.make_functional(description.replace(classes=0)).create(headless)
  images, labels = [], []
  for i in range(len(source)):
    data, label = source.read(i)
    images.append(crops.resize(32)(decoded(data), None))
    labels.append(label)
  output = model.outputs(np.stack(images) / 127.5 - 1, None)
  return np.asarray(output.tokens.mean(1) if mean else output.features), np.array(labels)


def test_figures_match_features_and_draws_computed_separately(weights, outcome):
  (x, labels), (test_x, truth) = (by_hand(weights, split) for split in ("train[:300]", "test[:96]"))
  for k in SHOTS:
    scores = []
    for seed in SEEDS:
      rng, rows = np.random.default_rng(seed), []
      for label in range(10):
        rows += rng.permutation(np.flatnonzero(labels == label))[:k].tolist()
      (probe,) = probes.fit_ridge(x[rows], labels[rows], 10)
      scores.append(np.mean(probes.compute_scores(probe, test_x).argmax(1) == truth))
    # An image on the border between two classes may be assigned to either.
    assert outcome.figures[f"ridge_{k}shot"] == pytest.approx(np.mean(scores), abs=1.5 / 96)
    if np.mean(scores) == outcome.figures[f"ridge_{k}shot"]:
      assert outcome.figures[f"ridge_{k}shot_std"] == pytest.approx(np.std(scores, ddof=1))
  np.testing.assert_array_equal(outcome.details.label, truth)


@pytest.mark.parametrize(("devices", "batch"), [(8, 16), (4, 40), (2, 96)])
def test_devices_and_batch_change_no_draw(weights, outcome, devices, batch):
  given = wanted(batch=batch)
  measured = probe_setup.build(given, *weights, jax.devices()[:devices])
  polls = []
  found = measured.evals["digits"](measured.params, lambda: polls.append(1))
  for seed in SEEDS:
    np.testing.assert_array_equal(found.details.drawn[seed], outcome.details.drawn[seed])
  for one, other in zip(found.details.episodes, outcome.details.episodes, strict=True):
    assert one[:5] == other[:5]
    assert np.mean(one.predicted != other.predicted) < 0.02
  # Only the drawn images of the 300 and all test images pass through the model, once each.
  drawn = len(np.unique(np.concatenate(list(found.details.drawn.values()))))
  assert len(polls) == -(-drawn // batch) + -(-96 // batch)


def test_evaluation_of_a_run_gives_the_same_figures(weights, outcome):
  choice = Choice("fewshot", {"shots": SHOTS, "seeds": SEEDS, "train": "train[:300]", "test": "test[:96]"})
  run = build.complete(runs.changed(runs.run(), evals={"shots": choice}))
  parts = build.build(run, jax.devices()[:1])
  params = {path: jax.device_put(weights[1][path]) for path in parts.state_shapes.params}
  found = parts.evals["shots"].measure(params, lambda: None)
  assert found.figures == outcome.figures


@pytest.mark.parametrize("name", ["ridge", "knn", "logistic"])
def test_best_setting_on_held_out_shots_is_selected(weights, name):
  grid = {"ridge": "l2", "knn": "neighbours", "logistic": "l2"}[name]
  values = (1, 30) if name == "knn" else (1e9, 1.0)
  settings = {}
  for given in (values, values[:1], values[1:]):
    probe = {"name": name, grid: given}
    given_wanted = wanted(probes={"it": probe}, shots=(4,), seeds=(0,), held_out=6)
    measured = probe_setup.build(given_wanted, *weights, jax.devices()[:1])
    settings[given] = measured.evals["digits"](measured.params, lambda: None).details.episodes[0]
  chosen = settings[values]
  assert chosen.setting in values
  np.testing.assert_array_equal(chosen.predicted, settings[(chosen.setting,)].predicted)
  if name != "knn":
    assert chosen.setting == 1.0  # the other penalty removes all influence of the features


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"shots": ()}, r"config.evals.digits.shots: \(\). Give at least one value, without duplicates"),
    ({"seeds": (1, 1)}, r"config.evals.digits.seeds: \(1, 1\)"),
    ({"data": None}, r"config.evals.digits.data: missing"),
    ({"probes": {"a": {"name": "rigde"}}}, r"probes.a.name: unknown name 'rigde'. Did you mean 'ridge'"),
    ({"probes": {"a": {"name": "ridge", "l2": ()}}}, r"probes.a.l2: no value"),
    ({"probes": {"a": {"name": "ridge", "l2": (0.0,)}}}, r"probes.a.l2\[0\]: 0.0 is out of range"),
    ({"shots": "al"}, r"config.evals.digits.shots: cannot read 'al'|'al' is not a list"),
    (
      {"features": "cls"},
      r"config.evals.digits.features: 'cls' needs a class token, but the model does not have one. Use "
      r"--config.evals.digits.features=patches or 'head'",
    ),
    ({"features": "class"}, r"features: 'class' is not a choice.*'cls'"),
    ({"batch": 15}, r"config.evals.digits.batch: 15 cannot be divided over 2 devices"),
  ],
)
def test_invalid_configuration_is_refused(weights, changes, message):
  with pytest.raises(ConfigError, match=message):
    probe_setup.build(wanted(**changes), *weights, jax.devices()[:2])


def test_more_neighbours_than_images_are_noted(weights):
  probes = {f"knn{count}": {"name": "knn", "neighbours": (count,)} for count in (5, 10, 11, 90)}
  measured = probe_setup.build(wanted(probes=probes, seeds=(0,)), *weights, jax.devices()[:1])
  notes = measured.evals["digits"](measured.params, lambda: None).details.notes
  assert notes == [
    "knn11: 11 neighbours, but some draws have only 10 images, which are all used",
    "knn90: 90 neighbours, but some draws have only 10 or 40 images, which are all used",
  ]


@pytest.mark.parametrize("name", ["ridge", "knn", "logistic"])
def test_features_that_are_not_finite_are_refused_for_every_probe(weights, name):
  description, arrays = weights
  path = next(path for path in arrays if path.endswith("kernel"))
  broken = arrays | {path: np.full_like(arrays[path], np.nan)}
  with pytest.raises(
    ConfigError, match=r"config.evals.digits: image '.*': output 'features' is not finite. The weights may"
  ):
    given = wanted(probes={"it": {"name": name}}, shots=(1,), seeds=(0,))
    measured = probe_setup.build(given, description, broken, jax.devices()[:1])
    measured.evals["digits"](measured.params, lambda: None)


WHOLE = {
  "ridge": {"name": "ridge", "l2": (1.0, 100.0)},
  "knn": {"name": "knn", "neighbours": (20,), "weights": "softmax"},
  "linear": {"name": "logistic", "l2": (0.1, 10.0)},
}


@pytest.mark.parametrize("probe", WHOLE)
def test_probe_on_all_images_is_fitted_once_without_the_held_out(weights, probe):
  given = wanted(shots="all", probes={"it": WHOLE[probe]}, held_out=4, features="patches")
  found = probe_setup.build(given, *weights, jax.devices()[:2])
  found = found.evals["digits"](found.params, lambda: None)
  assert list(found.figures) == ["it_all", "images"]
  (x, labels), (test_x, truth) = (by_hand(weights, split, mean=True) for split in ("train[:300]", "test[:96]"))
  held = np.zeros(300, bool)
  if probe != "knn":
    rng = np.random.default_rng(0)
    for label in range(10):
      held[rng.permutation(np.flatnonzero(labels == label))[-4:]] = True
  (episode,) = found.details.episodes
  assert (episode.shots, episode.images) == ("all", 300 - held.sum())
  np.testing.assert_array_equal(np.sort(found.details.drawn[0]), np.flatnonzero(~held))
  if probe == "knn":
    unit, other = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, test_x))
    similarity = other @ unit.T
    nearest = np.argsort(-similarity)[:, :20]
    votes = np.zeros((96, 10))
    np.add.at(
      votes, (np.arange(96)[:, None], labels[nearest]), np.exp(np.take_along_axis(similarity, nearest, 1) / 0.07)
    )
    expected = votes.argmax(1)
  else:
    scaler = StandardScaler().fit(x[~held])
    inputs, choosing, testing = (scaler.transform(rows) for rows in (x[~held], x[held], test_x))
    best = []
    for l2 in WHOLE[probe]["l2"]:
      model = RidgeClassifier(alpha=l2) if probe == "ridge" else LogisticRegression(C=1 / l2, max_iter=10_000)
      model.fit(inputs, labels[~held])
      best.append((model.score(choosing, labels[held]), l2, model.predict(testing)))
    _, l2, expected = max(best, key=lambda row: row[0])
    assert episode.setting == l2
  assert np.mean(episode.predicted != expected) < 0.03  # images on a border
  assert found.figures["it_all"] == pytest.approx(np.mean(expected == truth), abs=0.03)


def test_shots_without_held_out_images_are_refused(weights):
  given = wanted(shots=(300,), probes={"a": {"name": "ridge", "l2": (1.0, 2.0)}})
  measured = probe_setup.build(given, *weights, jax.devices()[:1])
  with pytest.raises(ConfigError, match=r"evals.digits: no class has 301 images"):
    measured.evals["digits"](measured.params, lambda: None)
