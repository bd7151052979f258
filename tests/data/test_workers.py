"""Tests of worker processes: their stream matches threads, errors name the failed process, and all processes end."""

import dataclasses
import functools
import logging
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests import hostile_images, runs, streams
from tests.streams import PLAIN, file, opened, same, take
from vit_jax.data import catalog, decoding, loader, stream
from vit_jax.data.images import ImageError
from vit_jax.data.workers import WorkerError
from vit_jax.schema import Choice, ConfigError

pytestmark = pytest.mark.heavy


def batches(count, workers, size=80, rows=None, start=0, bad=(), **options):
  """Returns batches of `size` from `workers` worker processes, or from threads for 0."""
  made = loader.processes(functools.partial(opened, count, bad), count, workers=workers)
  return loader.batches(opened(count, bad), size, range(size) if rows is None else rows, start, made, **options)


def pids(made):
  """Returns the process ids of the workers."""
  return [process.pid for process in made._pool._processes]


def ended(pid, seconds=20):
  """Returns whether a process that has no waiting parent ends within `seconds`."""
  deadline = time.monotonic() + seconds
  while time.monotonic() < deadline:
    try:
      state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
      return True
    if state == "Z":
      return True
    time.sleep(0.1)
  return False


@pytest.mark.parametrize(("workers", "threads", "rows"), [(1, 1, range(80)), (3, 4, range(5, 75))])
def test_workers_build_the_stream_of_the_threads(workers, threads, rows):
  made = batches(50, workers, rows=rows, start=3, threads=threads)
  found = take(made, 6)
  same(found, take(batches(50, 0, rows=rows, start=3), 6))
  assert all(process.returncode is not None for process in made._pool._processes)


def open_photographs(damaged):
  """Returns examples of a million records. Their images do not fit in memory."""
  data = hostile_images.jpeg()
  if damaged:
    data = hostile_images.cut(data, 0.9, hostile_images.EOI)
  photographs = dataclasses.replace(streams.source(1), length=10**6, read=lambda i: (data, i % 3))
  crop = Choice("inception", {"area": (0.05, 0.1)})
  return stream.train_examples(photographs, 0, image_size=4, crop=crop)


def make_photographs(damaged):
  opener = functools.partial(open_photographs, damaged)
  made = loader.processes(opener, 100, workers=2)
  return loader.batches(opener(), 40, range(40), 0, made, threads=2, on_error="skip", max_bad=1)


def test_workers_share_the_bits_of_decoded_images():
  made = make_photographs(damaged=False)
  take(made, 2)
  marked = np.flatnonzero(np.unpackbits(made._chunks.images.decoded, bitorder="little"))
  assert {open_photographs(False).record(position) for position in range(80)} <= set(marked.tolist())


@pytest.mark.skipif(not decoding.nvimgcodec, reason="boxes are decoded with nvImageCodec, which is not installed")
def test_workers_decode_only_boxes_of_marked_images():
  made = make_photographs(damaged=True)
  made._chunks.images.decoded[:] = 255
  take(made, 1)
  assert made.skipped < 40  # only images with a box that contains the damage


def test_killed_worker_is_an_error_that_names_it():
  made = batches(50, 2, threads=2)
  next(made)
  os.kill(pids(made)[1], signal.SIGKILL)
  with pytest.raises(WorkerError, match=f"input process {pids(made)[1]}.*SIGKILL.*smaller --config.data.workers"):
    for _ in range(100):
      next(made)
  made.close()


@pytest.mark.long
def test_signals_that_stop_the_whole_run_end_no_worker():
  made = batches(50, 1)
  next(made)
  for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    os.kill(pids(made)[0], number)
  take(made, 50)


def fails():
  raise RuntimeError("nothing here")


def warns():
  logging.warning("slow bucket")
  return opened(50)


def gone():
  raise ConfigError("gs://data cannot be reached", "config.data.path")


@pytest.mark.long
def test_worker_that_cannot_open_the_data_is_an_error(capfd):
  made = loader.batches(opened(50), 8, range(8), 0, loader.processes(fails, 50, workers=1))
  with pytest.raises(WorkerError, match="ended with exit code 1"):
    next(made)
  made.close()
  assert "nothing here" in capfd.readouterr().err


@pytest.mark.long
def test_data_missing_in_a_worker_are_the_same_error_as_in_the_trainer():
  made = loader.batches(opened(50), 8, range(8), 0, loader.processes(gone, 50, workers=2), threads=2)
  with pytest.raises(ImageError, match=r"config.data.path: gs://data cannot be reached"):
    next(made)
  made.close()


def photos(root):
  source = catalog.open_split(Choice("folder", {"path": str(root), "test": "train"}), "train")
  return stream.train_examples(loader.cache_fingerprint(source), 0, **PLAIN)


@pytest.mark.long
def test_data_that_change_before_a_worker_opens_them_are_an_error(tmp_path):
  def add(name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(file(3))

  for name in ("a/1.png", "a/2.png", "b/1.png"):
    add(f"train/{name}")
  take(loader.batches(photos(tmp_path), 2, range(2), 0, loader.Workers(functools.partial(photos, tmp_path), 1)), 3)
  for name, output in (
    ("train/a/2.png", "modification times of files"),
    ("train/c/1.png", "names, labels or order of images, sizes of files, modification times of files, classes"),
  ):
    examples = photos(tmp_path)
    examples.source.fingerprint()
    add(name)
    made = loader.batches(examples, 2, range(2), 0, loader.Workers(functools.partial(photos, tmp_path), 1))
    with pytest.raises(ImageError, match=rf"the data changed while the run started: .*{output}.*. Restore them"):
      next(made)
    made.close()


@pytest.mark.long
def test_warning_of_a_worker_is_printed_once_with_its_process(capfd):
  made = batches(50, 2, bad=[13], on_error="skip", threads=4)
  take(made, 6)
  assert "skipped" not in capfd.readouterr().err  # pytest captures the warnings of the trainer
  made = loader.batches(opened(50), 8, range(8), 0, loader.processes(warns, 50, workers=1))
  take(made, 1)
  assert f"WARNING: input process {pids(made)[0]}: slow bucket" in capfd.readouterr().err


@pytest.mark.long
def test_bad_image_in_a_worker_is_named_and_skipped_as_in_threads():
  made = batches(50, 2, bad=[13])
  with pytest.raises(ImageError, match=r"made, record 13: not a complete image.*data.on_error=skip"):
    take(made, 2)
  assert "made, record 13" in str(made.problem)
  made.close()
  made = batches(50, 2, bad=[13], on_error="skip")
  found = [next(made) for _ in range(3)]
  assert made.skipped == 1
  made.close()
  same(found, take(batches(50, 0, bad=[13], on_error="skip"), 3))


@pytest.mark.long
def test_too_many_bad_images_among_all_workers_stop_the_run():
  with pytest.raises(ImageError, match="of 50 records are bad"):
    take(batches(50, 3, bad=range(0, 50, 8), on_error="skip", threads=3), 4)


ENDLESS = """
import functools, sys, time
from tests.data.test_workers import batches, pids
made = batches(50, 2)
next(made)
print(*pids(made), flush=True)
{end}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
  "end", ["time.sleep(600)", "1 / 0", "import os; os._exit(43)", "import os; os.kill(pids(made)[0], 19); os._exit(43)"]
)
def test_no_worker_survives_any_end_of_the_trainer(end):
  words = [sys.executable, "-c", ENDLESS.format(end=end)]
  process = subprocess.Popen(words, cwd=runs.ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
  left = list(map(int, process.stdout.readline().split()))
  assert len(left) == 2
  if "sleep" in end:
    process.kill()
  process.wait(timeout=60)
  assert all(ended(pid) for pid in left)
