"""Fine-tuning on a labelled dataset: the protocol of BiT and ViT (arXiv:1912.11370; arXiv:2010.11929, table 4).

Command:   python -m vit_jax.train --config=finetune:pets --workdir=runs/pets --config.init.from=B_16.npz
           Datasets are imagenet, cifar10, cifar100, pets, flowers, resisc45, kitti (distance of the nearest vehicle),
           digits and folder (with --config.data.path=DIR). A model and a size in pixels may follow:
           finetune:cifar10,ViT-L/16,512. Weights are a file or a workdir.
           --config.optim.layer_decay=0.75 reduces the learning rate of lower layers.
           --config.optim.frozen="['(?!head).*']" trains only the head. --config.optim.ema=0.9999 also measures averaged
           weights (Polyak; the paper uses them at 512 px)
Splits:    The first 90 % of `train` (CIFAR 98, ImageNet 99) are used for training. The rest is `val`, which selects the
           best setting. `test` (the validation images of ImageNet) is measured once, at the end. For Flowers, the
           training split has 918 of 1,020 images. Resisc45 and KITTI use AugReg's splits. `python -m vit_jax.sweep`
           with the same flags tries the paper's rates. It trains the best setting again on all of `train`, three times,
           and measures these runs on `test`
Hardware:  eight A100: 2.2 hours for CIFAR and 6.5 for ImageNet with ViT-B/16 (README of vision_transformer; the number
           of devices is from its issues 84 and 85). A CPU suffices for digits, and for folder with a small model
Result:    published for ViT-B/16 from ImageNet-21k, with all of `train`: ImageNet 83.97 %, CIFAR-10 98.95, CIFAR-100
           91.67, Pets 94.43, Flowers 99.38 (table 5). With 99 and 98 % of `train`, and test images squashed to the
           square: 84.53, 99.02, 92.06 (README of vision_transformer). AugReg's ViT-B/16 reaches 85.49 on ImageNet (same
           source)
"""

from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import Sweep, product, recipe, required

# name in the catalog, length, warm-up, peak rate, percentage of `train` for training (or None: see SPLITS), batch
SETS = {
  "imagenet": ("imagenet2012", "20k", "500", 0.03, 99, 512),
  "cifar10": ("cifar10", "10k", "500", 0.01, 98, 512),
  "cifar100": ("cifar100", "10k", "500", 0.01, 98, 512),
  "pets": ("oxford_iiit_pet", "500", "100", 0.003, 90, 512),
  "flowers": ("oxford_flowers102", "500", "100", 0.003, 90, 512),
  "resisc45": ("resisc45", "2500", "200", 0.003, None, 512),  # arXiv:2106.10270, table 4, like KITTI
  "kitti": ("kitti_distance", "500", "100", 0.003, None, 512),
  "digits": ("digits", "10ep", "10%", 0.01, 90, 64),
  "folder": ("folder", "20ep", "10%", 0.01, 90, 32),
}
SPLITS = {  # training split, deciding split, union of both
  "resisc45": ("train[:18900]", "train[18900:25200]", "train[:25200]"),  # the rest of its only split is the test split
  "kitti": ("train", "validation", "train+validation"),
}


def get_config(argument: str = "cifar10") -> ConfigDict:
  """Returns the run for a dataset, a model and an image size: "pets", "pets,ViT-L/16" or "pets,ViT-L/16,512"."""
  images, *words = argument.split(",")
  if images not in SETS:
    raise ValueError(f"unknown dataset {images!r}. Allowed: {', '.join(SETS)}")
  usual = ["cct_2_3x2_32", "48"] if images == "digits" else ["ViT-B/16", "384"]
  model, pixels, *more = words + usual[len(words) :]
  if more or not pixels.isdecimal():
    raise ValueError(f"expected DATASET,MODEL,PIXELS, got {argument!r}. Use {images} or {','.join([images, *usual])}")
  name, total, warmup, lr, _, batch = SETS[images]
  train, val, _ = splits(images)
  return recipe(
    # the first two run on CPUs
    model=dict(name=model, dtype="float32" if images in ("digits", "folder") else "bfloat16"),
    data=dict(
      name=name,
      image_size=int(pixels),
      train=train,
      val=val,
      **views(images, int(pixels)),
    ),
    init={"from": required, "head": "new"},
    optim=dict(
      name="sgd",
      momentum=0.9,
      accumulator_dtype="bfloat16",
      lr=lr,
      warmup=warmup,
      schedule=dict(name="cosine"),
      clip=1.0,
    ),
    total=total,
    batch=batch,
    evals=dict(
      val=dict(name="accuracy", split="val", every="10%"),
      test=dict(name="accuracy", split="test", every="100%"),
    ),
  )


def sweep(argument: str = "cifar10") -> Sweep:
  """Returns a trial for each learning rate of the paper. `val` selects the best one.

  The best setting is trained again on all of `train`, three times, and measured on test (table 4).
  """
  images, _, _ = argument.partition(",")
  rates = (0.003, 0.01, 0.03, 0.06) if images == "imagenet" else (0.001, 0.003, 0.01, 0.03)
  return Sweep(
    trials=product({"optim.lr": rates}),
    decide="val/top1",
    final=product({"data.train": [splits(images)[2]], "seed": range(3)}),
  )


def splits(images: str) -> tuple[str, str, str]:
  """Returns three split strings: for training, for selection of a setting, and their union."""
  percent = SETS[images][4]
  return SPLITS.get(images, (f"train[:{percent}%]", f"train[{percent}%:]", "train"))


def views(images: str, size: int) -> dict[str, Any]:
  """Returns the crops, as in big_vision.

  Photographs are randomly cropped and mirrored for training. Test images are cropped at the centre.
  """
  if images in ("digits", "kitti"):  # a crop of a street scene would change the distance
    return dict(crop=dict(name="resize"), test_crop=dict(name="resize"), flip=images == "kitti")
  centre = dict(name="centre", resize=round(size * 448 / 384))
  return dict(crop=dict(name="inception"), test_crop=dict(name="resize") if images.startswith("cifar") else centre)
