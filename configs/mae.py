"""Masked autoencoding on ImageNet, without labels: He et al. 2022 (arXiv:2111.06377).

Command:   python -m vit_jax.train --config=mae:B/16 --workdir=runs/mae
           then python -m vit_jax.train --config=mae:B/16,finetune --workdir=runs/mae_i1k \\
                --config.init.from=runs/mae
           Sizes are B/16, L/16 and H/14. mae:L/16,1600ep pre-trains for 1600 epochs instead of 800.
           mae:digits is ViT-Lite-2/4 on scikit-learn's digits, with 64 patches
Hardware:  64 V100, 42 hours for L/16 and 800 epochs (facebookresearch/mae, PRETRAIN.md); digits: two CPU cores
Result:    published, 1600 epochs, then fine-tuned at 224 px: B/16 83.6 %, L/16 85.9 %, H/14 86.9 % (table 3);
           linear probes 68.0, 75.8 and 76.6 %
Source:    PRETRAIN.md and FINETUNE.md of facebookresearch/mae. The head uses the class token. According to these
           files, the class token is as good as the mean of the patches. The head is initialized with zeros
"""

from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import recipe, required

SIZES = {  # fine-tuning: base rate per 256 images, layer decay, stochastic depth, epochs
  "B/16": (5e-4, 0.65, 0.1, 100),
  "L/16": (1e-3, 0.75, 0.2, 50),
  "H/14": (1e-3, 0.75, 0.3, 50),
}
LENGTHS = ("800ep", "1600ep")


def get_config(argument: str = "B/16,800ep") -> ConfigDict:
  """Returns pre-training for a size ("B/16") or a size and a length ("B/16,1600ep"), or fine-tuning ("B/16,finetune").

  "digits" is a small run.
  """
  if argument == "digits":
    return digits()
  size, comma, stage = argument.partition(",")
  if size == "digits":
    raise ValueError(f"{argument!r}: 'digits' takes no stage. Fine-tune with --config=finetune:digits,vit_2_4_32,32")
  if size not in SIZES:
    raise ValueError(f"unknown size {size!r}. Allowed: {', '.join(SIZES)}, digits")
  if comma and stage not in (*LENGTHS, "finetune"):
    raise ValueError(f"unknown stage {stage!r}. Allowed: {', '.join(LENGTHS)}, finetune")
  model, rest = finetuning(*SIZES[size]) if stage == "finetune" else pretraining(stage or LENGTHS[0])
  data = dict(
    name="imagenet2012",
    test="validation",
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    test_crop=dict(name="torchvision", ratio=0.875, interpolation="bicubic"),
    **rest.pop("data"),
  )
  return recipe(
    model=dict(name=f"ViT-{size}", gelu="erf", position=dict(name="sincos2d"), dtype="bfloat16", **model),
    data=data,
    mesh=dict(data=-1, fsdp=1 if size == "B/16" else 8),
    checkpoint=dict(every="1k"),
    **rest,
  )


def pretraining(length: str) -> tuple[dict[str, Any], dict[str, Any]]:
  """Returns settings of pre-training.

  A quarter of the patches is visible. The augmentation consists of crops and flips. The rate is 1.5e-4 per 256 images.
  """
  return {}, dict(
    data=dict(crop=dict(name="inception", area=(0.2, 1.0), interpolation="bicubic")),
    task=dict(name="masked_autoencoder", share=0.75, normalised=True, width=512, depth=8, heads=16),
    optim=dict(
      name="adamw", b2=0.95, lr=1.5e-4 * 4096 / 256, weight_decay=0.05, warmup="40ep", schedule=dict(name="cosine")
    ),
    total=length,
    batch=4096,
    evals=dict(test=dict(name="masked", every="5%")),
  )


def finetuning(
  rate: float, layer_decay: float, stochastic_depth: float, epochs: int
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Returns settings of fine-tuning for all layers, with the augmentation of DeiT.

  The rate is given per 256 images. Lower layers have lower rates.
  """
  policy = dict(name="randaugment_increasing", layers=2, magnitude=9.0, magnitude_std=0.5, interpolation="bicubic")
  return dict(stochastic_depth=stochastic_depth), dict(
    data=dict(
      crop=dict(name="inception", area=(0.08, 1.0), interpolation="bicubic"),
      policy=policy | dict(fill=(124, 116, 104)),
      mixing=dict(name="mixup_cutmix", mixup_alpha=0.8, cutmix_alpha=1.0, switch=0.5, mode="pair"),
      erasing=dict(name="random", probability=0.25, fill="pixel"),
    ),
    task=dict(name="classify", label_smoothing=0.1),
    optim=dict(
      name="adamw",
      lr=rate * 1024 / 256,
      weight_decay=0.05,
      layer_decay=layer_decay,
      warmup="5ep",
      schedule=dict(name="cosine", end=1e-6),
    ),
    total=f"{epochs}ep",
    batch=1024,
    init={"from": required},
    evals=dict(validation=dict(name="accuracy", split="validation", every="5%")),
  )


def digits() -> ConfigDict:
  """Returns a small run for demonstration.

  16 patches of a digit are visible. A decoder of two blocks predicts the other 48.
  """
  whole = dict(name="resize")
  return recipe(
    model=dict(name="vit_2_4_32"),
    data=dict(name="digits", image_size=32, crop=whole, test_crop=whole, flip=False),
    task=dict(name="masked_autoencoder", width=64, depth=2, heads=4),
    # Micro-batches of eight images fit into a CPU's cache; see configs/digits.py.
    optim=dict(name="adamw", accumulate=16, b2=0.95, lr=2e-3, weight_decay=0.05, warmup="10%", clip=1.0),
    total="30ep",
    batch=128,
    evals=dict(
      fewshot=dict(name="fewshot", data=dict(name="digits"), shots=(1, 5, 10), every="20%"),
      test=dict(name="masked", every="20%"),
    ),
  )
