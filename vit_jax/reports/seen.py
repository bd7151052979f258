"""What a model saw, as a chapter: images of its first batch as the run augments them, and how many each class has."""

import concurrent.futures
import time
from collections.abc import Iterator

import numpy as np

from vit_jax import rng
from vit_jax.config import Run
from vit_jax.corpora import survey
from vit_jax.data import crops, loader
from vit_jax.data.sources import Source
from vit_jax.preview import batch, sheet
from vit_jax.reports import drawing, page
from vit_jax.reports.drawing import fitted
from vit_jax.schema import ConfigError, amount

TITLE = "What the model saw"
PICTURES, SIDE = 20, 96  # images of the batch, CSS pixels of each of a pair
SECONDS = 2.0  # after which no more labels are read
COUNTED = 2**20  # labels that are read at most
CHUNK = 256  # of them between two looks at the clock
NAMED = 30  # classes up to which each has a bar with its name
LISTED = 1000  # classes in a table
LONGEST = 60  # characters of a name in a table


def chapter(run: Run, source: Source, pictures: int = PICTURES, seconds: float = SECONDS) -> page.Chapter:
  """The chapter, of so many images of the first batch, and of labels that can be read in so many seconds.

  Args:
    run: completed.
    source: its "train".
    pictures: of the batch, at most.
    seconds: for labels; an image is not decoded for its label.
  """
  examples, exact = batch.first(run, source, pictures)
  gallery = page.Gallery(
    "The first batch", [_picture(example, source) for example in examples], sheet.about(run, source, exact), SIDE
  )
  title = f"{fitted(source.name, LONGEST)}, {fitted(source.split, LONGEST)}"
  return page.Chapter(TITLE, [gallery, *_classes(source, *counts(source, run.seed, seconds))], title)


def _picture(example, source):
  name = fitted(source.called(example.record), LONGEST)
  if example.error:
    return page.Picture(np.full((1, 1, 3), 128, np.uint8), [name, example.error], wrong=True)
  lines = [name, ", ".join(fitted(source.classes[label]) for label in example.labels) or "no label"]
  if sheet.mixed(example):
    lines += [f"{100 * share:.0f} % {fitted(source.classes[label])}" for label, share in example.target[:3]]
  seen, original = (crops.small(pixels, 2 * SIDE) for pixels in (example.seen, example.original))
  return page.Picture(seen, lines, before=original)


def counts(source: Source, seed: int = 0, seconds: float = SECONDS) -> tuple[np.ndarray, int]:
  """Images of each class, int64 [V], among as many records as can be read in so many seconds, and how many that is.

  All of them, or drawn at random. What cannot be read is left out. ConfigError of data that are of no use as a whole.
  """
  result, records, until = np.zeros(len(source.classes), np.int64), 0, time.monotonic() + seconds
  chosen = np.array(survey.sample(len(source), COUNTED, seed))
  chosen = chosen[rng.generator(seed, "counts").permutation(len(chosen))].tolist()
  for labels in _read(source, chosen):
    read = [label for label in labels if label is not None]
    records += len(read)
    numbers = [each for label in read for each in (set(label) if isinstance(label, tuple) else (label,))]
    result += np.bincount([each for each in numbers if 0 <= each < len(result)], minlength=len(result))
    if time.monotonic() > until:
      break
  return result, records


def _read(source, records) -> Iterator[list]:
  """Labels of records in chunks, None for what cannot be read; many at a time where each is a request to a server."""

  def label(record):
    try:
      return source.label(record)
    except ConfigError:
      raise
    except (OSError, ValueError):
      return None

  with concurrent.futures.ThreadPoolExecutor(loader.REQUESTS) as pool:
    each = pool.map if source.remote else map
    for start in range(0, len(records), CHUNK):
      yield list(each(label, records[start : start + CHUNK]))


def _classes(source, images, counted):
  """A chart and a table of how many images each class has."""
  order = np.argsort(-images, kind="stable")
  among = sheet.of(counted, source) + ("" if counted == len(source) else ", drawn at random")
  about = f"In {among}. Median {np.median(images):,.6g}, mean {images.mean():,.1f}"
  if none := int(np.sum(images == 0)):
    about += f"; {none:,} of {amount(len(images), 'class', 'classes')} {'has' if none == 1 else 'have'} none"
  if source.labels > 1:
    about += f"; an image has up to {amount(source.labels, 'label')}"
  if source.corpora:
    about += "; a mixture draws by its weights, and so sees other shares"
  chart = page.Chart("Images of each class", _drawn(images[order], [source.classes[i] for i in order]), f"{about}.")
  listed = order if len(order) <= LISTED else np.concatenate([order[: LISTED // 2], order[-LISTED // 2 :]])
  some = "" if len(order) <= LISTED else f"The {LISTED // 2:,} with most and the {LISTED // 2:,} with fewest."
  share = images / max(int(images.sum()), 1)
  rows = [[fitted(source.classes[i], LONGEST), f"{images[i]:,}", f"{100 * share[i]:.2f} %"] for i in listed]
  return [chart, page.Table("Images of each class, as a table", ["class", "images", "share"], rows, some, open=False)]


def _drawn(images, names):
  """Bars with names, or where they are too many a line; the largest class first."""
  classes = len(images)
  with drawing.style():
    if classes <= NAMED:
      figure, [axes] = drawing.figure(5, 0.6 + 0.21 * max(classes, 3))
      axes.barh(range(classes), images, color=drawing.SERIES[0], height=0.75)
      axes.set_yticks(range(classes), [fitted(name) for name in names])
      axes.set(xlabel="images", ylim=(classes - 0.4, -0.6))
      axes.grid(False, axis="y")
      for row, number in enumerate(images):
        axes.annotate(f"{number:,}", (number, row), (3, 0), textcoords="offset points", va="center", fontsize=8)
      axes.margins(x=0.12)
    else:
      figure, [axes] = drawing.figure(5.5, 2.6)
      corners = np.repeat(np.arange(classes + 1) - 0.5, 2)[1:-1]
      axes.fill_between(corners, np.repeat(images, 2), color=drawing.SERIES[0], linewidth=0)
      axes.set(xlabel="classes, the largest first", ylabel="images", xlim=(-0.5, classes - 0.5), ylim=(0, None))
      if images[0] > 50 * max(1, np.median(images)):
        axes.set_yscale("symlog", linthresh=1)
        drawing.numbered(axes.yaxis)
    return drawing.svg(figure, "classes")
