"""Pre-training without a download: ViT-Lite-2/4 on 20,000 generated signs, of which the digits know nothing.

Command:   python -m vit_jax.prepare glyphs, and python -m vit_jax.prepare digits, once
           python -m vit_jax.train --config=configs/glyphs.py --workdir=runs/glyphs
           configs/ablations/pretraining.py goes on from it with digits; `make transfer` does both three times, and
           compares
Hardware:  two CPU cores
Result:    docs/results.md. During training a few digits of each class are probed every so often, by the weights and by
           their average: few-shot accuracy over pre-training, as a curve of the report
"""

from vit_jax.config import recipe


def get_config():
  """The run; its seed is 0."""
  whole = dict(name="resize")
  return recipe(
    model=dict(name="vit_2_4_32", pool="seqpool"),  # reads the patches, which masked patches train too
    data=dict(
      name="glyphs",
      image_size=32,
      crop=whole,
      test_crop=whole,
      warp=dict(name="affine", degrees=10.0, translate=0.1, scale=(0.8, 1.2), shear=10.0),
    ),
    task=dict(name="classify", label_smoothing=0.1),
    # Micro-batches of eight images stay in a CPU's cache; see configs/digits.py.
    optim=dict(name="adamw", accumulate=16, lr=2e-3, weight_decay=0.05, warmup="10%", clip=1.0, ema=0.99),
    total="4ep",
    batch=128,
    evals=dict(
      digits=dict(name="fewshot", data=dict(name="digits"), shots=(1, 5, 10), every="20%"),
      test=dict(name="accuracy", every="50%"),
    ),
  )
