"""Teachers and students of self-distillation, written for timm, Transformers and DINOv2's code, and computed there."""

import contextlib
import dataclasses
import io

import jax
import numpy as np
import pytest
import safetensors.numpy

from examples import photographs
from tests import peers, runs, self_distillation
from vit_jax import convert, importers, models
from vit_jax.training import build, loop

pytestmark = pytest.mark.long

SIZE = {"model.width": "64", "model.heads": "4", "model.hidden": "128", "model.depth": "2", "model.dtype": "float32"}
SHORT = {"total": "4", "batch": "8", "optim.lr": "0.01", "optim.schedule.end": "0.0", "optim.warmup": "0"}
# Recipes of published models with patches of 16 and 14 pixels. That of `dinov2` has registers and layer scales.
RUNS = {
  "dino": ("configs/dino.py:S/16,100", {"data.image_size": "32", "task.local_size": "16"}),
  "dinov2": ("configs/dinov2.py:folder", {"data.image_size": "28", "task.local_size": "14", "init.from": "none"}),
}
IMAGES = np.random.default_rng(0).normal(size=(3, 32, 32, 3)).astype(np.float32)


@pytest.fixture(params=RUNS)
def trained(request, tmp_path):
  """A task, and the workdir of a short run on photographs."""
  folder = tmp_path / request.param
  workdir, (config, changes) = folder / "run", RUNS[request.param]
  data = {"data.name": "folder", "data.path": str(folder / "photos"), "data.test": "test"}
  run = runs.run(config, self_distillation.KEYS[request.param] | SIZE | SHORT | changes | data)
  run = dataclasses.replace(run, evals={})
  with contextlib.redirect_stdout(io.StringIO()):
    photographs.main(str(folder / "photos"))
    loop.train(build.build(run, jax.devices()[:1]), workdir)
  return request.param, workdir


def compute_expected(workdir, ema):
  """Returns images, and the features of the student or the teacher."""
  description, arrays = importers.load(workdir, ema=ema)
  images = IMAGES[:, : description.image_size, : description.image_size]
  return images, np.asarray(models.make_functional(description).create(arrays)(images))


def compute_timm(folder, images):
  """Returns the features of timm's model of a folder."""
  import torch

  model = peers.timm().create_model(f"local-dir:{folder}", pretrained=True).eval()
  with torch.no_grad():
    return model(torch.tensor(images.transpose(0, 3, 1, 2))).numpy()


def compute_transformers(folder, images):
  """Returns the normalised class token of the model of Transformers in a folder."""
  import torch

  model = peers.transformers().AutoModel.from_pretrained(folder).eval()
  with torch.no_grad():
    return model(pixel_values=torch.tensor(images.transpose(0, 3, 1, 2))).last_hidden_state[:, 0].numpy()


def compute_dinov2(folder, images):
  """Returns the class token of DINOv2's model, from the names of its file and the formulas of its code."""
  import torch
  from torch.nn import functional

  tensors = {
    name: torch.tensor(array) for name, array in safetensors.numpy.load_file(folder / "model.safetensors").items()
  }

  def dense(x, name):
    return functional.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])

  def norm(x, name):
    return functional.layer_norm(x, x.shape[-1:], tensors[f"{name}.weight"], tensors[f"{name}.bias"], 1e-6)

  pixels, kernel = torch.tensor(images.transpose(0, 3, 1, 2)), tensors["patch_embed.proj.weight"]
  patches = functional.conv2d(pixels, kernel, tensors["patch_embed.proj.bias"], stride=kernel.shape[-1])
  x = patches.flatten(2).transpose(1, 2)
  x = torch.cat([tensors["cls_token"].expand(len(x), -1, -1), x], 1) + tensors["pos_embed"]
  x = torch.cat([x[:, :1], tensors["register_tokens"].expand(len(x), -1, -1), x[:, 1:]], 1)
  count, tokens, width = x.shape
  for i in range(2):
    block = f"blocks.{i}"
    packed = dense(norm(x, f"{block}.norm1"), f"{block}.attn.qkv").reshape(count, tokens, 3, 4, width // 4)
    q, k, v = packed.permute(2, 0, 3, 1, 4)
    weights = torch.softmax(q @ k.transpose(-2, -1) / (width // 4) ** 0.5, -1)
    mixed = dense((weights @ v).transpose(1, 2).reshape(count, tokens, width), f"{block}.attn.proj")
    x = x + tensors[f"{block}.ls1.gamma"] * mixed
    hidden = functional.gelu(dense(norm(x, f"{block}.norm2"), f"{block}.mlp.fc1"))
    x = x + tensors[f"{block}.ls2.gamma"] * dense(hidden, f"{block}.mlp.fc2")
  assert not tensors["mask_token"].any()
  return norm(x, "norm")[:, 0].numpy()


# The code of DINO has the names of timm.
LAYOUTS = {
  "dino": {"timm": compute_timm, "hf": compute_transformers},
  "dinov2": {"timm": compute_timm, "hf": compute_transformers, "dinov2": compute_dinov2},
}


def test_other_libraries_compute_the_features_of_teacher_and_student(trained, tmp_path):
  task, workdir = trained
  for layout, compute in LAYOUTS[task].items():
    found = []
    for name, flags, ema in (("teacher", [], True), ("student", ["--no-ema"], False)):
      folder = tmp_path / layout / name
      with contextlib.redirect_stdout(io.StringIO()):
        convert.main([str(workdir), str(folder / "model.safetensors"), f"--layout={layout}", *flags])
      images, expected = compute_expected(workdir, ema)
      found.append(compute(folder, images))
      np.testing.assert_allclose(found[-1], expected, rtol=0, atol=1e-5, err_msg=f"{layout}, {name}")
    assert np.abs(found[0] - found[1]).max() > 1e-2
