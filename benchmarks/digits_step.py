"""Compares the train step of `make digits` with PyTorch: python -m benchmarks.digits_step [--eager] [--json=FILE]

All sides train CCT-2/3x2 with batch 64, float32, AdamW, label smoothing 0.1, attention dropout and stochastic depth
0.1 on all cores of this machine. vit_jax runs the whole train step of configs/digits.py, with random affine
augmentation, clipping and metrics. The peers are eager PyTorch and `torch.compile`, which get tensors that are already
prepared. The sides alternate, one step each, so that other load on the machine affects all of them. Needs
`pip install -e '.[torch]'`. `torch.compile` needs a C++ compiler and takes a minute or more to compile. `--eager` skips
`torch.compile`.
"""

import json
import os
import shutil
import statistics
import time
from collections.abc import Callable

import jax

from benchmarks import children
from vit_jax import cli, config, runtime, schema, trees
from vit_jax.config import flags
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.storage import files
from vit_jax.training import build

PEERS = ("torch", "torch_compile")


def make_jax_step() -> tuple[Callable[[], None], int, int]:
  """Prepares the train step of configs/digits.py.

  Returns:
    A function that runs one step on a fixed batch, the number of parameters, and the batch size.
  """
  run = build.complete(config.resolve(flags.load_config("configs/digits.py")))
  parts = build.build(run, jax.devices())
  batches = parts.open_batches(0)
  batch = next(batches)
  batches.close()
  compiled, state, (frozen_weights, _) = parts.compile(), [parts.create_initial_state()], parts.load_frozen_weights()

  def step() -> None:
    state[0], metrics = compiled(state[0], batch, frozen_weights)
    jax.block_until_ready(metrics)

  return step, trees.count_values(parts.state_shapes.params), run.batch


def main() -> None:
  """Prints the median images per second of each side, and the median ratios of neighbouring steps."""
  parser = cli.Parser("benchmarks.digits_step", __doc__)
  parser.add_argument(
    "--rounds", type=cli.make_number_parser(schema.Count), default=20, help="number of timed steps of each side"
  )
  parser.add_argument("--eager", action="store_true", help="compare only with eager PyTorch")
  parser.add_argument("--json", type=cli.parse_path, metavar="FILE", help="also write the figures to this file")
  args = parser.parse_args()
  children.require("torch", "torch")
  peers = PEERS[:1] if args.eager else PEERS
  if not args.eager and not shutil.which(os.environ.get("CXX", "g++")):
    raise schema.ConfigError(
      "torch.compile: no C++ compiler found. Install g++, set CXX to a compiler, or use --eager."
    )
  from benchmarks import torch_cct  # imports torch, which is in an extra

  runtime.start()
  prepare_dataset("digits")
  ours, parameters, batch = make_jax_step()
  sides = {"vit_jax": ours}
  for name in peers:
    sides[name], peer_parameters = torch_cct.make_train_step(batch, compiled=name == "torch_compile")
    assert parameters == peer_parameters, "not the same model"

  seconds: dict[str, list[float]] = {name: [] for name in sides}
  for timed in [False] * 3 + [True] * args.rounds:
    for name, step in sides.items():
      start = time.perf_counter()
      step()
      if timed:
        seconds[name].append(time.perf_counter() - start)
  figures = {f"{name}_images_per_second": batch / statistics.median(times) for name, times in seconds.items()}
  for name in peers:
    ratios = (peer / own for own, peer in zip(seconds["vit_jax"], seconds[name], strict=True))
    figures[f"ratio_to_{name}"] = statistics.median(ratios)
  for name, value in figures.items():
    print(f"{name:<28}{value:8.2f}")
  if args.json:
    files.write_text(args.json, json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
  cli.run_verb(main)
