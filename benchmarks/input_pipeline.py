"""Images a second of the input, beside tf.data on the same cores: python -m benchmarks.input_pipeline [--json=FILE]

JPEGs of 500 x 375 pixels and about 90 kB become uint8 crops of 224: an inception crop, bilinear, half of them mirrored;
and the same with RandAugment (2, 10). Ours reads them from array_record through the catalog, as a run does; tf.data has
them in memory, and decodes no more than the crop. Medians of rounds in turn, the first of each left out.

With `--gil` also the seconds that Python's lock is held for an image, sampled by py-spy (`pip install py-spy`): one
process cannot make more images a second than its inverse, however many cores there are.
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import photographs, tf_data
from vit_jax import cli, files
from vit_jax.data import catalog, loader
from vit_jax.schema import Choice, bind

BATCH, IMAGES = 128, 512
COPIES = 8  # in our dataset: of few records the permutation takes longer than of a million
SAMPLES = 100  # of py-spy a second


def ours(folder: str, threads: int, workers: int = 0, policy: bool = False):
  """Our batches."""
  change = Choice("randaugment", {"layers": 2, "magnitude": 10.0}) if policy else Choice("none")
  data = Choice("tfds", {"builder": "photographs", "path": folder, "policy": change})
  data = bind(data, catalog.DATA["tfds"], catalog.DATA)
  opened = functools.partial(catalog.train_examples, data, 0, None, BATCH)
  processes = loader.processes(opened, IMAGES, workers=workers)
  return loader.batches(opened(), BATCH, range(BATCH), 0, processes, threads=threads)


def rate(batches, seconds: float) -> float:
  """Images a second over so many seconds, or a little longer."""
  for _ in range(6):  # those that were made while another pipeline was timed
    next(batches)
  count, began = 0, time.perf_counter()
  while (taken := time.perf_counter() - began) < seconds:
    count += len(next(batches)["image"] if isinstance(batches, loader.Batches) else next(batches))
  return count / taken


def gil_share(folder: str, threads: int, workers: int, policy: bool) -> tuple[float, float]:
  """(share of the time that a process making our batches holds the lock, images a second)."""
  words = [sys.executable, "-m", "benchmarks.input_pipeline", "--only", folder, str(threads), str(workers), str(policy)]
  process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
  process.stdout.readline()
  with tempfile.NamedTemporaryFile() as raw:
    subprocess.run(
      [
        # While it looks the process must run on, or it would hold the lock longer.
        *("py-spy", "record", "--gil", "--nonblocking", "--format=raw", f"--rate={SAMPLES}", "--duration=10"),
        *(f"--pid={process.pid}", f"--output={raw.name}"),
      ],
      check=True,
      capture_output=True,
    )
    samples = sum(int(line.rpartition(" ")[2]) for line in pathlib.Path(raw.name).read_text().splitlines())
  images = float(process.communicate()[0].split()[-1])
  return samples / (10 * SAMPLES), images


def only(folder: str, threads: str, workers: str, policy: str) -> None:
  """Makes our batches for 12 seconds after a line, and prints the images a second."""
  batches = ours(folder, int(threads), int(workers), policy == "True")
  next(batches)
  print("begun", flush=True)
  print(rate(batches, 12), flush=True)
  batches.close()


def main() -> None:
  """Prints the comparison."""
  parser = argparse.ArgumentParser("python -m benchmarks.input_pipeline", allow_abbrev=False)
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--seconds", type=float, default=4.0, help="of one round")
  parser.add_argument("--threads", type=int, default=0, help="of each pipeline; as many as cores unless given")
  parser.add_argument("--gil", action="store_true")
  parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
  parser.add_argument("--only", nargs=4, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.only:
    return only(*args.only)
  cores = args.threads or len(os.sched_getaffinity(0))
  with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
    stored = photographs.write(pathlib.Path(folder), IMAGES, COPIES)
    pipelines = {
      "threads": ours(folder, cores),
      "workers": ours(folder, cores, cores),
      "tf_data": tf_data.batches(stored, BATCH, cores),
      "decode": tf_data.crops(stored, cores),
      "randaugment": ours(folder, cores, policy=True),
      "randaugment_workers": ours(folder, cores, cores, policy=True),
      "tf_data_randaugment": tf_data.batches(stored, BATCH, cores, 2),
    }
    for batches in pipelines.values():
      if isinstance(batches, loader.Batches):
        opened.callback(batches.close)
    rates = {name: [] for name in pipelines}
    for _ in range(args.rounds + 1):
      for name, batches in pipelines.items():
        rates[name].append(rate(batches, args.seconds))
    median = {name: statistics.median(taken[1:]) for name, taken in rates.items()}
    best = max(median["threads"], median["workers"])
    row = {
      "images_per_second": best,
      "tf_data_images_per_second": median["tf_data"],
      "ratio_to_tf_data": best / median["tf_data"],
      "randaugment_ratio_to_tf_data": max(median["randaugment"], median["randaugment_workers"])
      / median["tf_data_randaugment"],
      "ratio_to_decode_limit": best / median["decode"],
      "gil_seconds_per_image": None,
      "workers": cores if median["workers"] > median["threads"] else 0,
      "medians": median,
    }
    if args.gil:
      for key, policy in (("gil_seconds_per_image", False), ("randaugment_gil_seconds_per_image", True)):
        share, images = gil_share(folder, cores, 0, policy)
        row[key] = share / images
  for name, value in {**median, **row}.items():
    print(f"{name:<36} {value}")
  if args.json:
    files.write_text(args.json, json.dumps(row, indent=2) + "\n")


if __name__ == "__main__":
  cli.main(main)
