"""What the programs of a run have printed, of all workers, in one stream."""

import argparse
import re
import sys
import time

from launch import board, errors, screen, verbs
from launch.errors import LaunchError
from launch.storage import storage


def logs(args: argparse.Namespace) -> int:
  """Prints the logs of an attempt, each line with its worker's number; with --follow until the run has ended.

  Pieces are printed in the order in which they were written, so that lines of several workers are in order of time to
  within `limits.beat`.
  """
  book = verbs.opened(args.name, args.workdir)
  run = book.run
  attempt = args.attempt or book.state.attempt
  if attempt not in (attempts := book.attempts()):
    if not attempts:
      raise LaunchError(f"{run.name}: there was no attempt yet")
    raise LaunchError(f"--attempt: {attempt}; {run.name} has had {', '.join(map(str, attempts))}")
  workers = _workers(args.worker, run.workers)
  files = board.Board(storage(run.folder), attempt)
  printed, torn = dict.fromkeys(workers, 0), dict.fromkeys(workers, b"")
  while True:
    ended = args.follow and _ended(verbs.opened(args.name, args.workdir), attempt)
    batch = []
    for worker in workers:
      names = files.pieces(worker)
      for name in names[printed[worker] :]:
        item = files.storage.read(name)
        if item:
          batch.append((-item.age, worker, item.content))
      printed[worker] = len(names)
    for _, worker, content in sorted(batch, key=lambda each: each[0]):
      *lines, torn[worker] = (torn[worker] + content).split(b"\n")
      for line in lines:
        _print(worker, line, args.grep)
    if not args.follow or ended:
      break
    time.sleep(min(run.limits.beat, 5.0))
  for worker, line in torn.items():
    if line:
      _print(worker, line, args.grep)
  if not any(printed.values()):
    advice = f"python -m launch status {run.name} says how it is"
    print(f"{run.attempt(attempt)}: nothing was printed yet; {advice}", file=sys.stderr)
  return errors.DONE


def _workers(text, count):
  if text == "all":
    return range(count)
  if not re.fullmatch(r"\d{1,4}", text) or int(text) >= count:
    raise LaunchError(f"--worker: {text[:20]!r}; allowed: all, 0 to {count - 1}")
  return [int(text)]


def _ended(book, attempt):
  return not book.open or book.state.attempt > attempt


def _print(worker, line, pattern):
  text = line.decode(errors="replace")
  if pattern in text:
    # What moves the cursor or changes colours is the program's, not this terminal's.
    print(f"[w{worker:02d}] {screen.printable(text.rstrip(chr(13)))}")
