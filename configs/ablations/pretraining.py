"""Training on few or all images, with and without pre-training, motivated by section 4.3 of the ViT paper.

Command:   python -m vit_jax.prepare glyphs, and python -m vit_jax.prepare digits, once
           python -m vit_jax.train --config=glyphs --workdir=runs/glyphs
           python -m vit_jax.sweep --config=ablations/pretraining --workdir=runs/pretraining --parallel=2
           ablations/pretraining:PATH starts from the weights in PATH instead of runs/glyphs
Hardware:  two CPU cores, 15 minutes with other programs running
Result:    top-1 on test with 50, 100, 287 and 1,437 digits, three seeds: from scratch 63.9, 77.2, 80.7, 80.7 %,
           pre-trained 81.3, 91.3, 96.6, 96.2; see docs/results/ablations.md
Source:    own question, motivated by arXiv:2010.11929, section 4.3, which varies the size of the pre-training set
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import product, recipe


def get_config(weights: str = "runs/glyphs") -> ConfigDict:
  """Returns ViT-Lite-2/4 from scratch, on all training images. `sweep` also has trials from pre-trained weights."""
  whole = dict(name="resize")
  return recipe(
    model=dict(name="vit_2_4_32", pool="seqpool"),  # as in configs/glyphs.py
    data=dict(
      name="digits",
      image_size=32,
      crop=whole,
      test_crop=whole,
      flip=False,
      warp=dict(name="affine", degrees=15.0, translate=0.1, scale=(0.75, 1.25), shear=15.0),
    ),
    # Micro-batches of ten images fit into a CPU's cache; see configs/digits.py.
    optim=dict(
      name="adamw", accumulate=5, lr=3e-3, weight_decay=0.05, warmup="10%", schedule=dict(name="cosine"), clip=1.0
    ),
    total="200",
    batch=50,
    evals=dict(test=dict(name="accuracy", every="100%")),
    checkpoint=dict(every="100%"),
  )


def sweep(weights: str = "runs/glyphs") -> list[Mapping[str, Any]]:
  """Returns trials from scratch and from pre-trained weights, with three seeds each.

  They use the first 50, 100 and 287 and all 1,437 training images.
  """
  parts = ("train[:50]", "train[:100]", "train[:20%]", "train")
  return product({"init.from": (None, weights), "data.train": parts, "seed": range(3)})
