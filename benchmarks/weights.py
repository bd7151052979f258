"""How long published weights take to arrive: python -m benchmarks.weights

Builds ViT-L/16 abstractly, as every check of a config does. Then writes random weights of ViT-B/16 as vit_jax's .npz,
and reads, recognises, converts and places them, in a process of its own: seconds, and peak memory over the file's size.
"""

import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np
from flax import nnx

from vit_jax import importers, models
from vit_jax.importers import containers, layout
from vit_jax.models import Description
from vit_jax.schema import Choice

REPEATS = 5


def peak() -> int:
  """Largest memory of this process so far, in bytes."""
  return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def arrive(path: pathlib.Path) -> None:
  """Imports one file and prints what it took."""
  jax.numpy.ones(3).block_until_ready()  # the backend itself takes its time
  before, began = peak(), time.perf_counter()
  description, arrays = importers.load(path)
  loaded = time.perf_counter() - began
  module = models.functional(description).create({name: jax.device_put(array) for name, array in arrays.items()})
  jax.block_until_ready(nnx.state(module))
  placed = time.perf_counter() - began
  print(
    f"{description.model.name} from {path.name}: {loaded:.2f} s to the host, {placed:.2f} s to the device; "
    f"memory {(peak() - before) / path.stat().st_size:.2f} times the file of {path.stat().st_size / 2**20:.0f} MiB"
  )


def main() -> None:
  """Prints both figures."""
  if len(sys.argv) > 1:
    return arrive(pathlib.Path(sys.argv[1]))
  seconds = []
  for _ in range(REPEATS):
    began = time.perf_counter()
    nnx.eval_shape(lambda: models.create("ViT-L/16"))
    seconds.append(time.perf_counter() - began)
  print(f"ViT-L/16 built abstractly: {np.median(seconds):.2f} s, median of {REPEATS}")
  description = Description(Choice("ViT-B/16"), 224, 1000)
  rng = np.random.default_rng(0)
  arrays = {path: rng.standard_normal(s, dtype=np.float32) for path, s in layout.shapes(description).items()}
  with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder) / "ViT-B_16.npz"
    containers.write(file, importers.export(arrays, description, "vit_jax"), {})
    subprocess.run([sys.executable, "-m", "benchmarks.weights", str(file)], check=True)
  return None


if __name__ == "__main__":
  main()
