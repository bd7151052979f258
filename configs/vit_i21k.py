"""ViT on ImageNet-21k: pre-training as in Dosovitskiy et al. 2021 (arXiv:2010.11929) or AugReg (arXiv:2106.10270).

Command:   python -m vit_jax.train --config=vit_i21k:L/16 --workdir=runs/l16_i21k --config.data.path=DIR
           Sizes are B/32, B/16, L/32 and L/16. vit_i21k:B/16,augreg trains AugReg's 300 epochs, with sizes
           Ti/16, S/32, S/16, B/32, B/16 and L/16. The dataset has no public builder: DIR is your own TFDS directory
           of it, with a split `full`
Hardware:  TPU v3-128; L/16 takes 0.23k core-days (table 2), 43 hours on these 128 cores; planned 36 (vit_jax.plan)
Result:    published: B/32 44.0 %, B/16 47.9 %, L/32 45.4 %, L/16 49.9 % top-1 on held-out images (github.com/
           google-research/vision_transformer, issue 62); L/16 fine-tuned on ImageNet at 512 px 85.30 % (table 2);
           AugReg's six sizes 41, 43, 47, 48, 50, 51 % (its figure 4, no dropout, best of two weight decays)
"""

from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import recipe

PAPER = {"B/32": 768, "B/16": 768, "L/32": 1024, "L/16": 1024}  # width
AUGREG = {  # layers and magnitude of RandAugment, alpha of mixup (None: no mixup)
  "Ti/16": (0, 0, None),
  "S/32": (0, 0, None),
  "S/16": (2, 0, None),  # magnitude 0 still changes images: some operations have no magnitude
  "B/32": (2, 10, 0.2),
  "B/16": (2, 10, 0.2),
  "L/16": (2, 15, 0.5),
}

# arguments of the head, dropout rate, arguments of data and optimizer, length
Settings = tuple[dict[str, Any], float, dict[str, Any], dict[str, Any], str]


def get_config(argument: str = "L/16") -> ConfigDict:
  """Returns the run of the ViT paper for a size, or the run of AugReg: "L/16" or "L/16,augreg"."""
  size, comma, form = argument.partition(",")
  if comma and form != "augreg":
    raise ValueError(f"unknown recipe {form!r}. Use {size},augreg, or {size} for the recipe of the ViT paper")
  sizes = AUGREG if form else PAPER
  if size not in sizes:
    raise ValueError(f"unknown size {size!r}. Allowed{' for augreg' if form else ''}: {', '.join(sizes)}")
  head, dropout, data, optim, total = augreg(*AUGREG[size]) if form else paper(PAPER[size])
  return recipe(
    model=dict(name=f"ViT-{size}", head=dict(bias=-10.0, **head), dropout=dropout, dtype="bfloat16"),
    data=dict(
      name="imagenet21k",
      train="full[51200:]",
      test="full[:25600]",
      test_crop=dict(name="centre", resize=256),
      **data,
    ),
    task=dict(name="classify", loss="sigmoid"),
    optim=dict(name="adamw", lr=1e-3, warmup="10k", **optim),
    total=total,
    batch=4096,
    mesh=dict(data=-1, fsdp=8),
    checkpoint=dict(every="1k"),
    evals=dict(
      validation=dict(name="accuracy", split="full[25600:51200]", every="5%"),
      test=dict(name="accuracy", every="50%"),
    ),
  )


def paper(width: int) -> Settings:
  """Returns settings of the ViT paper: dropout, and linear decay of the learning rate.

  The last learning rate is from issue 2 of vision_transformer.

  The paper does not mention gradient clipping.
  """
  optim = dict(weight_decay=0.03, schedule=dict(name="linear", end=1e-5))
  return dict(pre_logits=width), 0.1, {}, optim, "90ep"


def augreg(layers: int, magnitude: int, alpha: float | None) -> Settings:
  """Returns settings of AugReg: no dropout, cosine decay, and augmentation that depends on the size."""
  data = dict(
    policy=dict(name="randaugment", layers=layers, magnitude=magnitude),
    mixing=dict(name="mixup", alpha=alpha, partner="rolled", share="larger") if alpha else dict(name="none"),
  )
  optim = dict(mu_dtype="bfloat16", weight_decay=1e-4, decay="independent", schedule=dict(name="cosine"), clip=1.0)
  return dict(name="gap"), 0.0, data, optim, "300ep"
