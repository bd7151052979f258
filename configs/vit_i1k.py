"""ViT from scratch on ImageNet-1k, with augmentation that depends on the size: AugReg (Steiner et al. 2022).

Command:   python -m vit_jax.train --config=vit_i1k:S/16 --workdir=runs/augreg_s16
           Sizes are Ti/16, S/32, S/16, B/32, B/16 and L/16. vit_i1k:B/32,strong1 selects another
           augmentation
Hardware:  TPU v3-128, 32 images per core; no hours published, planned 1.0 for S/16 and 2.6 for B/16 (vit_jax.plan)
Result:    published: 76 % (Ti/16), 76 % (S/32), 82 % (S/16), 76 % (B/32), 81 % (B/16), 78 % (L/16) top-1 on the last
           percent of the training images (arXiv:2106.10270, figure 4, no dropout), best of two weight decays;
           "around 79 %" on the validation images for B/16 (big_vision, issue 7)
"""

from ml_collections import ConfigDict

from vit_jax.config import recipe

SIZES = {  # width, augmentation
  "Ti/16": (192, "light1"),
  "S/32": (384, "medium1"),
  "S/16": (384, "medium2"),
  "B/32": (768, "medium2"),
  "B/16": (768, "medium2"),
  "L/16": (1024, "medium2"),
}
AUGMENTATIONS = {  # RandAugment's layers and magnitude, alpha of mixup (None: no mixup)
  "none": (0, 0, None),
  "light1": (2, 0, None),  # magnitude 0 still changes images: some operations have no magnitude
  "light2": (2, 10, 0.2),
  "medium1": (2, 15, 0.2),
  "medium2": (2, 15, 0.5),
  "strong1": (2, 20, 0.5),
  "strong2": (2, 20, 0.8),
}


def get_config(argument: str = "S/16") -> ConfigDict:
  """Returns the run for a size, or for a size and an augmentation: "S/16" or "S/16,strong1"."""
  size, comma, augmentation = argument.partition(",")
  if size not in SIZES:
    raise ValueError(f"unknown size {size!r}. Allowed: {', '.join(SIZES)}")
  if comma and augmentation not in AUGMENTATIONS:
    raise ValueError(f"unknown augmentation {augmentation!r}. Allowed: {', '.join(AUGMENTATIONS)}")
  width, usual = SIZES[size]
  layers, magnitude, alpha = AUGMENTATIONS[augmentation or usual]
  return recipe(
    model=dict(name=f"ViT-{size}", head=dict(pre_logits=width, bias=-6.9), dtype="bfloat16"),
    data=dict(
      name="imagenet2012",
      train="train[:99%]",
      policy=dict(name="randaugment", layers=layers, magnitude=magnitude),
      mixing=dict(name="mixup", alpha=alpha, partner="rolled", share="larger") if alpha else dict(name="none"),
      test_crop=dict(name="centre", resize=256),
    ),
    task=dict(name="classify", loss="sigmoid"),
    optim=dict(
      name="adamw",
      mu_dtype="bfloat16",
      lr=1e-3,
      weight_decay=1e-4,
      decay="independent",
      warmup="10k",
      schedule=dict(name="cosine"),
      clip=1.0,
    ),
    total="300ep",
    batch=4096,
    checkpoint=dict(every="1k"),
    evals=dict(
      minival=dict(name="accuracy", split="train[99%:]", every="5%"),
      validation=dict(name="accuracy", split="validation", every="5%"),
    ),
  )
