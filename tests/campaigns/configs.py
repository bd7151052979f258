"""Tests the errors for mistakes in configs: python -m tests.campaigns.configs [N] [--seed S]

The campaign draws N shipped configs (default 1,000) and applies one to three mutations to each. A mutated key is
misspelt, too deep or empty. A mutated value has another type, or is out of range, huge, not finite or hostile.

Each config is resolved and built like a run, without compilation. It must build, or end within 40 seconds in one short
ConfigError that names the place. The campaign prints a line for each failure, and then `N passed, M failed`. The exit
code is 1 if a config failed. tests/configs/test_mistakes.py does the same with fewer configs.
"""

import argparse
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["TFDS_DATA_DIR"] = "/nowhere"

import cv2
import jax
import numpy as np

from tests import mutations, recipes
from vit_jax import config
from vit_jax.data import catalog
from vit_jax.parallel import hardware
from vit_jax.schema import show
from vit_jax.training import build

ARGUMENTS = {  # arguments of the configs that accept one
  "vit_i1k": ("B/16", "Ti/16"), "vit_i21k": ("L/16", "B/32"), "vit_jft": ("H/14",), "vit_g_jft": ("G/14",),
  "vit_mpp": ("imagenet21k,L/16", "digits"), "mae": ("H/14,1600ep", "B/16,finetune", "digits"),
  "noisy_student": ("digits,student", "imagenet,teacher", "imagenet,student"),
  "dino": ("S/16,800", "glyphs"), "dinov2": ("folder", "glyphs"),
  "cct_cifar": ("cct_7_3x1_32_sine,cifar100,1500", "cvt_7_4_32,cifar10,5000"),
  "finetune": ("cifar10", "pets", "folder,ViT-Ti/16,96"),
}  # fmt: skip
# Models of other families for `finetune`.
MODELS = (
  "swin_tiny_patch4_window7_224",
  "efficientnet_b0",
  "R50x1",
  "Mixer-S/16",
  "R26+S/32",
  "deit_tiny_distilled_patch16_224",
)
SECONDS = 40  # limit of processor time; an EfficientNet takes 15; the limit of elapsed time is ten times as long


def main() -> int:
  """Mutates and builds configs, counts failures, and returns the exit code."""
  parser = argparse.ArgumentParser("python -m tests.campaigns.configs", description=__doc__)
  parser.add_argument("count", nargs="?", type=int, default=1000, help="number of mutated configs")
  parser.add_argument("--seed", type=int, default=0, help="seed of the mutations")
  args = parser.parse_args()
  hardware.get_memory = lambda device: None  # the memory of this machine does not matter
  signal.signal(signal.SIGALRM, raise_timeout)
  failed, builds = 0, 0
  with tempfile.TemporaryDirectory() as photos:
    bases = list_configs(photos)
    for number in range(args.count):
      draw = random.Random(f"{args.seed}/{number}")
      name, flags, known = draw.choice(bases)
      changes = [mutations.mutation(draw, known) for _ in range(draw.choice((1, 1, 2, 3)))]
      started = time.process_time()
      problem = attempt(name, flags, changes)
      seconds = time.process_time() - started
      if problem == "built":
        builds, problem = builds + 1, None
      problem = problem or (f"took {seconds:.0f} s" if seconds > SECONDS else None)
      if problem:
        failed += 1
        print(f"{number}: {name} with {show(changes)}: {problem}", flush=True)
  print(f"{args.count - failed} passed, {failed} failed ({builds} of them built)")
  return bool(failed)


def raise_timeout(*_):
  raise TimeoutError(f"no end after {10 * SECONDS} s")


def list_configs(photos: str) -> list[tuple[str, dict[str, str], dict[str, object]]]:
  """Returns (config, required flags, keys) of every shipped config, and of `finetune` with other models."""
  for name, i in ((name, i) for name in "abc" for i in range(200)):
    pathlib.Path(photos, name).mkdir(exist_ok=True)
    cv2.imwrite(f"{photos}/{name}/{i}.jpg", np.full((8, 8, 3), i, np.uint8))
  result = []
  names = [f"{name}:{argument}" for name in recipes.NAMES for argument in ARGUMENTS.get(name, ())]
  names += [f"finetune:cifar10,{model},224" for model in MODELS]
  for name in [*recipes.NAMES, *names]:
    needed = recipes.needed(name, {"init.from": "weights.npz", "data.path": photos})
    run = recipes.run(name, **needed)
    unit = len(jax.devices()) * run.optim.args["accumulate"]
    if run.batch % unit:  # a recipe for fewer devices
      needed["batch"] = str(-(-run.batch // unit) * unit)
    result.append((name, needed))
  return [(name, needed, mutations.keys(recipes.run(name, **needed))) for name, needed in result]


def attempt(name: str, needed: dict[str, str], changes: list[tuple[str, object]]) -> str | None:
  """Builds a changed config. Returns "built", a problem with the error, or None for a good error."""
  changed = [key for key, _ in changes]
  signal.alarm(10 * SECONDS)
  try:
    edited = recipes.load(name, **needed)
    # Two layers are enough, and build faster than many.
    if "depth" in build.complete(config.resolve(edited)).model.args:
      edited.model.depth = 2
    for key, value in changes:
      mutations.apply(edited, key, value)
    mutations.built(edited, jax.devices(), catalog.open_known_split)
  except BaseException as error:
    if isinstance(error, KeyboardInterrupt):
      raise
    return mutations.wrong(error, changed)
  finally:
    signal.alarm(0)
  return "built"


if __name__ == "__main__":
  sys.exit(main())
