"""Every image of a folder decoded before anything is paid for: which are bad, and where they are set aside."""

import collections
import concurrent.futures
import errno
import logging
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax import paths
from vit_jax.corpora import conversion, survey
from vit_jax.corpora.screen import Screen
from vit_jax.data import catalog, decoding, images, local_files
from vit_jax.data.images import ImageError, Images
from vit_jax.data.readers import tree
from vit_jax.data.readers.folder import SHARE
from vit_jax.data.sources import Source
from vit_jax.schema import Choice, ConfigError, amount, at, make, texts

SECONDS = 3.0  # that a check may take at the start of a run
RATE, EACH = 4e7, 5e-4  # bytes of JPEGs a second that a core decodes, and seconds of Python's lock for each file
FEW = 10  # images; of a class with fewer there is little to learn
SHOWN = 20  # such classes
BOUNDS = conversion.MAX_PIXELS, conversion.MAX_ASPECT  # that a run has by default
TOGETHER = 64  # images between two words about how far it is


class Walked(NamedTuple):
  """What is in a folder and in those inside of it, by names from the folder on, in order; nothing that is hidden."""

  images: list[str]
  ignored: collections.Counter  # extensions of other files
  odd: list[str]  # lines on folders that were not looked into


def problems(made: Images, seen: Callable[[int, int], None] = lambda records, bad: None) -> dict[int, str]:
  """{record: what is wrong with it} of all records, each of which is decoded whole, by all cores.

  Args:
    made: is to raise what is wrong with a record.
    seen: hears how many more were done, and how many of these are bad.

  Raises ImageError for what may be the disk's fault: no image is bad for that.
  """
  result = {}
  with concurrent.futures.ThreadPoolExecutor(max(2, decoding.cores())) as pool:
    for first in range(0, len(made.source), TOGETHER):
      some = range(first, min(first + TOGETHER, len(made.source)))
      reasons = list(pool.map(lambda record: _problem(made, record), some))
      result |= {record: reason for record, reason in zip(some, reasons, strict=True) if reason}
      seen(len(some), sum(map(bool, reasons)))
  return result


def _problem(made, record):
  try:
    made.prepared(record, lambda image: np.asarray(image)[:1, :1])
  except ImageError as error:
    if isinstance(cause := error.__cause__, OSError) and cause.errno not in images.OF_A_FILE:
      raise
    return survey.reason(error)
  return None


# At the start of a run.


def is_quick(source: Source, root: pathlib.Path) -> bool:
  """Whether all files of an image folder can be decoded in about `SECONDS`, by their number and sizes."""
  left = SECONDS - EACH * len(source)
  if source.remote or left < 0:
    return False
  sizes = local_files.stamps([f"{root}/{source.identify(i)}" for i in range(len(source))])
  return sum(size or 0 for size, _ in sizes) <= left * RATE * decoding.cores()


def objection(data: Choice, splits: Iterable[Source], root: pathlib.Path) -> str | None:
  """All bad images of the splits of an image folder, and what to do, if they are reason not to begin; None if not.

  Where bad images are skipped, each is a warning, and too many of them are a reason. Splits that take longer are not
  looked at.

  Args:
    data: the folder, bound.
    splits: of it.
    root: where it is.
  """
  skipped, bad, records, too_many = data.args["on_error"] == "skip", {}, 0, False
  for source in splits:
    if not is_quick(source, root):
      continue
    made = Images(source, "raise", *(data.args[key] for key in ("max_pixels", "max_aspect", "exif")))
    try:
      reasons = problems(made)
    except ImageError as error:
      return str(error)
    bad |= {source.identify(record): reason for record, reason in reasons.items()}
    records += len(source)
    too_many = too_many or images.too_many(len(reasons), len(source), data.args["max_bad"])
  lines = [f"{name}: {reason}" for name, reason in sorted(bad.items())]
  if skipped and not too_many:
    for line in lines:
      logging.warning("will be skipped: %s", line)
    return None
  if not lines:
    return None
  advice = "raise --config.data.max_bad" if skipped else "leave them out with --config.data.on_error=skip"
  return "\n  ".join(
    [
      f"{len(lines):,} of {amount(records, 'image')} in {str(root)!r} "
      f"{'is' if len(lines) == 1 else 'are'} bad. Mend them, set them aside with `python -m "
      f"vit_jax.prepare {texts.flag('check', root)} --move-bad=DIR`, or {advice}:",
      *lines,
    ]
  )


# By itself.


def check(root: pathlib.Path, aside: pathlib.Path | None = None) -> tuple[list[str], int]:
  """(lines about a folder, how many of its images are bad), which are moved to `aside` where that is wanted.

  Raises ConfigError for folders that cannot be, ImageError and OSError where a disk fails.
  """
  if paths.in_bucket(root) or (aside and paths.in_bucket(aside)):
    raise ConfigError("--check: it is for folders of a disk; a bucket's images are checked where they are prepared")
  if not root.is_dir():
    raise ConfigError(f"--check: no folder {str(root)!r}")
  if aside and aside.resolve().is_relative_to(root.resolve()):
    raise ConfigError(f"--move-bad: {str(aside)!r} is in {str(root)!r}, whose classes it would be one of; take another")
  walked = walk(root)
  if not walked.images:
    raise ConfigError(f"--check: no image ({', '.join(tree.EXTENSIONS)}) in {str(root)!r}")
  source = Source(
    *("check", "all", ("",), len(walked.images)),
    read=lambda i: (local_files.contents(root / walked.images[i]), 0),
    place=lambda i: f"file {f'{root}/{walked.images[i]}'!r}",
  )
  with Screen("checking", len(source)) as screen:
    bad = problems(Images(source, "raise", *BOUNDS), screen.add)
  lines = [f"bad: {ascii(walked.images[i])[1:-1]}: {reason}" for i, reason in bad.items()]
  stayed = [words for i in bad if (words := set_aside(root, aside, walked.images[i]))] if aside else []
  moved = f", {len(bad) - len(stayed):,} moved to {str(aside)!r}" if aside else ""
  kinds = collections.Counter(tree.extension(name) for name in walked.images)
  lines += [
    f"{str(root)!r}: {amount(len(source), 'image')}, {', '.join(tree.counted(kinds, tree.SHOWN))}; ignored: "
    f"{', '.join(tree.counted(walked.ignored, tree.SHOWN)) or 'nothing'}",
    *walked.odd,
    *_classes(walked.images, bad),
    *_layout(root),
    *stayed,
    f"{len(bad):,} bad{moved}" if bad else "no bad image",
  ]
  return lines, len(bad)


def walk(root: pathlib.Path) -> Walked:
  """What is in a folder, each folder once: a link to one that was seen, or that it is in, is not followed."""
  result, seen = Walked([], collections.Counter(), []), {}

  def enter(folder):
    path = root / folder
    if (before := seen.setdefault(path.resolve(), folder)) != folder:
      loop = path.parent.resolve().is_relative_to(path.resolve())
      what = "a link to a folder that contains it" if loop else f"the folder {before!r} under another name"
      result.odd.append(f"not followed: {folder!r} is {what}")
      return
    try:
      with os.scandir(path) as entries:
        names = sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
    except OSError as error:
      result.odd.append(f"not looked into: {folder!r}: {error.strerror}")
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


def _classes(names: Sequence[str], bad: dict[int, str]) -> list[str]:
  """Lines on folders of which few images are whole."""
  counts = collections.Counter(os.path.dirname(name) for name in names)
  counts.subtract(os.path.dirname(names[i]) for i in bad)
  few = sorted((count, folder) for folder, count in counts.items() if count < FEW)
  some = ", ".join(f"{folder or '.'!r} {count}" for count, folder in few[:SHOWN])
  return [f"{len(few):,} of {amount(len(counts), 'folder')} with fewer than {FEW} images: {some}"] if few else []


def _layout(root: pathlib.Path) -> list[str]:
  """Returns a line with the reason why a run with the default settings cannot read the folder, if it cannot."""
  try:
    with at("config.data"):
      make(Choice("folder", {"path": str(root), "validation": SHARE}), catalog.READERS, "train")
  except ConfigError as error:
    return [f"no run can read it yet: {error.message}"]
  return []


_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)


def set_aside(root: pathlib.Path, aside: pathlib.Path, name: str) -> str | None:
  """Moves a file to the same name in another folder, perhaps of another disk; why it did not, in words.

  A file that is there already is never replaced.
  """
  file, target = root / name, aside / name
  try:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
      os.link(file, target, follow_symlinks=False)  # where a file has this name it fails
    except OSError as error:
      if error.errno not in _NO_LINKS:
        raise
      _copy(file, target)
    file.unlink()
  except OSError as error:
    reason = "a file of this name is there already" if isinstance(error, FileExistsError) else error.strerror
    return f"not moved: {ascii(name)[1:-1]}: {reason}"
  return None


def _copy(file, target):
  """A file or a link as it is, under a name that is free. OSError, and then nothing is left of it."""
  if file.is_symlink():
    os.symlink(os.readlink(file), target)
    return
  with open(target, "xb") as opened:
    try:
      opened.write(local_files.contents(file))
      opened.flush()
      os.fsync(opened.fileno())
      shutil.copystat(file, target)
    except OSError:
      target.unlink()
      raise
