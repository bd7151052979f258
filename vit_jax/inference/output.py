"""Output of predictions as a .csv, .jsonl or .npz file, or as lines on a terminal.

A file is written atomically. Rows of .csv and .jsonl files are written one by one. The arrays of an .npz file are kept
in memory until the end, about 3 kB per image with 768 features.
"""

import itertools
import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from vit_jax.inference.batches import FileResult
from vit_jax.inference.computing import BEST
from vit_jax.schema import ConfigError, escape_line
from vit_jax.schema.errors import make_printable
from vit_jax.storage import files

SUFFIXES = (".csv", ".jsonl", ".npz")
SHOWN = 20  # rows on a terminal


def check_output(path: pathlib.Path | None, features: bool) -> None:
  """Raises ConfigError for an output file that cannot be written or cannot store the results.

  Call it before the work starts.

  Args:
    path: the output file, or None for the terminal.
    features: true if features are written. They require a .jsonl or .npz file.
  """
  if path is None:
    if features:
      raise ConfigError("--features: no output file. Add --out=FILE.npz or .jsonl")
    return
  files.check_path(path, SUFFIXES)
  if features and path.suffix.lower() == ".csv":
    raise ConfigError(f"--features: a .csv file cannot store features, got {path}. Use FILE.npz or FILE.jsonl")


def write_rows(path: pathlib.Path, rows: Iterable[FileResult], count: int, classes: Sequence[str]) -> None:
  """Writes rows of predictions to a file, in the format of its suffix.

  - .csv: the columns file, name1, probability1 and so on for five classes (or all, if there are fewer), and reason.
    Names and files are written as by `files.escape_csv`.
  - .jsonl: one object per line, {"file", "names", "probabilities"} with "features" if they were computed. A bad file
    has {"file", "reason"}.
  - .npz: the arrays id (the file) and reason (N,), best and probability (N, K), classes (V,), and features (N, D) if
    they were computed. A bad file has -1 in best and NaN in probability.

  Every float32 can be read back exactly from all three formats.

  Args:
    path: the output file.
    rows: the rows, in the order in which they are written.
    count: number of rows.
    classes: names of the classes.
  """
  match path.suffix.lower():
    case ".csv":
      files.write_csv(path, _format_cells(rows, classes))
    case ".jsonl":
      with files.atomic_write(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(_row_to_json(row, classes)) + "\n" for row in rows)
    case ".npz":
      arrays = _make_columns(rows, count)
      with files.atomic_write(path) as partial, partial.open("wb") as file:  # NumPy adds suffixes to names
        # NumPy before 2.1 stores the argument `allow_pickle` as an array.
        np.savez(file, classes=np.array(classes, dtype=str), **arrays)  # type: ignore[arg-type]


def format_lines(rows: Iterable[FileResult], classes: Sequence[str]) -> Iterator[str]:
  """Yields one line for each of the first rows, and a last line with the number of the remaining rows.

  Args:
    rows: rows of predictions.
    classes: names of the classes.
  """
  rows = iter(rows)
  for row in itertools.islice(rows, SHOWN):
    if row.reason is None:
      pairs = _pair_classes(row)
      text = "  ".join(f"{_shorten(classes[i], 24)} {share:.1%}" for i, share in pairs)
    else:
      text = f"bad: {make_printable(row.reason).replace(chr(10), ' ')[:160]}"
    yield f"  {_shorten(row.file, 48):<48}  {text}"
  if remaining := sum(1 for _ in rows):
    yield f"  and {remaining:,} more. For all rows, use --out=FILE.csv, .jsonl or .npz"


def _pair_classes(row: FileResult) -> Iterator[tuple[int, float]]:
  """Returns the numbers and probabilities of the best classes of a file that was predicted."""
  assert row.best is not None and row.probability is not None
  return zip(row.best.tolist(), row.probability.tolist(), strict=True)


def _shorten(text: str, most: int) -> str:
  """Returns a text on one line, and drops the beginning of a long text."""
  text = escape_line(text)
  return text if len(text) <= most else f"...{text[3 - most :]}"


def _format_cells(rows: Iterable[FileResult], classes: Sequence[str]) -> Iterator[list[str]]:
  """Yields the cells of a CSV file, starting with the column names."""
  best = min(BEST, len(classes))
  columns = [f"{word}{i + 1}" for i in range(best) for word in ("name", "probability")]
  yield ["file", *columns, "reason"]
  for row in rows:
    if row.reason is None:
      pairs = _pair_classes(row)
      cells = [cell for i, share in pairs for cell in (files.escape_csv(classes[i]), _format_digits(share))]
    else:
      cells = [""] * len(columns)
    yield [files.escape_csv(row.file), *cells, files.escape_csv(row.reason or "")]


def _format_digits(value: float) -> str:
  return format(value, ".9g")  # nine digits distinguish any two float32 values


def _row_to_json(row: FileResult, classes: Sequence[str]) -> dict[str, Any]:
  """Returns the JSON object of a row."""
  if row.reason is not None:
    return {"file": row.file, "reason": row.reason}
  result: dict[str, Any] = {"file": row.file}
  if row.best is not None and row.probability is not None:
    result["names"] = [classes[i] for i in row.best.tolist()]
    result["probabilities"] = [float(_format_digits(share)) for share in row.probability.tolist()]
  if row.features is not None:
    result["features"] = [float(_format_digits(value)) for value in row.features.tolist()]
  return result


def _make_columns(rows: Iterable[FileResult], count: int) -> dict[str, np.ndarray]:
  """Returns the columns of all rows. Each array is allocated once, so that no column is in memory twice."""
  names, reasons, columns = [], [], {}
  empty = {"best": (np.int32, -1), "probability": (np.float32, np.nan), "features": (np.float32, np.nan)}
  for number, row in enumerate(rows):
    names.append(row.file)
    reasons.append(row.reason or "")
    for name, (kind, fill) in empty.items():
      if (values := getattr(row, name)) is not None:
        if name not in columns:
          columns[name] = np.full((count, len(values)), fill, kind)
        columns[name][number] = values
  return {"id": np.array(names, dtype=str), "reason": np.array(reasons, dtype=str), **columns}
