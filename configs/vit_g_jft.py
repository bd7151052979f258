"""ViT-g/14, a billion parameters, on JFT-3B: Zhai et al. 2022 (arXiv:2106.04560).

Command:   python -m vit_jax.train --config=vit_g_jft --workdir=runs/g14_jft --config.data.path=DIR
           vit_g_jft:G/14 selects the larger model. JFT is internal to Google. DIR is a TFDS directory of
           JFT, or of any dataset with a list of classes as label
Hardware:  TPU v3-512, 32 images per core (big_vision); no hours published, planned 389 for g/14 (vit_jax.plan)
Result:    published: ImageNet with 5 and 10 images per class 82.7 and 84.5 % (g/14), 83.0 and 84.9 % (G/14);
           G/14 fine-tuned on ImageNet 90.45 %
"""

from ml_collections import ConfigDict

from vit_jax.config import recipe

SIZES = ("g/14", "G/14")


def get_config(size: str = "g/14") -> ConfigDict:
  """Returns the run for a size. Only the model depends on the size."""
  if size not in SIZES:
    raise ValueError(f"unknown size {size!r}. Allowed: {', '.join(SIZES)}")
  return recipe(
    model=dict(name=f"ViT-{size}", head=dict(name="map", bias=-10.0), dtype="bfloat16", scan=True, remat="full"),
    data=dict(name="jft3b", test_crop=dict(name="centre", resize=256)),
    task=dict(name="classify", loss="sigmoid"),
    optim=dict(
      name="adafactor",
      lr=8e-4,
      weight_decay=0.03,
      decay_on=(("head/kernel", 100.0), (".*kernel", 1.0)),  # a decay of 3 on the head improves few-shot results
      warmup="10k",
      schedule=dict(name="rsqrt", timescale="10k", cooldown="50k"),
      clip=1.0,
    ),
    total="1M",
    batch=16384,
    mesh=dict(data=-1, fsdp=8),
    checkpoint=dict(every="1k", keep_every="10k"),
    evals=dict(test=dict(name="accuracy", logits=False, every="10k")),  # 50,000 x 29,593 logits take 5.9 GB per host
  )
