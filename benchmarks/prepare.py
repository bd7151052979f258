"""Compares the throughput of `prepare` on one core with TFDS's writer: python -m benchmarks.prepare [--json=FILE]

JPEGs of 500 x 375 pixels and about 90 kB, in a folder, become an array_record dataset. TFDS copies the bytes without
verification. Our writer decodes each image. Two further measurements reduce each image to 256 pixels, and compare each
image with a test set. Each measurement runs in a separate process on one core. The figures are medians of alternating
rounds. Memory is the peak of the process above its memory after the imports. The memory for one image of 20,000 x
8,000 pixels is measured too.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time

from benchmarks import children, photographs
from vit_jax import cli, schema
from vit_jax.corpora import duplicates, plan, writer
from vit_jax.data import catalog
from vit_jax.schema import extras
from vit_jax.storage import files

WAYS = ("tfds", "ours", "ours_256_pixels", "ours_dedup")


def write_with_tfds(source: pathlib.Path, target: str) -> None:
  """Writes the dataset with TFDS.

  Args:
    source: folder of images.
    target: TFDS data directory.
  """
  import tensorflow_datasets as tfds

  tfds.disable_progress_bar()
  paths = sorted(source.glob("train/*/*.jpg"))
  names = sorted({path.parent.name for path in paths})
  label = tfds.features.ClassLabel(names=names)
  image = tfds.features.Image(encoding_format="jpeg")
  tfds.dataset_builders.store_as_tfds_dataset(
    name="corpus",
    version="1.0.0",
    features=tfds.features.FeaturesDict({"image": image, "label": label, "id": tfds.features.Text()}),
    split_datasets={
      "train": (
        (str(path), {"image": str(path), "label": path.parent.name, "id": str(path.relative_to(source))})
        for path in paths
      )
    },
    data_dir=target,
    file_format="array_record",
  )


def write_with_ours(source: pathlib.Path, target: str, way: str) -> None:
  """Writes the dataset with our writer and one process.

  Args:
    source: folder of images.
    target: TFDS data directory.
    way: an element of `WAYS`.
  """
  choice = schema.bind(schema.Choice("folder", {"path": str(source)}), (catalog.READERS["folder"],))
  against = (str(source.with_name("test")),) if way == "ours_dedup" else ()
  options = plan.CorpusOptions(256 if way == "ours_256_pixels" else None, None, 0, against, duplicates.DISTANCE)
  writer.write("corpus", schema.to_plain(choice), options, pathlib.Path(target), 1)


def print_measurement(way: str, source: str) -> None:
  """Prints the seconds and MiB of a measurement.

  Args:
    way: an element of `WAYS`.
    source: folder of images.
  """
  import tensorflow_datasets  # noqa: F401 - its import is not measured

  os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
  with tempfile.TemporaryDirectory() as target:
    before, start_time = measure_peak(), time.process_time()
    if way == "tfds":
      write_with_tfds(pathlib.Path(source), target)
    else:
      write_with_ours(pathlib.Path(source), target, way)
    print("measured", time.process_time() - start_time, measure_peak() - before)


def measure_peak() -> float:
  """Returns the peak memory of this process in MiB. `ru_maxrss` would include the memory of its parent."""
  match = re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())
  assert match is not None
  return int(match[1]) / 2**10


def measure_in_process(way: str, source: pathlib.Path) -> tuple[float, float]:
  """Measures in a separate process.

  Args:
    way: an element of `WAYS`.
    source: folder of images.

  Returns:
    Seconds of a core, and MiB.
  """
  words = [sys.executable, "-m", "benchmarks.prepare", "--only", way, str(source)]
  seconds, memory = children.read_output(words).split("measured")[1].split()
  return float(seconds), float(memory)


def write_photographs(root: pathlib.Path, count: int, seed: int = 0) -> pathlib.Path:
  """Writes a folder of photographs.

  Args:
    root: the folder.
    count: number of images.
    seed: seed of the first image.
  """
  for i in range(count):
    path = root / f"train/class{i % photographs.CLASSES}/{i}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(photographs.make_picture(seed + i))
  return root


def write_panorama(root: pathlib.Path) -> pathlib.Path:
  """Writes a folder with one image of 160 million pixels."""
  import cv2
  import numpy as np

  (root / "train/class0").mkdir(parents=True)
  gradient = np.add.outer(np.arange(8000), np.arange(20_000)).astype(np.uint8)
  cv2.imwrite(str(root / "train/class0/panorama.jpg"), cv2.merge([gradient] * 3))
  return root


def main() -> None:
  """Prints the comparison."""
  parser = cli.Parser("benchmarks.prepare", __doc__)
  parser.add_argument("--images", type=int, default=4000)
  parser.add_argument("--rounds", type=int, default=3, help="number of rounds for the medians")
  parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
  parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.only:
    return print_measurement(*args.only)
  extras.check_tensorflow("benchmarks.prepare")
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    source = write_photographs(root / "photographs", args.images)
    write_photographs(root / "test", 64, 10**6)
    results = {way: [] for way in WAYS}
    for _ in range(args.rounds):
      for way in WAYS:
        results[way].append(measure_in_process(way, source))
    _, panorama = measure_in_process("ours_256_pixels", write_panorama(root / "panorama"))
  row = {f"{way}_images_per_core_second": args.images / statistics.median(s for s, _ in results[way]) for way in WAYS}
  row |= {f"{way}_mib": max(memory for _, memory in results[way]) for way in WAYS}
  row["panorama_mib"] = panorama
  row["ratio_to_tfds"] = row["ours_images_per_core_second"] / row["tfds_images_per_core_second"]
  for name, value in row.items():
    print(f"{name:<44} {value:>10,.{2 if value < 10 else 0}f}")
  if args.json:
    files.write_text(args.json, json.dumps(row, indent=2) + "\n")


if __name__ == "__main__":
  cli.run_verb(main)
