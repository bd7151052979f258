"""The chapter on training images: the first batch as the run augments it, and the number of images per class."""

import concurrent.futures
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vit_jax import rng
from vit_jax.corpora import stats
from vit_jax.data import crops, loader
from vit_jax.data.sources import Source
from vit_jax.reports import drawing, page, preview_batch, preview_sheet
from vit_jax.reports.drawing import fit_text
from vit_jax.reports.preview_batch import PreviewExample
from vit_jax.schema import ConfigError, format_amount
from vit_jax.training.bound_run import BoundRun

TITLE = "What the model saw"
PICTURES, SIDE = 20, 96  # number of images of the batch, and the size of an image in CSS pixels
SECONDS = 2.0  # time limit for reading labels
COUNTED = 2**20  # maximum number of labels to read
CHUNK = 256  # number of labels between two checks of the time
NAMED = 30  # maximum number of classes for which each bar has a name
LISTED = 1000  # maximum number of classes in a table
LONGEST = 60  # maximum number of characters of a name in a table


def make_chapter(run: BoundRun, source: Source, pictures: int = PICTURES, seconds: float = SECONDS) -> page.Chapter:
  """Returns the chapter.

  Args:
    run: a completed run.
    source: its training images.
    pictures: maximum number of images of the batch.
    seconds: time limit for reading labels. Images are not decoded for their labels.
  """
  examples, exact = preview_batch.compute_first_images(run, source, pictures)
  gallery = page.Gallery(
    "The first batch",
    [_make_picture(example, source) for example in examples],
    preview_sheet.describe_batch(run, source, exact),
    SIDE,
  )
  title = f"{fit_text(source.name, LONGEST)}, {fit_text(source.split, LONGEST)}"
  return page.Chapter(TITLE, [gallery, *show_classes(source, *count_images(source, run.seed, seconds))], title)


def _make_picture(example: PreviewExample, source: Source) -> page.Picture:
  name = fit_text(source.display_name(example.record), LONGEST)
  if example.error:
    return page.Picture(np.full((1, 1, 3), 128, np.uint8), [name, example.error], wrong=True)
  lines = [name, ", ".join(fit_text(source.classes[label]) for label in example.labels) or "no label"]
  if preview_sheet.is_mixed(example):
    lines += [f"{100 * share:.0f} % {fit_text(source.classes[label])}" for label, share in example.target[:3]]
  assert example.seen is not None and example.original is not None
  seen, original = (crops.shrink(pixels, 2 * SIDE) for pixels in (example.seen, example.original))
  return page.Picture(seen, lines, before=original)


def count_images(source: Source, seed: int = 0, seconds: float = SECONDS) -> tuple[np.ndarray, int]:
  """Counts the images of each class.

  All records are read, or as many random records as the time limit allows. Unreadable records are skipped.

  Args:
    source: the images.
    seed: seed of the random order.
    seconds: time limit.

  Returns:
    Number of images of each class, int64 (V,), and the number of records that were read.

  Raises:
    ConfigError: the data cannot be used at all.
  """
  result, records, until = np.zeros(len(source.classes), np.int64), 0, time.monotonic() + seconds
  chosen = np.array(stats.sample_records(len(source), COUNTED, seed))
  chosen = chosen[rng.make_numpy_generator(seed, "counts").permutation(len(chosen))].tolist()
  for labels in _read_labels(source, chosen):
    read = [label for label in labels if label is not None]
    records += len(read)
    numbers = [each for label in read for each in (set(label) if isinstance(label, tuple) else (label,))]
    result += np.bincount([each for each in numbers if 0 <= each < len(result)], minlength=len(result))
    if time.monotonic() > until:
      break
  return result, records


def _read_labels(source: Source, records: Sequence[int]) -> Iterator[list[Any]]:
  """Yields lists of labels, with None for unreadable records. Labels of remote data are requested concurrently."""

  def label(record: int) -> Any:
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


def show_classes(source: Source, images: np.ndarray, counted: int) -> list[page.Part]:
  """Returns a chart and a table of the number of images per class.

  Args:
    source: the images.
    images: number of counted images of each class, of shape (V,).
    counted: number of images whose labels were read.
  """
  order = np.argsort(-images, kind="stable")
  among = preview_sheet.caption(counted, source) + ("" if counted == len(source) else ", drawn at random")
  about = f"In {among}. Median {np.median(images):,.6g}, mean {images.mean():,.1f}"
  if none := int(np.sum(images == 0)):
    about += f"; {none:,} of {format_amount(len(images), 'class', 'classes')} {'has' if none == 1 else 'have'} no image"
  if source.labels > 1:
    about += f"; an image has up to {format_amount(source.labels, 'label')}"
  if source.corpora:
    about += "; a mixture draws images by its weights, so the shares during training differ"
  chart = page.Chart(
    "Images of each class", _draw_counts(images[order], [source.classes[i] for i in order]), f"{about}."
  )
  listed = order if len(order) <= LISTED else np.concatenate([order[: LISTED // 2], order[-LISTED // 2 :]])
  some = (
    ""
    if len(order) <= LISTED
    else f"The {LISTED // 2:,} classes with the most and the {LISTED // 2:,} with the fewest images."
  )
  share = images / max(int(images.sum()), 1)
  rows = [[fit_text(source.classes[i], LONGEST), f"{images[i]:,}", f"{100 * share[i]:.2f} %"] for i in listed]
  return [chart, page.Table("Images of each class, as a table", ["class", "images", "share"], rows, some, open=False)]


def _draw_counts(images: np.ndarray, names: Sequence[str]) -> str:
  """Draws bars with names, or an area if there are too many classes. The largest class comes first."""
  classes = len(images)
  with drawing.use_style():
    if classes <= NAMED:
      figure, [axes] = drawing.make_figure(5, 0.6 + 0.21 * max(classes, 3))
      axes.barh(range(classes), images, color=drawing.SERIES[0], height=0.75)
      axes.set_yticks(range(classes), [fit_text(name) for name in names])
      axes.set(xlabel="images", ylim=(classes - 0.4, -0.6))
      axes.grid(False, axis="y")
      for row, number in enumerate(images):
        axes.annotate(f"{number:,}", (number, row), (3, 0), textcoords="offset points", va="center", fontsize=8)
      axes.margins(x=0.12)
    else:
      figure, [axes] = drawing.make_figure(5.5, 2.6)
      corners = np.repeat(np.arange(classes + 1) - 0.5, 2)[1:-1]
      axes.fill_between(corners, np.repeat(images, 2), color=drawing.SERIES[0], linewidth=0)
      axes.set(xlabel="classes, the largest first", ylabel="images", xlim=(-0.5, classes - 0.5), ylim=(0, None))
      if images[0] > 50 * max(1, np.median(images)):
        axes.set_yscale("symlog", linthresh=1)
        drawing.number_log_axis(axes.yaxis)
    return drawing.render_svg(figure, "classes")
