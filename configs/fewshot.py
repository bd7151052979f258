"""Few-shot probes of frozen features, big_vision's protocol (evaluators/fewshot_lsr.py, configs/common_fewshot.py).

Command:   python -m vit_jax.fewshot --config=fewshot:cifar100,pets --weights=B_16.npz
           The argument is a list of datasets in SETS, or `suite` for big_vision's six datasets. The default is digits
Hardware:  one accelerator; a CPU is slow, because each test image and each drawn image needs a forward pass
Result:    mean top-1 and standard deviation over three draws of 1, 5, 10 and 25 images per class. Published figures use
           other images and another penalty, so differences below one percent have no meaning. ImageNet 5- and 10-shot
           on JFT-300M weights: 73.6 and 76.3 % for ViT-B/16, 77.5 and 79.5 % for L/16 (Zhai et al. 2022)

As an evaluation during training: evals=dict(pets=dict(name="fewshot", data=dict(name="oxford_iiit_pet"), every="10%")).
"""

from ml_collections import ConfigDict

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
  "folder": dict(name="folder"),  # needs --config.evals.folder.data.path=DIR
}
SUITE = ("caltech101", "cars196", "cifar100", "dtd", "pets", "uc_merced")


def get_config(argument: str = "digits") -> ConfigDict:
  """Returns the measurement on datasets: names in SETS separated by commas, or "suite"."""
  names = SUITE if argument == "suite" else argument.split(",")
  if unknown := set(names) - SETS.keys():
    raise ValueError(f"unknown dataset {sorted(unknown)}. Use 'suite', or names separated by commas: {', '.join(SETS)}")
  return measurement(
    evals={
      name: dict(
        name="fewshot",
        # Images are squashed to 256 px, then the central 224 px are used. Digits fill their image.
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
