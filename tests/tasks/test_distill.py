"""Distillation against NumPy; a student of digits learns from a teacher that no checkpoint holds."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from tests import runs, stages
from vit_jax import checkpoints, models, trees
from vit_jax.data import augment
from vit_jax.schema import Choice, ConfigError
from vit_jax.tasks.distill import Distill
from vit_jax.tasks.task import FrozenModel
from vit_jax.training import build, loop

pytestmark = pytest.mark.heavy

DRAW = np.random.default_rng(0)
LABELS = DRAW.integers(0, 7, 6)
LOGITS = {name: DRAW.standard_normal((6, 7)) for name in ("student", "token", "teacher")}


@dataclasses.dataclass(frozen=True)
class Fixed:
  """A model that gives the same logits for any image, of one head or of two."""

  names: tuple[str, ...]
  patch: int | None = None
  description: models.Description = models.Description(Choice("fixed"), 4, 7)

  def outputs(self, params, images, key=None):
    logits = [jnp.asarray(LOGITS[name]) for name in self.names]
    heads = dict(zip(("head", "head_distillation"), logits, strict=False))
    return models.Output(images, images, sum(logits) / len(logits), heads), {}


def task(names=("student",), **arguments):
  def open_frozen_model(key, path, ema, prefix, rules):
    return FrozenModel(Fixed(("teacher",)), {}, dict, key, path)

  def augment(key, images, targets, draws, step):
    return images, targets

  return Distill(
    stages.supplied(Fixed(names), augment, open_frozen_model=open_frozen_model), teacher="teacher.npz", **arguments
  )


def objective(distill):
  batch = {"image": np.zeros((6, 4, 4, 3), np.uint8), "label": LABELS, "draw": np.arange(6)}
  examples = distill.examples(batch, stages.CONTEXT._replace(frozen_weights={"teacher": {}}), jax.random.key(0))
  loss, (metrics, _) = distill.objective({}, stages.CONTEXT, examples, None)
  return float(loss), metrics


def cross_entropy(logits, labels):
  return -scipy.special.log_softmax(logits, -1)[np.arange(6), labels]


@pytest.mark.parametrize("names", [("student",), ("student", "token")], ids=["one head", "two heads"])
def test_hard_targets_are_the_teachers_best_classes(names):
  taught = cross_entropy(LOGITS[names[-1]], LOGITS["teacher"].argmax(1))
  expected = 0.75 * cross_entropy(LOGITS["student"], LABELS) + 0.25 * taught
  loss, metrics = objective(task(names, weight=0.25))
  np.testing.assert_allclose(loss, expected.mean(), rtol=1e-5)
  output = np.mean([LOGITS[name] for name in names], 0).argmax(1)
  assert metrics["top1"] == pytest.approx((output == LABELS).mean())
  assert metrics["teacher_agreement"] == pytest.approx((output == LOGITS["teacher"].argmax(1)).mean())


@pytest.mark.parametrize("names", [("student",), ("student", "token")], ids=["one head", "two heads"])
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_soft_targets_are_the_teachers_probabilities_at_a_temperature(names, temperature):
  p, q = (scipy.special.softmax(LOGITS[name] / temperature, -1) for name in ("teacher", names[-1]))
  taught = temperature**2 * scipy.special.rel_entr(p, q).sum(-1)
  expected = 0.9 * cross_entropy(LOGITS["student"], LABELS) + 0.1 * taught
  soft = Choice("soft", {"temperature": temperature})
  np.testing.assert_allclose(objective(task(names, weight=0.1, targets=soft))[0], expected.mean(), rtol=1e-5)


def test_no_weight_leaves_classification():
  loss, _ = objective(task(weight=0.0))
  np.testing.assert_allclose(loss, cross_entropy(LOGITS["student"], LABELS).mean(), rtol=1e-5)


# On digits.

STUDENT = {"model__name": "ViT-Ti/8", "model__depth": 1, "model__width": 16, "model__heads": 2, "model__hidden": 16}
PLAIN = {"optim__clip": "none", "log__every": 1, "evals__test__every": "100%"}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
  """A workdir with the weights of a CCT, of a head that makes different classes of different images."""
  workdir = tmp_path_factory.mktemp("teacher") / "run"
  parts = runs.parts(1)
  params = jax.device_get(parts.create_initial_state().params)
  params["head/kernel"] = np.random.default_rng(0).standard_normal(params["head/kernel"].shape, np.float32)
  checkpoints.write_weights(workdir, params, {"model": parts.model.description.to_json()})
  return workdir


def distilled(teacher, devices, **changes):
  return runs.parts(devices, **(STUDENT | PLAIN | {"task__name": "distill", "task__teacher": teacher} | changes))


def trained(parts, steps=None):
  """Parameters after so many steps, by default all."""
  step, state, frozen_weights = parts.compile(), parts.create_initial_state(), parts.load_frozen_weights()[0]
  with contextlib.closing(parts.open_batches(0)) as batches:
    for batch in itertools.islice(batches, steps or parts.total):
      state, metrics = step(state, batch, frozen_weights)
  return jax.device_get(state.params), {name: float(value) for name, value in metrics.items()}


@pytest.fixture(scope="module")
def on_one_device(teacher):
  return trained(distilled(teacher, 1))


@pytest.mark.long
@pytest.mark.parametrize("mesh", [{}, {"mesh__data": 4, "mesh__fsdp": 2}, {"optim__accumulate": 2}], ids=str)
def test_the_student_is_the_same_on_eight_devices(teacher, on_one_device, mesh):
  params, metrics = trained(distilled(teacher, 8, **mesh))
  for path, value in on_one_device[0].items():
    np.testing.assert_allclose(params[path], value, atol=1e-5, err_msg=path)
  assert metrics["loss"] == pytest.approx(on_one_device[1]["loss"], abs=1e-4)


@pytest.mark.long
def test_a_teacher_that_knows_the_images_is_learned(teacher):
  """With no label at all, the student comes to agree with the teacher more than by chance."""
  parts = distilled(teacher, 1, total=40, task__weight=1.0, optim__warmup=0, optim__lr=1e-2, batch=32)
  assert trained(parts)[1]["teacher_agreement"] > 0.3


@pytest.fixture(scope="module")
def complete_run(teacher, tmp_path_factory):
  """(workdir, result) of an uninterrupted run on 8 devices."""
  workdir = tmp_path_factory.mktemp("whole")
  return workdir, loop.train(distilled(teacher, 8, checkpoint__every=5), workdir)


@pytest.mark.long
def test_the_teacher_is_in_no_state_and_its_digest_in_every_checkpoint(teacher, complete_run):
  parts = distilled(teacher, 8, optim__ema=0.9)
  assert not [path for path in trees.flatten(parts.state_shapes) if "convolutions" in path]
  assert any("convolutions" in path for path in parts.frozen_weight_shapes["teacher"])
  _, about = checkpoints.read_weights(complete_run[0])
  arrays, _ = checkpoints.read_weights(teacher)
  content = b"".join(arrays[path].astype("<f4").tobytes() for path in sorted(arrays))
  assert about["frozen"] == {"task.teacher": hashlib.sha256(content).hexdigest()}
  assert {"top1", "loss"} <= complete_run[1].keys()


@pytest.mark.long
@pytest.mark.parametrize("devices", [1, 8])
def test_a_restart_ends_in_the_same_bits(teacher, complete_run, tmp_path, devices):
  parts = distilled(teacher, devices, checkpoint__every=5)
  expected = complete_run[1] if devices == 8 else loop.train(parts, tmp_path / "whole")
  with pytest.raises(InterruptedError):
    loop.train(runs.dying(parts, 7), tmp_path / "stopped")
  assert loop.train(parts, tmp_path / "stopped")["weights_sha256"] == expected["weights_sha256"]


@pytest.mark.long
def test_other_weights_in_the_teachers_place_are_refused(teacher, complete_run, tmp_path):
  shutil.copytree(complete_run[0], tmp_path / "run")
  arrays, about = checkpoints.read_weights(teacher)
  checkpoints.write_weights(tmp_path / "other", arrays | {"norm/bias": arrays["norm/bias"] + 1}, about)
  with pytest.raises(ConfigError) as error:
    loop.train(distilled(tmp_path / "other", 8, total=14), tmp_path / "run")
  assert error.value.place == "config.task.teacher"
  assert str(tmp_path / "other") in str(error.value)


@pytest.mark.long
def test_a_teacher_whose_newest_checkpoint_is_damaged_is_said_to_be(teacher, tmp_path):
  arrays, about = checkpoints.read_weights(teacher)
  for name, change in (("run", 0), ("newer", 1)):
    checkpoints.write_weights(tmp_path / name, arrays | {"norm/bias": arrays["norm/bias"] + change}, about)
  newest = tmp_path / "run/checkpoints/5"
  (tmp_path / "newer/checkpoints/0").rename(newest)
  parts = distilled(tmp_path / "run", 1)
  _, digests = parts.load_frozen_weights()
  for file in newest.glob("state/**/d/*"):
    file.write_bytes(b"")
  with pytest.raises(ConfigError, match=rf"differs from the weights .*\({newest} cannot be read: .*. Restore them"):
    parts.load_frozen_weights(digests)


@pytest.mark.long
def test_a_student_is_measured_without_its_teacher(teacher, tmp_path):
  parts = distilled(teacher, 8)
  task = Choice("distill", {**parts.run.task.args, "teacher": str(tmp_path / "nowhere")})
  measured = build.build(dataclasses.replace(parts.run, task=task), jax.devices(), training=False)
  assert measured.evals["test"].measure(parts.create_initial_state().params, lambda: None).figures["images"] == 360


@pytest.mark.parametrize(
  ("changes", "output"),
  [
    ({"task__teacher": "nowhere.npz"}, ("config.task.teacher", "nowhere.npz")),
    ({"task__targets__name": "sofd"}, ("config.task.targets", "sofd", "soft")),
    ({"task__weight": 2}, ("config.task.weight", "2")),
    ({"task__targets__name": "hard", "task__targets__temperature": 2}, ("config.task.targets.temperature", "'hard'")),
  ],
  ids=str,
)
def test_a_mistake_names_its_place(teacher, changes, output):
  with pytest.raises(ConfigError) as error:
    distilled(teacher, 1, **changes)
  assert all(word in str(error.value) for word in output)


def test_a_teacher_of_other_classes_is_refused():
  ten = dataclasses.replace(Fixed(("teacher",)), description=models.Description(Choice("fixed"), 4, 10))
  supplied = stages.supplied(
    Fixed(("student",)), open_frozen_model=lambda key, path, *selection: FrozenModel(ten, {}, dict, key, path)
  )
  with pytest.raises(ConfigError, match=r"config\.task\.teacher: .* 10 classes.* 7"):
    _ = Distill(supplied, teacher="teacher.npz").frozen_models


@pytest.mark.parametrize("targets", ["hard", "soft"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a2_a_teacher_without_finite_logits_gives_no_finite_loss(monkeypatch, targets, value):
  broken = LOGITS["teacher"].copy()
  broken[4, 2] = value
  monkeypatch.setitem(LOGITS, "teacher", broken)
  loss, metrics = objective(task(targets=Choice(targets)))
  assert np.isnan(loss) and np.isnan(metrics["teacher_agreement"]) and np.isfinite(metrics["top1"])


@pytest.mark.parametrize("shape", [(2, 4, 4, 3), (2, 5, 4 * 4 * 3)], ids=["whole", "cut"])
def test_e4_a_teacher_sees_images_normalised_as_its_own(shape):
  own = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
  theirs = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
  supplied = stages.supplied(Fixed(("student",)), pixels=functools.partial(augment.denormalise, **own), normalised=own)
  distill = Distill(supplied, teacher="a", teacher_mean=theirs["mean"], teacher_std=theirs["std"])
  pixels = np.random.default_rng(0).integers(0, 256, shape)
  images = augment.normalise(pixels, **own)
  channels = pixels.reshape(-1, 3) / 255
  expected = ((channels - theirs["mean"]) / theirs["std"]).reshape(shape)
  np.testing.assert_allclose(distill.normalise_for_teacher(images), expected, atol=1e-5)
  for same in ({}, {"teacher_mean": own["mean"]}, {"teacher_mean": own["mean"], "teacher_std": own["std"]}):
    assert Distill(supplied, teacher="a", **same).normalise_for_teacher(images) is images
