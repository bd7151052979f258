"""Contact sheets, which show a run's data before training: images as the model will see them, and outliers."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.corpora import stats
from vit_jax.corpora.screen import ProgressScreen
from vit_jax.data import catalog, crops
from vit_jax.data.images import ImageError, Images
from vit_jax.data.sources import Source
from vit_jax.evals import plots
from vit_jax.reports import preview_batch, preview_sheet
from vit_jax.schema import enter_key, extras, format_amount, to_plain
from vit_jax.storage import files
from vit_jax.training.bound_run import BoundRun

SAMPLE = 4096  # default number of images that are examined for outliers
LISTED = 100  # maximum number of outliers of each kind in the JSON file


def write_sheet(run: BoundRun, path: pathlib.Path, sample: int = SAMPLE) -> list[str]:
  """Draws the contact sheet of a completed run and writes its numbers as JSON next to it.

  The sheet shows the first images of the first batch, as the run augments them. It also shows images of each class of
  the training split, and outliers among a sample of it.

  Args:
    run: a completed run.
    path: the PNG file.
    sample: number of images to examine for outliers.

  Returns:
    Lines for the screen.

  Raises:
    ConfigError: the path is invalid, or the data do not exist.

  Example:
    run = build.complete(config.resolve(flags.load_config("configs/digits.py")))
    print(*write_sheet(run, pathlib.Path("show.png")), sep="\\n")
  """
  files.check_path(path, (".png",))
  with enter_key("config.data"):
    source = catalog.open_split(run.data, "train")
    examples, exact = preview_batch.compute_first_images(run, source)
  images = run.data.images(source, "raise")
  records = stats.sample_records(len(source), sample, run.seed)
  with ProgressScreen("looking at images", len(records)) as screen:
    looks = stats.inspect_images(images, records, screen.add)
  kinds = stats.find_conspicuous(looks, run.data.image_size, LISTED)
  counts, counted = stats.count_classes(source, looks)
  numbers = {
    "data": to_plain(run.data),
    "seed": run.seed,
    "mixed_as_the_run": exact,
    "batch": [_example_to_json(example, source) for example in examples],
    "records": len(source),
    "counted": counted,
    "classes": [{"class": name, "images": int(count)} for name, count in zip(source.classes, counts, strict=True)],
    "looked_at": len(looks),
    "offenders": {name: _outliers_to_json(kind, source) for name, kind in kinds.items()},
  }
  worst = {name: (kind, _load_pictures(kind, images)) for name, kind in kinds.items() if kind.count}
  preview_sheet.draw_sheet(path, run, source, (examples, exact), (counts, counted), len(looks), worst)
  files.write_text(path.with_suffix(".json"), json.dumps(numbers, indent=2) + "\n")
  return [*filter(None, [source.note]), *_format_summary(path, source, examples, (counts, counted), len(looks), kinds)]


def draw_batch(run: BoundRun, source: Source) -> bytes:
  """Draws the first images of a run's first batch, as its first step sees them, with their labels.

  Args:
    run: a completed run.
    source: the training images.

  Returns:
    Bytes of a PNG file.
  """
  examples, _ = preview_batch.compute_first_images(run, source)
  words = [
    [source.display_name(each.record).rpartition("/")[2]]
    + [f"{share:.0%} {source.classes[label]}" for label, share in each.target[:2]]
    for each in examples
  ]
  return plots.render_png(plots.draw_image_grid([each.seen for each in examples], words), 80)


def _format_summary(
  path: pathlib.Path,
  source: Source,
  examples: Sequence[preview_batch.PreviewExample],
  classes: tuple[np.ndarray, int],
  looked_at: int,
  kinds: Mapping[str, stats.ConspicuousImages],
) -> list[str]:
  counts, counted = classes
  words = ", ".join(f"{name} {kind.count:,}" for name, kind in kinds.items() if kind.count) or "none"
  unhashed = "" if stats.can_hash() else f"; near-duplicates need {extras.format_advice('dedup')}"
  most, least = (
    f"{source.classes[i].encode('utf-8', 'replace').decode()!r} {counts[i]:,}"
    for i in (counts.argmax(), counts.argmin())
  )
  return [
    f"{path}: {format_amount(len(examples), 'image')} of the first batch, as the model will see them. Numbers are "
    f"in {path.with_suffix('.json').name}",
    f"{format_amount(len(counts), 'class', 'classes')} in {preview_sheet.caption(counted, source)}: most {most}, "
    f"least {least}, {int(np.sum(counts == 0)):,} without images",
    f"outliers in {preview_sheet.caption(looked_at, source)}: {words}{unhashed}",
    *(f"note: {kind.count:,} {name}: {kind.about}" for name, kind in kinds.items() if kind.harmless and kind.count),
  ]


def _load_pictures(kind: stats.ConspicuousImages, images: Images) -> list[tuple[np.ndarray | None, ...]]:
  """Returns the images of the worst outliers that fit on the sheet, or None for each that cannot be read."""
  return [tuple(_load_picture(images, look.record) for look in looks) for _, looks in kind.worst[: preview_sheet.WORST]]


def _load_picture(images: Images, record: int) -> np.ndarray | None:
  try:
    made = images.read_prepared(record, lambda image: crops.shrink(np.asarray(image), preview_sheet.TILE))
    return None if made is None else made[0]
  except ImageError:
    return None


def _example_to_json(example: preview_batch.PreviewExample, source: Source) -> dict[str, Any]:
  """Converts an example to JSON values."""
  return {
    "record": example.record,
    "image": source.display_name(example.record),
    "labels": [source.classes[label] for label in example.labels],
    "target": [{"class": source.classes[label], "share": round(share, 4)} for label, share in example.target],
    "error": example.error,
  }


def _outliers_to_json(kind: stats.ConspicuousImages, source: Source) -> dict[str, Any]:
  """Converts a kind of outliers to JSON values."""

  def convert_image(look: stats.ImageFacts) -> dict[str, Any]:
    labels = [source.classes[label] for label in look.labels]
    about = {"error": look.error} if look.error else {"height": look.height, "width": look.width, "labels": labels}
    return {"record": look.record, "image": source.display_name(look.record)} | about

  worst = [
    {"severity": round(severity, 4), "images": [convert_image(look) for look in looks]}
    for severity, looks in kind.worst
  ]
  return {"about": kind.about, "count": kind.count, "harmless": kind.harmless, "worst": worst}
