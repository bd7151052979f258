"""Depth and width at equal FLOPs per image, motivated by appendix D.2 of the ViT paper.

Command:   python -m vit_jax.sweep --config=ablations/shape --workdir=runs/shape --parallel=2
Hardware:  two CPU cores, 8.1 minutes
Result:    four layers 95.2 ± 0.6 % on test, eight 94.3 %, two 93.5 %, one 89.8 %, sixteen 86.6 ± 4.3 %; see
           docs/results/ablations.md
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import recipe


def get_config() -> ConfigDict:
  """Returns a ViT of four layers and 36 patches, on all training images."""
  return recipe(
    model=dict(name="ViT-Ti/4", width=64, depth=4, heads=2, hidden=128, head=dict(std=0.02)),
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
  """Returns trials of five shapes, from one wide to sixteen narrow layers, with three seeds.

  The FLOPs per image of all shapes agree within 5 %.
  """
  shapes = ((1, 132), (2, 92), (4, 64), (8, 44), (16, 30))  # depth, width
  return [
    {"model.depth": depth, "model.width": width, "model.hidden": 2 * width, "seed": seed}
    for depth, width in shapes
    for seed in range(3)
  ]
