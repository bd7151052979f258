"""Checks that decode every image of a folder: detection of bad images, and moving them to another folder."""

import collections
import concurrent.futures
import errno
import logging
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.corpora import conversion, stats
from vit_jax.corpora.screen import ProgressScreen
from vit_jax.data import catalog, decoding, images, local_files
from vit_jax.data.bound_data import EvalData
from vit_jax.data.images import ImageError, Images
from vit_jax.data.readers import folder_layout, tree
from vit_jax.data.readers.folder import SHARE
from vit_jax.data.sources import Source
from vit_jax.schema import Choice, ConfigError, enter_key, escape_line, format_amount, make, texts
from vit_jax.storage import paths

SECONDS = 3.0  # maximum duration of a check at the start of a run
# Bytes of JPEGs that a core decodes per second, and seconds per file during which the global interpreter lock is held.
RATE, EACH = 4e7, 5e-4
BATCH = 64  # images of a batch in the suggested recipe
FEW = 10  # a class with fewer images is difficult to learn
SHOWN = 20  # maximum number of small classes, and of skipped images, in the output
BOUNDS = conversion.MAX_PIXELS, conversion.MAX_ASPECT  # default limits of a run
TOGETHER = 64  # images between two progress reports


class FolderFiles(NamedTuple):
  """Files of a folder and its subfolders, without hidden files.

  Attributes:
    images: paths of the images relative to the folder, in order.
    ignored: number of other files by extension.
    odd: messages about links that were not followed.
    failed: messages about folders that could not be searched.
  """

  images: list[str]
  ignored: collections.Counter[str]
  odd: list[str]
  failed: list[str]


def find_problems(made: Images, seen: Callable[[int, int], None] = lambda records, bad: None) -> dict[int, str]:
  """Decodes all records completely, on all cores, and returns the problems.

  Args:
    made: images that raise an error for a bad record.
    seen: called with the number of records that were decoded since the last call, and the number of bad ones.

  Returns:
    {record: problem}.

  Raises:
    ImageError: the disk may have caused an error, so that the image may be correct.
  """
  result = {}
  with concurrent.futures.ThreadPoolExecutor(max(2, decoding.count_usable_cores())) as pool:
    for first in range(0, len(made.source), TOGETHER):
      some = range(first, min(first + TOGETHER, len(made.source)))
      reasons = list(pool.map(lambda record: _find_problem(made, record), some))
      result |= {record: reason for record, reason in zip(some, reasons, strict=True) if reason}
      seen(len(some), sum(map(bool, reasons)))
  return result


def _find_problem(made: Images, record: int) -> str | None:
  try:
    made.read_prepared(record, lambda image: np.asarray(image)[:1, :1])
  except ImageError as error:
    if isinstance(cause := error.__cause__, OSError) and cause.errno not in images.OF_A_FILE:
      raise
    return stats.shorten_error(error)
  return None


# Check at the start of a run.


def is_quick(source: Source, root: pathlib.Path) -> bool:
  """Returns true if all files of an image folder can be decoded in about `SECONDS`, according to their sizes.

  Args:
    source: a split of the folder.
    root: path of the folder.
  """
  remaining = SECONDS - EACH * len(source)
  if source.remote or remaining < 0:
    return False
  sizes = local_files.read_stamps([f"{root}/{source.identify(i)}" for i in range(len(source))])
  return sum(size or 0 for size, _ in sizes) <= remaining * RATE * decoding.count_usable_cores()


def check_folder_images(data: EvalData, splits: Iterable[Source], root: pathlib.Path) -> str | None:
  """Checks all images of an image folder before a run starts.

  If bad images are skipped, one warning names them, and the run cannot start only if there are too many. A
  split that takes too long to decode is not checked.

  Args:
    data: the bound data choice of the folder.
    splits: splits of the folder.
    root: path of the folder.

  Returns:
    A message with all bad images and advice, or None if the run can start.
  """
  skipped, bad, records, too_many = data.skips, {}, 0, False
  for source in splits:
    if not is_quick(source, root):
      continue
    made = data.images(source, "raise")
    try:
      reasons = find_problems(made)
    except ImageError as error:
      return str(error)
    bad |= {source.identify(record): reason for record, reason in reasons.items()}
    records += len(source)
    too_many = too_many or images.exceeds_max_bad(len(reasons), len(source), data.max_bad)
  lines = [f"{escape_line(name)}: {reason}" for name, reason in sorted(bad.items())]
  if skipped and not too_many:
    if lines:
      more = f" and {len(lines) - SHOWN:,} more" if len(lines) > SHOWN else ""
      count = f"{len(lines):,} of {format_amount(records, 'image')}"
      names = ", ".join(map(escape_line, sorted(bad)[:SHOWN]))
      logging.warning("%s in %r will be skipped: %s%s", count, str(root), names, more)
    return None
  if not lines:
    return None
  advice = "raise --config.data.max_bad" if skipped else "skip them with --config.data.on_error=skip"
  return "\n  ".join(
    [
      f"{len(lines):,} of {format_amount(records, 'image')} in {str(root)!r} "
      f"{'is' if len(lines) == 1 else 'are'} bad. Fix them, set them aside with `python -m "
      f"vit_jax.prepare {texts.format_flag('check', root)} --move-bad=DIR`, or {advice}:",
      *lines,
    ]
  )


# Check as a command.


class FolderReport(NamedTuple):
  """The result of a check.

  Attributes:
    lines: lines that describe the folder.
    remaining: number of bad images that remain in the folder.
    problem: reason why a run with the default settings cannot read the folder, or None.
  """

  lines: list[str]
  remaining: int
  problem: str | None


def check_images(root: pathlib.Path, aside: pathlib.Path | None = None) -> FolderReport:
  """Checks all images of a folder, and optionally moves the bad ones to another folder.

  Args:
    root: the folder.
    aside: destination for bad images, or None to leave them.

  Returns:
    The report. Its last line is the next step if a run can read the folder.

  Raises:
    ConfigError: a folder is missing or unsuitable.
    ImageError: the disk failed while an image was read.
    OSError: a disk failed.
  """
  if paths.is_in_bucket(root) or (aside and paths.is_in_bucket(aside)):
    raise ConfigError(
      "--check: only folders on a disk can be checked. Images in a bucket are checked when they are prepared"
    )
  if not root.is_dir():
    raise ConfigError(
      f"--check: {str(root)!r} is a file. Name a folder" if root.exists() else f"--check: no folder {str(root)!r}"
    )
  if aside and aside.resolve().is_relative_to(root.resolve()):
    raise ConfigError(
      f"--move-bad: {str(aside)!r} is inside {str(root)!r} and would become one of its classes. Use a directory "
      f"outside it"
    )
  walked = find_images(root)
  if not walked.images:
    others = ", ".join(tree.format_counts(walked.ignored, tree.SHOWN))
    raise ConfigError(
      f"--check: no image ({', '.join(tree.EXTENSIONS)}) in {str(root)!r}"
      + (f", but {others}. Convert photographs in other formats to .jpg" if others else "")
    )
  source = Source(
    *("check", "all", ("",), len(walked.images)),
    read=lambda i: (local_files.read_file(root / walked.images[i]), 0),
    place=lambda i: f"file {f'{root}/{walked.images[i]}'!r}",
  )
  problem = "; ".join(walked.failed) or _find_layout_problem(root)
  if problem and aside:
    raise ConfigError(
      f"--move-bad: a run with the default settings cannot read {str(root)!r}: {problem}. No image was moved. Fix this "
      f"first"
    )
  with ProgressScreen("checking", len(source)) as screen:
    bad = find_problems(Images(source, "raise", *BOUNDS), screen.add)
  lines = [f"bad: {escape_line(walked.images[i])}: {reason}" for i, reason in bad.items()]
  before = _record_splits(root) if aside and bad else None
  stayed = [words for i in bad if (words := move_aside(root, aside, walked.images[i]))] if aside else []
  remaining = len(stayed if aside else bad)
  if aside and bad:
    problem = _find_layout_problem(root)  # for example, a class may have lost all its images
  moved = f", {len(bad) - remaining:,} moved to {str(aside)!r}" if aside else ""
  kinds = collections.Counter(tree.extension(name) for name in walked.images)
  lines += [
    f"{str(root)!r}: {format_amount(len(source), 'image')}, {', '.join(tree.format_counts(kinds, tree.SHOWN))}; "
    f"ignored: {', '.join(tree.format_counts(walked.ignored, tree.SHOWN)) or 'nothing'}",
    *walked.odd,
    *walked.failed,
    *_describe_classes(walked.images, bad),
    *stayed,
    *_compare_splits(root, before),
    f"{format_amount(len(bad), 'bad image')}{moved}" if bad else "no bad image",
  ]
  if not problem:
    lines.append(_describe_next_step(root, remaining, aside is not None))
  return FolderReport(lines, remaining, problem)


def find_images(root: pathlib.Path) -> FolderFiles:
  """Searches a folder and its subfolders for images.

  Each folder is searched once. A link to a folder that was already searched, or that contains the link, is not
  followed.

  Args:
    root: the folder.
  """
  result, seen = FolderFiles([], collections.Counter(), [], []), {}

  def enter(folder: str) -> None:
    path = root / folder
    if (before := seen.setdefault(path.resolve(), folder)) != folder:
      loop = path.parent.resolve().is_relative_to(path.resolve())
      what = "a link to a folder that contains it" if loop else f"the folder {before!r} under another name"
      result.odd.append(f"not followed: {folder!r} is {what}")
      return
    try:
      with os.scandir(path) as entries:
        names = sorted((entry.name, _is_folder(entry)) for entry in entries if not entry.name.startswith("."))
    except OSError as error:
      result.failed.append(f"not searched: {folder!r}: {error.strerror}")
      return
    for name, is_folder in names:
      inner = os.path.join(folder, name)
      if is_folder:
        enter(inner)
      elif tree.is_image(name):
        result.images.append(inner)
      else:
        result.ignored[tree.extension(name)] += 1

  enter("")
  return result


def _is_folder(entry: os.DirEntry[str]) -> bool:
  """Returns whether an entry is a folder. A link to itself is not a folder."""
  try:
    return entry.is_dir()
  except OSError:
    return False


def _describe_classes(names: Sequence[str], bad: dict[int, str]) -> list[str]:
  """Returns lines on folders with few good images."""
  counts = collections.Counter(os.path.dirname(name) for name in names)
  counts.subtract(os.path.dirname(names[i]) for i in bad)
  few = sorted((count, folder) for folder, count in counts.items() if count < FEW)
  some = ", ".join(f"{folder or '.'!r} {count}" for count, folder in few[:SHOWN])
  lines = (
    [f"{len(few):,} of {format_amount(len(counts), 'folder')} with fewer than {FEW} images: {some}"] if few else []
  )
  if len({os.path.basename(folder) for folder in counts}) == 1:
    lines.append(
      f"warning: all images are of one class, {os.path.basename(min(counts))!r}: a classifier learns nothing"
    )
  return lines


def _describe_next_step(root: pathlib.Path, remaining: int, moving: bool) -> str:
  """Returns a line with the next command after a check of a folder that a run can read."""
  if not remaining:
    data, images = _find_data_flags(root)
    smaller = 1 << images.bit_length() - 1  # a power of two
    batch = f" {texts.format_flag('config.batch', smaller)}" if images < BATCH else ""
    return f"next: python -m vit_jax.train --config=folder:cct_2_3x2_32 --workdir=runs/a {data}{batch}"
  if moving:
    return "next: fix or remove the bad images that were not moved"
  command = f"python -m vit_jax.prepare {texts.format_flag('check', root)} --move-bad=DIR"
  return f"next: fix the bad images, or move them: {command}"


def _find_layout_problem(root: pathlib.Path) -> str | None:
  """Returns the reason why a run with the default settings cannot read the folder, or None."""
  try:
    _open_training_images(root)
  except ConfigError as error:
    return error.message
  return None


def _find_data_flags(root: pathlib.Path) -> tuple[str, int]:
  """Returns the data flags of a run on a folder, and the number of training images.

  A folder without test images is tested on its validation images. Without both, a share of `train` is held out.
  """
  validation = [(root, name) for name in folder_layout.VALIDATION if (root / name).is_dir()]
  layouts = [(root, folder_layout.TESTING), *validation, (root / folder_layout.TRAINING, folder_layout.TESTING)]
  for path, test in layouts:
    try:
      _open_images(path, "test", test)
      images = len(_open_images(path, "train", test))
    except ConfigError:
      continue
    flag = "" if test == folder_layout.TESTING else f" {texts.format_flag('config.data.test', test)}"
    return texts.format_flag("config.data.path", path) + flag, images
  return texts.format_flag("config.data.path", root), len(_open_training_images(root))


def _open_training_images(root: pathlib.Path) -> Source:
  """Opens the training images of a run with the default settings."""
  return _open_images(root, "train")


def _open_images(root: pathlib.Path, split: str, test: str = folder_layout.TESTING) -> Source:
  """Opens a split of a run with the default settings and the given split for testing."""
  with enter_key("config.data"):
    choice = Choice("folder", {"path": str(root), "validation": SHARE, "test": test})
    return make(choice, catalog.READERS, split)


def _record_splits(root: pathlib.Path) -> dict[str, Any] | None:
  """Returns the record of the splits of a run with the default settings; None if it cannot read the folder."""
  try:
    membership = _open_training_images(root).membership
    return membership and membership.record()
  except ConfigError:
    return None


def _compare_splits(root: pathlib.Path, before: dict[str, Any] | None) -> list[str]:
  """Returns a line if the splits of a run with the default settings differ from `before`.

  Returns no line if one of the two is unknown.
  """
  if before is None or _record_splits(root) is None:
    return []
  membership = _open_training_images(root).membership
  if membership is None or not (lines := membership.changes(before)):
    return []
  return [
    f"the default splits of this folder have changed: {'; '.join(lines)}. If runs were trained on this folder, restart "
    "each of them in a new --workdir"
  ]


_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)


def move_aside(root: pathlib.Path, aside: pathlib.Path, name: str) -> str | None:
  """Moves a file to the same relative path in another folder, possibly on another disk.

  An existing file is never replaced. A file outside of `root`, to which a link in `root` leads, is not moved.

  Args:
    root: folder of the file.
    aside: the other folder.
    name: path of the file relative to `root`.

  Returns:
    None, or a message if the file was not moved.
  """
  file, target = root / name, aside / name
  if not file.parent.resolve().is_relative_to(root.resolve()):
    return f"not moved: {escape_line(name)}: a link leads to it, and it is outside of the folder"
  try:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
      os.link(file, target, follow_symlinks=False)  # fails if a file with this name exists
    except OSError as error:
      if error.errno not in _NO_LINKS:
        raise
      _copy_file(file, target)
    file.unlink()
  except OSError as error:
    reason = "a file of this name already exists" if isinstance(error, FileExistsError) else error.strerror
    return f"not moved: {escape_line(name)}: {reason}"
  return None


def _copy_file(file: pathlib.Path, target: pathlib.Path) -> None:
  """Copies a file, or a link as a link, to an unused name. On OSError no partial copy remains."""
  if file.is_symlink():
    os.symlink(os.readlink(file), target)
    return
  with open(target, "xb") as opened:
    try:
      opened.write(local_files.read_file(file))
      opened.flush()
      os.fsync(opened.fileno())
      shutil.copystat(file, target)
    except OSError:
      target.unlink()
      raise
