"""Features for dense probes without a download: a small ViT trained on 2,500 generated scenes.

The label of a scene is the class with the most visible pixels.

Command:   python -m vit_jax.prepare scenes, once
           python -m vit_jax.train --config=scenes --workdir=runs/scenes
           python -m vit_jax.fewshot --config=probes:dense,scenes --weights=runs/scenes
Hardware:  two CPU cores
Result:    docs/results/learning.md. Masks are not used for training. At intervals, a linear map of frozen patches is
           fitted to masks of the training images and measured on masks of the test images
"""

from ml_collections import ConfigDict

from vit_jax.config import recipe


def get_config() -> ConfigDict:
  """Returns the run with seed 0."""
  whole = dict(name="resize")
  return recipe(
    model=dict(name="ViT-Ti/8", width=96, depth=3, heads=3, hidden=192, head="gap"),
    data=dict(
      name="scenes",
      image_size=64,
      crop=dict(name="random_crop", padding=8, border="mirrored"),
      test_crop=whole,
    ),
    optim=dict(name="adamw", accumulate=4, lr=2e-3, weight_decay=0.05, warmup="5%", clip=1.0),
    total="40ep",
    batch=32,
    evals=dict(
      masks=dict(name="dense", every="25%"),
      test=dict(name="accuracy", every="25%"),
    ),
  )
