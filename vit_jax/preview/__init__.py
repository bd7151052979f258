"""Contact sheets, which show a run's data before training: images as the model will see them, and outliers."""

import json
import pathlib

import numpy as np

from vit_jax import extras, files, pictures
from vit_jax.config import Run
from vit_jax.corpora import survey
from vit_jax.corpora.screen import Screen
from vit_jax.data import catalog, crops, loader
from vit_jax.data.images import ImageError, Images
from vit_jax.data.sources import Source
from vit_jax.preview import batch, sheet
from vit_jax.schema import amount, arguments, at, plain

SAMPLE = 4096  # default number of images that are examined for outliers
LISTED = 100  # maximum number of outliers of each kind in the JSON file


def write(run: Run, path: pathlib.Path, sample: int = SAMPLE) -> list[str]:
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
    run = build.complete(config.resolve(flags.load("configs/digits.py")))
    print(*write(run, pathlib.Path("show.png")), sep="\\n")
  """
  files.check_path(path, (".png",))
  with at("config.data"):
    source = catalog.open_split(run.data, "train")
    examples, exact = batch.first(run, source)
  bounds = arguments(run.data, loader.batches)
  images = Images(source, "raise", bounds["max_pixels"], bounds["max_aspect"], bounds["exif"])
  records = survey.sample(len(source), sample, run.seed)
  with Screen("looking at images", len(records)) as screen:
    looks = survey.looks(images, records, screen.add)
  kinds = survey.offenders(looks, run.data.args["image_size"], LISTED)
  counts, counted = survey.counts(source, looks)
  numbers = {
    "data": plain(run.data),
    "seed": run.seed,
    "mixed_as_the_run": exact,
    "batch": [_example(example, source) for example in examples],
    "records": len(source),
    "counted": counted,
    "classes": [{"class": name, "images": int(count)} for name, count in zip(source.classes, counts, strict=True)],
    "looked_at": len(looks),
    "offenders": {name: _kind(kind, source) for name, kind in kinds.items()},
  }
  worst = {name: (kind, _pictures(kind, images)) for name, kind in kinds.items() if kind.count}
  sheet.draw(path, run, source, (examples, exact), (counts, counted), len(looks), worst)
  files.write_text(path.with_suffix(".json"), json.dumps(numbers, indent=2) + "\n")
  return [*filter(None, [source.note]), *_lines(path, source, examples, (counts, counted), len(looks), kinds)]


def picture(run: Run, source: Source) -> bytes:
  """Draws the first images of a run's first batch, as its first step sees them, with their labels.

  Args:
    run: a completed run.
    source: the training images.

  Returns:
    Bytes of a PNG file.
  """
  examples, _ = batch.first(run, source)
  words = [
    [source.called(each.record).rpartition("/")[2]]
    + [f"{share:.0%} {source.classes[label]}" for label, share in each.target[:2]]
    for each in examples
  ]
  return pictures.png(pictures.sheet([each.seen for each in examples], words), 80)


def _lines(path, source, examples, classes, looked_at, kinds):
  counts, counted = classes
  words = ", ".join(f"{name} {kind.count:,}" for name, kind in kinds.items() if kind.count) or "none"
  unhashed = "" if survey.hashable() else f"; near-duplicates need {extras.advice('dedup')}"
  most, least = (
    f"{source.classes[i].encode('utf-8', 'replace').decode()!r} {counts[i]:,}"
    for i in (counts.argmax(), counts.argmin())
  )
  return [
    f"{path}: {amount(len(examples), 'image')} of the first batch, as the model will see them. Numbers are "
    f"in {path.with_suffix('.json').name}",
    f"{amount(len(counts), 'class', 'classes')} in {sheet.of(counted, source)}: most {most}, least {least}, "
    f"{int(np.sum(counts == 0)):,} without images",
    f"outliers in {sheet.of(looked_at, source)}: {words}{unhashed}",
    *(f"note: {kind.count:,} {name}: {kind.about}" for name, kind in kinds.items() if kind.harmless and kind.count),
  ]


def _pictures(kind, images):
  """Returns the images of the worst outliers that fit on the sheet, or None for each that cannot be read."""
  return [tuple(_picture(images, look.record) for look in looks) for _, looks in kind.worst[: sheet.WORST]]


def _picture(images, record):
  try:
    return images.prepared(record, lambda image: crops.small(np.asarray(image), sheet.TILE))[0]
  except ImageError:
    return None


def _example(example: batch.Example, source: Source) -> dict:
  """Converts an example to JSON values."""
  return {
    "record": example.record,
    "image": source.called(example.record),
    "labels": [source.classes[label] for label in example.labels],
    "target": [{"class": source.classes[label], "share": round(share, 4)} for label, share in example.target],
    "error": example.error,
  }


def _kind(kind: survey.Kind, source: Source) -> dict:
  """Converts a kind of outliers to JSON values."""

  def one(look):
    labels = [source.classes[label] for label in look.labels]
    about = {"error": look.error} if look.error else {"height": look.height, "width": look.width, "labels": labels}
    return {"record": look.record, "image": source.called(look.record)} | about

  worst = [{"severity": round(severity, 4), "images": [one(look) for look in looks]} for severity, looks in kind.worst]
  return {"about": kind.about, "count": kind.count, "harmless": kind.harmless, "worst": worst}
