"""Tests runs with a failing disk: python -m tests.campaigns.disk [WORD ...]

In each situation, the disk of a run fails at one moment. The run must end with exit code 2 and one line that names the
file. Complete checkpoints must not change. Afterwards the disk works again. The same command must then reach the
weights, figures and lines of metrics of an undisturbed run. A fault that affects only TensorBoard must cause a warning
and no other effect.

Each WORD selects the situations whose names contain it. A full or read-only disk is a small tmpfs, which requires root.
Without root, these situations are skipped. The campaign prints one line per situation and `N passed, M failed`. The
exit code is 1 if a situation failed. The campaign takes about five minutes on two cores.
"""

import argparse
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable

os.environ["JAX_PLATFORMS"] = "cpu"

from tests.campaigns import quick

os.environ["XLA_FLAGS"] = quick.make_flags(1)

from tests import runs
from tests.campaigns.choice import choose
from tests.campaigns.troubles import (
  STEPS,
  Failed,
  committed,
  contents,
  continued,
  ended,
  expect,
  fill,
  free,
  held,
  kill_all,
  mount,
  refused,
  seen,
  started,
  watched,
)
from vit_jax.corpora.builders import prepare_dataset

# Situations. Each one takes a disk that can be filled and the folder of the undisturbed run, and returns a message.


def full_at_the_start(disk: pathlib.Path, whole: pathlib.Path) -> str:
  fill(disk)
  line = refused(started(disk / "run"), str(disk / "run"), "No space left", "Make room")
  free(disk)
  continued(disk / "run", whole)
  return line


def failing(moment: Callable, fail: Callable, mend: Callable, *words: str) -> Callable:
  """Returns a situation in which the disk of a process fails from one moment on, until it is repaired."""

  def situation(disk: pathlib.Path, whole: pathlib.Path, tries: int = 5) -> str:
    process = started(disk / "run")
    moment(process, disk / "run")
    with held(process):
      before = contents(disk / "run")
      in_time = not (disk / f"run/checkpoints/{STEPS}").exists()
      if in_time:
        fail(process, disk)
    if not in_time and tries > 1:  # on a busy machine, the moment may pass before the campaign notices it
      process.communicate()
      shutil.rmtree(disk / "run")
      return situation(disk, whole, tries - 1)
    line = refused(process, str(disk / "run"), *words)
    expect(before.items() <= contents(disk / "run").items(), "a whole checkpoint has changed")
    mend(disk)
    continued(disk / "run", whole)
    return line

  return situation


def full_at(left: int, moment: Callable, *words: str) -> Callable:
  """Returns a situation with a disk that is full except for `left` bytes."""
  return failing(moment, lambda _, disk: fill(disk, left), free, "No space left", "Make room", *words)


def limited_at(size: int, moment: Callable, *words: str) -> Callable:
  """Returns a situation with a limit of `size` bytes per file, as after ulimit -f. The next process has no limit."""

  def limit(process, _):
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

  return failing(moment, limit, lambda _: None, "File too large", "ulimit -f", *words)


def read_only(disk: pathlib.Path, whole: pathlib.Path) -> str:
  process = started(disk / "run")
  seen(process, 8)
  process.kill()
  process.communicate()
  before = contents(disk / "run")
  subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
  line = refused(started(disk / "run"), str(disk / "run"), "Read-only file system")
  subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
  expect(contents(disk / "run") == before, "a whole checkpoint has changed")
  continued(disk / "run", whole)
  return line


def read_only_checkpoints(disk: pathlib.Path, whole: pathlib.Path) -> str:
  folder = disk / "run/checkpoints"
  folder.parent.mkdir()
  mount(folder)
  try:
    process = started(disk / "run")
    committed(process, disk / "run", 6)
    with held(process):
      before = contents(disk / "run")
      subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    line = refused(process, str(folder), "Read-only file system", "The last complete checkpoint is step")
    subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
    expect(contents(disk / "run") == before, "a whole checkpoint has changed")
    continued(disk / "run", whole)
  finally:
    subprocess.run(["umount", "-l", str(folder)], check=False)
  return line


def gone_at(step: int, what: Callable[[pathlib.Path], None]) -> Callable:
  """Returns a situation in which the workdir is removed or moved after a step, and its remains are used again."""

  def situation(disk: pathlib.Path, whole: pathlib.Path) -> str:
    process = started(disk / "run")
    seen(process, step)
    with held(process):
      what(disk / "run")
    line = refused(process, str(disk / "run"), "the workdir no longer exists")
    if (disk / "moved").exists() and (disk / "run").exists():
      expect(not list((disk / "run").iterdir()), "something was written into another")
    if (disk / "moved").exists():
      shutil.rmtree(disk / "run", ignore_errors=True)
      (disk / "moved").rename(disk / "run")
    continued(disk / "run", whole)
    return line

  return situation


def replaced(workdir: pathlib.Path) -> None:
  """Moves the workdir and puts an empty folder in its place."""
  workdir.rename(workdir.with_name("moved"))
  workdir.mkdir()


def tensorboard_is_a_file(disk: pathlib.Path, whole: pathlib.Path) -> str:
  (disk / "run").mkdir()
  (disk / "run/tensorboard").write_text("mine")
  output = continued(disk / "run", whole)
  warnings = [line for line in output.splitlines() if line.startswith("WARNING")]
  expect(len(warnings) == 1 and "tensorboard: " in warnings[0], f"not one warning: {warnings}")
  return warnings[0]


def no_unicode(disk: pathlib.Path, whole: pathlib.Path) -> str:
  workdir = pathlib.Path(os.fsdecode(os.fsencode(disk) + b"/caf\xe9"))
  line = refused(started(workdir), "--workdir: ", "not Unicode")
  expect(not workdir.exists(), "something was written")
  return line


def log_on_the_full_disk(disk: pathlib.Path, whole: pathlib.Path) -> str:
  changes = {"total": STEPS, "checkpoint__every": 3, "log__every": 2, "evals__test__every": 6}
  words = [sys.executable, "-m", "vit_jax.train", *runs.words(disk / "run", **changes)]
  with open(disk / "log", "wb") as log:
    process = watched(subprocess.Popen(words, cwd=runs.ROOT, stdout=log, stderr=log))
  committed(process, disk / "run", 3)
  with held(process):
    fill(disk)
  ended(process, 2)
  free(disk)
  continued(disk / "run", whole)
  return (disk / "log").read_text().splitlines()[-1]


def programs_on_a_full_disk(disk: pathlib.Path, whole: pathlib.Path) -> str:
  programs = disk.with_name("programs_disk")
  mount(programs)
  try:
    fill(programs)
    output = continued(disk / "run", whole, JAX_COMPILATION_CACHE_DIR=str(programs))
  finally:
    subprocess.run(["umount", "-l", str(programs)], check=False)
  return output.splitlines()[0]


def full_for(name: str) -> Callable:
  """Returns a situation without space for one file, which is written through a partial file."""

  def situation(disk: pathlib.Path, whole: pathlib.Path) -> str:
    (disk / "run").mkdir()
    (disk / f"run/.{name}.partial").symlink_to("/dev/full")
    line = refused(started(disk / "run"), str(disk / "run" / name), "No space left", "Make room")
    continued(disk / "run", whole)
    return line

  return situation


def after_step(step: int) -> Callable:
  return lambda process, workdir: seen(process, step)


def after_save(step: int) -> Callable:
  return lambda process, workdir: committed(process, workdir, step)


SITUATIONS = {
  "full at the start": full_at_the_start,
  "full at config.json": full_for("config.json"),
  "full at the first save": full_at(0, after_step(1)),
  "full in the middle of the first save": full_at(40_000, after_step(1), "No earlier checkpoint exists"),
  "full in the middle of a save": full_at(150_000, after_save(3), "checkpoints"),
  "full at a line of metrics": full_at(0, after_save(3)),
  "full at the last save": full_at(30_000, after_save(9)),
  "full at the result": full_for("result.json"),
  "too large at the first save": limited_at(20_000, after_step(1), "No earlier checkpoint exists"),
  "too large at a save": limited_at(20_000, after_save(3), "The last complete checkpoint is step"),
  "too large at metrics": limited_at(600, after_save(3)),
  "read-only": read_only,
  "read-only checkpoints": read_only_checkpoints,
  "removed": gone_at(4, shutil.rmtree),
  "moved": gone_at(4, lambda workdir: workdir.rename(workdir.with_name("moved"))),
  "replaced": gone_at(4, replaced),
  "checkpoints removed": gone_at(8, lambda workdir: shutil.rmtree(workdir / "checkpoints")),
  "TensorBoard's folder is a file": tensorboard_is_a_file,
  "a name that is not Unicode": no_unicode,
  "log on the full disk": log_on_the_full_disk,
  "programs on a full disk": programs_on_a_full_disk,
}


def attempt(situation: Callable, disk: pathlib.Path, whole: pathlib.Path) -> tuple[str, str]:
  """Runs a situation and returns (verdict, message). Kills its runs and unmounts its disk at the end."""
  try:
    mount(disk)
  except PermissionError as error:
    return "skipped", str(error)
  try:
    return "passed", situation(disk, whole)
  except Failed as error:
    return "failed", str(error)
  except (OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
    return "failed", f"{type(error).__name__}: {error}"
  finally:
    kill_all()
    subprocess.run(["umount", "-l", str(disk)], capture_output=True, check=False)


def main() -> int:
  """Runs the situations and returns 1 if one failed."""
  parser = argparse.ArgumentParser("python -m tests.campaigns.disk", description=__doc__)
  parser.add_argument("words", nargs="*", help="run only situations with names that contain one of these words")
  chosen = choose(parser, SITUATIONS, parser.parse_args().words)
  counts = {"passed": 0, "failed": 0, "skipped": 0}
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    quick.set_directories(name)
    prepare_dataset("digits")
    runs.finish(started(folder / "whole"))
    for number, (title, situation) in enumerate(SITUATIONS.items()):
      if title not in chosen:
        continue
      verdict, output = attempt(situation, folder / f"disk{number}", folder / "whole")
      counts[verdict] += 1
      print(f"{verdict:<8}{title:<40}{output.replace(name, '')}", flush=True)
  print(
    f"{counts['passed']} passed, {counts['failed']} failed" + f", {counts['skipped']} skipped" * (counts["skipped"] > 0)
  )
  return counts["failed"] > 0


if __name__ == "__main__":
  sys.exit(main())
