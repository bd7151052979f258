"""ViT-5 on ImageNet-1k: arXiv:2602.08071, by the commands of its authors (github.com/wangf3014/ViT-5).

Command:   python -m vit_jax.train --config=vit5:B --workdir=runs/b
           then python -m vit_jax.train --config=vit5:B,224 --workdir=runs/b224 \\
                --config.init.from=runs/b
           The second command fine-tunes the averaged weights for 20 epochs at 224 px. Sizes are S, B and L
Hardware:  published: 8 GPUs with 256 images each. S trains for 800 epochs at 224 px, B for 800 at 192 px, and L for 400
           at 192 px. No hours are published. Planned by
           python -m vit_jax.plan --config=vit5:B --topology=v3-32,v4-64,v5e-64:
           S 12.9, 4.8 and 2.4 hours, B 26.7, 9.5 and 5.2, L 39.1, 13.0 and 7.4, and minutes for evaluations. With
           --config.model.attention=fused, a step of B at 224 px takes 20 % less time on v5e-64
Result:    published at 224 px: S 82.2, B 84.2, L 84.9 % top-1. DeiT III reaches 81.4, 83.8 and 84.9 after 800 epochs.
           Another implementation reached 81.7 with S, twice (nvsubquadratic, examples/vit5_imagenet). All training
           images are used. This config does not select the epoch. The authors also store the best epoch of the weights
           without averaging
Source:    README.md, main.py, augment.py and models_vit5.py at b7b0796. The model has RMSNorm for tokens, queries
           and keys, projections without biases, layer scale, four registers and learned positions. Patches and
           registers have rotary positions with different temperatures. The clipping is the default of FusedLAMB in the
           authors' code. This config draws mixup or CutMix for each pair of images, the authors' code for each GPU.
           Initialization differs: in this config, class token and registers are near 0, and the standard deviation of
           a kernel depends on its width. In the authors' code, all have a standard deviation of 0.02. The class token
           of this config has a position, which has no effect on the results
"""

from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import recipe, required

SIZES = {  # model, pixels, epochs, learning rate and stochastic depth of pre-training, stochastic depth of fine-tuning
  "S": ("ViT-S/16", 224, 800, 4e-3, 0.05, 0.05),
  "B": ("ViT-B/16", 192, 800, 3e-3, 0.2, 0.25),
  "L": ("ViT-L/16", 192, 400, 3e-3, 0.35, 0.5),
}
TODAY = dict(
  norm=dict(name="rms"),
  attention=dict(qk_norm="rms", bias="none"),
  layer_scale=1e-4,
  registers=4,
  position=dict(rotary=dict(name="axial", temperature=10000.0, reference=0, registers=100.0)),
  gelu="erf",
  head=dict(std=0.02),
  dtype="bfloat16",
)
RANDOM = dict(name="inception", area=(0.08, 1.0), interpolation="bicubic")
THREE = dict(name="three_augment", jitter=0.3)
INCREASING = dict(name="randaugment_increasing", layers=2, magnitude=9.0, magnitude_std=0.5, interpolation="bicubic")
# their code draws one for each GPU
BOTH = dict(name="mixup_cutmix", mixup_alpha=0.8, cutmix_alpha=1.0, switch=0.5, mode="pair")
SCHEDULE = dict(name="epoch_cosine", start=1e-6, end=1e-5)


def get_config(argument: str = "B") -> ConfigDict:
  """Returns pre-training for a size, such as "B", or its fine-tuning, "B,224"."""
  size, _, pixels = argument.partition(",")
  if size not in SIZES or argument not in (size, f"{size},224"):
    raise ValueError(f"unknown run {argument!r}. Allowed, also with an additional ,224: {', '.join(SIZES)}")
  name, image_size, epochs, lr, dropped, dropped_after = SIZES[size]
  return recipe(
    model=dict(
      name=name,
      **TODAY,
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
    **(finetuning() if pixels else pretraining(epochs, lr)),
  )


def pretraining(epochs: int, lr: float) -> dict[str, Any]:
  """Returns settings of pre-training: binary cross-entropy and LAMB."""
  return dict(
    task=dict(name="classify", loss="mean_sigmoid", target_threshold=0.0),
    optim=dict(name="lamb", eps=1e-8, lr=lr, weight_decay=0.05, clip=1.0, ema=0.99996, warmup="5ep", schedule=SCHEDULE),
    total=f"{epochs}ep",
    batch=2048,
  )


def finetuning() -> dict[str, Any]:
  """Returns settings of fine-tuning: softmax and a low learning rate, which is constant after the warm-up."""
  return dict(
    init={"from": required, "ema": True},
    task=dict(name="classify", label_smoothing=0.1),
    optim=dict(name="adamw", lr=1e-5, weight_decay=0.1, ema=0.99996, warmup="5ep", schedule=SCHEDULE),
    total="20ep",
    batch=512,
  )
