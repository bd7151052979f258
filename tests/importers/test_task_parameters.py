"""Tests of self-distillation heads in files of DINO, iBOT and DINOv2. See `tests.head_files` for their names."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.head_files import (
  ARRAYS,
  BOTTLENECK,
  HIDDEN,
  K2,
  PATCHES,
  WIDTH,
  Head,
  K,
  backbone,
  build_run,
  check_logits,
  dino,
  dinov2,
  ibot,
  linear,
  state,
  torch,
  write,
)
from vit_jax import evaluate, importers
from vit_jax.importers import task_parameters
from vit_jax.importers.formats.lazy_tensors import Tensor
from vit_jax.schema import ConfigError
from vit_jax.selfsup.heads import ProjectionHead

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")


def start(path, recipe, **changes):
  """Returns the task of a run that starts from a file, its weights, and the notes."""
  made = build_run(path, recipe, **changes)
  weights, notes = made.read_initial_weights()
  assert weights.keys() <= made.state_shapes.params.keys()
  return made.task, weights, "\n".join(notes)


@pytest.fixture(scope="module")
def x():
  return np.random.default_rng(0).normal(size=(5, WIDTH)).astype(np.float32)


@pytest.mark.heavy
@pytest.mark.parametrize(("ema", "number"), [("none", 1), ("false", 0)])
@pytest.mark.parametrize("fixed", [True, False])
def test_dino_starts_with_the_heads_of_its_file(tmp_path, x, ema, number, fixed):
  content, *heads = dino(fixed=fixed)
  last = "fixed_norm" if fixed else "weight_norm"
  task, weights, notes = start(write(tmp_path, content), "dino", init__ema=ema, task__last_layer=last)
  check_logits(task.head.apply(jax.tree.map(jnp.asarray, weights), "task/head", x), heads[number], x)
  np.testing.assert_array_equal(weights["task/center"], content["dino_loss"]["center"][0])
  np.testing.assert_array_equal(weights["cls"], ARRAYS["cls"] + number)
  assert (
    f"{len(weights) - len(ARRAYS)} from the weights, 0 with new values" in notes and "new values, because" not in notes
  )
  start_of_head = ("student.module.head", "teacher.head")[number]
  assert re.search(rf"used only by self-distillation: {start_of_head}\.\* \(8 tensors\), dino_loss\.center", notes)


@pytest.mark.long
def test_ibot_starts_with_separate_heads_and_the_token_of_the_student(tmp_path, x):
  content, _, teacher = ibot(K2)
  task, weights, notes = start(
    write(tmp_path, content), "dinov2", task__sharing="mlp", task__centering="mean", **PATCHES
  )
  check_logits(task.head.apply(jax.tree.map(jnp.asarray, weights), "task/head", x), teacher, x)
  check_logits(task.apply_patch_head(task.patch_head, jax.tree.map(jnp.asarray, weights), x), teacher, x, "last_layer2")
  assert np.all(weights["task/mask_token"] == np.float32(0.3))
  np.testing.assert_array_equal(weights["task/patch_center"], content["ibot_loss"]["center2"][0, 0])
  assert "0 with new values" in notes


@pytest.mark.long
def test_ibot_starts_with_a_shared_head(tmp_path, x):
  content, _, teacher = ibot("shared")
  task, weights, notes = start(write(tmp_path, content), "dinov2", task__sharing="all", task__centering="mean")
  check_logits(task.apply_patch_head(task.patch_head, jax.tree.map(jnp.asarray, weights), x), teacher, x)
  assert "0 with new values" in notes and not any("patch_head" in path for path in weights)


@pytest.mark.heavy
def test_dinov2_starts_with_both_heads(tmp_path, x):
  content, head, patch_head = dinov2()
  task, weights, notes = start(write(tmp_path, content), "dinov2", **PATCHES)
  for module in (head, patch_head):
    module.load_state_dict({name: tensor.half().float() for name, tensor in module.state_dict().items()})
  check_logits(task.head.apply(jax.tree.map(jnp.asarray, weights), "task/head", x), head, x)
  check_logits(task.apply_patch_head(task.patch_head, jax.tree.map(jnp.asarray, weights), x), patch_head, x)
  assert np.all(weights["task/mask_token"] == np.float32(0.25)) and "0 with new values" in notes


@pytest.mark.heavy
@pytest.mark.parametrize(("changes", "reason"), [
  ({"task__prototypes": 30}, r"task/head/last/kernel is \(8, 24\) in the weights, \(8, 30\) in the task"),
  ({"task__hidden": 16}, r"task/head/layer0/bias is \(12,\) in the weights, \(16,\) in the task"),
  ({"task__head_layers": 2}, "only the file has task/head/layer2/bias"),
  ({"task__last_layer": "plain"}, "only the file has task/head/last/scale"),
])  # fmt: skip
def test_head_of_another_form_is_new(tmp_path, changes, reason):
  _, weights, notes = start(write(tmp_path, dino()[0]), "dino", **changes)
  assert re.search(f"task/head: new values, because {reason}", notes)
  assert "task/center: new values, because task/head is new" in notes
  assert not any(path.startswith("task/") for path in weights) and weights.keys() >= ARRAYS.keys()


@pytest.mark.heavy
@pytest.mark.parametrize(("fixed", "plain", "last_layer", "reason"), [
  (True, False, "plain", "only the file has task/head/last/scale"),
  (True, False, "weight_norm", None),
  (False, False, "fixed_norm", "only the file has task/head/last/scale"),
  (False, True, "fixed_norm", "the last layer of the weights has no normalisation (task/head/last/scale is missing)"),
  (False, True, "weight_norm", "only the task has task/head/last/scale"),
  (False, True, "plain", None),
])  # fmt: skip
def test_heads_are_used_only_with_the_same_normalisation(tmp_path, fixed, plain, last_layer, reason):
  _, weights, notes = start(write(tmp_path, dino(fixed=fixed, plain=plain)[0]), "dino", task__last_layer=last_layer)
  assert ("task/head/last/kernel" in weights) == (reason is None)
  assert reason is None or f"task/head: new values, because {reason}" in notes


@pytest.mark.parametrize(("stored", "fixed", "used"), [
  ("fixed_norm", True, True), ("fixed_norm", False, False), ("plain", True, False), ("plain", False, True),
])  # fmt: skip
def test_workdirs_of_both_forms_without_a_scale_are_distinguished(stored, fixed, used):
  arrays = {"cls": np.ones(4, np.float32), "task/head/last/kernel": np.ones((3, 5), np.float32)}
  found = task_parameters.find_workdir_parameters(arrays, {"task": {"name": "dino", "last_layer": stored}})
  kept, notes = task_parameters.fit_task(
    found, {"task/head/last/kernel": (3, 5)}, {"task/head/last/scale": 1.0} if fixed else {}
  )
  assert (kept.keys() == {"task/head/last/kernel"}, not notes) == (used, used)


def test_centre_next_to_the_backbone_is_used():
  tensors = {f"teacher.{name}": tensor for name, tensor in state(Head(K), "head.").items()}
  for number, name in enumerate(("dino_loss.center", "teacher.dino_loss.center")):
    tensors[name] = np.full((1, K), number, np.float32)
  found, _ = task_parameters.find_task_tensors(tensors, "teacher.backbone.")
  assert found["task/center"].name == "teacher.dino_loss.center"


def test_evaluation_of_weights_without_the_heads_of_the_task_is_an_error(tmp_path):
  made = build_run(write(tmp_path, dino()[0]), "dino", task__prototypes=30)
  with pytest.raises(ConfigError, match=r"checkpoint\.pth: lacks .*task/center.* in the form that the run needs"):
    evaluate.import_weights(made, own=False)


@pytest.mark.long
def test_heads_are_new_if_the_file_has_none_or_if_the_config_requires_it(tmp_path):
  _, weights, notes = start(write(tmp_path, backbone()), "dino")
  assert "task/head: new values, because the weights have none" in notes
  _, others, _ = start(write(tmp_path, dino()[0]), "dino", init__head="new")
  assert weights.keys() == others.keys() == ARRAYS.keys()


@pytest.mark.long
def test_last_layer_for_patches_is_new_without_its_mlp(tmp_path):
  _, weights, notes = start(
    write(tmp_path, ibot(K2)[0]), "dinov2", task__sharing="mlp", **PATCHES | {"task__hidden": 16}
  )
  assert "task/patch_head: new values, because task/head is new" in notes
  assert not any("head" in path for path in weights) and "task/mask_token" in weights


@pytest.mark.heavy
def test_both_forms_of_last_layers_are_read(x):
  plain, normed = Head(K, plain=True), Head(K)
  layer = torch.nn.utils.parametrizations.weight_norm(linear(BOTTLENECK, K, bias=False))
  layer.parametrizations.weight.original0.data = torch.rand(K, 1) + 0.5
  normed.last_layer = layer
  for head, last in ((plain, "plain"), (normed, "weight_norm")):
    tensors = {name: tensor.numpy() for name, tensor in state(head, "teacher.dino_head.").items()}
    found, _ = task_parameters.find_task_tensors(tensors, "teacher.backbone.")
    arrays = {path: np.asarray(each.value) for path, each in found.items()}
    check_logits(
      ProjectionHead(WIDTH, K, BOTTLENECK, HIDDEN, last=last).apply(jax.tree.map(jnp.asarray, arrays), "task/head", x),
      head,
      x,
    )


def test_heads_with_batch_norm_and_other_modules_are_not_recognised():
  normed = torch.nn.Sequential(linear(WIDTH, HIDDEN), torch.nn.BatchNorm1d(HIDDEN))
  tensors = state(torch.nn.ModuleDict({"mlp": normed}), "head.")
  assert task_parameters.find_task_tensors(tensors, "backbone.") == ({}, [])
  assert task_parameters.find_task_tensors({"head.weight": 0, "head.bias": 0}, "backbone.") == ({}, [])


def test_value_that_is_not_finite_is_an_error(tmp_path):
  content, *_ = dino()
  content["teacher"]["head.mlp.0.bias"][0] = float("nan")
  with pytest.raises(ConfigError, match=r"head\.mlp\.0\.bias"):
    start(write(tmp_path, content), "dino")
  assert importers.read(tmp_path / "checkpoint.pth").arrays.keys() == ARRAYS.keys()  # heads are not read


@pytest.mark.long
def test_new_heads_do_not_read_those_of_the_file(tmp_path):
  content, *_ = dino()
  content["teacher"]["head.mlp.0.bias"][0] = float("nan")
  _, weights, notes = start(write(tmp_path, content), "dino", init__head="new")
  assert not any(path.startswith("task/") for path in weights)
  assert "0 from the weights" in notes


@pytest.mark.parametrize(
  ("name", "shape"),
  [
    ("mlp." + "9" * 5000 + ".weight", (4, 4)),  # Python converts no number of so many digits
    ("mlp.٤.weight", (4, 4)),
    ("mlp.6.weight", (1,) * 200),  # NumPy arrays have at most 64 dimensions
    ("mlp.6.weight", ()),
    ("last_layer.parametrizations.weight.original0", (24, 1)),  # also stored as weight_g
  ],
)
def test_head_with_unknown_names_or_dimensions_is_left_out(name, shape):
  tensors = {f"teacher.{name}": tensor for name, tensor in state(Head(K), "head.").items()}
  assert task_parameters.find_task_tensors(tensors, "teacher.backbone.")[0]
  odd = Tensor(shape, np.dtype(np.float32), lambda: None)
  assert task_parameters.find_task_tensors(tensors | {f"teacher.head.{name}": odd}, "teacher.backbone.") == ({}, [])


@pytest.mark.parametrize("dtype", [np.complex64, np.int64, bool])
def test_head_of_other_numbers_is_an_error(dtype):
  tensors = {f"teacher.{name}": tensor.numpy() for name, tensor in state(Head(K), "head.").items()}
  tensors["teacher.head.mlp.0.weight"] = tensors["teacher.head.mlp.0.weight"].astype(dtype)
  found, _ = task_parameters.find_task_tensors(tensors, "teacher.backbone.")
  shapes = {path: each.value.shape for path, each in found.items()}
  with pytest.raises(ConfigError, match=r"mlp\.0\.weight.*contains .*Allowed: floating-point numbers"):
    task_parameters.fit_task({path: each.value for path, each in found.items()}, shapes)


@pytest.mark.parametrize("second", [None, K2])
def test_a_note_names_the_head_that_is_read_and_the_other_one(tmp_path, second):
  """The file contains heads with the names of DINO or iBOT next to heads with the names of DINOv2."""
  content, head, patch_head = dinov2()
  content["teacher"] |= state(Head(K + 1, second=second), "head.")
  found = importers.read(write(tmp_path, content))
  for path, module in (("task/head", head), ("task/patch_head", patch_head)):
    expected = module.state_dict()["last_layer.weight_v"].half().float().T
    np.testing.assert_array_equal(found.task[f"{path}/last/kernel"], expected)
  assert "the head for images is read from 'teacher.dino_head', and 'teacher.head' is ignored" in found.notes
  assert not any("the head for patches" in note for note in found.notes)


def test_a_note_on_a_second_head_has_the_names_of_the_file(tmp_path):
  content, *_ = dinov2()
  content["teacher"] |= state(Head(K + 1), "head.")
  content["teacher"] = {f"module.{name}": tensor for name, tensor in content["teacher"].items()}
  notes = importers.read(write(tmp_path, content)).notes
  assert "the head for images is read from 'teacher.module.dino_head', and 'teacher.module.head' is ignored" in notes


def test_a_note_names_a_second_head_for_patches(tmp_path):
  content, *_ = ibot(K2)
  other = Head(K2 + 1)
  content["teacher"] |= state(other, "ibot_head.")
  found = importers.read(write(tmp_path, content))
  np.testing.assert_array_equal(found.task["task/patch_head/last/kernel"], other.state_dict()["last_layer.weight_v"].T)
  assert "the head for patches is read from 'teacher.ibot_head', and 'teacher.head' is ignored" in found.notes


def test_object_in_the_file_is_never_created(tmp_path, capsys):
  class Harm:
    def __reduce__(self):
      return print, ("executed",)

  content, *_ = dino()
  found = importers.read(write(tmp_path, content | {"args": Harm()}))
  np.testing.assert_array_equal(found.task["task/center"], content["dino_loss"]["center"][0])
  assert "executed" not in capsys.readouterr().out
