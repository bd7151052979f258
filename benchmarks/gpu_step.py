"""The train step of ViTs on an NVIDIA GPU, beside timm's models compiled by torch on the same card.

    python -m benchmarks.gpu_step [--models=B/16,L/16] [--batch=256] [--attention=xla] [--json=FILE]

Needs such a GPU, `pip install -e '.[gpu]'` and `pip install torch timm`; without timm the peer is a ViT of the same
structure, and the output says so. Both train the same model on the same uint8 images, which lie on the device:
224 px, 1000 classes, average pooling, no dropout; normalisation, cross-entropy, gradient norm clipped at 1, AdamW with
float32 moments and decay of the kernels. Ours is the step of a run, in bfloat16 throughout but for the weights, with
its metrics and no moving average. The peer is normalisation, model and loss under torch.compile and autocast to
bfloat16, which leaves the residual stream in float32, with fused AdamW. Each takes its own layout of images.

Each model has a process of its own, in which the two take turns, one round of steps each; figures are medians of
rounds. MFU is of the chip's dense bfloat16 peak, with the arithmetic of the model alone, three forward passes.
`--platform=cpu --models=Ti/16 --batch=4 --steps=1` tries the code where there is no GPU; its figures mean nothing.
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

import jax
import numpy as np
from einops import rearrange

from benchmarks import children
from benchmarks.sides import CLASSES, CLIP, DECAY, RATE, SIDE, Side
from vit_jax import build, cli, config, files, flops, hardware, schema, trees
from vit_jax.data import catalog
from vit_jax.schema import amount

WARM = 3  # steps after compilation; also, our head starts at zero, and products with zeros draw less power


def run(model: str, attention: str, batch: int) -> config.Run:
  """The run whose step is ours. Raises ConfigError for a model or an attention that does not exist."""
  return build.complete(
    config.resolve(
      config.recipe(
        model=dict(name=f"ViT-{model}", pool="gap", gelu="erf", dtype="bfloat16", attention=attention),
        data=dict(name="imagenet2012", image_size=SIDE),
        # No warm-up: a rate of zero would keep the head, and with it most gradients, at zero.
        optim=dict(name="adamw", lr=RATE, schedule=dict(name="constant"), weight_decay=DECAY, clip=CLIP),
        total="90ep",
        batch=batch,
      )
    )
  )


def ours(parts: build.Parts, images: np.ndarray, labels: np.ndarray) -> Side:
  """Our side, on images [B, H, W, C] uint8 and labels [B]."""
  shapes = parts.batch_shapes
  patch = math.isqrt(shapes["image"].shape[-1] // 3)
  values = {
    "image": rearrange(images, "b (h i) (w j) c -> b (h w) (i j c)", i=patch, j=patch),
    "label": labels,
    "draw": np.arange(len(labels)),
  }
  batch = {name: jax.device_put(values[name].astype(shape.dtype), shape.sharding) for name, shape in shapes.items()}
  compiled, states, (frozen, _) = parts.compile(), [parts.init()], parts.frozen()

  def steps(count):
    for _ in range(count):
      states[0], metrics = compiled(states[0], batch, frozen)
    jax.block_until_ready((states[0], metrics))
    return float(metrics["loss"])

  return Side(steps, trees.count(parts.state_shapes.params), f"jax {jax.__version__}")


def card(platform: str) -> jax.Device:
  """The device of both sides, the first of its platform. ConfigError where either framework sees none."""
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


def measure(model: str, args: argparse.Namespace) -> dict:
  """Returns one row of the table, measured in this process."""
  import torch  # in an extra

  from benchmarks import torch_vit

  cli.quiet()
  device = card(args.platform)
  parts = build.build(run(model, args.attention, args.batch), [device], catalog.known_split)
  random = np.random.default_rng(0)
  images = random.integers(256, size=(args.batch, SIDE, SIDE, 3), dtype=np.uint8)
  labels = random.integers(CLASSES, size=args.batch)
  try:
    # torch first: it takes what it needs, XLA's allocator up to twice that where there is room.
    peer = torch_vit.theirs(model, images, labels, "cpu" if args.platform == "cpu" else "cuda")
    peer.steps(WARM)
    mine = ours(parts, images, labels)
    mine.steps(WARM)
    assert mine.parameters == peer.parameters, f"not the same model: {mine.parameters} and {peer.parameters} parameters"
    rates = alternate({"ours": mine, "theirs": peer}, args)
  except (jax.errors.JaxRuntimeError, torch.OutOfMemoryError) as error:
    if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
      raise
    raise schema.ConfigError(
      f"--batch: ViT-{model} with {amount(args.batch, 'image')} does not fit on a {device.device_kind} "
      "for JAX and torch at once, which both keep their memory; take a smaller one, such as "
      f"--batch={max(1, args.batch // 2)}"
    ) from error
  peak = hardware.peak(device)
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


def alternate(sides: dict[str, Side], args: argparse.Namespace) -> dict[str, float]:
  """Images a second of each side: the median of rounds in which each trains in turn."""
  seconds = {name: [] for name in sides}
  for _ in range(args.rounds):
    for name, side in sides.items():
      start = time.perf_counter()
      loss = side.steps(args.steps)
      seconds[name].append(time.perf_counter() - start)
      assert math.isfinite(loss), f"{side.name}: loss {loss}"
  return {name: args.batch * args.steps / statistics.median(times) for name, times in seconds.items()}


def line(row: dict) -> str:
  """A row for the eye."""

  def side(rate, mfu):
    return f"{rate:.5g} images/s" + (f" ({mfu:.1%} MFU)" if mfu is not None else "")

  return (
    f"ViT-{row['model']}, batch {row['batch']}, on {row['device']}: {side(row['images_per_second'], row['mfu'])} by "
    f"{row['ours']}; {side(row['peer_images_per_second'], row['peer_mfu'])} by {row['peer']}; ratio {row['ratio']:.3f}"
  )


def main() -> None:
  """Prints a line for each model."""
  parser = cli.Parser("benchmarks.gpu_step", __doc__)
  parser.add_argument("--models", default="B/16,L/16", help="sizes and patches, with commas between")
  parser.add_argument("--batch", type=int, default=256, help="images a step")
  parser.add_argument("--attention", default="xla", help="our formulation")
  parser.add_argument("--rounds", type=int, default=5, help="rounds of each side")
  parser.add_argument("--steps", type=int, default=10, help="steps a round")
  parser.add_argument("--platform", choices=("gpu", "cpu"), default="gpu")
  parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write the rows to this file, as a list")
  args = parser.parse_args()
  children.require("torch", "torch")
  models = args.models.split(",")
  for name in ("batch", "rounds", "steps"):
    if getattr(args, name) < 1:
      raise schema.ConfigError(f"--{name}: {getattr(args, name)}; allowed: 1 and more")
  for model in models:
    run(model, args.attention, args.batch)  # a mistake shows before the first model is measured

  # Read by JAX in the processes below: it takes memory as needed, but may have nearly all of it.
  os.environ["JAX_PLATFORMS"] = "cpu" if args.platform == "cpu" else "cuda,cpu"
  os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
  os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")
  rows = []
  # A process a model: XLA gives no memory back to the device, and torch has none for the next model beside it.
  spawn = multiprocessing.get_context("spawn")
  processes = concurrent.futures.ProcessPoolExecutor(
    1, mp_context=spawn, max_tasks_per_child=1, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_DFL)
  )  # Ctrl-C ends a child without a traceback
  with processes:
    for model in models:
      rows.append(processes.submit(measure, model, args).result())
      print(line(rows[-1]), flush=True)
      if args.json:
        files.write_text(args.json, json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
  cli.main(main)
