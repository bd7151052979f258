"""The train step of ViTs on an NVIDIA GPU, beside timm's models compiled by torch on the same card.

    python -m benchmarks.gpu_step [--models=B/16,L/16] [--batch=256] [--attention=xla] [--json=FILE]

Needs such a GPU, `pip install -e '.[gpu]'` and `pip install torch timm`; without timm the peer is a ViT of the same
structure, below, and the output says so. Both train the same model on the same uint8 images, which lie on the device:
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
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import torch
from einops import rearrange
from torch import nn

from vit_jax import build, cli, config, files, hardware, schema, trees
from vit_jax.data import catalog
from vit_jax.models.published import vit

SIDE, CLASSES = 224, 1000
RATE, DECAY, CLIP = 1e-4, 0.1, 1.0
WARM = 3  # steps after compilation; also, our head starts at zero, and products with zeros draw less power


class Side(NamedTuple):
  """One framework's training of a model."""

  steps: Callable[[int], float]  # trains for so many steps, waits for the device -> the last loss
  parameters: int
  name: str


class Block(nn.Module):
  """[B, N, D] -> [B, N, D]: timm's structure, one product for query, key and value."""

  def __init__(self, width, heads, hidden):
    super().__init__()
    self.heads = heads
    self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
    self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
    self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

  def forward(self, x):
    images, tokens, width = x.shape
    q, k, v = self.qkv(self.norm1(x)).view(images, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
    context = nn.functional.scaled_dot_product_attention(q, k, v)
    x = x + self.out(context.transpose(1, 2).reshape(images, tokens, width))
    return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
  """[B, 3, H, W] -> [B, V]: the peer where timm is not installed."""

  def __init__(self, patch, width, depth, heads, hidden):
    super().__init__()
    self.embedding = nn.Conv2d(3, width, patch, stride=patch)
    self.position = nn.Parameter(0.02 * torch.randn(1, (SIDE // patch) ** 2, width))
    self.blocks = nn.Sequential(*(Block(width, heads, hidden) for _ in range(depth)))
    self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, CLASSES)

  def forward(self, images):
    x = self.embedding(images).flatten(2).transpose(1, 2) + self.position
    return self.head(self.norm(self.blocks(x)).mean(1))


def peer_model(patch: int, width: int, depth: int, heads: int, hidden: int) -> tuple[nn.Module, str]:
  """The peer's model, and which it is in words. ConfigError where timm is there and cannot be imported."""
  try:
    import timm
    from timm.models.vision_transformer import VisionTransformer
  except ImportError:
    return Vit(patch, width, depth, heads, hidden), "plain torch in timm's structure (timm is not installed)"
  except RuntimeError as error:  # torchvision, which timm imports, raises this beside a torch that it was not built for
    raise schema.ConfigError(
      f"timm cannot be imported beside torch {torch.__version__}: {error}; install the torchvision of this torch, or "
      "uninstall timm for a peer in plain torch"
    ) from error
  model = VisionTransformer(
    img_size=SIDE,
    patch_size=patch,
    num_classes=CLASSES,
    embed_dim=width,
    depth=depth,
    num_heads=heads,
    mlp_ratio=(hidden + 0.5) / width,  # timm rounds the product down
    class_token=False,
    global_pool="avg",
    fc_norm=False,  # as ours: norm, then mean
  )
  return model, f"timm {timm.__version__}"


def theirs(model: str, images: np.ndarray, labels: np.ndarray, device: str) -> Side:
  """torch's side, on images [B, H, W, C] uint8 and labels [B]."""
  size, patch = model.rsplit("/", 1)
  # Under autocast little is left in float32; where it is a product, let it have TF32, as XLA's are.
  torch.set_float32_matmul_precision("high")
  torch.backends.cudnn.benchmark = True
  network, name = peer_model(int(patch), *vit.SIZES[size])
  network = network.to(device).train()
  parameters = dict(network.named_parameters())
  kernels = [value for path, value in parameters.items() if path.endswith("weight") and value.ndim > 1]
  kept = {id(value) for value in kernels}
  others = [value for value in parameters.values() if id(value) not in kept]
  optimizer = torch.optim.AdamW(
    [{"params": kernels, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}], lr=RATE, fused=True
  )
  pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(device)
  targets = torch.from_numpy(labels).long().to(device)

  @torch.compile(dynamic=False)
  def objective():
    with torch.autocast(device, torch.bfloat16):
      logits = network(pixels.float() * (1 / 127.5) - 1)
    return nn.functional.cross_entropy(logits.float(), targets)

  def steps(count):
    for _ in range(count):
      optimizer.zero_grad(set_to_none=True)
      loss = objective()
      loss.backward()
      nn.utils.clip_grad_norm_(parameters.values(), CLIP)
      optimizer.step()
    if device == "cuda":
      torch.cuda.synchronize()
    return loss.item()

  return Side(
    steps, sum(value.numel() for value in parameters.values()), f"{name}, torch {torch.__version__}, torch.compile"
  )


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
  compiled, states = parts.compile(), [parts.init()]

  def steps(count):
    for _ in range(count):
      states[0], metrics = compiled(states[0], batch)
    jax.block_until_ready((states[0], metrics))
    return float(metrics["loss"])

  return Side(steps, trees.count(parts.state_shapes.params), f"jax {jax.__version__}")


def card(platform: str) -> jax.Device:
  """The device of both sides, the first of its platform. ConfigError where either framework sees none."""
  if platform == "cpu":
    return jax.devices("cpu")[0]
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
  """One row of the table, in this process."""
  cli.quiet()
  device = card(args.platform)
  parts = build.build(run(model, args.attention, args.batch), [device], catalog.known_split)
  random = np.random.default_rng(0)
  images = random.integers(256, size=(args.batch, SIDE, SIDE, 3), dtype=np.uint8)
  labels = random.integers(CLASSES, size=args.batch)
  try:
    # torch first: it takes what it needs, XLA's allocator up to twice that where there is room.
    peer = theirs(model, images, labels, "cpu" if args.platform == "cpu" else "cuda")
    peer.steps(WARM)
    mine = ours(parts, images, labels)
    mine.steps(WARM)
    assert mine.parameters == peer.parameters, f"not the same model: {mine.parameters} and {peer.parameters} parameters"
    rates = alternate({"ours": mine, "theirs": peer}, args)
  except (jax.errors.JaxRuntimeError, torch.OutOfMemoryError) as error:
    if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
      raise
    raise schema.ConfigError(
      f"--batch: {args.batch} images of ViT-{model} do not fit on a {device.device_kind} for JAX and torch at once, "
      f"which both keep their memory; take a smaller one, such as --batch={max(1, args.batch // 2)}"
    ) from error
  peak = hardware.peak(device)
  mfu = {name: rate * parts.flops_per_image / peak if peak else None for name, rate in rates.items()}
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
  parser = argparse.ArgumentParser("python -m benchmarks.gpu_step", allow_abbrev=False)
  parser.add_argument("--models", default="B/16,L/16", help="sizes and patches, with commas between")
  parser.add_argument("--batch", type=int, default=256, help="images a step")
  parser.add_argument("--attention", default="xla", help="our formulation")
  parser.add_argument("--rounds", type=int, default=5, help="rounds of each side")
  parser.add_argument("--steps", type=int, default=10, help="steps a round")
  parser.add_argument("--platform", choices=("gpu", "cpu"), default="gpu")
  parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write the rows to this file, as a list")
  args = parser.parse_args()
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
  with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as processes:
    for model in models:
      rows.append(processes.submit(measure, model, args).result())
      print(line(rows[-1]), flush=True)
      if args.json:
        files.write_text(args.json, json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
  cli.main(main)
