"""Runs on TPUs with published hours, for `benchmarks.real_runs`: their settings as runs of this package.

- deit3-jax, github.com/affjljoo3581/deit3-jax at 753d01b: DeiT and DeiT III on a v4-64. The published hours are
  proportional to the epochs, so they do not seem to include fine-tuning.
- big_vision, github.com/google-research/big_vision at 95ccb15 (ViT) and 2f3f493 (others): the comments of its configs.
- github.com/sayakpaul/big_vision_experiments: an independent run of the same ViT on a v3-8.

All of them keep all parameters on each device, and compute in float32. The models of big_vision have an option for the
type, which no config of these runs sets. TPUs multiply float32 matrices in bfloat16 by default, but float32 activations
need more memory traffic.
"""

import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from vit_jax import config, importers
from vit_jax.config import flags
from vit_jax.importers import layout
from vit_jax.importers.formats import containers
from vit_jax.models import Description
from vit_jax.schema import Choice
from vit_jax.training import build
from vit_jax.training.bound_run import BoundRun

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
# Images/s of a host with deit3-jax, by the work of its 40 processes with Pillow. "randaugment" is from DeiT Ti and S,
# which take equal time although S has four times the arithmetic. "three_augment" is from DeiT III S. "decoding" is from
# DeiT III S on ImageNet-21k, which decodes each image that it uses. The others decode one of three.
DEIT3_JAX_RATE = {"randaugment": 5000, "three_augment": 6800, "decoding": 5500}
# A fourth of the processes reads for evaluations and decodes each image.
DEIT3_JAX_EVALUATION_RATE = DEIT3_JAX_RATE["decoding"] / 4
# Images/s of a host with big_vision: 48 threads of tf.data (`private_threadpool_size`), and the core seconds per image
# that `benchmarks.input_pipeline` measured for tf.data (docs/results/speed.md) on another CPU: 7.3 to 8.6 and 2.1 to
# 2.7 ms.
BIG_VISION_RATE = {"randaugment": 48 / 8.0e-3, "decoding": 48 / 2.4e-3}
VALIDATION = {"validation": 50_000}
# Evaluations of big_vision by name: number of images. Decoded images are cached on the hosts.
BIG_VISION = {"minival": 12_812, "validation": 50_000, "real": 50_000, "v2": 10_000}
MINITRAIN = {"minitrain": 25_623}
# Forward FLOPs of R152x2 over those of R50x1 (91.6 and 8.2 GFLOP). Evaluations of the distance between student and
# teacher compute both.
TEACHER = 11.2


class StepProgram(NamedTuple):
  """A train step, and the published runs that use it.

  Attributes:
    name: name of the program, which starts with the config for deit3-jax and with "big_vision" for big_vision.
    slice: name of the slice.
    make: function that returns the run. Its evaluations are not used.
    hours: published hours, as (number of epochs, hours).
    epoch: images of an epoch.
    host_rate: images/s of a host.
    evaluated_images: images that are evaluated per epoch, in forward passes of the trained model.
    evaluation_rate: images/s of a host in evaluations.
    depths: numbers of blocks to compile, if not all are compiled.
  """

  name: str
  slice: str
  make: Callable[[], BoundRun]
  hours: tuple[tuple[int, float], ...]
  epoch: int
  host_rate: float
  evaluated_images: float
  evaluation_rate: float = float("inf")
  depths: tuple[int, int] | None = None


def count_evaluated(images: Mapping[str, float], batch: int, every: float) -> float:
  """Returns the evaluated images per epoch, with the padding of the last batch.

  Args:
    images: number of images of each evaluation.
    batch: batch size of the evaluations.
    every: epochs between two evaluations.
  """
  return sum(-(-number // batch) * batch for number in images.values()) / every


def _make_deit3(recipe: str, dropped: float | None) -> BoundRun:
  """Returns a recipe of this repository with the settings of deit3-jax.

  Args:
    recipe: config file and argument.
    dropped: rate of stochastic depth, if it differs from the recipe.
  """
  changes = {"model.dtype": "float32", "model.gelu": "tanh", "mesh.fsdp": "1"}
  if dropped is not None:
    changes |= {"model.stochastic_depth": str(dropped), "model.stochastic_depth_rates": "equal"}
  return build.complete(config.resolve(flags.load_config(str(CONFIGS / recipe), changes)))


def _deit3(
  recipe: str,
  work: str,
  hours: tuple[tuple[int, float], ...],
  dropped: float | None = None,
  depths: tuple[int, int] | None = None,
) -> StepProgram:
  """Returns a program of deit3-jax. It evaluates the validation images after each epoch of ImageNet-1k.

  Args:
    recipe: config file and argument.
    work: key of `DEIT3_JAX_RATE`.
    hours: published hours.
    dropped: rate of stochastic depth, if it differs from the recipe.
    depths: numbers of blocks to compile.
  """
  i21k = "i21k" in recipe
  return StepProgram(
    recipe,
    "v4-64",
    functools.partial(_make_deit3, recipe, dropped),
    hours,
    13_151_276 if i21k else 1_281_167,  # ImageNet-21k is the version of winter 2021
    DEIT3_JAX_RATE[work],
    0.0 if i21k else count_evaluated(VALIDATION, 512, 1),
    evaluation_rate=DEIT3_JAX_EVALUATION_RATE,
    depths=depths,
  )


DEIT3_JAX_PROGRAMS = (  # cheapest first
  _deit3("deit.py:Ti", "randaugment", ((300, 2 + 40 / 60),), 0.0),
  _deit3("deit.py:S", "randaugment", ((300, 2 + 43 / 60),), 0.0),
  _deit3("deit.py:B", "randaugment", ((300, 4 + 40 / 60),), 0.05),
  _deit3("deit3.py:S,i1k,800", "three_augment", ((400, 2 + 38 / 60), (800, 5 + 19 / 60))),
  _deit3("deit3.py:B,i1k,800", "three_augment", ((400, 4 + 42 / 60), (800, 9 + 28 / 60))),
  _deit3("deit3.py:S,i21k,90", "decoding", ((90, 7.5), (240, 20.1))),
  _deit3("deit3.py:B,i21k,90", "decoding", ((90, 12.2), (240, 33.15))),
  _deit3("deit3.py:L,i1k,400", "three_augment", ((400, 14 + 10 / 60),)),
  _deit3("deit3.py:L,i21k,90", "decoding", ((90, 37 + 13 / 60),)),
  _deit3("deit3.py:H,i1k,400", "three_augment", ((400, 19 + 10 / 60),), depths=(8, 16)),
  _deit3("deit3.py:H,i21k,90", "decoding", ((90, 35 + 51 / 60),), depths=(8, 16)),
)

_ADAM = {"name": "adamw", "mu_dtype": "bfloat16", "decay": "independent", "clip": 1.0}


def _make_big_vision(model: dict[str, Any], data: dict[str, Any], **changes: Any) -> BoundRun:
  """Returns a run from scratch in float32."""
  settings = {"total": "90ep", "checkpoint": {"every": "1k"}, **changes}
  mixing = data.pop("mixing", None)
  mixed = {} if mixing is None else {"mixing": dict(name="mixup", alpha=mixing, partner="rolled", share="larger")}
  recipe = config.recipe(
    model=model | {"dtype": "float32"}, data=dict(name="imagenet2012", train="train[:99%]") | data | mixed, **settings
  )
  return build.complete(config.resolve(recipe))


def make_vit_s16() -> BoundRun:
  """Returns ViT-S/16 of big_vision, as in both published runs of 90 epochs."""
  head = {"head": {"name": "gap", "pre_logits": 384}, "position": {"name": "sincos2d"}}
  return _make_big_vision(
    {"name": "ViT-S/16", **head},
    {"policy": dict(name="randaugment", layers=2, magnitude=10), "mixing": 0.2},
    optim=dict(_ADAM, lr=1e-3, weight_decay=1e-4, warmup="10k"),
    batch=1024,
  )


def make_mixer_b16() -> BoundRun:
  """Returns Mixer-B/16 of big_vision (mlp_mixer_i1k)."""
  return _make_big_vision(
    {"name": "Mixer-B/16", "stochastic_depth": 0.1},
    {"policy": dict(name="randaugment", layers=2, magnitude=15), "mixing": 0.5},
    task=dict(name="classify", loss="sigmoid"),
    optim=dict(_ADAM, lr=1e-3, weight_decay=1e-4, warmup="10k"),
    batch=4096,
  )


def make_r50x1() -> BoundRun:
  """Returns BiT R50x1 of big_vision (bit_i1k)."""
  return _make_big_vision(
    {"name": "R50x1"},
    {},
    optim=dict(name="sgd", momentum=0.9, lr=1.6, weight_decay=1.6e-3, decay="independent", warmup="1k", clip=1.0),
    batch=4096,
  )


@functools.cache
def _write_teacher(folder: pathlib.Path) -> str:
  """Writes weights of R152x2 with the value zero, and returns the path. No step is executed."""
  description = Description(Choice("R152x2", {}), 224, 1000)
  arrays = {path: np.zeros(shape, np.float32) for path, shape in layout.compute_shapes(description).items()}
  file = folder / "r152x2.npz"
  containers.write(file, importers.export_tensors(arrays, description, "bit"), {})
  return str(file)


def make_distilled_r50x1(folder: pathlib.Path) -> BoundRun:
  """Returns the distillation of BiT R152x2 to R50x1 of big_vision (distill/bit_i1k).

  Args:
    folder: directory for a file of the teacher's size, 0.9 GB.
  """
  targets = {"name": "soft", "temperature": 1.0}
  return _make_big_vision(
    {"name": "R50x1"},
    {"train": "train[:98%]", "mixing": 1.0},
    task=dict(name="distill", teacher=_write_teacher(folder), targets=targets, weight=1.0),
    optim=dict(_ADAM, lr=0.03, weight_decay=3e-4, warmup="5k"),
    batch=4096,
  )


def list_programs(folder: pathlib.Path) -> tuple[StepProgram, ...]:
  """Returns all programs, those of big_vision first.

  Args:
    folder: directory for temporary files.
  """
  epoch, student = 1_268_355, BIG_VISION | MINITRAIN
  # Distances between student and teacher are not evaluated on "real", because its images are those of "validation".
  both = {f"{name} distance": number * (1 + TEACHER) for name, number in student.items() if name != "real"}
  rate = BIG_VISION_RATE
  return (
    StepProgram(
      "big_vision ViT-S/16", "v3-8", make_vit_s16, ((90, 6.5), (90, 7 + 22 / 60)), epoch, rate["randaugment"],
      count_evaluated(BIG_VISION, 1024, 1000 * 1024 / epoch),
    ),
    StepProgram(
      "big_vision Mixer-B/16", "v3-128", make_mixer_b16, ((300, 2 + 11 / 60), (60, 27 / 60)), epoch,
      rate["randaugment"], count_evaluated(student, 4096, 2500 * 4096 / epoch),
    ),
    StepProgram(
      "big_vision R50x1", "v3-128", make_r50x1, ((90, 32 / 60),), epoch, rate["decoding"],
      count_evaluated(student, 4096, 1000 * 4096 / epoch),
    ),
    StepProgram(
      "big_vision R152x2 to R50x1", "v3-32", functools.partial(make_distilled_r50x1, folder), ((300, 15.0),), 1_255_544,
      rate["decoding"], count_evaluated(student | both, 4096, 1000 * 4096 / 1_255_544),
    ),
    *DEIT3_JAX_PROGRAMS,
  )  # fmt: skip
