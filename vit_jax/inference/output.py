"""Rows of predictions as a file, .csv, .jsonl or .npz, written whole or not at all, or as lines on a screen.

.csv and .jsonl are written row by row. Of an .npz the arrays are kept until the end: 3 kB an image with 768 features.
"""

import itertools
import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from vit_jax import files
from vit_jax.inference.batches import Row
from vit_jax.inference.computing import BEST
from vit_jax.schema import ConfigError
from vit_jax.schema.errors import readable

SUFFIXES = (".csv", ".jsonl", ".npz")
SHOWN = 20  # rows on a screen


def check(path: pathlib.Path | None, features: bool) -> None:
  """ConfigError for a file that cannot be written, or that does not hold what it should, before the work starts."""
  if path is None:
    if features:
      raise ConfigError("--features: write them where? Add --out=FILE.npz or .jsonl")
    return
  files.check_path(path, SUFFIXES)
  if features and path.suffix.lower() == ".csv":
    raise ConfigError(f"--features: {path} is a table of classes, which has no features; name FILE.npz or FILE.jsonl")


def write(path: pathlib.Path, rows: Iterable[Row], count: int, classes: Sequence[str]) -> None:
  """Writes `count` rows in their order, by the suffix of the path.

  CSV: file, name1, probability1 and so on, of five classes or of all, reason; names and files as of `files.csv_name`.
  JSON lines: {"file", "names", "probabilities"} and where they are asked for "features"; of a bad file {"file",
  "reason"}. NPZ: arrays id (the file) and reason [N], best (-1 of a bad file) and probability (NaN) [N, k], classes
  [V], where they are asked for features [N, D]. All give back every float32 exactly.
  """
  match path.suffix.lower():
    case ".csv":
      files.write_csv(path, _cells(rows, classes))
    case ".jsonl":
      with files.replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(_values(row, classes)) + "\n" for row in rows)
    case ".npz":
      arrays = _arrays(rows, count)
      with files.replacing(path) as partial, partial.open("wb") as file:  # a file: NumPy would add a suffix to a name
        np.savez(file, classes=np.array(classes, dtype=str), **arrays)


def lines(rows: Iterable[Row], classes: Sequence[str]) -> Iterator[str]:
  """A line for each of the first rows, and one that says how many more there are."""
  rows = iter(rows)
  for row in itertools.islice(rows, SHOWN):
    if row.reason is None:
      pairs = zip(row.best.tolist(), row.probability.tolist(), strict=True)
      said = "  ".join(f"{_short(classes[i], 24)} {share:.1%}" for i, share in pairs)
    else:
      said = f"bad: {_short(row.reason, 120)}"
    yield f"  {_short(row.file, 48):<48}  {said}"
  if left := sum(1 for _ in rows):
    yield f"  and {left:,} more; --out=FILE.csv, .jsonl or .npz has all"


def _short(text, most):
  """A text on one line, without the beginning of what is long."""
  text = readable(text).replace("\n", "\\n")
  return text if len(text) <= most else f"...{text[3 - most :]}"


def _cells(rows, classes):
  """The cells of a CSV file, names of columns first."""
  best = min(BEST, len(classes))
  columns = [f"{word}{i + 1}" for i in range(best) for word in ("name", "probability")]
  yield ["file", *columns, "reason"]
  for row in rows:
    if row.reason is None:
      pairs = zip(row.best.tolist(), row.probability.tolist(), strict=True)
      cells = [cell for i, share in pairs for cell in (files.csv_name(classes[i]), _digits(share))]
    else:
      cells = [""] * len(columns)
    yield [files.csv_name(row.file), *cells, files.csv_name(row.reason or "")]


def _digits(value):
  return format(value, ".9g")  # tells any two float32 apart


def _values(row, classes):
  """The JSON object of a row."""
  if row.reason is not None:
    return {"file": row.file, "reason": row.reason}
  result = {"file": row.file}
  if row.best is not None:
    result["names"] = [classes[i] for i in row.best.tolist()]
    result["probabilities"] = [float(_digits(share)) for share in row.probability.tolist()]
  if row.features is not None:
    result["features"] = [float(_digits(value)) for value in row.features.tolist()]
  return result


def _arrays(rows, count):
  """Columns of all rows, each made once: nothing is held twice."""
  names, reasons, columns = [], [], {}
  empty = {"best": (np.int32, -1), "probability": (np.float32, np.nan), "features": (np.float32, np.nan)}
  for number, row in enumerate(rows):
    names.append(row.file)
    reasons.append(row.reason or "")
    for name, (kind, nothing) in empty.items():
      if (values := getattr(row, name)) is not None:
        if name not in columns:
          columns[name] = np.full((count, len(values)), nothing, kind)
        columns[name][number] = values
  return {"id": np.array(names, dtype=str), "reason": np.array(reasons, dtype=str), **columns}
