"""Tokenizers of images: patches, or one to three convolutions of 3 x 3 or 7 x 7, as in the names of CCT.

Command:   python -m vit_jax.sweep --config=ablations/tokenizer --workdir=runs/tokenizer --parallel=2
Hardware:  two CPU cores, 6.9 minutes
Result:    three convolutions 99.1 ± 0.6 % on test, two 98.6 ± 0.3 %, one of 7 x 7 98.7 ± 0.4 %, patches of 8
           96.7 and of 4 96.6 %, one of 3 x 3 93.8 ± 2.5 %; see docs/results/ablations.md
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import recipe


def get_config() -> ConfigDict:
  """Returns a CCT of four layers, on all training images. Two convolutions of 3 x 3 convert 24 px to 36 tokens."""
  return recipe(
    model=dict(name="cct_2_3x2_32", width=64, depth=4, heads=2, hidden=128),
    data=dict(
      name="digits",
      image_size=24,
      crop=dict(name="resize"),
      test_crop=dict(name="resize"),
      flip=False,
      warp=dict(name="affine", degrees=15.0, translate=0.1, scale=(0.75, 1.25), shear=15.0),
    ),
    optim=dict(name="adamw", lr=3e-3, weight_decay=0.05, warmup="10%", schedule=dict(name="cosine"), clip=1.0),
    total="20ep",
    batch=64,
    evals=dict(test=dict(name="accuracy", every="100%")),
    checkpoint=dict(every="100%"),
  )


def sweep() -> list[Mapping[str, Any]]:
  """Returns trials of six tokenizers with three seeds.

  Two tokenizers cut patches of 8 and 4 pixels. Four use convolutions: 3 x 3 with 9, 36 and 144 tokens, 7 x 7 with 36.
  """
  tokenizers = ((8, 0), (4, 0), (3, 3), (3, 2), (3, 1), (7, 1))  # kernel size, number of convolutions; 0 means patches
  return [
    {"model.kernel": kernel, "model.convolutions": convolutions, "seed": seed}
    for kernel, convolutions in tokenizers
    for seed in range(3)
  ]
