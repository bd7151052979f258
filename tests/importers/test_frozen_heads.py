"""Tests of frozen teachers from files with self-distillation heads. See `tests.head_files` for their names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.head_files import (
  ARRAYS,
  HIDDEN,
  K2,
  PATCHES,
  WIDTH,
  build_run,
  check_logits,
  dino,
  dinov2,
  ibot,
  torch,
  write,
)
from vit_jax import importers
from vit_jax.schema import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")

NORMALISED = {"data__mean": "(0.4851,0.456,0.406)", "data__std": "(0.229,0.224,0.225)"}  # 0.485, not rounded
FROZEN = {"optim__ema": "none", "optim__ema_schedule": "default", **NORMALISED}


@pytest.fixture(scope="module")
def x():
  return np.random.default_rng(0).normal(size=(5, WIDTH)).astype(np.float32)


def build_student(path, **changes):
  """Returns a run with a frozen teacher."""
  return build_run("none", "dinov2", task__teacher=str(path), **FROZEN | changes)


@pytest.mark.heavy
@pytest.mark.parametrize("sharing", ["none", "mlp", "all"])
def test_frozen_teacher_of_a_file_has_the_heads_of_the_file(tmp_path, x, sharing):
  if sharing == "none":
    content, *heads = dinov2()
    for module in heads:
      module.load_state_dict({name: tensor.half().float() for name, tensor in module.state_dict().items()})
  else:
    content, _, teacher = ibot("shared" if sharing == "all" else K2)
    heads = [teacher, teacher]
  made = build_student(
    write(tmp_path, content), task__sharing=sharing, **PATCHES | {"task__hidden": 6, "task__patch_hidden": 7}
  )
  arrays = jax.tree.map(jnp.asarray, made.task.frozen_models["teacher"].load())
  assert arrays.keys() == made.frozen_weight_shapes["teacher"].keys()
  head, patch_head = made.task.teacher_heads
  check_logits(head.apply(arrays, "task/head", x), heads[0], x)
  last = "last_layer2" if sharing == "mlp" else "last_layer"
  check_logits(made.task.apply_patch_head(patch_head, arrays, x), heads[1], x, last)
  np.testing.assert_allclose(arrays["cls"], ARRAYS["cls"] + 1, atol=1e-3)  # the file of DINOv2 has float16


@pytest.mark.heavy
@pytest.mark.parametrize(("key", "value"), [("task__ema", "false"), ("task__prefix", "student.")])
def test_keys_of_the_task_select_the_weights_of_the_frozen_teacher(tmp_path, key, value):
  path = write(tmp_path, ibot("shared")[0])
  shared = {"task__sharing": "all", **PATCHES, "task__hidden": 6, "task__patch_hidden": 7}
  default = build_student(path, **shared).task.frozen_models["teacher"]
  np.testing.assert_array_equal(default.load()["cls"], ARRAYS["cls"] + 1)
  assert any("--config.task.ema=false" in note for note in default.notes)
  chosen = build_student(path, **shared, **{key: value}).task.frozen_models["teacher"]
  np.testing.assert_array_equal(chosen.load()["cls"], ARRAYS["cls"])


@pytest.mark.long
@pytest.mark.parametrize(("key", "value"), [("task__gram__ema", "false"), ("task__gram__prefix", "student.")])
def test_keys_of_gram_anchoring_select_the_weights_of_its_teacher(tmp_path, key, value):
  path = write(tmp_path, ibot("shared")[0])
  anchored = {"task__gram__name": "anchor", "task__gram__teacher": str(path), **PATCHES, **NORMALISED}
  for changes, expected in (({}, ARRAYS["cls"] + 1), ({key: value}, ARRAYS["cls"])):
    teacher = build_run("none", "dinov2", **anchored, **changes).task.frozen_models["gram"]
    np.testing.assert_array_equal(teacher.load()["cls"], expected)


def remove_layer(content):
  del content["teacher"]["dino_head.mlp.2.weight"], content["teacher"]["dino_head.mlp.2.bias"]


def narrow_layer(content):
  content["teacher"]["ibot_head.mlp.2.weight"] = torch.ones(HIDDEN, HIDDEN + 1)


def remove_mlp(content):
  for name in [name for name in content["teacher"] if name.startswith("dino_head.mlp")]:
    del content["teacher"][name]


@pytest.mark.parametrize(("change", "expected"), [
  (remove_layer, "lacks task/head/layer1/bias"),
  (narrow_layer, r"unexpected parameter task/patch_head/layer1/kernel of shape \(13, 12\)"),
  (remove_mlp, "has no heads for images, but the student has sharing='none'"),
  (lambda content: content["teacher"].pop("dino_head.last_layer.weight_v"), "has no heads for images"),
])  # fmt: skip
def test_frozen_teacher_with_incomplete_heads_is_an_error(tmp_path, change, expected):
  content, *_ = dinov2()
  change(content)
  with pytest.raises(ConfigError, match=expected):
    _ = build_student(write(tmp_path, content), **PATCHES).task.teacher_heads


def test_frozen_teacher_for_other_images_is_an_error(tmp_path):
  path = write(tmp_path, dinov2()[0])
  with pytest.raises(
    ConfigError, match=r"config\.task\.teacher: .*normalised differently.*mean='\(0\.485,0\.456,0\.406\)'"
  ):
    build_student(path, data__mean="(0.5,0.5,0.5)", **PATCHES)


def test_heads_are_read_only_for_a_frozen_model_that_needs_them(tmp_path):
  content, *_ = dino()
  content["teacher"]["head.mlp.0.bias"][0] = float("nan")
  path = str(write(tmp_path, content))
  weights = importers.open_weights(path, 32, "float32")
  assert weights.task == {} and weights.load().keys() == ARRAYS.keys()
  assert weights.normalised["mean"] == (0.485, 0.456, 0.406)
  weights = importers.open_weights(path, 32, "float32", task_paths=["task/head/.*"])
  assert weights.task["task/head/layer0/kernel"] == (WIDTH, HIDDEN) and "task/center" not in weights.task
  with pytest.raises(ConfigError, match=r"head\.mlp\.0\.bias"):
    weights.load()
