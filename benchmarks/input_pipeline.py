"""Compares the input pipeline with tf.data on the same cores: python -m benchmarks.input_pipeline [--json=FILE]

JPEGs of 500 x 375 pixels and about 90 kB become uint8 crops of 224: an inception crop, bilinear, half of them mirrored.
A second measurement adds RandAugment (2, 10). Our side reads them from array_record through the catalog, like a run.
tf.data reads the same examples from a TFRecord file. Worker processes are measured too, one per core. One
worker more than cores was 7 % slower. A third measurement only decodes the crops from memory. The figures are medians
of alternating rounds, without the first round of each side.

With `--gil` the output also has the seconds of a core that an image takes, and the seconds for which Python's lock is
held. They are sampled by py-spy, which `pip install -e '.[bench]'` installs. One process cannot make more images per
second than the inverse of the second figure, on any number of cores.
"""

import argparse
import contextlib
import functools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import children, photographs
from vit_jax import cli
from vit_jax.data import catalog, decoding, loader
from vit_jax.data.bound_data import TrainData
from vit_jax.data.stream import WHOLE
from vit_jax.schema import Choice, bind, extras
from vit_jax.storage import files

BATCH, IMAGES = 128, 512
COPIES = 8  # copies in our dataset; for few records the permutation takes longer than for a million
SAMPLES = 100  # samples of py-spy per second


def open_ours(folder: str, threads: int, workers: int = 0, policy: bool = False) -> Any:
  """Opens our batches.

  Args:
    folder: directory of the dataset.
    threads: number of threads.
    workers: number of worker processes.
    policy: whether images get RandAugment.
  """
  change = Choice("randaugment", {"layers": 2, "magnitude": 10.0}) if policy else Choice("none")
  data = Choice("tfds", {"builder": "photographs", "path": folder, "policy": change})
  bound = bind(data, catalog.DATA["tfds"], catalog.DATA)
  assert isinstance(bound, TrainData)
  opened = functools.partial(catalog.open_train_examples, bound, 0, WHOLE, BATCH)
  processes = loader.processes(opened, IMAGES, workers=workers)
  return loader.batches(opened(), BATCH, range(BATCH), 0, processes, threads=threads)


def measure_rate(batches: Iterator[Any], seconds: float) -> float:
  """Measures the throughput of batches.

  Args:
    batches: an endless iterator of batches.
    seconds: minimum duration.

  Returns:
    Images per second.
  """
  time.sleep(1)  # waits until the previous pipeline has filled its buffers
  for _ in range(6):  # skips batches that were made while another pipeline was timed
    next(batches)
  count, start_time = 0, time.perf_counter()
  while (taken := time.perf_counter() - start_time) < seconds:
    made = next(batches)
    count += len(made["image"] if isinstance(made, dict) else made[0] if isinstance(made, tuple) else made)
  return count / taken


def measure_shares(spy: str, folder: str, threads: int, policy: bool) -> tuple[float, float]:
  """Measures a process that makes our batches.

  Args:
    spy: path of py-spy.
    folder: directory of the dataset.
    threads: number of threads.
    policy: whether images get RandAugment.

  Returns:
    Seconds for which Python's lock is held per image, and seconds of a core per image.
  """
  words = [sys.executable, "-m", "benchmarks.input_pipeline", "--only", folder, str(threads), str(policy)]
  with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, process_group=0) as process:
    try:
      assert process.stdout is not None
      process.stdout.readline()
      with tempfile.NamedTemporaryFile() as raw:
        children.read_output(
          [
            # py-spy must not pause the process, because a paused process would hold the lock longer.
            *(spy, "record", "--gil", "--nonblocking", "--format=raw", f"--rate={SAMPLES}", "--duration=10"),
            *(f"--pid={process.pid}", f"--output={raw.name}"),
          ]
        )
        samples = sum(int(line.rpartition(" ")[2]) for line in pathlib.Path(raw.name).read_text().splitlines())
      images, cpu = map(float, process.communicate()[0].split()[-2:])
    finally:
      process.kill()
  return samples / (10 * SAMPLES) / images, cpu


def run_alone(folder: str, threads: str, policy: str) -> None:
  """Makes our batches for 12 seconds after printing a line. Prints images per second and seconds of a core per image.

  Args:
    folder: directory of the dataset.
    threads: number of threads.
    policy: "True" if images get RandAugment.
  """
  batches = open_ours(folder, int(threads), policy=policy == "True")
  next(batches)
  print("begun", flush=True)
  count, cpu, start_time = 0, time.process_time(), time.perf_counter()
  while (taken := time.perf_counter() - start_time) < 12:
    count += len(next(batches)["image"])
  print(count / taken, (time.process_time() - cpu) / count, flush=True)
  batches.close()


def main() -> None:
  """Prints the comparison."""
  parser = cli.Parser("benchmarks.input_pipeline", __doc__)
  parser.add_argument("--rounds", type=int, default=5, help="number of rounds for the medians")
  parser.add_argument("--seconds", type=float, default=4.0, help="duration of a round")
  parser.add_argument("--threads", type=int, default=0, help="threads of each pipeline; default: number of cores")
  parser.add_argument(
    "--gil", action="store_true", help="also measure CPU seconds, and seconds that hold Python's lock, per image"
  )
  parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="all figures; images_per_second is --host-rate")
  parser.add_argument("--only", nargs=3, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.only:
    return run_alone(*args.only)
  spy = children.find_program("py-spy", "bench") if args.gil else None  # raises an error before minutes of measuring
  extras.check_tensorflow("benchmarks.input_pipeline")
  from benchmarks import tf_data  # imports TensorFlow

  cores = args.threads or decoding.count_usable_cores()
  with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
    images = photographs.write_dataset(pathlib.Path(folder), IMAGES, COPIES)
    file = pathlib.Path(folder, "photographs.tfrecord")
    tf_data.write_records(file, images * COPIES, [i % photographs.CLASSES for i in range(IMAGES * COPIES)])
    pipelines = {
      "threads": open_ours(folder, cores),
      "workers": open_ours(folder, cores, cores),
      "tf_data": tf_data.make_batches(file, BATCH, cores),
      "decode": tf_data.decode_crops(images, cores),
      "randaugment": open_ours(folder, cores, policy=True),
      "randaugment_workers": open_ours(folder, cores, cores, policy=True),
      "tf_data_randaugment": tf_data.make_batches(file, BATCH, cores, 2),
    }
    for batches in pipelines.values():
      if isinstance(batches, loader.Batches):
        opened.callback(batches.close)
    held = {}  # measured first, because py-spy may lack the permission to inspect a process
    for prefix, policy in (("", False), ("randaugment_", True)):
      if spy is None:
        break
      for key, value in zip(("gil", "cpu"), measure_shares(spy, folder, cores, policy), strict=True):
        held[f"{prefix}{key}_seconds_per_image"] = value
    rates = {name: [] for name in pipelines}
    for _ in range(args.rounds + 1):
      for name, batches in pipelines.items():
        rates[name].append(measure_rate(batches, args.seconds))
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
      "cpu_seconds_per_image": None,
      "workers": cores if median["workers"] > median["threads"] else 0,
      "medians": median,
    }
    row |= held
  for name, value in ({f"images/s {name}": value for name, value in median.items()} | row).items():
    if isinstance(value, int | float):
      print(f"{name:<36} {value:>12,.{4 if 0 < value < 10 else 0}f}")
  if args.json:
    files.write_text(args.json, json.dumps(row, indent=2) + "\n")


if __name__ == "__main__":
  cli.run_verb(main)
