"""Files of DINO, iBOT and DINOv2 with self-distillation heads, saved by PyTorch modules with the authors' names.

The names are those in the state dicts of these classes:

- DINOHead and MultiCropWrapper of facebookresearch/dino at 7c446df
- iBOTHead and iBOTLoss of bytedance/ibot at da316d8
- SSLMetaArch of facebookresearch/dinov2 at b8931f7

MLPs are Sequentials with GELU between the layers. Last layers have the weight norm of torch.nn.utils. Names of students
have the prefix of DistributedDataParallel. Losses have the buffer "center".
"""

import dataclasses

import jax
import numpy as np
import pytest

from tests import runs, small_weights
from vit_jax import importers
from vit_jax.corpora import builders
from vit_jax.training import build

torch = pytest.importorskip("torch")

WIDTH, HIDDEN, BOTTLENECK, K, K2 = 64, 12, 8, 24, 20
MODEL = small_weights.described(classes=0)
ARRAYS = small_weights.arrays(MODEL)


def linear(inputs, outputs, bias=True):
  layer = torch.nn.Linear(inputs, outputs, bias=bias)
  torch.nn.init.normal_(layer.weight)
  return layer


def last_layer(prototypes, fixed):
  layer = torch.nn.utils.weight_norm(linear(BOTTLENECK, prototypes, bias=False))
  layer.weight_g.data = torch.ones(prototypes, 1) if fixed else torch.rand(prototypes, 1) + 0.5
  return layer


class Head(torch.nn.Module):
  """A head: MLP, normalisation, and one or two last layers."""

  def __init__(self, prototypes, fixed=False, second=None, plain=False):
    super().__init__()
    gelu = torch.nn.GELU
    self.mlp = torch.nn.Sequential(
      linear(WIDTH, HIDDEN), gelu(), linear(HIDDEN, HIDDEN), gelu(), linear(HIDDEN, BOTTLENECK)
    )
    self.last_layer = linear(BOTTLENECK, prototypes, bias=False) if plain else last_layer(prototypes, fixed)
    if second == "shared":
      self.last_layer2 = self.last_layer
    elif second:
      self.last_layer2 = last_layer(second, fixed)

  def forward(self, x, last="last_layer"):
    return getattr(self, last)(torch.nn.functional.normalize(self.mlp(x), dim=-1))


def backbone(shift=0.0, **more):
  """Returns the tensors of a backbone. A shift distinguishes student and teacher."""
  tensors = importers.export_tensors(ARRAYS, MODEL, "timm")
  return {name: torch.tensor(np.asarray(array) + np.float32(shift)) for name, array in tensors.items()} | more


def under(prefix, tensors):
  return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def state(module, prefix):
  return under(prefix, module.state_dict())


def dino(**arguments):
  """Returns the content of a file of main_dino.py, and its heads of student and teacher."""
  heads = Head(K, **arguments), Head(K, **arguments)
  content = {
    "student": under("module.backbone.", backbone()) | state(heads[0], "module.head."),
    "teacher": under("backbone.", backbone(1.0)) | state(heads[1], "head."),
    "optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 0.1}]},
    "epoch": 800,
    "dino_loss": {"center": torch.randn(1, K)},
  }
  return content, *heads


def ibot(second):
  """Returns the content of a file of main_ibot.py. Only the student has a token for masked patches."""
  heads = Head(K, second=second), Head(K, second=second)
  content = {
    "student": under("module.backbone.", backbone(masked_embed=torch.full((1, WIDTH), 0.3)))
    | state(heads[0], "module.head."),
    "teacher": under("backbone.", backbone(1.0)) | state(heads[1], "head."),
    "ibot_loss": {"center": torch.randn(1, K), "center2": torch.randn(1, 1, K if second == "shared" else second)},
  }
  return content, *heads


def dinov2():
  """Returns the content of a teacher_checkpoint.pth of DINOv2 with separate heads, in float16."""
  heads = Head(K), Head(K2)
  tensors = under("backbone.", backbone(1.0, mask_token=torch.full((1, WIDTH), 0.25)))
  tensors |= state(heads[0], "dino_head.") | state(heads[1], "ibot_head.")
  return {"teacher": {name: tensor.half() for name, tensor in tensors.items()}}, *heads


RUN = {
  "data.name": "digits", "model.name": "ViT-S/8", "model.depth": "2", "model.width": str(WIDTH), "model.heads": "2",
  "model.hidden": "96", "task.hidden": str(HIDDEN), "task.prototypes": str(K), "task.bottleneck": str(BOTTLENECK),
  "optim.accumulate": "1", "batch": "8", "total": "2",
}  # fmt: skip
PATCHES = {"task__patch_hidden": HIDDEN, "task__patch_bottleneck": BOTTLENECK, "task__patch_prototypes": K2}


def write(tmp_path, content):
  torch.save(content, tmp_path / "checkpoint.pth")
  return tmp_path / "checkpoint.pth"


def build_run(path, recipe, **changes):
  """Builds a run that starts from a file."""
  builders.prepare_dataset("digits")
  run = runs.run(f"configs/{recipe}.py:glyphs", RUN, init__from=str(path), **changes)
  return build.build(dataclasses.replace(run, evals={}), jax.devices()[:1])


def check_logits(logits, head, x, last="last_layer"):
  """Compares logits of vit_jax with those of the PyTorch module."""
  with torch.no_grad():
    expected = head(torch.tensor(x), last).numpy()
  np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
