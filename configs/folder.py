"""Any ViT or compact transformer from scratch on a folder of photographs, <split>/<class>/*.jpg or <class>/*.jpg.

    python -m vit_jax.train --config=folder:ViT-S/16 --workdir=runs/photos --config.data.path=/my/photos

Without split folders, a seeded fifth of each class is held out as `test`. Without a folder `val`, a tenth of the
training images of each class is held out for validation. The validation split is measured five times, and `test` once,
at the end (`--config.data.validation=0` trains on all images). Learning rate, decay and clipping are those of the plain
ViT-S/16 baselines (Beyer et al. 2022, arXiv:2205.01580). The batch size suits a single accelerator.
"""

from ml_collections import ConfigDict

from vit_jax.config import recipe


def get_config(model: str = "ViT-S/16") -> ConfigDict:
  """Returns the run for a model. Names of compact transformers contain the image size (cct_7_3x1_32_sine)."""
  sizes = [int(word) for word in model.split("_")[2:] if word.isdigit()]
  size = sizes[-1] if sizes else 224
  return recipe(
    model=dict(name=model),
    data=dict(name="folder", image_size=size),
    optim=dict(name="adamw", lr=1e-3, weight_decay=0.1, warmup="10%", clip=1.0),
    total="90ep",
    batch=64,
  )
