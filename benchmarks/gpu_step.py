"""Compares the train step of ViTs on an NVIDIA GPU with timm's models compiled by torch on the same card.

    python -m benchmarks.gpu_step [--models=B/16,L/16] [--batch=256] [--attention=xla] [--json=FILE]

The benchmark needs an NVIDIA GPU, `pip install -e '.[gpu]'` and `pip install torch timm`. Without timm, the peer is a
ViT of the same structure, and the output reports this. Both sides train the same model on the same uint8 images, which
are stored on the device. They use 224 px, 1000 classes, average pooling and no dropout. A step contains normalisation,
cross-entropy, clipping of the gradient norm at 1, and AdamW with float32 moments and decay of the kernels. Our side is
the step of a run, in bfloat16 except the weights, with its metrics and no moving average. The peer is normalisation,
model and loss under torch.compile and autocast to bfloat16, with fused AdamW. Its residual stream remains in float32.
Each side uses its preferred layout of images.

Each model is measured in a separate process, with alternating rounds of both sides. Figures are medians of rounds. MFU
refers to the chip's dense bfloat16 peak and to the arithmetic of the model alone, three forward passes.
`--platform=cpu --models=Ti/16 --batch=4 --steps=1` tests the code without a GPU. Its figures are meaningless.
"""

import argparse
import concurrent.futures
import json
import math
import multiprocessing
import os
import pathlib
import signal
import statistics
import time
from typing import Any

import jax
import numpy as np
from einops import rearrange

from benchmarks import children
from benchmarks.sides import CLASSES, CLIP, DECAY, RATE, SIDE, Side
from vit_jax import cli, config, schema, trees
from vit_jax.data import catalog
from vit_jax.models import flops
from vit_jax.parallel import hardware
from vit_jax.schema import format_amount
from vit_jax.storage import files
from vit_jax.training import build
from vit_jax.training.bound_run import BoundRun
from vit_jax.training.experiment import Experiment

# Warm-up steps after compilation. They also change our head, which starts at zero: products with zeros use less power.
WARM = 3


def make_run(model: str, attention: str, batch: int) -> BoundRun:
  """Returns our run.

  Args:
    model: size and patch, such as "B/16".
    attention: implementation of attention.
    batch: batch size.

  Raises:
    ConfigError: the model or the attention does not exist.
  """
  return build.complete(
    config.resolve(
      config.recipe(
        model=dict(name=f"ViT-{model}", head="gap", gelu="erf", dtype="bfloat16", attention=attention),
        data=dict(name="imagenet2012", image_size=SIDE),
        # No warm-up: a rate of zero would keep the head at zero, and therefore most gradients.
        optim=dict(name="adamw", lr=RATE, schedule=dict(name="constant"), weight_decay=DECAY, clip=CLIP),
        total="90ep",
        batch=batch,
      )
    )
  )


def prepare_ours(parts: Experiment, images: np.ndarray, labels: np.ndarray) -> Side:
  """Prepares our side.

  Args:
    parts: the run.
    images: images (B, H, W, C), uint8.
    labels: labels (B,).
  """
  shapes = parts.batch_shapes
  patch = math.isqrt(shapes["image"].shape[-1] // 3)
  values = {
    "image": rearrange(images, "b (h i) (w j) c -> b (h w) (i j c)", i=patch, j=patch),
    "label": labels,
    "draw": np.arange(len(labels)),
  }
  batch = {name: jax.device_put(values[name].astype(shape.dtype), shape.sharding) for name, shape in shapes.items()}
  compiled, states, (frozen_weights, _) = parts.compile(), [parts.create_initial_state()], parts.load_frozen_weights()

  def steps(count: int) -> float:
    for _ in range(count):
      states[0], metrics = compiled(states[0], batch, frozen_weights)
    jax.block_until_ready((states[0], metrics))
    return float(metrics["loss"])

  return Side(steps, trees.count_values(parts.state_shapes.params), f"jax {jax.__version__}")


def get_device(platform: str) -> jax.Device:
  """Returns the device of both sides, the first of its platform.

  Raises:
    ConfigError: one of the frameworks does not find a GPU.
  """
  if platform == "cpu":
    return jax.devices("cpu")[0]
  import torch  # in an extra

  advice = "run this on a machine with an NVIDIA GPU, or try the code with --platform=cpu"
  try:
    device = jax.devices("cuda")[0]
  except RuntimeError as error:
    raise schema.ConfigError(
      f"--platform=gpu: JAX finds no NVIDIA GPU ({error}); {advice}. JAX itself needs pip install -e '.[gpu]'"
    ) from error
  if not torch.cuda.is_available():
    raise schema.ConfigError(f"--platform=gpu: torch {torch.__version__} finds no NVIDIA GPU; {advice}")
  return device


def measure_model(model: str, args: argparse.Namespace) -> dict[str, Any]:
  """Measures a model in this process.

  Args:
    model: size and patch, such as "B/16".
    args: parsed flags.

  Returns:
    One row of the table.

  Raises:
    ConfigError: the batch does not fit into the memory.
  """
  import torch  # in an extra

  from benchmarks import torch_vit

  cli.configure_logging()
  device = get_device(args.platform)
  parts = build.build(make_run(model, args.attention, args.batch), [device], catalog.open_known_split)
  random = np.random.default_rng(0)
  images = random.integers(256, size=(args.batch, SIDE, SIDE, 3), dtype=np.uint8)
  labels = random.integers(CLASSES, size=args.batch)
  try:
    # torch runs first, because it allocates what it needs. XLA's allocator may take up to twice that if memory is free.
    peer = torch_vit.prepare_theirs(model, images, labels, "cpu" if args.platform == "cpu" else "cuda")
    peer.steps(WARM)
    mine = prepare_ours(parts, images, labels)
    mine.steps(WARM)
    assert mine.parameters == peer.parameters, f"not the same model: {mine.parameters} and {peer.parameters} parameters"
    rates = alternate_sides({"ours": mine, "theirs": peer}, args)
  except (jax.errors.JaxRuntimeError, torch.OutOfMemoryError) as error:
    if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
      raise
    raise schema.ConfigError(
      f"--batch: ViT-{model} with {format_amount(args.batch, 'image')} does not fit on a {device.device_kind} "
      "for JAX and torch at once, which both keep their memory. Use a smaller batch, such as "
      f"--batch={max(1, args.batch // 2)}"
    ) from error
  peak = hardware.get_peak_flops(device)
  mfu = {name: rate * flops.TRAINING * parts.forward_flops / peak if peak else None for name, rate in rates.items()}
  return {
    "model": model,
    "batch": args.batch,
    "images_per_second": rates["ours"],
    "peer_images_per_second": rates["theirs"],
    "ratio": rates["ours"] / rates["theirs"],
    "mfu": mfu["ours"],
    "peer_mfu": mfu["theirs"],
    "device": device.device_kind,
    "peer": peer.name,
    "ours": f"{mine.name}, attention {args.attention}",
  }


def alternate_sides(sides: dict[str, Side], args: argparse.Namespace) -> dict[str, float]:
  """Measures the throughput of each side: the median of alternating rounds.

  Args:
    sides: both sides by name.
    args: parsed flags.

  Returns:
    Images per second by name.
  """
  seconds = {name: [] for name in sides}
  for _ in range(args.rounds):
    for name, side in sides.items():
      start = time.perf_counter()
      loss = side.steps(args.steps)
      seconds[name].append(time.perf_counter() - start)
      assert math.isfinite(loss), f"{side.name}: loss {loss}"
  return {name: args.batch * args.steps / statistics.median(times) for name, times in seconds.items()}


def format_row(row: dict[str, Any]) -> str:
  """Formats a row for the screen."""

  def side(rate: float, mfu: float | None) -> str:
    return f"{rate:.5g} images/s" + (f" ({mfu:.1%} MFU)" if mfu is not None else "")

  return (
    f"ViT-{row['model']}, batch {row['batch']}, on {row['device']}: {side(row['images_per_second'], row['mfu'])} by "
    f"{row['ours']}; {side(row['peer_images_per_second'], row['peer_mfu'])} by {row['peer']}; ratio {row['ratio']:.3f}"
  )


def main() -> None:
  """Prints a line for each model."""
  parser = cli.Parser("benchmarks.gpu_step", __doc__)
  parser.add_argument("--models", default="B/16,L/16", help="sizes and patches, separated by commas")
  parser.add_argument("--batch", type=int, default=256, help="images a step")
  parser.add_argument("--attention", default="xla", help="our formulation")
  parser.add_argument("--rounds", type=int, default=5, help="rounds of each side")
  parser.add_argument("--steps", type=int, default=10, help="steps a round")
  parser.add_argument("--platform", choices=("gpu", "cpu"), default="gpu")
  parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write the rows to this JSON file")
  args = parser.parse_args()
  children.require("torch", "torch")
  models = args.models.split(",")
  for name in ("batch", "rounds", "steps"):
    if getattr(args, name) < 1:
      raise schema.ConfigError(f"--{name}: {getattr(args, name)}. Allowed: 1 or more")
  for model in models:
    make_run(model, args.attention, args.batch)  # reports errors before the first model is measured

  # JAX reads these variables in the processes below. It allocates memory as needed, up to nearly all of it.
  os.environ["JAX_PLATFORMS"] = "cpu" if args.platform == "cpu" else "cuda,cpu"
  os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
  os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")
  rows = []
  # One process per model: XLA does not return memory to the device, so torch would have none for the next model.
  spawn = multiprocessing.get_context("spawn")
  processes = concurrent.futures.ProcessPoolExecutor(
    1, mp_context=spawn, max_tasks_per_child=1, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_DFL)
  )  # Ctrl-C ends a child without a traceback
  with processes:
    for model in models:
      rows.append(processes.submit(measure_model, model, args).result())
      print(format_row(rows[-1]), flush=True)
      if args.json:
        files.write_text(args.json, json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
  cli.run_verb(main)
