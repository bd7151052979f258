"""Probes of frozen features as in DINO and DINOv2: nearest neighbours, linear, and linear on patches.

Command:   python -m vit_jax.fewshot --config=probes:knn,imagenet --weights=model.safetensors
           python -m vit_jax.fewshot --config=probes:linear,cifar100 --weights=runs/a
           python -m vit_jax.fewshot --config=probes:dense,scenes --weights=runs/scenes
           python -m vit_jax.fewshot --config=probes:dense,segmentation --weights=runs/a \\
                --config.evals.segmentation.data.path=/my/masks --config.evals.segmentation.data.classes=names.txt
           Datasets are the names in SETS and DENSE. For few images per class see configs/fewshot.py
Protocol:  knn: the class token after the last norm, all training images, and 10, 20, 100 and 200 neighbours by cosine
           similarity, each with the weight exp(cosine / 0.07). linear: logistic regression on the class token and the
           mean of patches. The penalty is selected on ten images per class that the probe is not fitted to. DINOv2
           trains 52 heads by SGD on augmented images, and reports the best on the test images.
           --config.evals.cifar100.probes.linear.name=ridge has a closed form and takes seconds. dense: a linear map of
           patches, mean IoU. Weights without a class token need --config.evals.cifar100.features=head,
           or patches for the mean of the patches
Hardware:  one accelerator; a CPU is slow, because each image needs a forward pass. The host stores the features: 4
           bytes times the width per image (4 GB for ImageNet with B/16), and twice as much while they are concatenated
Result:    published for DINOv2's ViT-L/14 on ImageNet: k-NN 83.5, linear 86.3 % (its README), with crops of 224 px from
           256. configs/scenes.py has figures of dense probes
"""

from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import measurement

SETS = {
  "digits": dict(name="digits"),
  "glyphs": dict(name="glyphs"),
  "cifar10": dict(name="cifar10"),
  "cifar100": dict(name="cifar100"),
  "pets": dict(name="oxford_iiit_pet"),
  "flowers": dict(name="oxford_flowers102"),
  "imagenet": dict(name="imagenet2012"),
  "folder": dict(name="folder"),  # needs --config.evals.folder.data.path=DIR
}
DENSE = {
  "scenes": dict(name="scenes"),
  "pets": dict(name="oxford_iiit_pet"),  # the animal and the background
  "segmentation": dict(name="segmentation"),  # your own images/x.jpg and masks/x.png, as in the command
}
KINDS: dict[str, Any] = {
  "knn": dict(
    features="cls",
    probes={
      f"knn{count}": dict(name="knn", neighbours=(count,), weights="softmax", temperature=0.07)
      for count in (10, 20, 100, 200)
    },
  ),
  "linear": dict(
    features="cls_patches",
    probes=dict(linear=dict(name="logistic", l2=(0.1, 1.0, 10.0, 100.0, 1000.0))),
    held_out=10,
  ),
}


def get_config(argument: str = "knn,digits") -> ConfigDict:
  """Returns the measurement: "knn", "linear" or "dense", followed by names in SETS or DENSE, separated by commas."""
  kind, *names = argument.split(",")
  known = DENSE if kind == "dense" else SETS
  if kind not in (*KINDS, "dense") or not names or set(names) - known.keys():
    raise ValueError(
      f"expected PROBE,DATASET,..., got {argument!r}. PROBE is knn, linear or dense, DATASET one of {', '.join(known)}"
    )
  if kind == "dense":
    whole = dict(test_crop=dict(name="resize"))
    return measurement(evals={name: dict(name="dense", data=DENSE[name] | whole) for name in names}, batch=128)
  evals = {}
  for name in names:
    crop = dict(name="resize" if name in ("digits", "glyphs") else "centre")  # the central 224 of 256 px
    evals[name] = dict(name="fewshot", data=SETS[name] | dict(test_crop=crop), shots="all", cache=True, **KINDS[kind])
  return measurement(evals=evals, batch=128)
