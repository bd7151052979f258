"""ViT-S/16 from scratch on ImageNet-1k: the plain baseline of Beyer et al. 2022 (arXiv:2205.01580).

Command:   python -m vit_jax.train --config=vit_s16_i1k --workdir=runs/s16
           This trains for 90 epochs. vit_s16_i1k:150ep and :300ep train longer
Hardware:  TPU v3-8, 6 to 7 hours for 90 epochs in float32 (big_vision).
           Planned hours without evaluations (vit_jax.plan): 6.2 in float32, 5.5 in bfloat16, and 4.4 in bfloat16 with
           --config.optim.accumulate=2
Result:    published: 76.5 % top-1 on the validation images for 90 epochs, 78.5 % for 150, 80.0 % for 300 (table 1);
           reproduced by others: 76.4 to 77.3 % for 90, 79.75 % for 300 (github.com/EIFY/mup-vit, issue 6)
"""

from ml_collections import ConfigDict

from vit_jax.config import recipe

LENGTHS = ("90ep", "150ep", "300ep")


def get_config(length: str = "90ep") -> ConfigDict:
  """Returns the run for a length with a published result."""
  if length not in LENGTHS:
    raise ValueError(f"unknown length {length!r}. Allowed: {', '.join(LENGTHS)}. Others: --config.total=60ep")
  return recipe(
    model=dict(
      name="ViT-S/16",
      head=dict(name="gap", pre_logits=384),
      position=dict(name="sincos2d"),
      dtype="bfloat16",
    ),
    data=dict(
      name="imagenet2012",
      train="train[:99%]",  # the rest is for choices that must not use the validation images
      policy=dict(name="randaugment", layers=2, magnitude=10),
      mixing=dict(name="mixup", alpha=0.2, partner="rolled", share="larger"),
      test_crop=dict(name="centre", resize=256),
    ),
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
    total=length,
    batch=1024,
    checkpoint=dict(every="1k"),
    evals=dict(
      minival=dict(name="accuracy", split="train[99%:]", every="5%"),
      validation=dict(name="accuracy", split="validation", every="5%"),
    ),
  )
