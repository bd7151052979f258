"""Masked patch prediction: the self-supervised stage of Dosovitskiy et al. 2021 (arXiv:2010.11929, appendix B.1.2).

Command:   python -m vit_jax.train --config=vit_mpp --workdir=runs/mpp --config.data.path=DIR
           then python -m vit_jax.train --config=finetune:imagenet,ViT-B/16,384 --workdir=runs/mpp_i1k \\
                --config.init.from=runs/mpp
           and python -m vit_jax.fewshot --config=fewshot:cifar100,pets --weights=runs/mpp.
           vit_mpp:imagenet,S/16 selects another dataset (jft, imagenet21k, imagenet) and another size
           (Ti/16, S/16, B/16, L/16). vit_mpp:digits is ViT-Lite-2/4 on scikit-learn's digits, with 64
           patches
Hardware:  TPU v3, number of cores not published; digits: two CPU cores
Result:    published for B/16 after JFT-300M, fine-tuned on ImageNet: 79.9 %, 2 points above training from scratch and 4
           below supervised pre-training. Most of the gain is reached after 100k steps, and with ImageNet's own images
Source:    the appendix, which specifies Adam and does not mention weight decay
"""

from ml_collections import ConfigDict

from vit_jax.config import recipe

IMAGES = {  # keys of data
  "jft": dict(name="jft300m"),
  "imagenet21k": dict(name="imagenet21k", train="full[51200:]", test="full[:25600]"),
  "imagenet": dict(name="imagenet2012", test="validation"),
}
SIZES = ("Ti/16", "S/16", "B/16", "L/16")


def get_config(argument: str = "jft,B/16") -> ConfigDict:
  """Returns the run for a dataset, or for a dataset and a size.

  Examples are "imagenet" and "imagenet,L/16". "digits" is a small run.
  """
  if argument == "digits":
    return digits()
  images, comma, size = argument.partition(",")
  if images == "digits":
    raise ValueError(f"{argument!r}: 'digits' takes no size. Fine-tune with --config=finetune:digits,vit_2_4_32,32")
  if images not in IMAGES:
    raise ValueError(f"unknown dataset {images!r}. Allowed: {', '.join(IMAGES)}, digits")
  if comma and size not in SIZES:
    raise ValueError(f"unknown size {size!r}. Allowed: {', '.join(SIZES)}")
  return recipe(
    model=dict(name=f"ViT-{size or 'B/16'}", dtype="bfloat16"),
    data=dict(test_crop=dict(name="centre", resize=256), **IMAGES[images]),
    task=dict(name="masked_patches", targets=dict(name="mean_colour"), share=0.5, masked=0.8, swapped=0.1),
    optim=dict(name="adamw", lr=2e-4, weight_decay=0.0, warmup="10k", schedule=dict(name="cosine")),
    total="1M",
    batch=4096,
    mesh=dict(data=-1, fsdp=8 if size == "L/16" else 1),
    checkpoint=dict(every="1k"),
    evals=dict(test=dict(name="masked", every="5%")),
  )


def digits() -> ConfigDict:
  """Returns a small run for demonstration."""
  whole = dict(name="resize")
  return recipe(
    model=dict(name="vit_2_4_32"),
    data=dict(name="digits", image_size=32, crop=whole, test_crop=whole, flip=False),
    task=dict(name="masked_patches"),
    # Micro-batches of eight images fit into a CPU's cache; see configs/digits.py.
    optim=dict(name="adamw", accumulate=16, lr=2e-3, weight_decay=0.05, warmup="10%", clip=1.0),
    total="30ep",
    batch=128,
    evals=dict(
      fewshot=dict(name="fewshot", data=dict(name="digits"), shots=(1, 5, 10), every="20%"),
      test=dict(name="masked", every="20%"),
    ),
  )
