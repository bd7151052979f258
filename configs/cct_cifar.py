"""Compact transformers from scratch on CIFAR: the official recipes of Hassani et al. 2021 (arXiv:2104.05704).

Command:   python -m vit_jax.train --config=cct_cifar --workdir=runs/cct
           This trains CCT-7/3x1 for 300 epochs on CIFAR-10. An argument selects model, dataset and length:
           cct_cifar:cct_7_3x1_32_sine,cifar100,1500. Lengths are 300, 1500 and 5000 epochs, each with its
           own learning rates
Hardware:  one GPU or TPU; no hours published, planned 1.5 for 300 epochs on a TPU v5e (vit_jax.plan)
Result:    published for CCT-7/3x1, at the epoch that is best on the test images. For 300, 1500 and 5000 epochs:
           CIFAR-10 96.53, 97.48, 98.00 %, CIFAR-100 80.92, 82.72, 82.87 %. The two longer trainings use sinusoidal
           positions (official README). The authors once described their results as the best of 4 runs (issue 3), so
           their average is lower
"""

from ml_collections import ConfigDict

from vit_jax.config import recipe

MODELS = (
  *("vit_2_4_32", "vit_4_4_32", "vit_6_4_32", "vit_7_4_32", "cvt_2_4_32", "cvt_4_4_32", "cvt_6_4_32", "cvt_7_4_32"),
  *("cct_2_3x2_32", "cct_4_3x2_32", "cct_6_3x1_32", "cct_6_3x2_32", "cct_7_3x1_32", "cct_7_3x2_32"),
)
SETS = {  # mean and standard deviation of the training images, grey for pixels that a rotation uncovers
  "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), (125, 123, 114)),
  "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), (129, 124, 112)),
}
# dataset, epochs -> peak and initial learning rate, weight decay, share of images with erasing, end of mixing
RATES = {
  ("cifar10", "300"): (5.5e-4, 1e-5, 0.06, 0.0, "175ep"),
  ("cifar10", "1500"): (5e-4, 1e-5, 0.05, 0.25, None),
  ("cifar10", "5000"): (5e-4, 1e-5, 0.05, 0.25, None),
  ("cifar100", "300"): (6e-4, 1e-6, 0.06, 0.25, None),
  ("cifar100", "1500"): (7e-4, 1e-6, 0.05, 0.25, None),
  ("cifar100", "5000"): (5e-4, 1e-6, 0.05, 0.25, None),
}


def get_config(argument: str = "cct_7_3x1_32") -> ConfigDict:
  """Returns the run for "MODEL", "MODEL,DATASET" or "MODEL,DATASET,EPOCHS", such as "cct_7_3x1_32,cifar100,300"."""
  model, images, epochs = (argument.split(",") + ["cifar10", "300"][argument.count(",") :])[:3]
  if model.removesuffix("_sine") not in MODELS:
    raise ValueError(f"unknown model {model!r}. Allowed, also with the suffix _sine: {', '.join(MODELS)}")
  if (images, epochs) not in RATES or argument.count(",") > 2:
    sets = ", ".join(f"{name},{length}" for name, length in RATES)
    raise ValueError(f"unknown dataset or length in {argument!r}. Use MODEL,DATASET,EPOCHS with one of {sets}")
  mean, std, fill = SETS[images]
  lr, first, decay, erased, mixed = RATES[images, epochs]
  return recipe(
    model=dict(name=model, dtype="bfloat16"),
    data=dict(
      name=images,
      image_size=32,
      crop=dict(name="inception", area=(0.8, 1.0), interpolation="random"),
      policy=dict(
        name="randaugment_increasing", layers=2, magnitude=9.0, magnitude_std=0.5, interpolation="random", fill=fill
      ),
      mixing=dict(name="mixup_cutmix", mixup_alpha=0.8, cutmix_alpha=1.0, switch=0.5, off_after=mixed),
      erasing=dict(name="random", probability=erased) if erased else dict(name="none"),
      mean=mean,
      std=std,
    ),
    task=dict(name="classify", label_smoothing=0.1),
    optim=dict(
      name="adamw",
      lr=lr,
      weight_decay=decay,
      # as in the official code: all parameters but vectors and biases
      decay_on=((".*kernel|position/table|cls", 1.0),),
      warmup="10ep",
      schedule=dict(name="epoch_cosine", start=first, end=1e-5, cooldown="10ep"),
    ),
    total=f"{int(epochs) + 10}ep",  # the last ten epochs use the final rate
    batch=128,
    evals=dict(test=dict(name="accuracy", every="2%")),
  )
