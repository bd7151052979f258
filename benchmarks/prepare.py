"""Images a second of `prepare` on one core, beside TFDS's own writer: python -m benchmarks.prepare [--json=FILE]

JPEGs of 500 x 375 pixels and about 90 kB, in a folder, become an array_record dataset: by TFDS, which verifies nothing
and copies the bytes; by ours, which decodes each; with every image made 256 pixels small; and with every image compared
with a test set. Each is a process of its own on one core, in turn; medians of rounds. Memory is the most that the
process had more than after its imports; that of one image of 20,000 x 8,000 pixels is measured too.
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
from vit_jax import cli, extras, files, schema
from vit_jax.corpora import duplicates, plan, write
from vit_jax.data import catalog

WAYS = ("tfds", "ours", "ours_256_pixels", "ours_dedup")


def by_tfds(source: pathlib.Path, target: str) -> None:
  """TFDS's writer of examples, as datasets are defined with it."""
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


def by_us(source: pathlib.Path, target: str, way: str) -> None:
  """Ours, by one process."""
  choice = schema.bind(schema.Choice("folder", {"path": str(source)}), (catalog.READERS["folder"],))
  against = (str(source.with_name("test")),) if way == "ours_dedup" else ()
  options = plan.Options(256 if way == "ours_256_pixels" else None, None, 0, against, duplicates.DISTANCE)
  write.write("corpus", schema.plain(choice), options, pathlib.Path(target), 1)


def one(way: str, source: str) -> None:
  """Prints seconds and MiB of a way."""
  import tensorflow_datasets  # noqa: F401 - not its import is measured

  os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
  with tempfile.TemporaryDirectory() as target:
    before, began = peak(), time.process_time()
    if way == "tfds":
      by_tfds(pathlib.Path(source), target)
    else:
      by_us(pathlib.Path(source), target, way)
    print("measured", time.process_time() - began, peak() - before)


def peak() -> float:
  """MiB of memory that this process has had at most. `ru_maxrss` begins with what its parent had."""
  return int(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) / 2**10


def measured(way: str, source: pathlib.Path) -> tuple[float, float]:
  """(seconds of a core, MiB) of a way, in a process of its own."""
  words = [sys.executable, "-m", "benchmarks.prepare", "--only", way, str(source)]
  seconds, memory = children.output(words).split("measured")[1].split()
  return float(seconds), float(memory)


def write_photographs(root: pathlib.Path, count: int, seed: int = 0) -> pathlib.Path:
  """A folder of so many."""
  for i in range(count):
    path = root / f"train/class{i % photographs.CLASSES}/{i}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(photographs.picture(seed + i))
  return root


def write_panorama(root: pathlib.Path) -> pathlib.Path:
  """A folder of one image of 160 million pixels."""
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
  parser.add_argument("--rounds", type=int, default=3, help="that the medians are of")
  parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
  parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.only:
    return one(*args.only)
  extras.check_tensorflow("benchmarks.prepare")
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    source = write_photographs(root / "photographs", args.images)
    write_photographs(root / "test", 64, 10**6)
    results = {way: [] for way in WAYS}
    for _ in range(args.rounds):
      for way in WAYS:
        results[way].append(measured(way, source))
    _, panorama = measured("ours_256_pixels", write_panorama(root / "panorama"))
  row = {f"{way}_images_per_core_second": args.images / statistics.median(s for s, _ in results[way]) for way in WAYS}
  row |= {f"{way}_mib": max(memory for _, memory in results[way]) for way in WAYS}
  row["panorama_mib"] = panorama
  row["ratio_to_tfds"] = row["ours_images_per_core_second"] / row["tfds_images_per_core_second"]
  for name, value in row.items():
    print(f"{name:<44} {value:>10,.{2 if value < 10 else 0}f}")
  if args.json:
    files.write_text(args.json, json.dumps(row, indent=2) + "\n")


if __name__ == "__main__":
  cli.main(main)
