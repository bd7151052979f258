"""Self-training: a teacher labels unlabelled images, and a student learns from all images with noise (Xie et al. 2020).

Command:   python -m vit_jax.train --config=noisy_student:digits,teacher --workdir=runs/teacher
           python -m vit_jax.evaluate --workdir=runs/teacher --split='train[100:]' --write-labels=runs/labels
           python -m vit_jax.train --config=noisy_student:digits,student --workdir=runs/student \\
               --config.data.path=runs/labels
           Further rounds start from runs/student and repeat the last two commands, as long as the accuracy improves.
           `python -m benchmarks.self_training` runs two rounds on the digits with three seeds. 100 of the digits have
           labels. imagenet,teacher and imagenet,student are ViT-B/16 and L/16. Their teacher labels JFT-300M or your
           own images, if --data.name=jft300m --data.path=DIR --split=train are added to evaluate
Hardware:  digits: two CPU cores. ImageNet: not published for a ViT
Result:    digits: docs/results/learning.md. Published on ImageNet with JFT-300M, for EfficientNets: B7 85.0 to
           86.9 %, L2 88.4 % (arXiv:1911.04252, tables 2 and 6). Results with a ViT are not published
Source:    arXiv:1911.04252. Images with a confidence of at least 0.3 get soft labels. Each class has 130,000
           of them, if necessary by duplication. The student uses RandAugment with 2 operations of magnitude 27, dropout
           0.5 before the last layer, stochastic depth up to 0.2, and 14 unlabelled images for each labelled one. In
           this config, label smoothing applies to all images
"""

from ml_collections import ConfigDict

from vit_jax.config import recipe, required

NAMES = ("digits,teacher", "digits,student", "imagenet,teacher", "imagenet,student")


def get_config(argument: str = "digits,teacher") -> ConfigDict:
  """Returns the run of a teacher or a student, such as "digits,student" or "imagenet,teacher"."""
  if argument not in NAMES:
    raise ValueError(f"unknown run {argument!r}. Allowed: {', '.join(NAMES)}")
  images, _, stage = argument.partition(",")
  return (digits if images == "digits" else imagenet)(stage == "student")


def digits(student: bool) -> ConfigDict:
  """Returns CCT-2/3x2 on the first 100 training images.

  The student uses seven unlabelled images for each labelled image.
  """
  labelled = dict(name="digits", train="train[:100]")
  noise = dict(policy=dict(name="randaugment", layers=1, magnitude=9))
  data = dict(name="pseudo_labelled", path=required, labelled=labelled, ratio=7.0, minimum=0.3, per_class=130, **noise)
  return recipe(
    model=dict(name="cct_2_3x2_32", dropout=0.1 if student else 0.0),
    data=(data if student else labelled)
    | dict(
      image_size=32,
      crop=dict(name="resize"),
      test_crop=dict(name="resize"),
      flip=False,
      warp=dict(name="affine", degrees=15.0, translate=0.1, scale=(0.75, 1.25), shear=15.0),
    ),
    task=dict(name="classify", label_smoothing=0.0 if student else 0.1),
    # Micro-batches of eight images fit into a CPU's cache; see configs/digits.py.
    optim=dict(
      name="adamw", accumulate=8, lr=3e-3, weight_decay=0.05, warmup="10%", schedule=dict(name="cosine"), clip=1.0
    ),
    total="400",
    batch=64,
    evals=dict(test=dict(name="accuracy", every="50%")),
  )


def imagenet(student: bool) -> ConfigDict:
  """Returns ViT-B/16 with AugReg's recipe as the teacher, or L/16 with 15 times as many images as the student."""
  labelled = dict(name="imagenet2012", train="train[:99%]")
  policy = dict(name="randaugment", layers=2, magnitude=27 if student else 15)
  data = dict(name="pseudo_labelled", path=required, labelled=labelled, ratio=14.0, minimum=0.3, per_class=130_000)
  return recipe(
    model=dict(
      name="ViT-L/16" if student else "ViT-B/16",
      dropout=0.1 if student else 0.0,
      stochastic_depth=0.2 if student else 0.0,
      dtype="bfloat16",
    ),
    data=(data if student else labelled) | dict(policy=policy, test_crop=dict(name="centre", resize=256)),
    task=dict(name="classify", label_smoothing=0.0 if student else 0.1),
    optim=dict(
      name="adamw", mu_dtype="bfloat16", lr=1e-3, weight_decay=0.1, warmup="10k", schedule=dict(name="cosine"), clip=1.0
    ),
    total="350k" if student else "93k",
    batch=4096,
    mesh=dict(data=-1, fsdp=8),
    checkpoint=dict(every="1k"),
    evals=dict(
      validation=dict(name="accuracy", split="validation", every="5%"),
    ),
  )
