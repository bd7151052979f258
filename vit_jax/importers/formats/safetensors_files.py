"""Files of .safetensors, which are read and written tensor by tensor. A model may have several files."""

import functools
import json
import math
import pathlib
import re
from collections.abc import Iterable, Mapping

import ml_dtypes
import numpy as np
import safetensors

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
from vit_jax.storage import files


def read(path: pathlib.Path) -> tuple[dict[str, Tensor], Hints]:
  """Reads a .safetensors file without the values of its tensors.

  Args:
    path: a local file.

  Returns:
    The tensors by name, and hints about the model. Only headers that this project wrote contain hints.

  Raises:
    ConfigError: if the header is damaged or does not match the file, or a type is not supported.
  """
  _check_header(path)
  file = safetensors.safe_open(path, framework="np")
  result = {}

  def values(name: str) -> np.ndarray:
    # The file is opened again for each tensor, because values stay in memory as long as a file is open.
    with safetensors.safe_open(path, framework="np") as again:
      return again.get_tensor(name)

  for name in file.keys():  # noqa: SIM118  it is no dict
    piece = file.get_slice(name)
    kind = _KINDS.get(piece.get_dtype())
    if kind is None:
      raise ConfigError(f"{path}: {show(name)} has type {piece.get_dtype()}. Allowed: {', '.join(_KINDS)}")
    result[name] = Tensor(piece.get_shape(), kind, guard_read(path, functools.partial(values, name)))
  about = (file.metadata() or {}).get("vit_jax")
  with metadata.add_file_to_errors(path):
    return result, metadata.parse_own_hints(files.parse_json(about.encode())) if about else {}


_KINDS = {"F64": "f8", "F32": "f4", "F16": "f2", "BF16": ml_dtypes.bfloat16, "I64": "i8", "I32": "i4"}
_KINDS |= {"I16": "i2", "I8": "i1", "U8": "u1", "BOOL": "?"}
_WRITTEN = {np.dtype(kind): name for name, kind in _KINDS.items()}


def _check_header(path: pathlib.Path) -> None:
  """Raises ConfigError if a name occurs twice in the header, or the header does not match the size of the file."""
  size = path.stat().st_size
  with path.open("rb") as file:
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if length > files.JSON_BYTES:
      raise ConfigError(f"{path}: its header has {length:,} bytes. Allowed: at most {files.JSON_BYTES:,}")
    text = file.read(length)
  if len(start) < 8 or len(text) < length:
    raise ConfigError(f"{path}: cannot be read: it is truncated, within its header. {_AGAIN}")
  try:
    header = files.parse_json(text)
  except ValueError as error:
    raise ConfigError(f"{path}: cannot be read: its header is not a JSON list of tensors ({error})") from error
  ends = (
    [_read_end(entry) for name, entry in header.items() if name != "__metadata__"] if isinstance(header, dict) else []
  )
  promised, held = max(ends, default=0), size - 8 - length
  if promised > held:
    raise ConfigError(
      f"{path}: cannot be read: it is truncated. Its header lists {format_amount(promised, 'byte')} of "
      f"tensors, but the file contains {held:,}. {_AGAIN}"
    )
  if promised < held:
    raise ConfigError(
      f"{path}: cannot be read: it has {format_amount(held - promised, 'byte')} after the last tensor that its "
      f"header lists. {_AGAIN}"
    )


_AGAIN = "Save or download the file again"


def _read_end(entry: object) -> int:
  """Returns the end of a tensor's values from its entry in a header, or 0 for an entry that the library rejects."""
  offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
  return offsets[1] if isinstance(offsets, list) and len(offsets) == 2 and type(offsets[1]) is int else 0


def read_sharded(index: pathlib.Path) -> tuple[dict[str, Tensor], Hints]:
  """Reads a model that is split into several files.

  Args:
    index: the JSON file that maps each tensor to a file.

  Returns:
    The tensors by name, and hints about the model and its images from other files in the directory.

  Raises:
    ConfigError: if the index is damaged, or does not match the files.
  """
  places = (files.read_json(index) or {}).get("weight_map")
  if not isinstance(places, Mapping) or not all(
    isinstance(name, str) and _is_plain_name(name) for name in places.values()
  ):
    raise ConfigError(
      f"{index}: weight_map is {show(places)}. Allowed: a .safetensors file in the same folder for each tensor"
    )
  if not places:
    raise ConfigError(f"{index}: the index lists no tensors")
  shards = sorted(set(places.values()))
  _check_numbers(index, shards)
  local = files.get_local_path(index, (*metadata.SIDECARS, *shards))
  held = {}
  for shard in shards:
    path = local.with_name(shard)
    with convert_read_errors(index.with_name(shard)):
      held[shard], _ = read(path)
      check_size(path, count_bytes(held[shard]))
  if lost := [name for name, shard in places.items() if name not in held[shard]]:
    raise ConfigError(f"{index}: {show(lost[0])} is not in {places[lost[0]]}, contrary to the index")
  for shard, tensors in held.items():
    if others := [name for name in tensors if places.get(name) != shard]:
      where = places.get(others[0])
      twice = f"is in {where} and in {shard}" if where else f"is in {shard}, and the index does not list it"
      raise ConfigError(f"{index}: {show(others[0])} {twice}. Save the files again, with each tensor in one of them")
  return {name: held[shard][name] for name, shard in places.items()}, metadata.read_hints(
    local.with_name(index.name.removesuffix(".index.json"))
  )


def _check_numbers(index: pathlib.Path, shards: Iterable[str]) -> None:
  """Raises ConfigError if an index lacks one of the files NAME-00001-of-00003 to NAME-00003-of-00003."""
  numbered = [match for match in map(re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors").fullmatch, shards) if match]
  for stem, count in {(match[1], match[3]) for match in numbered}:
    listed = {int(match[2]) for match in numbered if (match[1], match[3]) == (stem, count)}
    if lost := sorted(set(range(1, min(int(count), 10_000) + 1)) - listed):
      raise ConfigError(f"{index}: lists no tensor of {stem}-{lost[0]:05}-of-{count}.safetensors. {_AGAIN}")


def _is_plain_name(name: str) -> bool:
  """Returns true if this is the name of a .safetensors file in the same directory."""
  return name.endswith(".safetensors") and pathlib.PurePath(name).name == name


def write(path: pathlib.Path, tensors: Tensors, metadata: Mapping[str, str]) -> None:
  """Writes a .safetensors file tensor by tensor. The library of the format would need all tensors in memory.

  Tensors have the order of the library (https://github.com/huggingface/safetensors#format): the widest types first,
  then by name. The values start at a multiple of 8 bytes.

  Args:
    path: the file to write.
    tensors: tensors by name.
    metadata: strings for the header.
  """
  header: dict[str, Mapping[str, object]] = {"__metadata__": metadata}
  end = 0
  for name in sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name)):
    tensor, start = tensors[name], end
    end += math.prod(tensor.shape) * tensor.dtype.itemsize
    kind = _WRITTEN[tensor.dtype.newbyteorder("=")]
    header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [start, end]}
  text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
  text += b" " * (-len(text) % 8)
  with path.open("wb") as file:
    file.write(len(text).to_bytes(8, "little") + text)
    for name in list(header)[1:]:
      array = np.asarray(tensors[name])
      assert (array.shape, array.dtype) == (tensors[name].shape, tensors[name].dtype), name
      little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
      file.write(little.reshape(-1).view(np.uint8).data)
  with safetensors.safe_open(path, framework="np") as again:
    assert again.keys()
