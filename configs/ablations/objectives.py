"""Features learned with and without labels: six starts on generated signs (glyphs) and on generated scenes.

Command:   python -m vit_jax.prepare glyphs, and the same for digits and scenes, once
           python -m vit_jax.sweep --config=ablations/objectives:glyphs --workdir=runs/starts --parallel=2
           The argument is glyphs or scenes. `make transfer` runs both and writes a table and a picture
Hardware:  two CPU cores, 7.5 minutes for both corpora
Result:    docs/results/learning.md. On digits, k-NN finds 67.6 % with random features, 67.7 with labels, 80.0 with DINO
           and 80.5 with DINOv2. On scenes, labels are the best with 40.0 %, and DINO is not better than random features
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import recipe

MODELS: dict[str, dict[str, Any]] = {  # the models of configs/glyphs.py and configs/scenes.py, which pool patches
  "glyphs": dict(name="vit_2_4_32", pool="seqpool"),
  "scenes": dict(name="ViT-Ti/8", width=96, depth=3, heads=3, hidden=192, head="gap"),
}
NOWHERE = (0.0, 0.0, 0.0)


def get_config(corpus: str = "glyphs") -> ConfigDict:
  """Returns a run that trains with labels on a corpus.

  At the end, the features are probed on digits if the corpus is glyphs, and on scenes otherwise.
  """
  if corpus not in MODELS:
    raise ValueError(f"unknown argument {corpus!r}. Allowed: {', '.join(MODELS)}")
  glyphs = corpus == "glyphs"
  whole = dict(name="resize")
  probes = dict(
    knn=dict(name="knn", neighbours=(20,), weights="softmax", temperature=0.07),
    linear=dict(name="logistic", l2=(1.0, 10.0, 100.0)),
  )
  return recipe(
    model=MODELS[corpus],
    data=dict(name=corpus, image_size=24 if glyphs else 48, test_crop=whole, flip=not glyphs),
    task=dict(name="classify", label_smoothing=0.1),
    optim=dict(name="adamw", accumulate=4, lr=2e-3, weight_decay=0.05, warmup="10%", clip=1.0),
    total="100",
    batch=64,
    evals=dict(
      probes=dict(
        name="fewshot", data=dict(name="digits" if glyphs else "scenes"), shots="all", probes=probes, every="100%"
      )
    ),
    log=dict(every="10%"),
    checkpoint=dict(every="100%"),
  )


def sweep(corpus: str = "glyphs") -> list[Mapping[str, Any]]:
  """Returns the six starts with three seeds each."""
  return [start | {"seed": seed} for start in make_starts(corpus == "glyphs").values() for seed in range(3)]


def make_starts(glyphs: bool) -> dict[str, dict[str, Any]]:
  """Returns the changes of `get_config` for each start.

  Args:
    glyphs: whether the images are glyphs. Gray signs are not flipped and need no colour jitter, blur or solarization.
  """
  whole = {
    "data.crop": dict(name="resize") if glyphs else dict(name="random_crop", padding=6, border="mirrored"),
  }
  if glyphs:
    whole["data.warp"] = dict(name="affine", degrees=10.0, translate=0.1, scale=(0.8, 1.2), shear=10.0)
  crops = dict(
    global_area=(0.4, 1.0),
    local_area=(0.1, 0.4),
    local_crops=2,
    local_size=12 if glyphs else 24,
    blur=NOWHERE,
    solarize=NOWHERE,
    jitter=0.0 if glyphs else 0.8,
    gray=0.0 if glyphs else 0.2,
    prototypes=1024,
    bottleneck=64,
    hidden=256,
  )
  patches = dict(patch_prototypes=1024, patch_bottleneck=64, patch_hidden=256)
  low, high = (dict(name="constant", value=value) for value in (0.02, 0.04))
  # In 100 steps, a teacher with the usual momentum above 0.99 remains close to the initial weights.
  teacher = {"optim.accumulate": 2, "optim.ema_schedule": dict(name="cosine", end=1.0), "optim.lr": 1e-3}
  return {
    # One step with a rate of almost zero, so that the probes measure the initial weights.
    "random": whole | {"total": 1, "optim.lr": 1e-9, "optim.warmup": 0},
    "labels": whole,
    "masked patches": whole | {"task": dict(name="masked_patches")},
    "MAE": whole | {"task": dict(name="masked_autoencoder", width=64, depth=1, heads=2)},
    "DINO": teacher | {"optim.ema": 0.95, "task": dict(name="dino", **crops, temperature=low if glyphs else high)},
    "DINOv2": teacher | {"optim.ema": 0.9, "task": dict(name="dinov2", **crops, **patches, temperature=low)},
  }
