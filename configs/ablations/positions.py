"""Types and places of position embeddings: the ViT paper's appendix D.4 and table 8, at digit size.

Command:   python -m vit_jax.sweep --config=ablations/positions --workdir=runs/positions --parallel=2
Hardware:  two CPU cores, 10.6 minutes with tests running
Result:    top-1 on test, mean ± standard deviation of three seeds, measured here: none 64.0 ± 1.8 %; 1-D 95.2 ± 0.6 at
           the input, 94.4 ± 0.4 in each layer, 96.0 ± 0.6 shared; 2-D 95.0 ± 0.8, 94.6 ± 1.3, 94.4 ± 0.2; relative 90.5
           ± 1.5. As in the paper, a model without positions is far behind. All tables of positions are within two
           points of each other, wherever they are added. Unlike in the paper, relative positions are worse
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import recipe


def get_config() -> ConfigDict:
  """Returns a ViT of four layers and 36 patches, on all training images. Its positions are learned and added once."""
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
  """Returns eight settings with three seeds each.

  The positions are none, 1-D, 2-D and relative. The 1-D and 2-D tables are added at the input, in each layer, or in
  each layer with a shared table.
  """
  tables = [dict(name=name, at=at) for name in ("learned", "factored") for at in ("input", "each", "shared")]
  settings = [dict(name="none"), *tables, dict(name="relative")]
  return [{"model.position": position, "seed": seed} for position in settings for seed in range(3)]
