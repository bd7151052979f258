"""Pages with the keys of configs."""

from docs.generated.docstrings import EARLY, is_shipped, read_summary, unwrap
from docs.generated.keys import format_choices, list_keys
from vit_jax import config, evals, tasks
from vit_jax.data import augment, catalog, crops, erasing, loader, mixup, order, policies, stream, warping
from vit_jax.evals import probes
from vit_jax.models import attention_outputs, rotary, table, vit_choices, vit_heads
from vit_jax.models.published.model import Registered
from vit_jax.optim import schedules, value_schedules
from vit_jax.tasks import dinov2_choices, distill, masked_patches
from vit_jax.training import build

FAMILIES = {  # function of a family -> its names in words
  "vit": "ViT, hybrids, DeiT, DeiT III, DINOv2, DINOv3, SigLIP, rope-vit, EVA-02, ViT-5",
  "compact": "ViT-Lite, CVT and CCT",
  "bit": "BiT",
  "mixer": "Mixer",
  "swin": "Swin",
  "efficientnet": "EfficientNet",
}


def make_config_page() -> str:
  """Returns the page with the keys of a run, of `optim` and of `task`."""
  parts = ["# Config keys\n", EARLY, "## Keys of a run\n"]
  parts.append("The choices `model`, `data`, `optim`, `task` and `evals` have arguments of their own, listed below.\n")
  parts.append(list_keys(config.Run))
  groups = {"init": config.Init, "mesh": config.Mesh, "checkpoint": config.Checkpoint}
  for name, kind in (groups | {"log": config.Log, "limits": config.Limits}).items():
    parts += [f"## {name}\n", f"{read_summary(kind)}\n", list_keys(kind)]
  parts += [
    "## Keys of a measurement\n",
    f"{read_summary(config.Measurement)}\n",
    list_keys(config.Measurement),
  ]
  parts += ["## optim\n", format_choices(build.OPTIM, 3)]
  parts += ["## optim.schedule\n", format_choices(schedules.SCHEDULES, 3)]
  parts += ["## optim.weight_decay_schedule\n", format_choices(value_schedules.SCHEDULES_FROM_START, 3)]
  parts += ["## optim.ema_schedule\n", "The names are those of `optim.weight_decay_schedule`.\n"]
  parts += ["## task\n", format_choices(tasks.TASKS, 3)]
  parts += ["## task.temperature of dino and dinov2\n", format_choices(value_schedules.VALUE_SCHEDULES, 3)]
  parts += ["## task.masks of dinov2\n", format_choices(dinov2_choices.MASKS, 3)]
  parts += ["## task.gram of dinov2\n", format_choices(dinov2_choices.GRAMS, 3)]
  parts += ["## task.targets of distill\n", format_choices(distill.TARGETS, 3)]
  parts += ["## task.targets of masked_patches\n", format_choices(masked_patches.TARGETS, 3)]
  return "\n".join(parts)


def make_data_page() -> str:
  """Returns the page with the keys of `data`: those of every reader, and those that all data have."""
  parts = ["# Data keys\n", EARLY, "## Keys of all data\n"]
  shared = (stream.train_examples, stream.eval_examples, loader.batches, loader.processes, augment.build)
  parts.append(list_keys(*shared))
  parts.append("Some datasets have other defaults of `flip`, `crop` and `exif`, because of their labels or cameras.\n")
  readers = {}
  for name, row in catalog.CATALOG.items():
    if not is_shipped(row.reader):
      continue
    readers.setdefault(unwrap(row.reader), []).append(name)
  for reader, names in readers.items():
    title = names[0] if len(names) == 1 else f"Datasets of the reader {reader.__name__.strip('_')}"
    parts += [f"## {title}\n", f"{read_summary(reader)}\n"]
    if len(names) > 1:
      parts.append(f"Names: {', '.join(f'`{name}`' for name in names)}.\n")
    parts.append(list_keys(reader))
  for key, functions in (
    ("order", order.ORDERS),
    ("crop", crops.CROPS),
    ("test_crop", crops.TEST_CROPS),
    ("policy", policies.POLICIES),
    ("warp", warping.WARPS),
    ("mixing", mixup.MIXINGS),
    ("erasing", erasing.ERASINGS),
  ):
    parts += [f"## data.{key}\n", format_choices(functions, 3)]
  return "\n".join(parts)


def make_model_page() -> str:
  """Returns the page with the keys of `model` for each function of a family."""
  parts = ["# Model keys\n", EARLY]
  parts.append(
    "A published name sets some of these arguments. `convert --inspect` prints the arguments of a file, and "
    "[models](../models/index.md) lists all names.\n"
  )
  functions = {}
  for name, row in table.TABLE.items():
    if not isinstance(row, Registered):
      functions.setdefault(unwrap(row.make), []).append(name)
  for function, names in functions.items():
    family = FAMILIES.get(function.__name__, function.__name__)
    parts += [f"## {family}\n", f"{read_summary(function)}\n"]
    parts.append(f"{len(names)} names in the code, such as {', '.join(f'`{name}`' for name in names[:3])}.\n")
    parts.append(list_keys(function))
  for key, functions in (
    ("attention", vit_choices.ATTENTION),
    ("attention.output", attention_outputs.OUTPUTS),
    ("mlp", vit_choices.MLP),
    ("norm", vit_choices.NORM),
    ("position", vit_choices.POSITION),
    ("position.rotary", rotary.ROTARY),
    ("head", vit_heads.HEAD),
  ):
    parts += [f"## model.{key}\n", format_choices(functions, 3)]
  return "\n".join(parts)


def make_evaluations_page() -> str:
  """Returns the page with the keys of evaluations and probes."""
  parts = ["# Evaluation keys\n", EARLY, "## evals.*\n", format_choices(evals.REPEATED, 3)]
  parts += ["## probes of fewshot\n", format_choices(probes.PROBES, 3)]
  parts += ["## probe of dense\n", format_choices(probes.OF_SHARES, 3)]
  return "\n".join(parts)
