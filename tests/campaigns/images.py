"""Tests the input pipeline with hostile images: python -m tests.campaigns.images [WORD ...]

The campaign uses all images of tests/hostile_images.py, or those with names that contain a WORD. Each image is a file
in a folder with good images. Three processes read the folder with four threads each. The first two evaluate and train
with errors for bad images. The third evaluates and skips bad images.

A hostile image must raise an error that names its file, or be the only skipped image. A complete image must have the
same pixels as in Pillow. The memory and time of each process are measured and limited.

The campaign prints a line for each image, and then "N passed, M failed". The exit code is 1 if an image failed. The
campaign takes a few minutes.
"""

import argparse
import json
import os
import pathlib
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings

os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np

from tests import hostile_images
from tests.campaigns.choice import choose
from tests.image_files import encode, picture
from vit_jax import schema
from vit_jax.data import catalog, crops, decoding, loader, sources, stream
from vit_jax.data.images import ImageError

SECONDS, SMALL = 20, 250  # limits of a process: seconds, and MiB above its memory at the start
# The memory limit of decoding is half of the default. One large image takes 580 MiB, so only one is decoded at a time.
# Four at once took 1,700 to 2,240 MiB, which a limit of 2 GiB could hardly distinguish from three at once.
TOGETHER = 2**30
LARGE = {"png of 10,000 squared": (240, TOGETHER // 2**20 + SMALL)}  # measured: 21 and 35 s on two busy cores
COUNT, PLACE = 2000, 7  # number of records, and number of the hostile record; one in 1000 may be skipped
SIZE, THREADS = 64, 4
NAMES = *hostile_images.REFUSED, *hostile_images.NO_FILES, *hostile_images.WHOLE


def main() -> int:
  """Runs all images, prints a line for each, and returns the exit code."""
  parser = argparse.ArgumentParser("python -m tests.campaigns.images", description=__doc__)
  parser.add_argument("words", nargs="*", help="run only images with names that contain one of these words")
  names = choose(parser, NAMES, parser.parse_args().words)
  warnings.filterwarnings("ignore", message=".*fork.*")  # no thread has started yet
  decoding.MEMORY = decoding.MemoryLimit(TOGETHER)
  failed = passed = 0
  for name in names:
    wrong, report = attempt(name)
    failed, passed = failed + bool(wrong), passed + (not wrong)
    print(f"{'FAIL' if wrong else 'ok':<5} {name:<45} {report}", *wrong, sep="\n        " if wrong else "", flush=True)
  print(f"{passed} passed, {failed} failed")
  return bool(failed)


def attempt(name: str) -> tuple[list[str], str]:
  """Tests an image and returns (problems, measured memory and seconds)."""
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    (root / "train/a").mkdir(parents=True)
    bad, good = (root / f"train/a/{each}.jpg" for each in ("hostile", "good"))
    good.write_bytes(encode(picture(), "JPEG"))
    bad.write_bytes(good.read_bytes())
    photos = catalog.open_split(schema.Choice("folder", {"path": folder, "test": "train"}), "train")
    expected = None
    if name in hostile_images.NO_FILES:
      bad.unlink()
      hostile_images.NO_FILES[name](bad)
    else:
      data = {**hostile_images.REFUSED, **hostile_images.WHOLE}[name]()
      bad.write_bytes(data)
      if name in hostile_images.WHOLE:
        expected = crops.centre(SIZE)(hostile_images.pillow(data), None)
    wrong, figures = [], []
    limit_seconds, limit = LARGE.get(name, (SECONDS, SMALL))
    for check in (raised, raised_in_training, skipped):
      complaints, memory, seconds = run_in_process(limit_seconds, check, photos, expected)
      if memory > limit:
        complaints.append(f"{memory} MiB; allowed: {limit}")
      wrong += [f"{check.__name__}: {complaint}" for complaint in complaints]
      figures.append(f"{memory:>5} MiB {seconds:5.2f} s")
    if name == "folder":
      bad.rmdir()
  return wrong, "  ".join(figures)


def run_in_process(limit, check, *arguments) -> tuple[list[str], int, float]:
  """Runs `check` in a child process and returns (problems, peak MiB above the memory at the start, seconds)."""
  read, write = os.pipe()
  start_time = time.monotonic()
  if not (child := os.fork()):
    signal.alarm(limit)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
      complaints = check(*arguments)
    except:  # noqa: E722  the parent prints any exception
      complaints = ["traceback: " + traceback.format_exc()]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    os.write(write, json.dumps([complaints, memory // 2**10]).encode()[:60_000])
    os._exit(0)
  os.close(write)
  with open(read, "rb") as report:
    text = report.read()
  _, status = os.waitpid(child, 0)
  seconds = time.monotonic() - start_time
  if not text:
    return [f"ended with {os.waitstatus_to_exitcode(status)} after {seconds:.1f} s"], 0, seconds
  return *json.loads(text), seconds


def raised(photos, expected) -> list[str]:
  """Evaluates one hostile image per thread, which must raise an error that names the file, or have its pixels."""
  return check_batches(make_eval_batches(photos, [0] * THREADS, 1, on_error="raise"), expected)


def raised_in_training(photos, expected) -> list[str]:
  """Tests the same for training without random augmentation."""
  source = select_records(photos, [0] * THREADS)
  examples = stream.train_examples(source, 0, image_size=SIZE, crop=schema.Choice("centre"), flip=False)
  return check_batches(loader.batches(examples, 1, range(1), threads=THREADS), expected)


def skipped(photos, expected) -> list[str]:
  """Evaluates 2,000 images with one hostile image, which must be the only skipped image or have its pixels."""
  numbers = [1] * COUNT
  numbers[PLACE] = 0
  batches = make_eval_batches(photos, numbers, 64, on_error="skip")
  batch = next(batches)
  skipped = batches.skipped
  batches.close()
  wrong = [] if (np.delete(batch["valid"], PLACE) == 1).all() else ["others were left out too"]
  if batches.problem:
    wrong.append(f"problem {batches.problem}")
  if expected is None:
    return wrong + ([] if batch["valid"][PLACE] == 0 and skipped == 1 else [f"{skipped} skipped"])
  return wrong + compare_images(batch["image"][PLACE], expected) + ([f"{skipped} skipped"] if skipped else [])


def select_records(photos, numbers) -> sources.Source:
  """Returns a source of records of the folder by number: 0 is the hostile image, and 1 is the good image."""
  order = [next(i for i in range(2) if name in photos.identify(i)) for name in ("hostile", "good")]
  return sources.select_subset(photos, [order[number] for number in numbers])


def make_eval_batches(photos, numbers, size, **options):
  """Returns batches for evaluation."""
  choice = schema.Choice("centre")
  examples = stream.eval_examples(select_records(photos, numbers), image_size=SIZE, test_crop=choice)
  return loader.batches(examples, size, range(size), threads=THREADS, **options)


def check_batches(batches, expected) -> list[str]:
  """Returns the problems of the first batches, one batch for each thread."""
  try:
    taken = [next(batches)["image"][0] for _ in range(THREADS)]
  except ImageError as error:
    batches.close()
    if expected is not None:
      return [f"refused: {error}"]
    text = str(error)
    wrong = [] if "hostile.jpg" in text and "\n" not in text and len(text) < 700 else [f"says {text!r}"]
    return wrong if batches.problem else [*wrong, "no problem is known"]
  batches.close()
  if expected is None:
    return ["accepted"]
  return [complaint for image in taken for complaint in compare_images(image, expected)][:1]


def compare_images(image, expected) -> list[str]:
  """Returns a problem if two images differ by more than the rounding of another decoder."""
  distance = np.abs(image.astype(int) - expected).max()
  return [] if distance <= 8 else [f"other pixels than Pillow's: by up to {distance}"]


if __name__ == "__main__":
  sys.exit(main())
