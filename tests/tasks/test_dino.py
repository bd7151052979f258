"""DINO: the loss from NumPy, the centre, the teacher, and runs on digits that restart and do not depend on devices."""

import contextlib
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import runs, self_distillation, stages
from vit_jax import checkpoints, importers, models
from vit_jax.schema import Choice, ConfigError
from vit_jax.tasks.classify import Classify
from vit_jax.tasks.dino import Dino
from vit_jax.training import loop

pytestmark = pytest.mark.heavy

VIT = Choice("ViT-Ti/8", {"depth": 1, "width": 16, "heads": 2, "hidden": 16, "head_bias": 0.0})
MODEL = models.make_functional(models.Description(VIT, 32, 0))
TEMPERATURE = Choice("ramp", {"start": 0.04, "end": 0.07, "length": "4"})
HEAD = {"prototypes": 24, "bottleneck": 8, "hidden": 12}


def task(**arguments):
  return Dino(
    stages.supplied(MODEL), **HEAD | {"local_size": 16, "local_crops": 3, "temperature": TEMPERATURE} | arguments
  )


@pytest.fixture(scope="module")
def drawn():
  """(task, parameters of the student, parameters of the teacher, examples)."""
  stage = task()
  params, teacher = (
    {
      path: 0.5 * jax.random.normal(jax.random.fold_in(jax.random.key(seed), i), leaf.shape)
      for i, (path, leaf) in enumerate(sorted((MODEL.shapes() | jax.eval_shape(stage.init, jax.random.key(0))).items()))
    }
    for seed in (0, 1)
  )
  draw = np.random.default_rng(0)
  batch = {
    "global": draw.integers(0, 256, (4, 2, 32, 32, 3), np.uint8),
    "local": draw.integers(0, 256, (4, 3, 16, 16, 3), np.uint8),
  }
  return stage, params, teacher, stage.examples(batch, stages.CONTEXT, jax.random.key(0))


def softmax(x):
  e = np.exp(x - x.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True)


def logits_of(stage, params, crops, resized=None):
  model, adapted = (MODEL, params) if resized is None else (resized.model, resized.adapt(params))
  outputs, _ = model.outputs(adapted, crops)
  return np.asarray(stage.head.apply(params, "task/head", outputs.features), np.float64)


def test_the_loss_is_the_mean_over_pairs_of_different_crops(drawn):
  stage, params, teacher, examples = drawn
  context = stages.CONTEXT._replace(step=2, average=teacher)
  loss, (metrics, statistics) = stage.objective(params, context, examples, None)
  center = np.asarray(params["task/center"], np.float64)
  taught = [logits_of(stage, teacher, examples["global"][:, i]) for i in range(2)]
  targets = [softmax((t - center) / 0.06) for t in taught]
  learned = [logits_of(stage, params, examples["global"][:, i]) for i in range(2)]
  learned += [logits_of(stage, params, examples["local"][:, i], stage.local_model) for i in range(3)]
  pairs = [
    -(targets[i] * np.log(softmax(learned[j] / 0.1))).sum(1).mean() for i in range(2) for j in range(5) if i != j
  ]
  assert len(pairs) == 8
  assert float(loss) == pytest.approx(np.mean(pairs), rel=1e-4)
  assert float(metrics["global_loss"] + metrics["local_loss"]) == pytest.approx(float(loss), rel=1e-6)
  assert float(metrics["global_loss"]) == pytest.approx((pairs[0] + pairs[4]) / 8, rel=1e-4)
  entropy = [-(t * np.log(np.maximum(t, 1e-30))).sum(1).mean() for t in targets]
  assert float(metrics["teacher_entropy"]) == pytest.approx(np.mean(entropy), rel=1e-3)
  expected = 0.9 * center + 0.1 * np.mean(taught, axis=(0, 1))
  np.testing.assert_allclose(statistics["task/center"], expected, rtol=1e-4, atol=1e-5)
  assert statistics.keys() == stage.statistics


@pytest.mark.long
def test_no_gradient_reaches_the_teacher_and_the_centre(drawn):
  stage, params, teacher, examples = drawn

  def loss(params, teacher):
    return stage.objective(params, stages.CONTEXT._replace(average=teacher), examples, None)[0]

  of_student, of_teacher = jax.grad(loss, argnums=(0, 1))(params, teacher)
  assert all(not np.any(gradient) for gradient in of_teacher.values())
  assert not np.any(of_student.pop("task/center"))
  assert all(np.any(gradient) for path, gradient in of_student.items() if not path.endswith("key/bias")), of_student


@pytest.mark.long
def test_the_temperature_follows_the_step(drawn):
  stage, params, teacher, examples = drawn
  entropies = [
    float(stage.objective(params, stages.CONTEXT._replace(step=step, average=teacher), examples, None)[1][0][
      "teacher_entropy"
    ])
    for step in (0, 3, 9)
  ]  # fmt: skip
  assert entropies[0] < entropies[1] == entropies[2]


def test_crops_without_local_ones_are_enough(drawn):
  _, params, teacher, examples = drawn
  stage = task(local_crops=0)
  context = stages.CONTEXT._replace(average=teacher)
  loss, (metrics, _) = stage.objective(params, context, {"global": examples["global"]}, None)
  assert float(metrics["local_loss"]) == 0 and float(loss) == float(metrics["global_loss"]) > 0


def test_patches_are_the_same_as_whole_crops(drawn):
  stage, params, teacher, examples = drawn
  cut = {
    name: jnp.asarray(crops).reshape(4, -1, size // 8, 8, size // 8, 8, 3).transpose(0, 1, 2, 4, 3, 5, 6)
    .reshape(4, crops.shape[1], (size // 8) ** 2, 192)
    for name, size, crops in (("global", 32, examples["global"]), ("local", 16, examples["local"]))
  }  # fmt: skip
  context = stages.CONTEXT._replace(average=teacher)
  losses = [float(stage.objective(params, context, each, None)[0]) for each in (examples, cut)]
  assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def parts(devices=8, **changes):
  return self_distillation.parts("dino", devices, **changes)


def train(made, workdir):
  with contextlib.redirect_stdout(io.StringIO()) as printed:
    result = loop.train(made, workdir)
  return result, printed.getvalue()


@pytest.fixture(scope="module")
def complete_run(tmp_path_factory):
  """(workdir, result, what was printed) of a run with two micro-batches."""
  workdir = tmp_path_factory.mktemp("whole")
  return workdir, *train(parts(optim__accumulate=2, mesh__data=2, mesh__fsdp=4), workdir)


def test_a_run_logs_the_losses_and_saves_teacher_and_centre(complete_run):
  rows = [json.loads(line) for line in (complete_run[0] / "metrics.jsonl").read_text().splitlines()]
  names = ("loss", "global_loss", "local_loss", "teacher_entropy", "feature_rank")
  assert all(np.isfinite(rows[-1][f"train/{name}"]) for name in names)
  assert "teacher_entropy" in complete_run[2]
  student, teacher = (checkpoints.read_weights(complete_run[0], averaged)[0] for averaged in (False, True))
  assert np.any(student["task/center"]) and student.keys() == teacher.keys()
  assert not np.allclose(student["task/head/last/kernel"], teacher["task/head/last/kernel"])


def test_the_weights_of_a_run_are_the_teachers_unless_the_students_are_required(complete_run):
  _, teacher = importers.load(complete_run[0])
  expected, _ = checkpoints.read_weights(complete_run[0], averaged=True)
  assert all(np.array_equal(array, expected[path]) for path, array in teacher.items())
  assert not any(path.startswith("task/") for path in teacher)
  _, student = importers.load(complete_run[0], ema=False)
  assert any(not np.array_equal(student[path], teacher[path]) for path in teacher)


def test_a_restart_has_the_same_bits(complete_run, tmp_path):
  made = parts(optim__accumulate=2, mesh__data=2, mesh__fsdp=4)
  with pytest.raises(InterruptedError), contextlib.redirect_stdout(io.StringIO()):
    loop.train(runs.dying(made, 7), tmp_path)
  assert train(made, tmp_path)[0]["weights_sha256"] == complete_run[1]["weights_sha256"]


@pytest.mark.long
def test_one_and_eight_devices_take_the_same_steps():
  states = []
  for devices in (1, 8):
    made = parts(devices, **({"mesh__data": 2, "mesh__fsdp": 4} if devices == 8 else {}))
    state, step = made.create_initial_state(), made.compile()
    with contextlib.closing(made.open_batches(0)) as batches:
      for _ in range(3):
        state, metrics = step(state, next(batches), {})
    states.append((jax.device_get(state.params), jax.device_get(metrics)))
  for path, value in states[0][0].items():
    np.testing.assert_allclose(states[1][0][path], value, rtol=2e-3, atol=2e-5, err_msg=path)
  assert states[0][1]["loss"] == pytest.approx(states[1][1]["loss"], rel=1e-5)


@pytest.mark.parametrize(("changes", "expected"), [
  ({"optim__ema": "none", "optim__ema_schedule": "default"}, r"optim\.ema: task 'dino' learns from the moving average"),
  ({"data__warp": "affine"}, r"config\.data\.warp: 'affine' has no effect"),
  ({"data__crop__area": "(0.3, 0.4)"}, r"config\.data\.crop: 'inception' has no effect"),
  ({"data__crop": "resize"}, r"config\.data\.crop: 'resize' has no effect"),
  ({"data__policy": "three_augment"}, r"config\.data\.policy: 'three_augment' has no effect"),
  ({"task__local_size": 18}, r"config\.task\.local_size: 18 is not a multiple"),
  ({"optim__ema_schedule__end": 2}, r"config\.optim\.ema_schedule\.end: 2"),
], ids=str)  # fmt: skip
def test_a_mistake_names_its_key(changes, expected):
  with pytest.raises(ConfigError, match=expected):
    parts(**changes)


def test_a_conflict_with_the_views_is_reported_before_missing_data():
  missing = {"data__name": "folder", "data__path": "/nowhere"}
  with pytest.raises(ConfigError, match=r"config\.data\.path: no folder '/nowhere'"):
    parts(**missing)
  with pytest.raises(ConfigError, match=r"config\.data\.crop: 'resize' has no effect"):
    parts(**missing, data__crop="resize")


def test_a_task_with_views_must_declare_them(monkeypatch):
  monkeypatch.setattr(Dino, "cuts_views", False)
  with pytest.raises(
    ConfigError, match=r"config\.task\.name: Dino has views\. Set its class attribute cuts_views to True"
  ):
    parts()


def test_a_task_without_views_must_not_declare_them(monkeypatch):
  monkeypatch.setattr(Classify, "cuts_views", True)
  with pytest.raises(ConfigError, match=r"Classify has no views\. Set its class attribute cuts_views to False"):
    runs.parts(**dict.fromkeys(("data__crop", "data__policy", "data__warp", "data__mixing"), "default"))
