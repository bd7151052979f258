"""Tests that a change of the code does not change the train steps: python -m tests.campaigns.programs FILE

The campaign lowers the train step of every shipped config and of a small model of every family. It uses one device and
8 devices. It hashes the text of each program without locations and without names of functions and results, which do not
affect the computation. The first call writes FILE. Later calls compare with FILE.

The campaign prints a line for each difference and for each program that FILE lacks, and then `N passed, M failed`. The
exit code is 1 if a program of FILE differs or is missing.
The campaign takes about four minutes on two cores. It does not require data or accelerators.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["TFDS_DATA_DIR"] = "/nowhere"

import cv2
import jax
import numpy as np

from vit_jax import config
from vit_jax.config import flags
from vit_jax.data import catalog
from vit_jax.parallel import hardware
from vit_jax.training import build

ROOT = pathlib.Path(__file__).parent.parent.parent
WHOLE = (
  "digits", "vit_s16_i1k", "vit_i1k", "vit_i21k", "vit_jft", "vit_g_jft", "cct_cifar", "folder", "finetune", "vit_mpp",
  "mae", "dino", "algoperf_vit",
)  # fmt: skip
SHALLOW = (  # with two layers
  "vit_i1k:Ti/16", "vit_i1k:B/16,strong2", "vit_i21k:B/32", "vit_i21k:B/16,augreg", "vit_jft:L/32", "vit_g_jft:G/14",
  "vit_mpp:imagenet,L/16", "dinov2", "dinov3", "mae:H/14", "mae:L/16,finetune", "noisy_student:imagenet,student",
  "cct_cifar:cct_7_3x1_32_sine,cifar100,1500", "cct_cifar:cvt_7_4_32,cifar10,5000", "cct_cifar:vit_7_4_32,cifar100",
  *(f"finetune:{name}" for name in ("imagenet", "cifar100", "pets", "flowers", "digits", "folder")),
)  # fmt: skip
MODELS = {  # changes of `digits`, with settings for 32 pixels
  "hybrid": {"model.name": "R+Ti/16", "model.depth": "2"},
  "resnet hybrid": {"model.name": "R26+S/32", "model.depth": "2"},
  "DeiT, distilled": {"model.name": "deit_tiny_distilled_patch16_224", "model.depth": "2"},
  "timm": {"model.name": "vit_tiny_patch16_224", "model.depth": "2", "model.layer_scale": "1e-3"},
  "hugging face": {"model.name": "google/vit-base-patch16-224-in21k", "model.depth": "1"},
  "fused": {"model.name": "ViT-Ti/8", "model.depth": "2", "model.attention": "fused"},
  "scanned": {"model.name": "ViT-Ti/8", "model.depth": "3", "model.scan": "true", "model.remat": "projections"},
  "relative": {"model.name": "ViT-Ti/8", "model.depth": "2", "model.position": "relative"},
  "factored": {"model.name": "ViT-Ti/8", "model.depth": "2", "model.position": "factored", "model.dropout": "0.1"},
  "compact, scanned": {"model.scan": "true", "model.remat": "full", "model.norm_order": "pre"},
  "Mixer": {"model.name": "Mixer-S/16", "model.depth": "2"},
  "BiT": {"model.name": "R50x1"},
  "Swin": {"model.name": "swin_tiny_patch4_window7_224", "data.image_size": "224"},
  "EfficientNet": {"model.name": "efficientnet_b0"},
  "layer decay": {"model.name": "ViT-Ti/8", "model.depth": "2", "optim.layer_decay": "0.75", "optim.ema": "0.99"},
  "frozen": {"model.name": "ViT-Ti/8", "model.depth": "2", "optim.frozen": "['(?!head).*']"},
  "Schedule-Free": {"optim.name": "schedule_free", "optim.schedule": "constant"},
  "SAM": {"optim.name": "sam"},
}


def main() -> int:
  """Writes the hashes, or compares them with those in the file, and returns the exit code."""
  parser = argparse.ArgumentParser("python -m tests.campaigns.programs", description=__doc__)
  parser.add_argument(
    "file", type=pathlib.Path, help="hashes by config; written if the file does not exist, else compared"
  )
  file = parser.parse_args().file
  hardware.get_memory = lambda device: None  # the memory of this machine does not matter
  after = compute_hashes()
  if not file.exists():
    file.write_text(json.dumps(after, indent=1) + "\n")
    print(f"{len(after)} programs written to {file}, to compare with\n0 passed, 0 failed")
    return 0
  before = json.loads(file.read_text())
  new = [name for name in after if name not in before]
  differ = [name for name in before if before[name] != after.get(name)]
  lines = [*(f"new, not compared: {name}" for name in new), *(f"differs: {name}" for name in differ)]
  print(*lines, f"{len(before) - len(differ)} passed, {len(differ)} failed", sep="\n")
  return bool(differ)


def compute_hashes() -> dict[str, str]:
  """Returns the SHA-256 of the train step by config and number of devices."""
  hashed = {}
  with tempfile.TemporaryDirectory() as photos:
    for name, i in ((name, i) for name in "abc" for i in range(200)):
      pathlib.Path(photos, name).mkdir(exist_ok=True)
      cv2.imwrite(f"{photos}/{name}/{i}.jpg", np.full((8, 8, 3), i, np.uint8))
    rows = [(name, name, {}) for name in WHOLE]
    rows += [(name, name, {"model.depth": "2"}) for name in SHALLOW]
    rows += [(name, "digits", changes) for name, changes in MODELS.items()]
    for name, recipe, changes in rows:
      file, _, argument = recipe.partition(":")
      extra = {"init.from": "weights.npz"} if "finetune" in recipe else {}
      extra |= {"data.path": photos} if "folder" in recipe or ",student" in recipe else {}
      for devices, mesh in ((1, {"mesh.fsdp": "1"}), (8, {})):
        edited = flags.load_config(f"{ROOT}/configs/{file}.py{argument and ':'}{argument}", extra | changes | mesh)
        digest = hashed[f"{name}@{devices}"] = compute_hash(edited, jax.devices()[:devices])
        print(f"{name}@{devices} {digest[:12]}", flush=True)
  return hashed


def compute_hash(edited, devices) -> str:
  """Returns the hash of one train step."""
  parts = build.build(build.complete(config.resolve(edited)), devices, catalog.open_known_split)
  text = parts.step.lower(parts.state_shapes, parts.batch_shapes, parts.frozen_weight_shapes).as_text()
  text = re.sub(r"jax\.result_info = \"[^\"]*\"", "", text)
  names: dict[str, str] = {}
  text = re.sub(r"@[\w.]+", lambda match: names.setdefault(match[0], f"@{len(names)}"), text)
  return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
  sys.exit(main())
