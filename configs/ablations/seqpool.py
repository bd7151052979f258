"""SeqPool and the class token, with patches and with convolutions: section 4 of the CCT paper (arXiv:2104.05704).

Command:   python -m vit_jax.sweep --config=ablations/seqpool --workdir=runs/seqpool --parallel=2
Hardware:  two CPU cores, 4.2 minutes
Result:    class token 97.4 ± 0.4 % with patches, 98.8 ± 0.7 with convolutions, SeqPool 96.6 ± 0.6 and 98.6 ± 0.3.
           With SeqPool, convolutions help as in the paper. Three seeds do not decide whether SeqPool helps; see
           docs/results/ablations.md
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import product, recipe


def get_config() -> ConfigDict:
  """Returns a CCT of four layers and 36 tokens, on all training images."""
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
  """Returns trials of ViT-Lite, CVT (ViT-Lite with SeqPool), CCT with a class token, and CCT, with three seeds."""
  return product({"model.name": ("vit_2_4_32", "cct_2_3x2_32"), "model.pool": ("cls", "seqpool"), "seed": range(3)})
