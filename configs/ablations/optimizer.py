"""Muon against AdamW at equal steps, each at three rates: a ViT-Lite-size model on the digits, five seeds.

Command:   python -m vit_jax.sweep --config=configs/ablations/optimizer.py --workdir=runs/optimizer --parallel=2
Hardware:  two CPU cores
Result:    docs/results.md
"""

from vit_jax.config import product, recipe


def get_config():
  """A CCT of four layers and 36 tokens by AdamW."""
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
    total="225",
    batch=64,
    evals=dict(test=dict(name="accuracy", every="100%")),
    checkpoint=dict(every="100%"),
  )


def sweep():
  """Both rules at three rates each, with five seeds."""
  return product({"optim.name": ("adamw", "muon"), "optim.lr": (1e-3, 3e-3, 1e-2), "seed": range(5)})
