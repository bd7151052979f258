"""Few-shot probes of frozen features, big_vision's protocol (evaluators/fewshot_lsr.py, configs/common_fewshot.py).

Command:   python -m vit_jax.fewshot --config=configs/fewshot.py:cifar100,pets --weights=B_16.npz
           digits, without an argument; `suite` is big_vision's six datasets, by name as in SETS
Hardware:  one accelerator, or patience: a forward pass for each test image and each image drawn
Result:    mean top-1 and standard deviation over three draws of 1, 5, 10 and 25 images a class. Published with another
           choice of images and penalty, so not to compare to a tenth: ImageNet 5- and 10-shot 73.6 and 76.3 % for
           ViT-B/16, 77.5 and 79.5 % for L/16 on JFT-300M (Zhai et al. 2022)

As an evaluation during training: evals=dict(pets=dict(name="fewshot", data=dict(name="oxford_iiit_pet"), every="10%")).
"""

from vit_jax.config import measurement

SETS = {
  "digits": dict(name="digits"),
  "cifar10": dict(name="cifar10"),
  "cifar100": dict(name="cifar100"),
  "pets": dict(name="oxford_iiit_pet"),
  "flowers": dict(name="oxford_flowers102"),
  "imagenet": dict(name="imagenet2012", train="train[:65000]"),  # at least 30 images of each class
  "caltech101": dict(name="caltech101"),
  "cars196": dict(name="cars196"),
  "dtd": dict(name="dtd"),
  "uc_merced": dict(name="uc_merced"),
  "folder": dict(name="folder"),  # with --config.evals.folder.data.path=DIR
}
SUITE = ("caltech101", "cars196", "cifar100", "dtd", "pets", "uc_merced")


def get_config(argument="digits"):
  """The measurement on datasets: names of SETS with commas, or "suite"."""
  names = SUITE if argument == "suite" else argument.split(",")
  if unknown := set(names) - SETS.keys():
    raise ValueError(f"unknown dataset {sorted(unknown)}; allowed, with commas: suite, {', '.join(SETS)}")
  return measurement(
    evals={
      name: dict(
        name="fewshot",
        # 256 px squashed, the central 224; the digits fill their image.
        data=SETS[name] | dict(test_crop=dict(name="resize") if name == "digits" else dict(name="centre", squash=True)),
        shots=(1, 5, 10, 25),
        seeds=(0, 1, 2),
        probes=dict(ridge=dict(name="ridge", l2=(1024.0,))),
        cache=True,
      )
      for name in names
    },
    batch=128,
  )
