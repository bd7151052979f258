"""Tests that killed preparations give the same bytes: python -m tests.campaigns.prepare [N] [--seed S] [--beam=M]

The campaign runs `prepare` with two processes N times (default 10) on a folder of 6,000 images. Each run receives three
SIGKILLs at random moments, each after a random number of finished shards. The last start finishes. All files are
compared with those of an undisturbed run. Finished shards must not be written again.

With --beam, Apache Beam also prepares M images (default 50,000) on this machine. The files are compared with those that
are written without Beam.

The campaign prints a line per run and `N passed, M failed`. The exit code is 1 if a run failed. A run takes half a
minute, and --beam takes another minute.
"""

import argparse
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

os.environ["JAX_PLATFORMS"] = "cpu"

import cv2
import numpy as np

from tests import runs

IMAGES, SHARDS, KILLS = 6000, 24, 3


def main() -> int:
  """Kills and finishes runs, compares their files, and returns the exit code."""
  parser = argparse.ArgumentParser("python -m tests.campaigns.prepare", description=__doc__)
  parser.add_argument("runs", nargs="?", type=int, default=10, help="number of runs")
  parser.add_argument("--seed", type=int, default=0, help="seed of the moments of the kills")
  parser.add_argument(
    "--beam", nargs="?", type=int, const=50_000, help="number of images that Apache Beam also prepares"
  )
  args = parser.parse_args()
  os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
  draw, failed = random.Random(args.seed), 0
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    photos = write_images(root / "photos", IMAGES)
    runs.finish(start_prepare(photos, root / "whole"))
    for number in range(args.runs):
      wrong, moments = kill_and_finish(photos, root / f"run{number}", draw)
      wrong += compare_files(root / "whole", root / f"run{number}")
      failed += bool(wrong)
      print(f"{number + 1:>4}  {'FAILED' if wrong else 'passed'}  {moments}", *wrong, sep="\n      ", flush=True)
    count = args.runs
    if args.beam:
      many = write_images(root / "many", args.beam)
      start_time = time.monotonic()
      runs.finish(start_prepare(many, root / "alone"), 0, 7200)
      one, start_time = time.monotonic() - start_time, time.monotonic()
      runs.finish(start_prepare(many, root / "beam", "--beam=--runner=DirectRunner"), 0, 7200)
      wrong = compare_files(root / "alone", root / "beam")
      failed, count = failed + bool(wrong), count + 1
      taken = f"{args.beam:,} images by Beam in {time.monotonic() - start_time:.0f} s, by two processes in {one:.0f} s"
      print(f"      {'FAILED' if wrong else 'passed'}  {taken}", *wrong, sep="\n      ", flush=True)
  print(f"{count - failed} passed, {failed} failed")
  return bool(failed)


def write_images(root: pathlib.Path, count: int) -> pathlib.Path:
  """Writes a folder of generated images of 160 x 120 pixels. One image in 500 is truncated."""
  for i in range(count):
    path = root / f"train/class{i % 20:02d}/{i // 20 % 50:02d}_{i}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(i).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    data = cv2.imencode(".jpg", cv2.resize(coarse, (160, 120), interpolation=cv2.INTER_CUBIC))[1].tobytes()
    path.write_bytes(data[: len(data) // 2] if i % 500 == 0 else data)
  return root


def start_prepare(photos: pathlib.Path, target: pathlib.Path, *words: str) -> subprocess.Popen:
  """Starts the same command as a user."""
  flags = f"--data.name=folder --data.path={photos} --data_dir={target} --size=96 --processes=2 --shards={SHARDS}"
  return runs.command("prepare", "corpus", *flags.split(), *words)


def kill_and_finish(photos, target, draw) -> tuple[list[str], str]:
  """Kills a preparation several times and finishes it. Returns (problems, moments of the kills)."""
  wrong, moments, done = [], [], {}
  for _ in range(KILLS):
    bound, delay = len(done) + draw.randint(0, (SHARDS - len(done)) // 3), draw.uniform(0, 0.5)
    process = start_prepare(photos, target)
    while process.poll() is None and len(read_stamps(target)) < bound:
      time.sleep(0.005)
    time.sleep(delay)
    process.kill()
    process.communicate()
    now = read_stamps(target)
    if process.returncode != -signal.SIGKILL:
      wrong.append(f"ended with {process.returncode} before it was killed at {bound} shards")
    wrong += [f"{name} was written again" for name in done if name in now and now[name] != done[name]]
    done = now
    moments.append(f"{len(done)} shards + {delay:.2f} s")
  runs.finish(start_prepare(photos, target))
  wrong += [f"{name} was written again" for name in done if read_stamp(target, name) != done[name]]
  return wrong, f"killed at {'; '.join(moments)} of {SHARDS}"


def read_stamps(target: pathlib.Path) -> dict[str, int]:
  """Returns the time of modification of each finished shard by the name of its report."""
  names = [path.stem for path in (target / "corpus/.1.0.0.work").glob("train-*.json")]
  return {name: read_stamp(target, name) for name in names}


def read_stamp(target: pathlib.Path, name: str) -> int:
  """Returns the time of modification of the shard of a report."""
  split, _, rest = name.partition("-")
  return (target / f"corpus/1.0.0/corpus-{split}.array_record-{rest}").stat().st_mtime_ns


def compare_files(one: pathlib.Path, other: pathlib.Path) -> list[str]:
  """Returns the differences between the files of two corpora."""
  contents = [{f.name: f.read_bytes() for f in (root / "corpus/1.0.0").iterdir()} for root in (one, other)]
  names = sorted({*contents[0], *contents[1]})
  return [f"{name} differs" for name in names if contents[0].get(name) != contents[1].get(name)]


if __name__ == "__main__":
  sys.exit(main())
