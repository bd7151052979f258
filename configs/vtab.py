"""VTAB-1k: a model fine-tuned on each of 19 tasks with 1,000 images (Zhai et al. 2019), as in arXiv:2010.11929.

Command:   python -m vit_jax.sweep --config=vtab:ViT-B/16,all --workdir=runs/vtab --config.init.from=B_16.npz
           --parallel=N runs N trials at the same time. The command runs all tasks with prepared data (`python -m
           vit_jax.prepare NAME`). It lists the other tasks with the commands that prepare them. It prints the columns
           of table 9 with the means of the groups. vtab:ViT-B/16,dtd is one task, which `vit_jax.train` can
           also run. ",all,published" uses the setting of the paper without a search: learning rate 0.01, 2,500 steps
Splits:    train800 is used for training. val200 selects one of two rates and one of two lengths, by the mean over
           tasks. All tasks use the same setting. This setting is then trained again on train800val200, three times, and
           measured on test. The images are those of VTAB. TFDS's builders prepare them
Images:    squashed to 384 x 384 for all tasks, without crops and mirror images. With --config.data.crop=default
           --config.data.flip=default they are cropped and mirrored if that preserves a task's label (arXiv:1912.11370,
           appendix F). VTAB's rule of one procedure for all tasks does not allow this
Hardware:  no hours are published. A run of 2,500 steps processes 1.3 million images, a run of 10,000 steps 5.1 million.
           The 76 trials process 243 million, and the 57 final runs 73 or 292 million
Result:    published, mean over tasks: 77.63 % for ViT-H/14 and 76.28 for L/16 on JFT-300M, 72.72 for L/16 on
           ImageNet-21k (table 2). The latter has 83.3, 84.7 and 57.5 for natural, specialized and structured tasks
           (table 9). AugReg's VTAB figures use all training images and are not comparable
"""

from collections.abc import Sequence

from ml_collections import ConfigDict

from vit_jax.config import Sweep, product, recipe, required

TASKS = (
  *("caltech101", "cifar100", "dtd", "oxford_flowers102", "oxford_iiit_pet", "sun397", "svhn_cropped"),
  *("patch_camelyon", "eurosat", "resisc45", "diabetic_retinopathy"),
  *("clevr_count", "clevr_distance", "dmlab", "dsprites_location", "dsprites_orientation", "kitti_distance"),
  *("smallnorb_azimuth", "smallnorb_elevation"),
)


def get_config(argument: str = "ViT-B/16,dtd") -> ConfigDict:
  """Returns the run for a model and a task, such as "ViT-B/16,dtd".

  "ViT-B/16,dtd,published" trains on all 1,000 images.
  """
  model, tasks, published = parse_argument(argument)
  evals = {"test": dict(name="accuracy", split="test", every="100%")}
  if not published:
    evals["val"] = dict(name="accuracy", split="val", every="100%")
  return recipe(
    model=dict(name=model, dtype="bfloat16"),
    data=dict(
      name=tasks[0],
      image_size=384,
      train="train800val200" if published else "train800",
      val="val200",
      crop=dict(name="resize"),
      test_crop=dict(name="resize"),
      flip=False,
    ),
    init={"from": required, "head": "new"},
    optim=dict(
      name="sgd",
      momentum=0.9,
      accumulator_dtype="bfloat16",
      lr=0.01,
      warmup="200",  # from Zhai et al. 2022, because the paper does not specify it
      schedule=dict(name="cosine"),
      clip=1.0,
    ),
    total="2500",
    batch=512,
    evals=evals,
  )


def sweep(argument: str = "ViT-B/16,dtd") -> Sweep:
  """Returns the rates and lengths of VTAB's light sweep, selected by val200.

  The best setting is trained again on all 1,000 images, three times.
  """
  _, tasks, published = parse_argument(argument)
  if published:
    return Sweep(product({"data.name": tasks, "seed": range(3)}), decide=None, over="data.name")
  again = product({"data.name": tasks, "data.train": ["train800val200"], "seed": range(3)})
  rates = product({"data.name": tasks, "optim.lr": (0.01, 0.1), "total": ("2500", "10k")})
  return Sweep(rates, decide="val/top1", final=again, over="data.name")


def parse_argument(argument: str) -> tuple[str, Sequence[str], bool]:
  """Parses an argument such as "ViT-B/16,all,published" into (model, tasks, True for the published setting)."""
  words = argument.split(",")
  model, task, setting = (words + ["all", ""][len(words) - 1 :])[:3]
  if len(words) > 3 or setting not in ("", "published"):
    raise ValueError(f"expected MODEL,TASK or MODEL,TASK,published, got {argument!r}")
  if task not in ("all", *TASKS):
    raise ValueError(f"unknown task {task!r}. Allowed: all, {', '.join(TASKS)}")
  return model, TASKS if task == "all" else (task,), bool(setting)
