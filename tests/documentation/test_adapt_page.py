"""docs/guides/adapt-dinov2.md as printed, with random weights of the published shapes and two steps of training."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from examples import photographs
from tests.documentation import checks, extraction
from tests.documentation.test_execution import environment
from vit_jax import importers

pytestmark = pytest.mark.full

PAGE = extraction.ROOT / "docs/guides/adapt-dinov2.md"
WIDTHS = {"dinov2_vits14_reg4_pretrain.pth": 384, "dinov2_vitb14_reg4_pretrain.pth": 768}
STEPS = {"total": "2", "batch": "2", "task.group": "2", "task.local_crops": "1", "task.prototypes": "64",
         "task.patch_prototypes": "64", "model.dtype": "float32", "checkpoint.every": "100%"}  # fmt: skip
INSPECTED = "whole/dinov2_vitb14_reg4_pretrain.pth"
# Flags that are added to each command: fewer steps, images and prototypes, and smaller images. ViT-B has two blocks,
# because a state with twelve blocks takes 1.4 GB. The inspected file has all of them. Fine-tuning scans the twelve
# blocks of ViT-S, because their compilation takes two thirds of its time.
ADDED = [
  STEPS | {"data.image_size": "112", "task.local_size": "56"},
  STEPS | {"data.image_size": "56", "task.local_size": "28", "model.depth": "2"},
  {"batch": "4"},
  {"batch": "4"},
  {},
  {},
  {},
  {"total": "1", "batch": "2", "data.image_size": "56", "model.dtype": "float32", "model.scan": "true"},
  {},
]


def write_published(path, width, depth=12):
  """Writes a file with names and shapes of the authors: 4 registers, 37 x 37 patches, and random values."""
  shapes = {
    "cls_token": (1, 1, width), "pos_embed": (1, 1 + 37**2, width), "register_tokens": (1, 4, width),
    "mask_token": (1, width), "patch_embed.proj.weight": (width, 3, 14, 14), "patch_embed.proj.bias": (width,),
    "norm.weight": (width,), "norm.bias": (width,),
  }  # fmt: skip
  for i in range(depth):
    shapes |= {f"blocks.{i}.{name}": (width,) for name in (
      "norm1.weight", "norm1.bias", "attn.proj.bias", "ls1.gamma", "norm2.weight", "norm2.bias", "mlp.fc2.bias",
      "ls2.gamma",
    )}  # fmt: skip
    shapes |= {
      f"blocks.{i}.attn.qkv.weight": (3 * width, width), f"blocks.{i}.attn.qkv.bias": (3 * width,),
      f"blocks.{i}.attn.proj.weight": (width, width), f"blocks.{i}.mlp.fc1.weight": (4 * width, width),
      f"blocks.{i}.mlp.fc1.bias": (4 * width,), f"blocks.{i}.mlp.fc2.weight": (width, 4 * width),
    }  # fmt: skip
  draw = torch.Generator().manual_seed(0)
  tensors = {name: 0.02 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}
  torch.save(tensors | {name: 1 + x for name, x in tensors.items() if "norm" in name and "weight" in name}, path)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
  """A folder with the files that the page names, after its commands. Also returns what the commands printed."""
  folder = tmp_path_factory.mktemp("adapt")
  (folder / "configs").symlink_to(extraction.ROOT / "configs")
  (folder / "whole").mkdir()
  write_published(folder / INSPECTED, 768)
  for (name, width), depth in zip(WIDTHS.items(), (12, 2), strict=True):
    write_published(folder / name, width, depth)
  photographs.main(str(folder / "labelled"))
  pictures = sorted((folder / "labelled").rglob("*.jpg"))
  (folder / "photos/all").mkdir(parents=True)
  for number, picture in enumerate(pictures):
    (folder / f"photos/all/{number}.jpg").write_bytes(picture.read_bytes())
    if int(picture.stem) > 9:  # two photographs of each class for test, and eight to compare with
      picture.unlink()
  page = PAGE.read_text().replace("--inspect FILE", f"--inspect {INSPECTED}")
  documented = [checks.words(command)[2:] for command in extraction.of_markdown(page)]
  verbs = [module.removeprefix("vit_jax.") for module, *_ in documented]
  assert verbs == ["train", "train", "fewshot", "fewshot", "convert", "convert", "predict", "train", "convert"]
  given = [
    [verb, *words[1:], *(f"--config.{key}={text}" for key, text in added.items())]
    for verb, words, added in zip(verbs, documented, ADDED, strict=True)
  ]
  done = subprocess.run(
    [sys.executable, "-m", "tests.several", json.dumps(given)],
    cwd=folder, env=environment(), capture_output=True, text=True,
  )  # fmt: skip
  assert done.returncode == 0 and done.stdout.count("exit 0\n") == 9, done.stdout[-5000:] + done.stderr[-3000:]
  return folder, done.stdout.split("exit 0\n")


def test_runs_continue_from_the_published_weights(home):
  for run, name in zip(("adapted", "adapted_b"), WIDTHS, strict=True):
    _, before = importers.load(home[0] / name)
    _, after = importers.load(home[0] / "runs" / run)
    assert after["cls"].shape[-1] == WIDTHS[name]
    assert after.keys() == before.keys()
    # The model has no position of the class token, so that row of the table is added to the token.
    before["cls"] = before["cls"] + before["position/table"][0]
    shared = [path for path in before if path != "position/table"]  # which is resampled
    for path in shared:
      np.testing.assert_allclose(after[path], before[path], atol=1e-5, err_msg=path)  # the teacher follows slowly
    _, student = importers.load(home[0] / "runs" / run, ema=False)
    assert any(np.abs(student[path] - before[path]).max() > 1e-5 for path in shared)


def test_inspection_prints_the_name_and_the_flag_of_the_page(home):
  assert "vit_base_patch14_reg4_dinov2" in home[1][-2] and "--config.model.position=learned" in home[1][-2]


def test_features_are_measured_before_and_after_at_the_same_size(home):
  for printed in home[1][2:4]:
    assert "images of 224 px" in printed
    assert all(f"knn{count}" in printed for count in (10, 20, 100, 200)), printed


def test_features_of_photographs_are_written(home):
  features = np.load(home[0] / "features.npz")
  assert any(array.shape[-1:] == (384,) and np.isfinite(array).all() for array in features.values()), {**features}


def test_next_run_starts_from_the_adapted_weights(home):
  assert (home[0] / "runs/classes/result.json").exists()


def test_exported_files_contain_the_teacher(home):
  _, exported = importers.load(home[0] / "adapted/model.safetensors")
  _, teacher = importers.load(home[0] / "runs/adapted", ema=True)
  for path, array in teacher.items():
    np.testing.assert_array_equal(exported[path], array, err_msg=path)
  _, exported = importers.load(home[0] / "adapted_hf/model.safetensors")
  for path in teacher:
    np.testing.assert_allclose(exported[path], teacher[path], atol=1e-6, err_msg=path)
