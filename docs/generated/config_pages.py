"""Pages with the keys of configs."""

from docs.generated.docstrings import EARLY, is_shipped, read_summary, unwrap
from docs.generated.keys import format_chapters, list_keys
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
  parts.append(
    "The arguments of `optim` and `task` are listed below. Those of the other choices are on the pages "
    "[model](model.md), [data](data.md) and [evals](evals.md).\n"
  )
  parts.append(list_keys(config.Run))
  groups = {"init": config.Init, "mesh": config.Mesh, "checkpoint": config.Checkpoint}
  for name, kind in (groups | {"log": config.Log, "log.target": config.Target, "limits": config.Limits}).items():
    parts += [f"## {name}\n", f"{read_summary(kind)}\n", list_keys(kind)]
  parts += [
    "## Keys of a measurement\n",
    f"{read_summary(config.Measurement)}\n",
    list_keys(config.Measurement),
  ]
  parts.append(
    format_chapters(
      {
        "optim": build.OPTIM,
        "optim.schedule": schedules.SCHEDULES,
        "optim.weight_decay_schedule and optim.ema_schedule": value_schedules.SCHEDULES_FROM_START,
        "task": tasks.TASKS,
        "task.temperature of dino and dinov2": value_schedules.VALUE_SCHEDULES,
        "task.masks of dinov2": dinov2_choices.MASKS,
        "task.gram of dinov2": dinov2_choices.GRAMS,
        "task.targets of distill": distill.TARGETS,
        "task.targets of masked_patches": masked_patches.TARGETS,
      }
    )
  )
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
  parts.append(
    format_chapters(
      {
        "data.order": order.ORDERS,
        "data.crop": crops.CROPS,
        "data.test_crop": crops.TEST_CROPS,
        "data.policy": policies.POLICIES,
        "data.warp": warping.WARPS,
        "data.mixing": mixup.MIXINGS,
        "data.erasing": erasing.ERASINGS,
      }
    )
  )
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
  parts.append(
    format_chapters(
      {
        "model.attention": vit_choices.ATTENTION,
        "model.attention.output": attention_outputs.OUTPUTS,
        "model.mlp": vit_choices.MLP,
        "model.norm": vit_choices.NORM,
        "model.position": vit_choices.POSITION,
        "model.position.rotary": rotary.ROTARY,
        "model.head": vit_heads.HEAD,
      }
    )
  )
  return "\n".join(parts)


def make_evaluations_page() -> str:
  """Returns the page with the keys of evaluations and probes."""
  chapters = {"evals.*": evals.REPEATED, "probes of fewshot": probes.PROBES, "probe of dense": probes.OF_SHARES}
  return "\n".join(["# Evaluation keys\n", EARLY, format_chapters(chapters)])
