"""Parity checks of position tables: resampled tables, fixed tables, and old tables with a class token row."""

import pathlib
import re
from collections.abc import Iterator

import numpy as np

from tests.parity.compare import Result, compare
from vit_jax.importers import resampling
from vit_jax.importers.layouts import vit as importer
from vit_jax.models import positions


def check(file: pathlib.Path) -> Iterator[Result]:
  """Checks resampled tables, fixed tables, and old tables that have a row for the class token."""
  arrays = np.load(file)
  for key in arrays:
    name, expected = f"{file.stem}/{key}", arrays[key]
    if sizes := re.fullmatch(r"sincos2d_(\d+)x(\d+)x(\d+)", key):
      yield compare(name, positions.compute_sincos2d(*map(int, sizes.groups()))[None], expected, 1e-5)
    elif sizes := re.fullmatch(r"sine_1d_(\d+)x(\d+)", key):
      yield compare(name, positions.compute_sine(*map(int, sizes.groups()))[None], expected, 2e-6)
    elif key == "fold_class_token_out_cls":
      cls, table = importer.fold_token(arrays["fold_class_token_in_cls"], arrays["fold_class_token_in_pos_embedding"])
      yield compare(name, cls, expected, 1e-6)
      table_name = "fold_class_token_out_pos_embedding"
      yield compare(f"{file.stem}/{table_name}", table, arrays[table_name], 1e-6)
    elif sizes := re.fullmatch(r"((?:vit_jax|big_vision)_)?(\d+)(?:x(\d+))?to(\d+)(?:x(\d+))?(_with_cls)?_out", key):
      rows, columns = ((int(sizes[i]), int(sizes[i + 1] or sizes[i])) for i in (2, 4))
      leading, table = int(sizes[6] is not None), arrays[key.removesuffix("_out") + "_in"][0]
      method, tolerance = ("zoom", 1e-6) if sizes[1] else ("bilinear", 2e-6)
      resampled = resampling.resample(table[leading:], rows, columns, method)
      yield compare(name, np.concatenate([table[:leading], resampled])[None], expected, tolerance)
