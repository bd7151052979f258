"""Measures how long published weights take to load: python -m benchmarks.weights [--model=ViT-B/16]

The benchmark builds ViT-L/16 abstractly, as every check of a config does. It then writes random weights of a model as
an .npz file of vit_jax. A separate process reads, recognises, converts and places them. The output is the time in
seconds, and peak memory divided by the size of the file.
"""

import argparse
import pathlib
import resource
import sys
import tempfile
import time

import jax
import numpy as np
from flax import nnx

from benchmarks import children
from vit_jax import cli, importers, models, schema
from vit_jax.importers import layout
from vit_jax.importers.formats import containers
from vit_jax.models import Description

REPEATS = 5


def measure_peak() -> int:
  """Returns the peak memory of this process in bytes."""
  return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def load_and_print(path: pathlib.Path) -> None:
  """Loads one file and prints time and memory."""
  jax.numpy.ones(3).block_until_ready()  # initializes the backend, which is not measured
  before, start_time = measure_peak(), time.perf_counter()
  description, arrays = importers.load(path)
  loaded = time.perf_counter() - start_time
  module = models.make_functional(description).create({name: jax.device_put(array) for name, array in arrays.items()})
  jax.block_until_ready(nnx.state(module))
  placed = time.perf_counter() - start_time
  print(
    f"{description.model.name} from {path.name}: {loaded:.2f} s to the host, {placed:.2f} s to the device; "
    f"memory {(measure_peak() - before) / path.stat().st_size:.2f} times the file of "
    f"{path.stat().st_size / 2**20:.0f} MiB"
  )


def main() -> None:
  """Prints both figures."""
  parser = cli.Parser("benchmarks.weights", __doc__)
  parser.add_argument("--model", default="ViT-B/16", help="model whose weights are read, with 1,000 classes at 224 px")
  parser.add_argument("--only", type=pathlib.Path, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.only:
    load_and_print(args.only)
    return
  with schema.enter_key("--model"):
    description = Description(models.bind(schema.Choice(args.model)), 224, 1000)
  seconds = []
  for _ in range(REPEATS):
    start_time = time.perf_counter()
    nnx.eval_shape(lambda: models.create("ViT-L/16"))
    seconds.append(time.perf_counter() - start_time)
  print(f"ViT-L/16 built abstractly: {np.median(seconds):.2f} s, median of {REPEATS}", flush=True)
  rng = np.random.default_rng(0)
  arrays = {path: rng.standard_normal(s, dtype=np.float32) for path, s in layout.compute_shapes(description).items()}
  with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder) / f"{args.model.replace('/', '_')}.npz"
    containers.write(file, importers.export_tensors(arrays, description, "vit_jax"), {})
    print(children.read_output([sys.executable, "-m", "benchmarks.weights", f"--only={file}"]), end="")


if __name__ == "__main__":
  cli.run_verb(main)
