"""Whether corpora that are killed end in the same bytes: python -m tests.campaigns.prepare [N] [--seed S] [--beam=M]

N times (10) `prepare` of a folder of 6,000 images, by two processes, is killed (SIGKILL) three times, each at a drawn
moment after a drawn number of its shards is done, and ends at the last; all its files are compared with those of one
that nobody killed, and shards that were done may not be written again. With --beam, M images (50,000) go through Apache
Beam here, and are compared with those that were written without it. Prints a line each and `N passed, M failed`; exit
code 1 if any failed. Takes half a minute a run, and a minute more with --beam.
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
  """Kills, finishes, compares; the exit code."""
  parser = argparse.ArgumentParser("python -m tests.campaigns.prepare", description=__doc__)
  parser.add_argument("runs", nargs="?", type=int, default=10, help="how many")
  parser.add_argument("--seed", type=int, default=0, help="of the moments")
  parser.add_argument("--beam", nargs="?", type=int, const=50_000, help="images that go through Apache Beam too")
  args = parser.parse_args()
  os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
  draw, failed = random.Random(args.seed), 0
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    photos = written(root / "photos", IMAGES)
    runs.finish(started(photos, root / "whole"))
    for number in range(args.runs):
      wrong, moments = killed(photos, root / f"run{number}", draw)
      wrong += different(root / "whole", root / f"run{number}")
      failed += bool(wrong)
      print(f"{number + 1:>4}  {'FAILED' if wrong else 'passed'}  {moments}", *wrong, sep="\n      ", flush=True)
    count = args.runs
    if args.beam:
      many = written(root / "many", args.beam)
      began = time.monotonic()
      runs.finish(started(many, root / "alone"), 0, 7200)
      one, began = time.monotonic() - began, time.monotonic()
      runs.finish(started(many, root / "beam", "--beam=--runner=DirectRunner"), 0, 7200)
      wrong = different(root / "alone", root / "beam")
      failed, count = failed + bool(wrong), count + 1
      taken = f"{args.beam:,} images by Beam in {time.monotonic() - began:.0f} s, by two processes in {one:.0f} s"
      print(f"      {'FAILED' if wrong else 'passed'}  {taken}", *wrong, sep="\n      ", flush=True)
  print(f"{count - failed} passed, {failed} failed")
  return bool(failed)


def written(root: pathlib.Path, count: int) -> pathlib.Path:
  """A folder of generated images of 160 x 120 pixels, one in 500 of which is torn."""
  for i in range(count):
    path = root / f"train/class{i % 20:02d}/{i // 20 % 50:02d}_{i}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = np.random.default_rng(i).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    data = cv2.imencode(".jpg", cv2.resize(coarse, (160, 120), interpolation=cv2.INTER_CUBIC))[1].tobytes()
    path.write_bytes(data[: len(data) // 2] if i % 500 == 0 else data)
  return root


def started(photos: pathlib.Path, target: pathlib.Path, *words: str) -> subprocess.Popen:
  """The command, as its user would start it each time."""
  flags = f"--data.name=folder --data.path={photos} --data_dir={target} --size=96 --processes=2 --shards={SHARDS}"
  return runs.command("prepare", "corpus", *flags.split(), *words)


def killed(photos, target, draw) -> tuple[list[str], str]:
  """(what is wrong, moments): kills, and lets it end."""
  wrong, moments, done = [], [], {}
  for _ in range(KILLS):
    bound, delay = len(done) + draw.randint(0, (SHARDS - len(done)) // 3), draw.uniform(0, 0.5)
    process = started(photos, target)
    while process.poll() is None and len(reports(target)) < bound:
      time.sleep(0.005)
    time.sleep(delay)
    process.kill()
    process.communicate()
    now = reports(target)
    if process.returncode != -signal.SIGKILL:
      wrong.append(f"ended with {process.returncode} before it was killed at {bound} shards")
    wrong += [f"{name} was written again" for name in done if name in now and now[name] != done[name]]
    done = now
    moments.append(f"{len(done)} shards + {delay:.2f} s")
  runs.finish(started(photos, target))
  wrong += [f"{name} was written again" for name in done if stamp(target, name) != done[name]]
  return wrong, f"killed at {'; '.join(moments)} of {SHARDS}"


def reports(target: pathlib.Path) -> dict[str, int]:
  """When each shard that is done was written, by name of its report."""
  names = [path.stem for path in (target / "corpus/.1.0.0.work").glob("train-*.json")]
  return {name: stamp(target, name) for name in names}


def stamp(target: pathlib.Path, name: str) -> int:
  """When the shard of a report was written."""
  split, _, rest = name.partition("-")
  return (target / f"corpus/1.0.0/corpus-{split}.array_record-{rest}").stat().st_mtime_ns


def different(one: pathlib.Path, other: pathlib.Path) -> list[str]:
  """Files that are not the same."""
  contents = [{f.name: f.read_bytes() for f in (root / "corpus/1.0.0").iterdir()} for root in (one, other)]
  names = sorted({*contents[0], *contents[1]})
  return [f"{name} differs" for name in names if contents[0].get(name) != contents[1].get(name)]


if __name__ == "__main__":
  sys.exit(main())
