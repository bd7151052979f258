"""DeiT III with rotary positions on ImageNet-1k: Heo et al. 2024 (arXiv:2403.13298), by their public commands.

Command:   python -m vit_jax.train --config=rope_vit:B,mixed --workdir=runs/b
           then python -m vit_jax.train --config=rope_vit:B,mixed,224 --workdir=runs/b224 \\
                --config.init.from=runs/b
           The second command fine-tunes for 20 epochs at 224 px. Sizes are S, B and L. S needs no second command.
           Positions are axial and mixed. axial_ape and mixed_ape also add learned positions
Hardware:  published: 8 GPUs with 256 images each for S and B, 64 GPUs with 32 images each for L. Hours are not
           published. Planned hours on v3-32, v4-64 and v5e-64: S,mixed 6.2, 2.3 and 1.2, B,mixed 13.2, 4.6 and 2.6,
           and a minute for evaluations. The plan is computed by
           python -m vit_jax.plan --config=rope_vit:B,mixed --topology=v3-32,v4-64,v5e-64
Result:    published after 400 epochs: top-1 in % at 224 px, then of the same weights at 384 px:
                        S            B            L
           axial        80.9, 80.0   83.6, 83.9   84.7, 85.1
           mixed        80.9, 81.8   83.8, 84.4   84.8, 85.6
           axial_ape    80.7, 81.2   83.7, 83.8   84.7, 85.1
           mixed_ape    80.9, 81.7   83.8, 84.3   84.9, 85.5
           DeiT III     80.4, 79.4   83.4, 82.8   84.6, 84.2
           All training images are used, and the epoch is not selected
Source:    deit/README.md and models/vit_rope.py of naver-ai/rope-vit at ce85c2e, the defaults of DeiT's main.py. The
           clipping is the default of FusedLAMB in the authors' code. The authors compute in float16. This config draws
           mixup or CutMix for each pair of images, the authors' code for each GPU. Initialization differs: the standard
           deviation of a kernel depends on its width here, and is 0.02 in the authors' code. With _ape, the class token
           of this config has a position, which has no effect on the results
"""

from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import recipe, required

SIZES = {  # model, pixels, learning rate and stochastic depth of pre-training, stochastic depth of fine-tuning
  "S": ("ViT-S/16", 224, 4e-3, 0.0, None),
  "B": ("ViT-B/16", 192, 3e-3, 0.1, 0.2),
  "L": ("ViT-L/16", 192, 3e-3, 0.4, 0.45),
}
ROTARY = {"axial": dict(name="axial", temperature=100.0, first="columns"), "mixed": dict(name="mixed")}
POSITIONS = ("axial", "mixed", "axial_ape", "mixed_ape")
RANDOM = dict(name="inception", area=(0.08, 1.0), interpolation="bicubic")
THREE = dict(name="three_augment", jitter=0.3)
INCREASING = dict(name="randaugment_increasing", layers=2, magnitude=9.0, magnitude_std=0.5, interpolation="bicubic")
# their code draws one for each GPU
BOTH = dict(name="mixup_cutmix", mixup_alpha=0.8, cutmix_alpha=1.0, switch=0.5, mode="pair")
SCHEDULE = dict(name="epoch_cosine", start=1e-6, end=1e-5)


def get_config(argument: str = "B,mixed") -> ConfigDict:
  """Returns pre-training for a size and positions, such as "B,mixed", or its fine-tuning, "B,mixed,224"."""
  size, positions, pixels = (argument.split(",") + [""] * 3)[:3]
  allowed = ("", "224") if size in ("B", "L") else ("",)
  if (
    size not in SIZES or positions not in POSITIONS or pixels not in allowed or argument.count(",") != 1 + bool(pixels)
  ):
    runs = ", ".join(f"{size},{positions}" for size in SIZES for positions in POSITIONS)
    raise ValueError(f"unknown run {argument!r}. Allowed, with an additional ,224 for B and L: {runs}")
  name, image_size, lr, dropped, dropped_after = SIZES[size]
  rotary, _, added = positions.partition("_")
  return recipe(
    model=dict(
      name=name,
      position=dict(name="learned" if added else "none", rotary=ROTARY[rotary]),
      layer_scale=1e-4,
      gelu="erf",
      head=dict(std=0.02),
      dtype="bfloat16",
      stochastic_depth=dropped_after if pixels else dropped,
      stochastic_depth_rates="equal",
    ),
    data=dict(
      name="imagenet2012",
      image_size=224 if pixels else image_size,
      repeats=1 if pixels else 3,
      crop=RANDOM,
      policy=INCREASING | dict(fill=(124, 116, 104)) if pixels else THREE,
      mixing=BOTH,
      mean=(0.485, 0.456, 0.406),
      std=(0.229, 0.224, 0.225),
      test_crop=dict(name="torchvision", ratio=1.0, interpolation="bicubic"),
    ),
    mesh=dict(data=-1, fsdp=8 if size == "L" else 1),
    checkpoint=dict(every="1k"),
    evals=dict(validation=dict(name="accuracy", split="validation", every="5%")),
    **(finetuning() if pixels else pretraining(lr)),
  )


def pretraining(lr: float) -> dict[str, Any]:
  """Returns settings of pre-training: binary cross-entropy and LAMB."""
  return dict(
    task=dict(name="classify", loss="mean_sigmoid", target_threshold=0.0),
    optim=dict(name="lamb", eps=1e-8, lr=lr, weight_decay=0.03, clip=1.0, ema=0.99996, warmup="5ep", schedule=SCHEDULE),
    total="400ep",
    batch=2048,
  )


def finetuning() -> dict[str, Any]:
  """Returns settings of fine-tuning: softmax and a low learning rate, which is constant after the warm-up.

  Fine-tuning starts from the last weights of pre-training, not from their average.
  """
  return dict(
    init={"from": required},
    task=dict(name="classify", label_smoothing=0.1),
    optim=dict(name="adamw", lr=1e-5, weight_decay=0.1, ema=0.99996, warmup="5ep", schedule=SCHEDULE),
    total="20ep",
    batch=512,
  )
