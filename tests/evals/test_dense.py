"""Tests of dense probes against scikit-learn on all pixels, PyTorch's scaling, and counts by pixel."""

import json
import os
import shutil

import jax
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from tests import runs
from tests.image_files import decoded
from tests.runtime import test_whole_processes
from vit_jax import config, models
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.data import crops, masks, scenes
from vit_jax.data.images import ImageError
from vit_jax.evals import probes, subject
from vit_jax.evals.dense import count_confusion, intersection_over_union
from vit_jax.schema import Choice, ConfigError
from vit_jax.training import build, loop, probe_setup

pytestmark = pytest.mark.heavy

CLASSES, SIZE, SIDE = 8, 32, 4
TRAIN, TEST = 30, 13  # images; with batches of 8, the last batch is padded
DESCRIPTION = models.Description(
  Choice("ViT-Ti/8", {"width": 16, "depth": 1, "heads": 2, "hidden": 16, "registers": 2}), SIZE, 3
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Returns a folder of scenes with masks in which some pixels have no class."""
  root = tmp_path_factory.mktemp("scenes")
  for split, numbers in (("train", range(TRAIN)), ("test", range(TRAIN, TRAIN + TEST))):
    for name in ("images", "masks"):
      (root / name / split).mkdir(parents=True)
    for number in numbers:
      pixels, mask = scenes.draw_scene(number)
      mask[: number % 9, :20] = masks.NONE
      (root / "images" / split / f"{number:03}.png").write_bytes(scenes.encode_png(pixels[..., ::-1]).getvalue())
      (root / "masks" / split / f"{number:03}.png").write_bytes(scenes.encode_png(mask).getvalue())
  return root


@pytest.fixture(scope="module")
def weights():
  parameters = models.make_functional(DESCRIPTION).init(jax.random.key(3))
  return DESCRIPTION, {path: np.asarray(value) for path, value in parameters.items()}


def wanted(folder, **changes):
  data = {"name": "segmentation", "path": str(folder), "classes": CLASSES}
  edited = config.measurement(
    evals={"it": {"name": "dense", "data": data | changes.pop("data", {})} | changes}, batch=8
  )
  return config.resolve(edited, config.Measurement)


def measured(weights, devices=1, **changes):
  parts = probe_setup.build(wanted(**changes), *weights, jax.devices()[:devices])
  return parts.evals["it"](parts.params, lambda: None)


@pytest.fixture(scope="module")
def outcome(weights, folder):
  return measured(weights, folder=folder)


def by_hand(folder, split, weights):
  """Computes (tokens [N, P, P, D], masks [N, S, S]) of a split, image by image."""
  description, arrays = weights
  headless = {path: array for path, array in arrays.items() if "head" not in path.split("/")[0]}
  model = models.make_functional(description.replace(classes=0)).create(headless)
  tokens, truth = [], []
  for file in sorted((folder / "images" / split).iterdir()):
    image = crops.resize(SIZE)(decoded(file.read_bytes()), None)
    tokens.append(np.asarray(model.outputs(image[None] / 127.5 - 1).tokens)[0, 3:].reshape(SIDE, SIDE, -1))
    mask = masks.decode_numbers((folder / "masks" / split / file.name).read_bytes(), 10**6, 10)
    truth.append(masks.scale_mask(mask, SIZE))
  return np.stack(tokens), np.stack(truth)


@pytest.mark.parametrize("probe", ["logistic", "ridge"])
def test_probe_matches_a_fit_to_all_pixels_by_their_patch_tokens(weights, folder, outcome, probe):
  outcome = outcome if probe == "logistic" else measured(weights, folder=folder, probe={"name": probe})
  torch = pytest.importorskip("torch")
  (tokens, truth), (test_tokens, test_truth) = (by_hand(folder, split, weights) for split in ("train", "test"))
  patch = SIZE // SIDE
  rows = tokens.repeat(patch, 1).repeat(patch, 2).astype(np.float64)[truth < CLASSES]
  labels = truth[truth < CLASSES]
  mean, deviation = rows.mean(0), rows.std(0) + 1e-5
  # Pixels of one patch and one class are equal rows, weighted by their count.
  different, times = np.unique(np.column_stack([rows, labels]), axis=0, return_counts=True)
  rows, labels, each = different[:, :-1], different[:, -1].astype(int), times / patch**2
  x = np.concatenate([(rows - mean) / deviation, np.full((len(rows), 1), 100.0)], 1)
  if probe == "ridge":
    y = np.where(labels[:, None] == np.arange(CLASSES), 1.0, -1.0)
    scores_of = Ridge(alpha=1024.0, fit_intercept=False).fit(x, y, each).predict
  else:
    scores_of = LogisticRegression(max_iter=1000).fit(x, labels, each).decision_function
  predicted = []
  for image in test_tokens:
    z = (image.reshape(SIDE**2, -1) - mean) / deviation
    scores = scores_of(np.concatenate([z, np.full((len(z), 1), 100.0)], 1)).reshape(SIDE, SIDE, CLASSES)
    scores = torch.from_numpy(scores.transpose(2, 0, 1))[None]
    large = torch.nn.functional.interpolate(scores, (SIZE, SIZE), mode="bilinear", align_corners=False)
    predicted.append(large[0].argmax(0).numpy())
  predicted, pixels = np.stack(predicted), np.zeros((CLASSES, CLASSES), int)
  for one, other in zip(test_truth.ravel(), predicted.ravel(), strict=True):
    if one < CLASSES:
      pixels[one, other] += 1
  assert pixels.sum() == outcome.details.pixels.sum() == (test_truth < CLASSES).sum()
  assert np.abs(pixels - outcome.details.pixels).sum() < 0.002 * pixels.sum()  # pixels between two classes
  ious = []
  for number in range(CLASSES):
    both = ((test_truth == number) & (predicted == number)).sum()
    either = ((test_truth == number) | ((predicted == number) & (test_truth < CLASSES))).sum()
    ious += [both / either] if either else []
  assert outcome.figures["mean_iou"] == pytest.approx(np.mean(ious), abs=2e-3)
  right = (test_truth == predicted)[test_truth < CLASSES].mean()
  assert outcome.figures["pixel_accuracy"] == pytest.approx(right, abs=2e-3)
  assert outcome.figures["images"] == TEST


@pytest.mark.parametrize(("devices", "batch"), [(8, 8), (4, 20), (2, 64)])
def test_devices_and_batch_change_no_figure(weights, folder, outcome, devices, batch):
  found = measured(weights, devices, folder=folder, batch=batch)
  assert np.abs(found.details.pixels - outcome.details.pixels).sum() < 0.002 * outcome.details.pixels.sum()
  assert found.figures == pytest.approx(outcome.figures, abs=2e-3)


def test_surplus_patches_are_sampled_from_each_image(weights, folder, outcome, monkeypatch):
  taken = []

  real = probes.ridge_of_shares

  def fit(tokens, shares, *, l2: float = 1.0):
    taken.append(tokens)
    return real(tokens, shares, l2=l2)

  monkeypatch.setitem(probes.OF_SHARES, "ridge", fit)
  for devices, batch in ((1, 8), (2, 20)):
    measured(weights, devices, folder=folder, probe={"name": "ridge"}, patches=100, batch=batch)
  assert taken[0].shape == (TRAIN * (100 // TRAIN), 16)
  np.testing.assert_allclose(*taken, atol=1e-4)
  tokens, _ = by_hand(folder, "train", weights)
  for number, some in enumerate(taken[0].reshape(TRAIN, 3, 16)):
    distance = np.abs(tokens[number].reshape(SIDE**2, 1, 16) - some).max(2)
    assert (distance.min(0) < 1e-3).all() and len(set(distance.argmin(0))) == 3


@pytest.mark.parametrize(("side", "size"), [(2, 8), (4, 32), (5, 16), (7, 7)])
def test_scores_are_scaled_like_pytorch_and_ties_choose_the_first(side, size):
  torch = pytest.importorskip("torch")
  scores = np.random.default_rng(0).standard_normal((5, 3, side, side)).astype(np.float32)
  scores[3] = scores[1]  # class 3 therefore never wins
  large = torch.nn.functional.interpolate(
    torch.from_numpy(scores), (size, size), mode="bilinear", align_corners=False
  ).numpy()
  best = np.asarray(jax.jit(subject.resize_and_classify, static_argnums=1)(scores, size))
  chosen = np.take_along_axis(large, best[None].astype(int), 0)[0]
  np.testing.assert_allclose(chosen, large.max(0), atol=1e-6)
  assert best.dtype == np.uint8 and 3 not in best


def test_intersections_and_unions_match_sets_of_pixels():
  draw = np.random.default_rng(0)
  truth, predicted = draw.integers(0, 5, (2, 6, 20))
  truth[truth == 4] = masks.NONE
  predicted[predicted == 2] = 0
  truth[truth == 2] = 1  # class 2 neither occurs nor is predicted
  pixels = count_confusion(truth, predicted, 5)
  for number, iou in enumerate(intersection_over_union(pixels)):
    places = [
      {place for place in np.ndindex(truth.shape) if where[place] == number and truth[place] != masks.NONE}
      for where in (truth, predicted)
    ]
    either = places[0] | places[1]
    assert iou == pytest.approx(len(places[0] & places[1]) / len(either)) if either else np.isnan(iou)


def test_bad_mask_is_named_or_skipped(weights, folder, tmp_path):
  shutil.copytree(folder, tmp_path / "bad")
  file = tmp_path / "bad/masks/test/033.png"
  file.write_bytes(file.read_bytes()[:40])
  advice = r"its mask is not valid.*leave out such images with --config\.evals\.it\.data\.on_error=skip"
  with pytest.raises(ConfigError, match=rf"record 3 \(files 'images/test/033.png'.*{advice}"):
    measured(weights, 2, folder=tmp_path / "bad")
  found = measured(weights, 2, folder=tmp_path / "bad", data={"on_error": "skip"})
  assert found.figures["images"] == TEST - 1
  (tmp_path / "bad/images/test/035.png").write_bytes(b"no image")
  assert measured(weights, 2, folder=tmp_path / "bad", data={"on_error": "skip"}).figures["images"] == TEST - 2
  with pytest.raises(ImageError, match=r"035\.png"):
    measured(weights, 2, folder=tmp_path / "bad")


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"data": {"test_crop": {"name": "centre"}}}, r"config.evals.it.data.test_crop.name: 'centre' crops images"),
    ({"data": {"name": "digits", "path": None}}, r"config.evals.it.data: .*digits have no masks. Allowed: .*scenes"),
    ({"train": "trian"}, r"config.evals.it.train: no split 'trian'"),
    ({"probe": {"name": "ridge", "l2": 0.0}}, r"config.evals.it.probe.l2: 0.0 is out of range"),
    ({"probe": {"name": "knn"}}, r"config.evals.it.probe.name: unknown name 'knn'. Allowed: logistic, ridge"),
    ({"batch": 15}, r"config.evals.it.batch: 15 cannot be divided over 2 devices"),
  ],
)
def test_invalid_configuration_is_refused(weights, folder, changes, message):
  prepare_dataset("digits")
  given = wanted(folder)
  if changes.get("data", {}).get("name") == "digits":
    given = config.resolve(
      config.measurement(evals={"it": {"name": "dense", "data": {"name": "digits"}}}), config.Measurement
    )
  else:
    given = wanted(folder, **changes)
  with pytest.raises(ConfigError, match=message):
    probe_setup.build(given, *weights, jax.devices()[:2])


def test_masks_with_only_one_class_are_refused(weights, folder, tmp_path):
  shutil.copytree(folder, tmp_path / "one")
  for file in (tmp_path / "one/masks/train").iterdir():
    file.write_bytes(scenes.encode_png(np.full((64, 64), 3, np.uint8)).getvalue())
  with pytest.raises(
    ConfigError, match=r"config.evals.it.train: masks contain '3' alone, but a probe needs two classes"
  ):
    measured(weights, folder=tmp_path / "one")


@pytest.mark.parametrize(
  ("split", "message"),
  [
    ("train", r"config.evals.it.train: masks contain no class at all, but a probe needs two classes"),
    ("test", r"config.evals.it.test: its masks contain no pixel of a class. Use another split"),
  ],
)
def test_masks_without_a_class_are_refused(weights, folder, tmp_path, split, message):
  shutil.copytree(folder, tmp_path / "void")
  for file in (tmp_path / "void/masks" / split).iterdir():
    file.write_bytes(scenes.encode_png(np.full((64, 64), 255, np.uint8)).getvalue())
  with pytest.raises(ConfigError, match=message):
    measured(weights, folder=tmp_path / "void")


def evaluated(folder):
  """Returns a small run on digits that is evaluated on scenes every third step."""
  data = Choice("segmentation", {"path": str(folder), "classes": CLASSES})
  choice = Choice("dense", {"data": data, "every": "3"})
  run = build.complete(runs.changed(runs.run(total="9"), evals={"scenes": choice}))
  return build.build(run, jax.devices()[:1])


@pytest.mark.long
def test_evaluations_during_training_are_equal_after_a_restart(folder, tmp_path):
  prepare_dataset("digits")
  parts = evaluated(folder)
  whole = loop.train(parts, tmp_path / "whole")
  with pytest.raises(InterruptedError):
    loop.train(runs.dying(parts, 5), tmp_path / "killed")
  again = loop.train(parts, tmp_path / "killed")
  lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "killed")]
  found = [[row for line in some if "scenes/mean_iou" in (row := json.loads(line))] for some in lines]
  assert found[0] == found[1] and [row["step"] for row in found[0]] == [3, 6, 9]
  assert whole["scenes/mean_iou"] == again["scenes/mean_iou"]


@pytest.mark.long
def test_two_processes_match_one_and_stop_together_at_a_bad_mask(weights, folder, tmp_path):
  prepare_dataset("digits")
  loop.train(runs.parts(1, total=2), tmp_path / "run")
  shutil.copytree(folder, tmp_path / "bad")
  os.truncate(tmp_path / "bad/masks/train/004.png", 50)

  def words(path, name):
    return [
      "--config=configs/probes.py:dense,scenes", f"--weights={tmp_path / 'run'}",
      "--config.evals.scenes.data.name=segmentation",
      f"--config.evals.scenes.data.path={path}", f"--config.evals.scenes.data.classes={CLASSES}", "--config.batch=8",
      f"--json={tmp_path / name}.json",
    ]  # fmt: skip

  single = runs.command("fewshot", *words(folder, "one"), devices=2)
  output = runs.finish(single)
  assert "mean IoU" in output and "8 classes of pixels, from 30 images of 'train', 13 of 'test'" in output
  both = test_whole_processes.placed_pair("vit_jax.fewshot", *words(folder, "two"))
  assert "mean IoU" in runs.finish(both[0])
  assert "mean IoU" not in runs.finish(both[1])
  one, two = (json.loads((tmp_path / f"{name}.json").read_text())["evals"]["scenes"] for name in ("one", "two"))
  assert one["figures"] == pytest.approx(two["figures"], abs=2e-3) and one["iou"].keys() == two["iou"].keys()
  for process in test_whole_processes.placed_pair("vit_jax.fewshot", *words(tmp_path / "bad", "bad")):
    assert "its mask is not valid" in runs.finish(process, 2)


def test_tokens_that_are_not_finite_are_an_error(weights, folder):
  description, arrays = weights
  broken = arrays | {"norm/bias": np.full_like(arrays["norm/bias"], np.inf)}
  with pytest.raises(ConfigError, match=r"config\.evals\.it: image '.*': output 'tokens' is not finite"):
    measured((description, broken), folder=folder)
