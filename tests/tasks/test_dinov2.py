"""DINOv2: each loss from NumPy, masked patches, heads, Gram anchoring, a frozen teacher, and runs that restart."""

import contextlib
import io
import re

import jax
import numpy as np
import pytest

from tests import runs, self_distillation, stages
from vit_jax import importers, models, rng
from vit_jax.schema import Choice, ConfigError
from vit_jax.tasks.dinov2 import Dinov2
from vit_jax.tasks.task import FrozenModel
from vit_jax.training import loop

pytestmark = pytest.mark.heavy

VIT = Choice("ViT-Ti/8", {"depth": 1, "width": 16, "heads": 2, "hidden": 16})
MODEL = models.make_functional(models.Description(VIT, 32, 0))
SMALL = {
  "prototypes": 24, "bottleneck": 8, "hidden": 12, "patch_prototypes": 20, "patch_bottleneck": 6, "patch_hidden": 10,
  "local_size": 16, "local_crops": 2, "group": 2, "temperature": Choice("constant", {"value": 0.06}),
}  # fmt: skip
EACH_SHARING = pytest.mark.parametrize("sharing", ["none", "mlp", "all"])


def task(frozen_model=None, **arguments):
  def open_frozen_model(key, path, ema, prefix, rules):
    return frozen_model

  own = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
  return Dinov2(stages.supplied(MODEL, open_frozen_model=open_frozen_model, normalised=own), **SMALL | arguments)


def drawn(stage, seed=0):
  """Random parameters of the model and the task."""
  shapes = sorted((MODEL.shapes() | jax.eval_shape(stage.init, jax.random.key(0))).items())
  return {
    path: 0.5 * jax.random.normal(jax.random.fold_in(jax.random.key(seed), i), leaf.shape)
    for i, (path, leaf) in enumerate(shapes)
  }


def crops(stage, images=4):
  draw = np.random.default_rng(0)
  batch = {"global": draw.integers(0, 256, (images, 2, 32, 32, 3), np.uint8)}
  batch["local"] = draw.integers(0, 256, (images, 2, 16, 16, 3), np.uint8)
  if stage.anchor:
    batch["gram"] = draw.integers(0, 256, (images, 2, 64, 64, 3), np.uint8)
  return stage.examples(batch, stages.CONTEXT, jax.random.key(0))


def softmax(x):
  e = np.exp(x - x.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True)


def sinkhorn(logits, temperature=0.06):
  """The published loop, on rows [n, K]."""
  q = np.exp(logits / temperature)
  q /= q.sum()
  for _ in range(3):
    q /= q.sum(0, keepdims=True) * q.shape[1]
    q /= q.sum(1, keepdims=True) * q.shape[0]
  return q * q.shape[0]


def head(params, prefix, x, last=None):
  """The head from its weights: two hidden layers, a unit vector, and normalised prototypes."""
  x = np.asarray(x, np.float32)
  for i in range(3):
    x = x @ np.asarray(params[f"{prefix}/layer{i}/kernel"]) + np.asarray(params[f"{prefix}/layer{i}/bias"])
    x = np.asarray(jax.nn.gelu(x, approximate=False)) if i < 2 else x
  x = x / np.linalg.norm(x, axis=-1, keepdims=True)
  kernel = np.asarray(params[f"{last or prefix}/last/kernel"])
  scale = np.asarray(params[f"{last or prefix}/last/scale"])
  return (x @ (kernel / np.linalg.norm(kernel, axis=0)) * scale).astype(np.float64)


@EACH_SHARING
@pytest.mark.parametrize("centering", ["sinkhorn", "mean"])
def test_the_loss_is_the_sum_of_its_parts(sharing, centering):
  stage = task(sharing=sharing, centering=centering, image_weight=0.7, patch_weight=1.3, koleo_weight=0.2)
  params, teacher, examples = drawn(stage), drawn(stage, 1), crops(stage)
  context = stages.CONTEXT._replace(average=teacher)
  loss, (metrics, centers) = stage.objective(params, context, examples, None)

  masks = stage.draw_masks(rng.make_key(0), 4)
  hidden = np.asarray(masks.masks).reshape(4, 2, 16)
  assert hidden.any() and not hidden.all()
  first = "task/patch_head" if sharing == "none" else "task/head"
  last = "task/head" if sharing == "all" else "task/patch_head"

  def outputs(params, i, corrupt=None):
    given = {} if corrupt is None else {"corrupt": lambda x: np.where(corrupt[..., None], params["task/mask_token"], x)}
    output, _ = MODEL.outputs(params, examples["global"][:, i], **given)
    return np.asarray(output.features), np.asarray(output.tokens[:, 1:])

  taught = [outputs(teacher, i) for i in range(2)]
  learned = [outputs(params, i, hidden[:, i]) for i in range(2)]
  local = [
    stage.local_model.model.outputs(stage.local_model.adapt(params), examples["local"][:, i])[0].features
    for i in range(2)
  ]

  of_images = [head(teacher, "task/head", features) for features, _ in taught]
  rows = [(image, i, n) for image in range(4) for i in range(2) for n in np.flatnonzero(hidden[image, i])]
  of_patches = np.stack([head(teacher, first, taught[i][1][image, n], last) for image, i, n in rows])
  if centering == "sinkhorn":
    targets = sinkhorn(np.concatenate(of_images)).reshape(2, 4, -1)
    patch_targets = sinkhorn(of_patches)
    assert centers == {}
  else:
    targets = softmax((np.stack(of_images) - np.asarray(params["task/center"])) / 0.06)
    patch_targets = softmax((of_patches - np.asarray(params["task/patch_center"])) / 0.06)
    expected = 0.9 * np.asarray(params["task/patch_center"]) + 0.1 * of_patches.mean(0)
    np.testing.assert_allclose(centers["task/patch_center"], expected, rtol=1e-3, atol=1e-4)

  student = [head(params, "task/head", x) for x in (*(features for features, _ in learned), *local)]
  pairs = [
    -(targets[i] * np.log(softmax(student[j] / 0.1))).sum(1).mean() for i in range(2) for j in range(4) if i != j
  ]
  patch = 0.0
  for (image, i, n), target in zip(rows, patch_targets, strict=True):
    logits = head(params, first, learned[i][1][image, n], last)
    patch -= (target * np.log(softmax(logits / 0.1))).sum() / hidden[image, i].sum() / 8
  koleo = 0.0
  for features, _ in learned:
    x = features / np.linalg.norm(features, axis=1, keepdims=True)
    for group in (x[:2], x[2:]):
      koleo -= np.log(np.linalg.norm(group[0] - group[1])) / 2
  assert float(metrics["patch_loss"]) == pytest.approx(patch, rel=1e-3)
  assert float(metrics["koleo"]) == pytest.approx(koleo, rel=1e-3)
  assert float(metrics["global_loss"] + metrics["local_loss"]) == pytest.approx(np.mean(pairs), rel=1e-3)
  assert float(loss) == pytest.approx(0.7 * np.mean(pairs) + 1.3 * patch + 0.2 * koleo, rel=1e-3)


@pytest.mark.long
@EACH_SHARING
def test_gradients_reach_all_trained_parameters_and_no_others(sharing):
  stage = task(sharing=sharing, centering="mean")
  params, teacher, examples = drawn(stage), drawn(stage, 1), crops(stage)

  def loss(params, teacher):
    return stage.objective(params, stages.CONTEXT._replace(average=teacher), examples, jax.random.key(0))[0]

  of_student, of_teacher = jax.grad(loss, argnums=(0, 1))(params, teacher)
  assert all(not np.any(gradient) for gradient in of_teacher.values())
  still = {path for path, gradient in of_student.items() if not np.any(gradient)}
  assert {path for path in still if not path.endswith("key/bias")} == stage.statistics


def test_every_parameter_of_the_task_has_one_row_in_the_sharding_table():
  for sharing in ("none", "mlp", "all"):
    for centering in ("sinkhorn", "mean"):
      stage = task(sharing=sharing, centering=centering)
      for path in jax.eval_shape(stage.init, jax.random.key(0)):
        assert sum(re.fullmatch(rule, path) is not None for rule, _ in stage.sharding) == 1, path


def test_a_gram_teacher_of_other_images_is_an_error():
  with pytest.raises(
    ConfigError,
    match=r"task\.gram\.teacher: the images for earlier are .* Use --config\.data\.mean='\(0\.1,0\.2,0\.3\)'",
  ):
    _ = gram_task(normalised={"mean": (0.1, 0.2, 0.3)}).frozen_models
  assert "gram" in gram_task(normalised={"mean": (0.5, 0.5, 0.5)}).frozen_models


@pytest.mark.parametrize(("teacher", "expected"), [("weight_norm", "weight_norm"), ("plain", "plain")])
@pytest.mark.parametrize("student", ["weight_norm", "fixed_norm", "plain"])
def test_heads_of_a_frozen_teacher_keep_their_own_normalisation(teacher, expected, student):
  shapes = MODEL.shapes() | jax.eval_shape(task(last_layer=teacher).init, jax.random.key(0))
  frozen_model = FrozenModel(MODEL, shapes, dict, "task.teacher", "large", (), {})
  stage = task(frozen_model, teacher="large", last_layer=student)
  assert [head.last for head in stage.teacher_heads] == [expected] * 2
  assert stage.head.last == student


def gram_task(normalised=None, **arguments):
  frozen_model = FrozenModel(MODEL, MODEL.shapes(), dict, "task.gram.teacher", "earlier", (), normalised or {})
  return task(frozen_model, gram=Choice("anchor", {"teacher": "earlier", "weight": 2.0} | arguments))


@pytest.mark.parametrize("across", [False, True])
def test_gram_anchoring_compares_similarities_of_patches(across):
  stage = gram_task(across=across)
  params, teacher, earlier, examples = drawn(stage), drawn(stage, 1), drawn(stage, 2), crops(stage)
  context = stages.CONTEXT._replace(average=teacher, frozen_weights={"gram": earlier})
  loss, (metrics, _) = stage.objective(params, context, examples, None)
  without = task().objective(params, context, {name: x for name, x in examples.items() if name != "gram"}, None)[0]
  hidden = np.asarray(stage.draw_masks(rng.make_key(0), 4).masks).reshape(8, 16, 1)
  masked = {"corrupt": lambda x: np.where(hidden, params["task/mask_token"], x)}
  flat = np.asarray(examples["global"]).reshape(8, 32, 32, 3)
  student = np.asarray(MODEL.outputs(params, flat, **masked)[0].tokens[:, 1:])
  tokens = stage.gram_model.model.outputs(
    stage.gram_model.adapt(earlier), np.asarray(examples["gram"]).reshape(8, 64, 64, 3)
  )[0].tokens[:, 1:]
  taps = np.array([-0.75 * 0.125, 0.59375, 0.59375, -0.75 * 0.125])  # a = -0.75 half way between two rows
  weights = np.zeros((4, 8))
  for row in range(4):
    for tap, share in zip((-1, 0, 1, 2), taps, strict=True):
      weights[row, np.clip(2 * row + tap, 0, 7)] += share
  grid = np.einsum("ry,sx,byxd->brsd", weights, weights, np.asarray(tokens).reshape(8, 8, 8, 16)).reshape(8, 16, 16)
  if across:  # the two crops of two images
    student, grid = (x.reshape(2, 64, 16) for x in (student, grid))
  student, grid = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (student, grid))
  expected = np.square(student @ student.swapaxes(1, 2) - grid @ grid.swapaxes(1, 2)).mean()
  assert float(metrics["gram"]) == pytest.approx(expected, rel=1e-3)
  assert float(loss) == pytest.approx(float(without) + 2 * expected, rel=1e-4)


def test_crops_of_the_gram_teacher_show_the_global_crops_without_changes():
  views = {view.name: view for view in gram_task().fields.views}
  assert views["gram"].boxes_of == "global" and views["gram"].size == 64
  assert views["gram"].crop == views["global"].crop and {each.name for each in views["gram"].policies} == {"none"}


@pytest.mark.parametrize(("arguments", "expected"), [
  ({"group": 3}, r"group: 3 does not divide a micro-batch of 4 images. Use 2"),
  ({"masks": Choice("blocks", {"ratio": (0.5, 0.1)})}, r"ratio: \(0.5, 0.1\) goes from high to low"),
], ids=str)  # fmt: skip
def test_masks_that_do_not_fit_are_an_error(arguments, expected):
  stage = task(**arguments)
  with pytest.raises(ConfigError, match=expected):
    stage.draw_masks(rng.make_key(0), 4)


# Runs.


def parts(devices=8, **changes):
  return self_distillation.parts("dinov2", devices, **changes)


def train(made, workdir):
  with contextlib.redirect_stdout(io.StringIO()):
    return loop.train(made, workdir)


@pytest.fixture(scope="module")
def complete_run(tmp_path_factory):
  """Returns (workdir, result) of a finished run, whose loss has every term except that of Gram anchoring."""
  workdir = tmp_path_factory.mktemp("whole")
  return workdir, train(parts(optim__accumulate=2, mesh__data=2, mesh__fsdp=4), workdir)


@pytest.mark.long
def test_a_restart_has_the_same_bits(complete_run, tmp_path):
  made = parts(optim__accumulate=2, mesh__data=2, mesh__fsdp=4)
  with pytest.raises(InterruptedError), contextlib.redirect_stdout(io.StringIO()):
    loop.train(runs.dying(made, 4), tmp_path)
  assert train(made, tmp_path)["weights_sha256"] == complete_run[1]["weights_sha256"]


@pytest.mark.long
@pytest.mark.parametrize("centering", ["sinkhorn", "mean"])
def test_one_and_eight_devices_take_the_same_steps(centering):
  """Well-conditioned gradients are compared, so that rounding errors, which depend on the processor, stay small.

  KoLeo's gradient is large for nearly equal features, as at the start. A relative change of the parameters by 1e-6
  changed updates by up to 7 %. Its weight is therefore small, and its value is compared.
  With the usual epsilon, the size of Adam's update does not depend on the size of the gradient. Even a gradient that
  consists of rounding errors would cause a full update.
  """
  conditioned = {"task__koleo_weight": 1e-6, "optim__eps": 1e-2, "optim__lr": 0.1}
  states = []
  for devices in (1, 8):
    mesh = {"mesh__data": 2, "mesh__fsdp": 4} if devices == 8 else {}
    made = parts(devices, task__centering=centering, **conditioned, **mesh)
    state, step = made.create_initial_state(), made.compile()
    start = jax.device_get(state.params)
    with contextlib.closing(made.open_batches(0)) as batches:
      for _ in range(2):
        state, metrics = step(state, next(batches), {})
    states.append((jax.device_get(state.params), jax.device_get(metrics)))
  for name in ("loss", "koleo"):
    assert states[0][1][name] == pytest.approx(states[1][1][name], rel=1e-4), name
  for path, value in states[0][0].items():
    update, other = value - start[path], states[1][0][path] - start[path]
    # float32 has a resolution of 1e-7 near 1, the value of scales.
    assert np.linalg.norm(update - other) <= 1e-3 * np.linalg.norm(update) + 1e-6, path


@pytest.mark.long
def test_a_second_run_continues_with_the_heads_of_the_first(complete_run):
  made = parts(init__from=str(complete_run[0]), data__image_size=48)
  weights, notes = made.read_initial_weights()
  _, arrays = importers.load(complete_run[0])
  np.testing.assert_array_equal(weights["cls"], arrays["cls"])
  assert weights["position/table"].shape != arrays["position/table"].shape
  task_paths = {path for path in made.state_shapes.params if path.startswith("task/")}
  assert task_paths <= weights.keys() and any(f"{len(task_paths)} from the weights" in note for note in notes)
  assert not any(
    path.startswith("task/")
    for path in parts(init__from=str(complete_run[0]), init__head="new").read_initial_weights()[0]
  )


@pytest.mark.long
def test_a_frozen_teacher_is_distilled_into_a_smaller_student(complete_run, tmp_path):
  made = parts(task__teacher=str(complete_run[0]), model__width=8, task__hidden=6, optim__ema="none",
               optim__ema_schedule="default")  # fmt: skip
  assert not made.task.uses_average
  result = train(made, tmp_path)
  assert result["steps"] == 8
  assert made.frozen_weight_shapes["teacher"]["task/head/layer0/kernel"].shape == (16, 12)
  with pytest.raises(ConfigError, match=r"has 24 prototypes, but .* has 30. Set config.task.prototypes=24"):
    parts(task__teacher=str(complete_run[0]), task__prototypes=30)


@pytest.mark.long
def test_a_run_with_gram_anchoring_trains(complete_run, tmp_path):
  made = parts(task__gram="anchor", task__gram__teacher=str(complete_run[0]))
  assert made.batch_shapes["gram"].shape == (16, 2, 256, 48)
  train(made, tmp_path)
