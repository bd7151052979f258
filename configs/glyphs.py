"""Pre-training without a download: ViT-Lite-2/4 on 20,000 generated signs, which are unrelated to digits.

Command:   python -m vit_jax.prepare glyphs, and python -m vit_jax.prepare digits, once
           python -m vit_jax.train --config=glyphs --workdir=runs/glyphs
           configs/ablations/pretraining.py continues from these weights with digits. `make transfer` compares features
           that shorter runs learn with and without labels
Hardware:  two CPU cores
Result:    docs/results/learning.md. During training, a few digits of each class are probed at intervals, with the
           weights and with their average. The report shows few-shot accuracy over pre-training as a curve
"""

from ml_collections import ConfigDict

from vit_jax.config import recipe


def get_config() -> ConfigDict:
  """Returns the run with seed 0."""
  whole = dict(name="resize")
  return recipe(
    model=dict(name="vit_2_4_32", pool="seqpool"),  # pools the patches, which masked patch prediction trains too
    data=dict(
      name="glyphs",
      image_size=32,
      crop=whole,
      test_crop=whole,
      warp=dict(name="affine", degrees=10.0, translate=0.1, scale=(0.8, 1.2), shear=10.0),
    ),
    task=dict(name="classify", label_smoothing=0.1),
    # Micro-batches of eight images fit into a CPU's cache; see configs/digits.py.
    optim=dict(name="adamw", accumulate=16, lr=2e-3, weight_decay=0.05, warmup="10%", clip=1.0, ema=0.99),
    total="4ep",
    batch=128,
    evals=dict(
      digits=dict(name="fewshot", data=dict(name="digits"), shots=(1, 5, 10), every="20%"),
      test=dict(name="accuracy", every="50%"),
    ),
  )
