"""Fine-tuning on a labelled set: the protocol of BiT and ViT (arXiv:1912.11370; arXiv:2010.11929, table 4).

Command:   python -m vit_jax.train --config=configs/finetune.py:pets --workdir=runs/pets --config.init.from=B_16.npz
           for imagenet, cifar10, cifar100, pets, flowers, resisc45, kitti (how far the nearest vehicle is), digits
           and folder (with --config.data.path=DIR), alone or with a model and pixels:
           configs/finetune.py:cifar10,ViT-L/16,512. Weights are a file or a workdir.
           --config.optim.layer_decay=0.75 slows the lower layers down, --config.optim.frozen="['(?!head).*']" trains
           the head alone, --config.optim.ema=0.9999 measures averaged weights too (Polyak; the paper's at 512 px)
Splits:    the first 90 % of `train` (CIFAR 98, ImageNet 99) are trained on; the rest of it is `val`, which decides
           between settings; `test`, of ImageNet the validation images, reports, and is measured once, at the end. Of
           Flowers that is 918 of 1,020 images; Resisc45 and KITTI have AugReg's splits. `python -m vit_jax.sweep` with
           the same flags tries the paper's rates, and trains the best again on all of `train`, three times, before
           `test` is looked at
Hardware:  eight A100 take 2.2 hours for CIFAR and 6.5 for ImageNet with ViT-B/16 (vision_transformer, README; their
           number from its issues 84 and 85). digits and folder suit a CPU, folder with a small model
Result:    published for ViT-B/16 from ImageNet-21k, with all of `train`: ImageNet 83.97 %, CIFAR-10 98.95, CIFAR-100
           91.67, Pets 94.43, Flowers 99.38 (table 5); with 99 and 98 % of it and test images squashed to the square
           84.53, 99.02, 92.06 (vision_transformer, README); AugReg's ViT-B/16 has 85.49 on ImageNet (ibid.)
"""

from vit_jax.config import Sweep, product, recipe, required

SETS = {  # name in the catalog, length, warm-up, peak rate, percent of `train` that is trained on (or SPLITS), batch
  "imagenet": ("imagenet2012", "20k", "500", 0.03, 99, 512),
  "cifar10": ("cifar10", "10k", "500", 0.01, 98, 512),
  "cifar100": ("cifar100", "10k", "500", 0.01, 98, 512),
  "pets": ("oxford_iiit_pet", "500", "100", 0.003, 90, 512),
  "flowers": ("oxford_flowers102", "500", "100", 0.003, 90, 512),
  "resisc45": ("resisc45", "2500", "200", 0.003, None, 512),  # arXiv:2106.10270, table 4, as KITTI
  "kitti": ("kitti_distance", "500", "100", 0.003, None, 512),
  "digits": ("digits", "10ep", "10%", 0.01, 90, 64),
  "folder": ("folder", "20ep", "10%", 0.01, 90, 32),
}
SPLITS = {  # that are trained on, that decides, both
  "resisc45": ("train[:18900]", "train[18900:25200]", "train[:25200]"),  # the rest of its only split is the test
  "kitti": ("train", "validation", "train+validation"),
}


def get_config(argument="cifar10"):
  """The run for a set, a model and pixels: "pets", "pets,ViT-L/16" or "pets,ViT-L/16,512"."""
  images, *words = argument.split(",")
  if images not in SETS:
    raise ValueError(f"unknown set {images!r}; allowed: {', '.join(SETS)}")
  usual = ["cct_2_3x2_32", "48"] if images == "digits" else ["ViT-B/16", "384"]
  model, pixels, *more = words + usual[len(words) :]
  if more or not pixels.isdecimal():
    raise ValueError(f"{argument!r} is not a set, a model and pixels; allowed: {','.join([images, *usual])} or less")
  name, total, warmup, lr, _, batch = SETS[images]
  train, val, _ = splits(images)
  return recipe(
    model=dict(name=model, dtype="float32" if images in ("digits", "folder") else "bfloat16"),  # those run on CPUs
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


def sweep(argument="cifar10"):
  """The paper's rates, decided by `val`; the best three times again on all of `train`, measured on test (table 4)."""
  images, _, _ = argument.partition(",")
  rates = (0.003, 0.01, 0.03, 0.06) if images == "imagenet" else (0.001, 0.003, 0.01, 0.03)
  return Sweep(
    trials=product({"optim.lr": rates}),
    decide="val/top1",
    final=product({"data.train": [splits(images)[2]], "seed": range(3)}),
  )


def splits(images):
  """Split strings that are trained on, that decides, and both."""
  percent = SETS[images][4]
  return SPLITS.get(images, (f"train[:{percent}%]", f"train[{percent}%:]", "train"))


def views(images, size):
  """What is seen of an image: of photographs a random part, mirrored or not, and the centre for tests (big_vision)."""
  if images in ("digits", "kitti"):  # a part of a street has another distance
    return dict(crop=dict(name="resize"), test_crop=dict(name="resize"), flip=images == "kitti")
  centre = dict(name="centre", resize=round(size * 448 / 384))
  return dict(crop=dict(name="inception"), test_crop=dict(name="resize") if images.startswith("cifar") else centre)
