"""ViT on JFT-300M: the pre-training of Dosovitskiy et al. 2021 (arXiv:2010.11929, table 3).

Command:   python -m vit_jax.train --config=vit_jft:H/14 --workdir=runs/h14_jft --config.data.path=DIR
           Sizes are B/32, B/16, L/32, L/16 and H/14. vit_jft:L/16,7ep selects the shorter of L/16's two
           lengths. JFT is internal to Google. DIR is a TFDS directory of JFT, or of any dataset with a list of classes
           as label
Hardware:  TPU v3-512; L/16 takes 0.68k core-days and H/14 2.5k (table 2), 32 and 117 hours on these 512 cores; planned
           27 and 70 (vit_jax.plan)
Result:    published, after fine-tuning on ImageNet at 384 px (table 6): B/32 80.73 %, B/16 84.15 %, L/32 84.37 %,
           L/16 86.30 % for 7 epochs and 87.12 % for 14, H/14 88.08 %; at 512 px L/16 87.76 %, H/14 at 518 px 88.55 %
"""

from ml_collections import ConfigDict

from vit_jax.config import recipe

SIZES = {  # learning rate, width, lengths
  "B/32": (8e-4, 768, ("7ep",)),
  "B/16": (8e-4, 768, ("7ep",)),
  "L/32": (6e-4, 1024, ("7ep",)),
  "L/16": (4e-4, 1024, ("14ep", "7ep")),
  "H/14": (3e-4, 1280, ("14ep",)),
}


def get_config(argument: str = "L/16") -> ConfigDict:
  """Returns the run for a size, or for a size and a length: "L/16" or "L/16,7ep"."""
  size, comma, length = argument.partition(",")
  if size not in SIZES:
    raise ValueError(f"unknown size {size!r}. Allowed: {', '.join(SIZES)}")
  lr, width, lengths = SIZES[size]
  if comma and length not in lengths:
    raise ValueError(f"unknown length {length!r} of {size}. Allowed: {', '.join(lengths)}. Others: --config.total=1ep")
  return recipe(
    model=dict(name=f"ViT-{size}", head=dict(pre_logits=width, bias=-10.0), dtype="bfloat16"),
    data=dict(name="jft300m", test_crop=dict(name="centre", resize=256)),
    task=dict(name="classify", loss="sigmoid"),
    optim=dict(
      name="adamw",
      lr=lr,
      weight_decay=0.1,
      warmup="10k",
      schedule=dict(name="linear", end=1e-5),  # the final rate is that for ImageNet-21k (vision_transformer, issue 2)
    ),
    total=length or lengths[0],
    batch=4096,
    mesh=dict(data=-1, fsdp=8),
    checkpoint=dict(every="1k"),
    evals=dict(test=dict(name="accuracy", logits=False, every="2%")),  # 50,000 x 18,291 logits take 3.7 GB per host
  )
