"""Files of tensors: .npz and .safetensors can be read and written, PyTorch files can be read.

Names, shapes and types are read first. The values of a tensor are read when they are used. Files are never unpickled.
"""

import difflib
import io
import json
import math
import pathlib
import re
import zipfile
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from vit_jax.importers.formats import content, members, safetensors_files, torch_files
from vit_jax.importers.formats.addresses import find_address
from vit_jax.importers.formats.content import AGAIN, READ
from vit_jax.importers.formats.lazy_tensors import (
  Tensor,
  Tensors,
  check_size,
  convert_read_errors,
  count_bytes,
  guard_read,
)
from vit_jax.importers.hints import Hints
from vit_jax.importers.hub import metadata
from vit_jax.schema import ConfigError, format_amount, show
from vit_jax.schema.errors import format_names
from vit_jax.storage import archives, files, hub_addresses, paths

WRITTEN = (".npz", ".safetensors")

# A Hugging Face model of several files has an index and shards.
_INDEX, _SHARD = ".safetensors.index.json", re.compile(r"(.+)-\d{5}-of-\d{5}\.safetensors")
_PART = re.compile(r".+-\d{5}-of-(\d{5})\.\w+")

HEADER = 2**14  # maximum bytes of a header. A longer header is rejected before NumPy allocates memory for it.


def read(path: pathlib.Path) -> tuple[Tensors, Hints]:
  """Reads a weight file without the values of its tensors.

  Args:
    path: a file or a Hugging Face directory, local or in a bucket.

  Returns:
    The tensors by name, and hints about the model and its images. The hints come from the file and from other files in
    its directory.

  Raises:
    ConfigError: if the path is not a weight file, or the file is damaged.
  """
  original = path
  with convert_read_errors(path):
    path = _find_weight_file(path) if path.is_dir() else path
    if (shard := _SHARD.fullmatch(path.name)) and (index := path.with_name(f"{shard[1]}{_INDEX}")).is_file():
      path = index
    there = path.is_file()
  if not there and paths.is_in_bucket(path):
    raise ConfigError(f"no object {str(path)!r} in the bucket")
  if not there:
    raise ConfigError(_describe_missing(original))
  _check_whole(path)
  if path.name.endswith(_INDEX):
    tensors, hints = safetensors_files.read_sharded(path)
    return tensors, hints
  if not content.find_suffix(path):  # check before copying a file from a bucket
    with convert_read_errors(path):
      content.detect_format(path)
  local = files.get_local_path(path, (*metadata.SIDECARS, f"{path.stem}.json"))
  try:
    return _read_local(local)
  except ConfigError as error:
    raise ConfigError(str(error).replace(str(local), str(path))) from error


def _find_weight_file(path: pathlib.Path) -> pathlib.Path:
  """Returns the weight file in a Hugging Face directory, or the index of its shards."""
  index = path / f"model{_INDEX}"
  return index if index.is_file() and not (path / "model.safetensors").is_file() else path / "model.safetensors"


def _describe_missing(path: pathlib.Path) -> str:
  """Returns the error message for a path without weights. It suggests similar names, or weights in the directory."""
  with convert_read_errors(path):
    if path.exists() and not path.is_dir():
      return f"{str(path)!r} is not a regular file. Name a file of weights or a workdir"
    if folder := path.is_dir():
      candidates = sorted(str(each) for each in path.glob("*") if _may_be_weights(each))
    else:
      candidates = [each.name for each in path.parent.glob("*") if _may_be_weights(each)]
  if folder:
    has = (
      f"It contains {format_names(candidates, 5)}: name one of them"
      if candidates
      else "Name a file of weights or a workdir"
    )
    return f"no weights in the folder {str(path)!r}. Expected checkpoints/ (a workdir) or model.safetensors. {has}"
  if address := find_address(path.name):
    return f"no file {str(path)!r}. Download it from {address}, or correct the path"
  if path.suffix.lower() not in READ and (address := hub_addresses.suggest_address(str(path))):
    return f"no file {str(path)!r}.{address}"
  near = difflib.get_close_matches(path.name, candidates, n=1)
  advice = f"Did you mean {str(path.parent / near[0])!r}?" if near else f"Allowed: {', '.join(READ)}, or a workdir"
  return f"no file {str(path)!r}. {advice}"


def _check_whole(path: pathlib.Path) -> None:
  """Raises ConfigError for a single shard of a model if its index is missing or not supported."""
  part = _PART.fullmatch(path.name)
  if part and int(part[1]) > 1:
    raise ConfigError(
      f"{path}: this is one of {format_amount(int(part[1]), 'file')} of a model. Files of .safetensors are read "
      f"together if their {_INDEX.removeprefix('.')} is in the same folder. Save others as one file"
    )


def _may_be_weights(path: pathlib.Path) -> bool:
  if path.is_dir():
    return (path / "checkpoints").is_dir() or _find_weight_file(path).is_file()
  return bool(content.find_suffix(path)) and path.is_file()


def _read_local(path: pathlib.Path) -> tuple[Tensors, Hints]:
  """Reads a local file. See `read`."""
  notes: list[str] = []
  tensors: Tensors
  about: Hints = {}
  with convert_read_errors(path):
    match content.detect_format(path):
      case ".npz":
        tensors = _read_npz(path)
      case ".safetensors":
        tensors, about = safetensors_files.read(path)
      case _:
        tensors, notes = torch_files.read(path)
    check_size(path, count_bytes(tensors))
  if not tensors:
    raise ConfigError(f"{path}: contains no tensors")
  hints = metadata.read_hints(path)
  return tensors, {**hints, **about, "notes": [*notes, *hints.get("notes", [])]}


def _read_npz(path: pathlib.Path) -> Tensors:
  result = {}
  try:
    archive = zipfile.ZipFile(path)
  except zipfile.BadZipFile as error:
    raise ConfigError(f"{path}: cannot be read: it is truncated, or no .npz file ({error}). {AGAIN}") from error
  for member in members.check_archive(path, archive, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
    name = archives.array_name(member)
    with archive.open(member) as whole:
      file = io.BytesIO(whole.read(HEADER))  # NumPy inflates headers of any length before rejecting them
      version = np.lib.format.read_magic(file)
      read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
      if version not in read_header:
        raise ConfigError(f"{path}: {show(name)} has version {version} of NumPy's format. Allowed: 1.0 and 2.0")
      shape, _, dtype = read_header[version](file)
      data = member.file_size - file.tell()
    if dtype.hasobject:
      raise ConfigError(
        f"{path}: {show(name)} contains pickled objects, which are never loaded. Allowed: arrays of numbers"
      )
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != data:
      raise ConfigError(
        f"{path}: {show(name)} is {show(shape)} of {show(dtype)} by its header, but has {format_amount(data, 'byte')}"
      )

    def values(member: zipfile.ZipInfo = member) -> np.ndarray:
      with archive.open(member) as file:
        return _view_bfloat16(np.lib.format.read_array(file, allow_pickle=False))

    result[name] = Tensor(shape, dtype, guard_read(path, values))
  return result


def _view_bfloat16(array: np.ndarray) -> np.ndarray:
  """Returns the values as bfloat16. NumPy's format stores them as two bytes without a type."""
  return array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array


def write(
  path: pathlib.Path, tensors: Tensors, about: dict[str, Any], before: Callable[[], None] | None = None
) -> None:
  """Writes a weight file atomically, tensor by tensor.

  Args:
    path: the file. The suffix is .npz or .safetensors.
    tensors: tensors by name.
    about: JSON values for the header of a .safetensors file.
    before: function that is called after all bytes are written and before the file gets its name. See
      `files.atomic_write`.
  """
  with files.atomic_write(path, before) as partial:
    if path.suffix.lower() == ".npz":
      with partial.open("wb") as file:
        arrays: dict[str, Any] = dict(tensors)  # savez also has a keyword that is no array
        np.savez(file, **arrays)
    else:
      safetensors_files.write(partial, tensors, {"format": "pt", "vit_jax": json.dumps(about)})
