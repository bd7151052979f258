"""DINOv2 on ImageNet, ImageNet-22k or LVD-142M, without labels: Oquab et al. 2023 (arXiv:2304.07193).

Command:   python -m vit_jax.train --config=dinov2:L/16,i1k --workdir=runs/dinov2
           then python -m vit_jax.fewshot --config=probes:knn,imagenet --weights=runs/dinov2
           L/14,lvd and g/14,lvd need --config.data.path=DIR, a directory with folders of images, such as DIR/all/.
           L/14,highres and g/14,highres also need --config.init.from=WORKDIR, the workdir of the long run.
           dinov2:folder continues from published weights with your images; see docs/guides/adapt-dinov2.md.
           dinov2:glyphs is ViT-Lite-2/4 on 20,000 generated signs
Hardware:  published: 32 A100, about a day for L/16; 96 A100, 3.3 days for L/14; 22,000 A100-hours for g/14; glyphs: two
           CPU cores. Planned hours on v3-32, v4-64, v5e-64 and v5e-256: L/16 127.5, 42.9, 22.2 and 6.0. L/14 1,480,
           492, 339 and 80. g/14 does not fit on the first two, and needs 1,019 and 211 hours on the others. Planned for
           folder on one v5e: 2.6 GiB, 205 images/s
Result:    published k-NN and linear probes of the teacher on ImageNet's validation images: L/16 81.6 and 82.9 %;
           L/14 on ImageNet-22k 82.0 and 84.5 %; g/14 on LVD-142M 83.5 and 86.5 %
Source:    configs of facebookresearch/dinov2: vitl16_short, vitl14 and vitg14. An epoch is 1,250 iterations there. The
           blur has the probabilities 0, 0.9 and 0.5, with which the published weights were trained
"""

from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import recipe, required

RUNS = ("L/16,i1k", "L/14,lvd", "g/14,lvd", "L/14,highres", "g/14,highres", "folder", "glyphs")
# Biases, norms and layer scales are not decayed. Tokens, positions and heads are.
DECAYED = ((r".*kernel|cls|registers|position/table|task/.*/last/scale|task/mask_token", 1.0),)
EPOCH = 1250  # steps of an "epoch" in the published code


def get_config(argument: str = "L/16,i1k") -> ConfigDict:
  """Returns the run for a size and its images ("L/16,i1k", "L/14,lvd", "g/14,lvd").

  "L/14,highres" continues such a run with images of 518 px. "folder" adapts published weights to a folder of images.
  "glyphs" is a small run.
  """
  if argument not in RUNS:
    raise ValueError(f"unknown argument {argument!r}. Allowed: {', '.join(RUNS)}")
  if argument in ("glyphs", "folder"):
    return glyphs() if argument == "glyphs" else folder()
  size, _, images = argument.partition(",")
  return short() if images == "i1k" else long(size, images == "highres")


def normalisation() -> dict[str, Any]:
  """Returns the normalisation and the test crop of photographs."""
  return dict(
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    test_crop=dict(name="torchvision", ratio=0.875, interpolation="bicubic"),
  )


def optimizer(lr: float, total: int, warmup: int, decay: float, momentum: float) -> dict[str, Any]:
  """Returns the optimizer. The last layers of the heads are not trained for 1,250 steps, or a tenth of a short run.

  Args:
    lr: peak learning rate.
    total: number of steps of the run.
    warmup: number of steps of the warm-up.
    decay: last weight decay.
    momentum: first decay of the moving average.
  """
  return dict(
    name="adamw",
    lr=lr,
    warmup=str(warmup),
    schedule=dict(name="linspace_cosine", end=min(1e-6, lr)),
    weight_decay=0.04,
    weight_decay_schedule=dict(name="cosine", end=decay),
    decay_on=DECAYED,
    delay=((r"task/(patch_)?head/last/.*", f"{min(10, 100 * EPOCH / total):.4g}%"),),
    clip=3.0,
    clip_by="module",
    ema=momentum,
    ema_schedule=dict(name="cosine", end=1.0),
  )


def temperature(length: int) -> dict[str, Any]:
  """Returns the temperature of the teacher, which rises for a number of steps."""
  return dict(name="ramp", start=0.04, end=0.07, length=str(length))


def short() -> ConfigDict:
  """Returns the short recipe on ImageNet: mean centring, and one head for images and patches."""
  knn = dict(name="knn", neighbours=(20,), weights="softmax", temperature=0.07)
  optim = optimizer(4e-3 * (2048 / 1024) ** 0.5, 100 * EPOCH, 10 * EPOCH, 0.4, 0.992)
  return recipe(
    model=dict(
      name="ViT-L/16", gelu="erf", layer_scale=1e-5, stochastic_depth=0.3, stochastic_depth_rates="equal",
      resampling="bicubic_offset", dtype="bfloat16",
      # Stores only the inputs of the layers. Without it, 64 images need 44 GiB of a device.
      scan=True, remat="full",
    ),
    data=dict(name="imagenet2012", test="validation", **normalisation()),
    task=dict(
      name="dinov2", centering="mean", sharing="all", prototypes=65536, bottleneck=256, group=64,
      temperature=temperature(30 * EPOCH),
    ),
    # The rate of the patch embedding is multiplied by 0.2. The mask token has the decayed rate of a layer
    # below all 24 blocks.
    optim=optim | dict(layer_decay=0.9, lr_multipliers=(("embedding/.*", 0.2), ("task/mask_token", 0.9**25))),
    total=str(100 * EPOCH),
    batch=2048,
    mesh=dict(data=-1, fsdp=8),
    checkpoint=dict(every="1k"),
    evals=dict(
      validation=dict(
        name="fewshot", train="train", test="validation", shots="all", features="cls", probes=dict(knn20=knn),
        every="25%",
      )
    ),
  )  # fmt: skip


def long(size: str, high_resolution: bool) -> ConfigDict:
  """Returns the long recipe for unlabelled images: Sinkhorn-Knopp, and separate heads.

  The high-resolution phase has 10,000 steps with images of 518 px. It starts from the weights and heads of the long
  run. In this phase, the rate, the schedules and the delay of the last layers are estimates.
  """
  name = {"L/14": "vit_large_patch14_dinov2", "g/14": "vit_giant_patch14_dinov2"}[size]
  steps, scale = (10_000, 0.1) if high_resolution else (500 * EPOCH, 1.0)
  optim = optimizer(2e-4 * (3072 / 1024) ** 0.5 * scale, steps, steps * 16 // 100, 0.2, 0.994)
  return recipe(
    model=dict(
      name=name,
      resampling="bicubic_offset",
      mlp=dict(name="swiglu", **({"multiple": 8} if size == "L/14" else {})),
      stochastic_depth=0.4, stochastic_depth_rates="equal", dtype="bfloat16",
      scan=True, remat="full",
    ),
    data=dict(name="folder", path=required, image_size=518 if high_resolution else 224, **normalisation()),
    task=dict(
      name="dinov2", local_size=98, group=32 if size == "L/14" else 12, temperature=temperature(steps * 6 // 100)
    ),
    optim=optim | dict(lr_multipliers=(("embedding/.*", 0.2),)),
    total=str(steps),
    batch=3072,
    mesh=dict(data=-1, fsdp=16),
    checkpoint=dict(every="1k"),
    evals=dict(),
    **({"init": {"from": required}} if high_resolution else {}),
  )  # fmt: skip


def folder() -> ConfigDict:
  """Returns a run that adapts published weights to a folder of images on one accelerator.

  The rate is 1/50 of the rate that the short recipe would have with this batch. The momentum starts at 0.999, and the
  temperature is low. These are suggestions without published results. The heads are new, so the model is not trained in
  the first tenth of the run. Its rate then starts at half of the peak rate, because the warm-up takes a fifth of the
  run.
  """
  return recipe(
    model=dict(
      name="vit_small_patch14_reg4_dinov2", stochastic_depth=0.1, dtype="bfloat16", scan=True, remat="full"
    ),
    data=dict(name="folder", path=required, image_size=224, **normalisation()),
    task=dict(
      name="dinov2", local_size=98, prototypes=16384, bottleneck=256, patch_prototypes=16384, group=8,
      temperature=dict(name="constant", value=0.04),
    ),
    optim=dict(
      name="adamw", lr=2e-5, warmup="20%", weight_decay=0.04, decay_on=DECAYED, clip=3.0, clip_by="module",
      lr_multipliers=(("embedding/.*", 0.2), ("task/.*", 20.0)), delay=((r"(?!task/).*", "10%"),),
      ema=0.999, ema_schedule=dict(name="cosine", end=1.0),
    ),
    total="10ep",
    batch=64,
    init={"from": required},
    evals=dict(),
  )  # fmt: skip


def glyphs() -> ConfigDict:
  """Returns a small run for demonstration. Gray signs need neither colour jitter nor blur nor solarization.

  With a temperature of 0.04 and a decay of the average (`ema`) of 0.99, the teacher's output stayed almost uniform.
  With 0.02 and 0.95, the teacher's entropy fell from 6.84 to 4.17, and the rank of the features was 13.7 at the end.
  """
  nowhere = (0.0, 0.0, 0.0)
  return recipe(
    model=dict(name="vit_2_4_32", pool="cls", position="learned"),
    data=dict(name="glyphs", image_size=32, test_crop=dict(name="resize"), flip=False),
    task=dict(
      name="dinov2", global_area=(0.4, 1.0), local_area=(0.1, 0.4), local_crops=4, local_size=16, blur=nowhere,
      solarize=nowhere, jitter=0.0, gray=0.0, prototypes=1024, bottleneck=64, hidden=256, patch_prototypes=1024,
      patch_bottleneck=64, patch_hidden=256, temperature=dict(name="constant", value=0.02),
    ),
    # Micro-batches of 32 images, which is the size of a group.
    optim=dict(
      name="adamw", accumulate=4, lr=1e-3, warmup="10%", weight_decay=0.04, clip=1.0, ema=0.95,
      ema_schedule=dict(name="cosine", end=1.0),
    ),
    total="4ep",
    batch=128,
    evals=dict(digits=dict(name="fewshot", data=dict(name="digits"), shots=(1, 5, 10), every="20%")),
  )  # fmt: skip
