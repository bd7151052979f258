"""Masked patches: masks against their binomials, targets against loops, and runs on digits that learn and restart."""

import contextlib
import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from tests import runs, stages
from vit_jax import checkpoints, importers, models
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.inference import stored
from vit_jax.schema import Choice, ConfigError
from vit_jax.tasks import masked_patches
from vit_jax.tasks.masked_patches import MaskedPatches
from vit_jax.training import build, loop

pytestmark = pytest.mark.heavy

VIT = Choice("ViT-Ti/8", {"depth": 1, "width": 16, "heads": 2, "hidden": 16})
MODEL = models.make_functional(models.Description(VIT, 32, 0))
SMALL = {"model__name": "ViT-Ti/8", "model__depth": 1, "model__width": 16, "model__heads": 2, "model__hidden": 16}


def task(model=MODEL, **arguments):
  def augment(key, images, targets, draws, step):
    return jnp.asarray(images, jnp.float32) / 127.5 - 1, targets

  return MaskedPatches(stages.supplied(model, augment, pixels=lambda x: x * 0.5 + 0.5), **arguments)


def digits(devices=8, name="masked_patches", **changes):
  """Parts of a small run that hides patches."""
  prepare_dataset("digits")
  keys = {
    "task__name": name,
    "task__label_smoothing": "default",
    "evals__test__name": "masked",
    "evals__test__every": 6,
  }
  return build.build(runs.run(**(SMALL | keys | changes)), jax.devices()[:devices])


def test_masks_are_what_their_binomials_say():
  images, n = 4_000, 16
  masks = jax.device_get(task().masks(jax.random.key(1), images))
  corrupted, instead = masks["corrupted"], masks["instead"]
  assert corrupted.shape == (images, 8)
  assert all(len(set(row)) == 8 for row in corrupted)
  # Each patch of each image by even chance.
  for count in np.bincount(corrupted.ravel(), minlength=n):
    assert scipy.stats.binomtest(int(count), images, 0.5).pvalue > 1e-5
  shares = ((instead == n, 0.8), ((instead != n) & (instead != corrupted), 0.1), (instead == corrupted, 0.1))
  for what, share in shares:
    assert scipy.stats.binomtest(int(what.sum()), what.size, share).pvalue > 1e-5
  # What is swapped in is any other patch, by equal chance.
  away = (instead - corrupted)[(instead != n) & (instead != corrupted)] % n
  counts = np.bincount(away, minlength=n)
  assert counts[0] == 0
  assert scipy.stats.chisquare(counts[1:]).pvalue > 1e-5


def test_embeddings_are_replaced_one_by_one():
  draw = np.random.default_rng(0)
  embeddings, token = draw.standard_normal((2, 4, 3), np.float32), draw.standard_normal(3, np.float32)
  corrupted, instead = np.array([[0, 2], [3, 1]]), np.array([[4, 2], [0, 4]])
  expected = embeddings.copy()
  expected[0, 0], expected[1, 3], expected[1, 1] = token, embeddings[1, 0], token
  got = masked_patches.corrupt_embeddings(jnp.asarray(token), jnp.asarray(corrupted), jnp.asarray(instead), embeddings)
  np.testing.assert_array_equal(got, expected)


def by_hand(patch, target):
  """The target of one patch [P, P, 3] of values 0..1, with loops."""
  if target == "pixels":
    return [patch[i, j, c] for i in range(8) for j in range(8) for c in range(3)]

  def colour(part):
    levels = [min(int(part[..., c].mean() * 8), 7) for c in range(3)]
    return 64 * levels[0] + 8 * levels[1] + levels[2]

  if target == "mean_colour":
    return colour(patch)
  return [colour(patch[2 * y : 2 * y + 2, 2 * x : 2 * x + 2]) for y in range(4) for x in range(4)]


@pytest.mark.parametrize("target", masked_patches.TARGETS)
def test_targets_are_those_of_loops_over_patches(target):
  images = np.random.default_rng(0).random((2, 16, 24, 3), np.float32)
  images[0, :8, :8] = 1.0  # the brightest level has no ninth
  cut = jnp.asarray(masked_patches.masking.cut_patches(images, 8))
  got = masked_patches.TARGETS[target](8).make_targets(cut)
  patches = [[image[8 * y : 8 * y + 8, 8 * x : 8 * x + 8] for y in range(2) for x in range(3)] for image in images]
  expected = np.array([[by_hand(patch, target) for patch in row] for row in patches])
  np.testing.assert_allclose(got, expected, atol=1e-6)
  flat = np.asarray(cut).reshape(2, 6, -1)
  np.testing.assert_array_equal(masked_patches.masking.cut_patches(flat, 8), cut)


def test_the_loss_is_that_of_each_corrupted_patch_by_itself():
  stage = task(targets=Choice("small_patches"))
  params = MODEL.init(jax.random.key(0)) | dict(stage.init(jax.random.key(1)))
  params["task/head/kernel"] = jax.random.normal(jax.random.key(2), params["task/head/kernel"].shape)
  batch = {"image": np.random.default_rng(1).integers(0, 256, (3, 32, 32, 3), np.uint8), "draw": np.arange(3)}
  examples = stage.examples(batch, stages.CONTEXT, jax.random.key(3))
  loss, (metrics, _) = stage.objective(params, stages.CONTEXT, examples, None)

  module = MODEL.create(params)
  module.embedding = Replaced(module.embedding, params["task/mask_token"], examples)
  tokens = np.asarray(module.outputs(examples["image"]).tokens[:, 1:])
  logits = tokens @ np.asarray(params["task/head/kernel"]) + np.asarray(params["task/head/bias"])
  losses, right = [], []
  for i, image in enumerate(batch["image"] / np.float32(255)):
    for number in np.asarray(examples["corrupted"][i]):
      y, x = divmod(int(number), 4)
      classes = by_hand(image[8 * y : 8 * y + 8, 8 * x : 8 * x + 8].astype(np.float32), "small_patches")
      rows = logits[i, number].reshape(16, 512)
      losses += [-scipy.special.log_softmax(row)[c] for row, c in zip(rows, classes, strict=True)]
      right += [row.argmax() == c for row, c in zip(rows, classes, strict=True)]
  assert float(loss) == pytest.approx(np.mean(losses), rel=1e-4)
  assert float(metrics["accuracy"]) == pytest.approx(np.mean(right), abs=1e-6)


class Replaced:
  """An embedding whose rows are replaced by loops."""

  patch = 8

  def __init__(self, embedding, token, examples):
    self.embedding, self.token, self.examples = embedding, token, examples

  def __call__(self, images):
    whole = np.asarray(self.embedding(images))
    changed = whole.copy()
    for i, (corrupted, instead) in enumerate(zip(self.examples["corrupted"], self.examples["instead"], strict=True)):
      for number, other in zip(corrupted, instead, strict=True):
        changed[i, number] = self.token if other == 16 else whole[i, other]
    return jnp.asarray(changed)


MISTAKES = [
  ({"swapped": 0.3}, "their sum is above 1"),
  ({"share": 0.01}, "less than one"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_masks_that_cannot_be_are_refused(arguments, words):
  with pytest.raises(ConfigError, match=words):
    task(**arguments)


@pytest.mark.parametrize("name", ["masked_patches", "masked_autoencoder"])
def test_a_model_without_patches_is_refused_with_one_that_has_them(name):
  with pytest.raises(ConfigError, match=r"config\.task.*cct_2_3x2_32 are not patches.*ViT-B/16"):
    digits(name=name, model__name="cct_2_3x2_32")


def test_accuracy_of_a_model_without_classes_is_refused():
  with pytest.raises(ConfigError, match=r"config\.evals\.test.*no classes.*masked.*fewshot"):
    digits(evals__test__name="accuracy")
  with pytest.raises(ConfigError, match=r"config\.evals\.test.*accuracy"):
    build.build(runs.run(**SMALL, evals__test__name="masked"), jax.devices())


# Runs, of both stages that hide patches.

STAGES = {"masked_patches": {}, "masked_autoencoder": {"task__width": 16, "task__depth": 1, "task__heads": 2}}


def steps(parts, count):
  """(parameters, metrics) after so many steps."""
  step, state = parts.compile(), parts.create_initial_state()
  with contextlib.closing(parts.open_batches(0)) as batches:
    for batch in itertools.islice(batches, count):
      state, metrics = step(state, batch, {})
  return jax.device_get(state.params), {name: float(value) for name, value in metrics.items()}


@pytest.fixture(scope="module", params=STAGES)
def stage(request):
  return request.param


@pytest.fixture(scope="module")
def on_one_device(stage):
  return steps(digits(1, stage, **STAGES[stage]), 3)


MESHES = [
  {"mesh__data": 4, "mesh__fsdp": 2},
  {"mesh__data": 2, "mesh__tensor": 4},
  {"optim__accumulate": 2},
]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_a_run_is_the_same_on_eight_devices(stage, on_one_device, mesh):
  params, metrics = steps(digits(8, stage, **STAGES[stage], **mesh), 3)
  for path, value in on_one_device[0].items():
    np.testing.assert_allclose(params[path], value, atol=2e-5, err_msg=path)
  assert metrics["loss"] == pytest.approx(on_one_device[1]["loss"], abs=1e-4)


@pytest.mark.long
def test_scanned_and_computed_again_it_is_the_same(stage, on_one_device):
  params, metrics = steps(digits(8, stage, **STAGES[stage], model__scan=True, model__remat="full"), 3)
  assert metrics["loss"] == pytest.approx(on_one_device[1]["loss"], abs=1e-4)
  for path in ("embedding/kernel", "norm/scale"):
    np.testing.assert_allclose(params[path], on_one_device[0][path], atol=2e-5, err_msg=path)


@pytest.fixture(scope="module")
def complete_run(stage, tmp_path_factory):
  """(workdir, result) of an uninterrupted run."""
  workdir = tmp_path_factory.mktemp(stage)
  return workdir, loop.train(digits(8, stage, **STAGES[stage], optim__ema=0.5), workdir)


@pytest.mark.long
def test_a_restart_has_the_same_bits(stage, complete_run, tmp_path):
  parts = digits(8, stage, **STAGES[stage], optim__ema=0.5)
  with pytest.raises(InterruptedError):
    loop.train(runs.dying(parts, 7), tmp_path)
  assert loop.train(parts, tmp_path)["weights_sha256"] == complete_run[1]["weights_sha256"]


@pytest.mark.long
def test_every_image_is_measured_once_with_the_same_masks_on_any_devices(stage, complete_run):
  assert complete_run[1]["images"] == 360
  params, _ = checkpoints.read_weights(complete_run[0])
  figures = []
  for devices in (1, 8):
    parts = digits(devices, stage, **STAGES[stage])
    state = parts.create_initial_state(params)
    figures.append(parts.evals["test"].measure(state.params, lambda: None).figures)
  assert figures[0] == pytest.approx(figures[1], rel=1e-5)
  assert figures[0]["loss"] == pytest.approx(complete_run[1]["loss"], rel=1e-5)


@pytest.mark.long
def test_classification_goes_on_from_such_weights_with_a_new_head(stage, complete_run, tmp_path):
  description, arrays = importers.load(complete_run[0])
  assert description.classes == 0
  assert not [path for path in arrays if path.startswith(("task/", "head"))]
  parts = build.build(runs.run(**SMALL, init__from=complete_run[0]), jax.devices())
  weights, _ = parts.read_initial_weights()
  np.testing.assert_array_equal(weights["embedding/kernel"], arrays["embedding/kernel"])
  np.testing.assert_array_equal(weights["head/kernel"], np.zeros((16, 10)))
  assert json.loads((complete_run[0] / "config.json").read_text())["task"]["name"] == stage


@pytest.mark.long
def test_weights_without_labels_have_no_head_for_classes(stage, complete_run):
  assert stored.read(complete_run[0]).classes == () == stored.load(complete_run[0]).classes
  with pytest.raises(ConfigError, match=r"the file has no head for classes, but this model has 10.*init\.head=new"):
    importers.load_fitted(complete_run[0], build.describe_model(runs.run(**SMALL), range(10)), "keep")


@pytest.mark.long
def test_digits_are_learned(stage):
  changes = {"total": 80, "optim__lr": 3e-3, "optim__warmup": 8, "batch": 64}
  parts = digits(1, stage, **{"model__name": "ViT-Ti/4", "model__width": 32} | STAGES[stage] | changes)
  before, after = (steps(parts, count)[1]["loss"] for count in (2, 80))
  # Of colours the most frequent one alone is told after a few steps: what is below that is learned of the image.
  assert after < (0.45 if stage == "masked_patches" else 0.9) * before, (before, after)
  assert dataclasses.is_dataclass(parts.task)
