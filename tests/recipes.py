"""Shipped configs for tests: by name with changes, with small models, and with catalog facts instead of data."""

import functools
import pathlib

import cv2
import jax
import numpy as np

from tests import runs
from vit_jax import config, schema
from vit_jax.config import flags
from vit_jax.data import catalog, sources
from vit_jax.sweeps import study
from vit_jax.training import build

CONFIGS = runs.ROOT / "configs"
NAMES = sorted(file.relative_to(CONFIGS).with_suffix("").as_posix() for file in CONFIGS.rglob("*.py"))
for _name in ("fewshot", "probes"):  # not configs of runs; see test_fewshot
  NAMES.remove(_name)
SHRUNK = {
  "optim.accumulate": "1",
  "batch": "8",
  "total": "2",
  "model.depth": "2",
  "log.every": "1",
  "log.images": "false",
  "data.image_size": "32",
}


# Small heads and few crops of self-distillation. If `sharing` is set, patches have no separate head.
HEADS = {"task.prototypes": "64", "task.bottleneck": "16", "task.hidden": "32", "task.local_crops": "2"}
PATCH_HEADS = {"task.patch_prototypes": "64", "task.patch_bottleneck": "16", "task.patch_hidden": "32"}


def path(name):
  """Returns the --config of the shipped `file` or `file:argument`."""
  file, colon, argument = name.partition(":")
  return f"{runs.ROOT}/configs/{file}.py{colon}{argument}"


def module(name):
  """Returns the Python module of a shipped config."""
  return flags.load_module(path(name))[0]


def load(name, **changes):
  """Loads a shipped config with flags, without resolving it. Changes name keys with __ instead of dots."""
  return flags.load_config(path(name), {key.replace("__", "."): str(value) for key, value in changes.items()})


def run(name, **changes):
  """Loads a shipped config with flags as a complete run."""
  return build.complete(config.resolve(load(name, **changes)))


def needed(name: str, values: dict[str, str]) -> dict[str, str]:
  """Returns the flags {key: text} that a shipped config requires.

  Errors about missing values name the keys, so a new recipe needs no entry in a list.

  Args:
    name: the shipped config.
    values: key -> text.

  Raises:
    KeyError: `values` does not contain a required key.
  """
  given: dict[str, str] = {}
  while True:
    try:
      run(name, **given)
    except schema.ConfigError as error:
      key = error.place.removeprefix("config.")
      if not error.message.startswith("missing") or key in given:
        raise
      given[key] = values[key]
    else:
      return given


@functools.cache
def trials(name, **overrides):
  """Returns the trials of a shipped sweep. Keys have __ instead of dots.

  The trials are created once in a process, so tests must not change them.
  """
  values = {key.replace("__", "."): value for key, value in overrides.items()}
  return study.Study(path(name), values, study.load_sweep(path(name)), pathlib.Path("sweep")).make_trials()


def known(name, **changes):
  """Builds a recipe on 8 devices with the catalog's facts instead of data."""
  return build.build(run(name, **changes), jax.devices(), catalog.open_known_split)


def narrow(name):
  """Returns the run of a recipe with a few thousand parameters, images of 32 px and two steps."""
  edited = load(name)
  side = "28" if edited.model.name.endswith("/14") else "32"
  small = {"model.width": "16", "model.heads": "2", "model.hidden": "16", "model.scan": "true"}
  small["init.from"] = "weights.npz"  # a recipe may require it, but these tests do not read it
  if edited.task.name in ("dino", "dinov2"):
    small |= HEADS
  if edited.task.name == "dinov2" and "sharing" not in edited.task:
    small |= PATCH_HEADS
  for key, text in (SHRUNK | small | {"data.image_size": side, "optim.warmup": "0"}).items():
    flags.set_value(edited, key, text)
  for part, key, value in (
    (edited.model.get("head", {}), "pre_logits", 16),
    (edited.data.get("test_crop", {}), "resize", 36),
    (edited.optim.get("schedule", {}), "cooldown", 0),
    *((edited.task, key, value) for key, value in (("width", 16), ("depth", 1), ("heads", 2))),
  ):
    if key in part:
      part[key] = value
  return build.complete(config.resolve(edited))


def pictures(choice, split):
  """Returns 16 random images instead of a dataset's images, with the same number of labels per image."""
  row, draw = catalog.CATALOG[choice.name], np.random.default_rng(0)
  files = [cv2.imencode(".jpg", draw.integers(0, 255, (40, 50, 3), np.uint8))[1].tobytes() for _ in range(16)]
  labels = [tuple(map(int, draw.integers(row.classes, size=draw.integers(1, row.labels + 1)))) for _ in files]
  if row.labels == 1:
    labels = [label for (label,) in labels]
  names = tuple(map(str, range(row.classes)))
  masks = None
  if row.segments:
    values = tuple(row.segments.values.values())
    drawn = [draw.choice(values, (40, 50)).astype(np.uint8) for _ in files]
    masks = sources.Masks(tuple(row.segments.values), lambda i: cv2.imencode(".png", drawn[i])[1].tobytes(), values)
  return sources.Source("made", split, names, 16, lambda i: (files[i], labels[i]), str, row.labels, masks=masks)
