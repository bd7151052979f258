"""Containers of tensors: .npz and .safetensors read and written, .pth and .bin read. Nothing but tensors is unpickled.

Files are opened lazily: names, shapes and types first, the values of a tensor when it is wanted.
"""

import difflib
import io
import json
import math
import pathlib
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from vit_jax import archives, extras, files, paths
from vit_jax.importers import content, hub, safetensors_files
from vit_jax.importers.content import AGAIN, READ
from vit_jax.importers.tensors import Tensor, Tensors, bytes_of, check_size, guarded, reading
from vit_jax.schema import ConfigError, show
from vit_jax.schema.errors import some

WRITTEN = (".npz", ".safetensors")

# Hugging Face's models of several files: the list of these, and one of them.
_INDEX, _SHARD = ".safetensors.index.json", re.compile(r"(.+)-\d{5}-of-\d{5}\.safetensors")
_PART = re.compile(r".+-\d{5}-of-(\d{5})\.\w+")

# Refused before anything is allocated: more members than any model has tensors, and longer headers than NumPy allows
# once it has read them.
MEMBERS, HEADER = 10_000, 2**14

# Levels of dictionaries and lists inside each other, and dictionaries, lists and tensors of a file of PyTorch.
_DEPTH, _NODES = 16, 200_000


def read(path: pathlib.Path) -> tuple[Tensors, dict[str, Any]]:
  """(tensors by name, hints of what stands beside them); ConfigError for what is no file of weights."""
  given = path
  with reading(path):
    path = _of_folder(path) if path.is_dir() else path
    if (shard := _SHARD.fullmatch(path.name)) and (index := path.with_name(f"{shard[1]}{_INDEX}")).is_file():
      path = index
    there = path.is_file()
  if not there and paths.in_bucket(path):
    raise ConfigError(f"no object {str(path)!r} in the bucket")
  if not there:
    raise ConfigError(_nothing_at(given))
  _check_whole(path)
  if path.name.endswith(_INDEX):
    tensors, hints = safetensors_files.read_sharded(path)
    return tensors, hints
  if not content.ending(path):  # before anything is copied from a bucket
    with reading(path):
      content.recognise(path)
  local = files.local(path, (*hub.BESIDE, f"{path.stem}.json"))
  try:
    return _read(local)
  except ConfigError as error:
    raise ConfigError(str(error).replace(str(local), str(path))) from error


def _of_folder(path):
  """The file of weights in a folder of Hugging Face, or that which lists several."""
  index = path / f"model{_INDEX}"
  return index if index.is_file() and not (path / "model.safetensors").is_file() else path / "model.safetensors"


def _nothing_at(path):
  """The error for a path without weights: similar names for a missing file, the weights in a folder."""
  with reading(path):
    if folder := path.is_dir():
      beside = sorted(str(each) for each in path.glob("*") if _may_be_weights(each))
    else:
      beside = [each.name for each in path.parent.glob("*") if _may_be_weights(each)]
  if folder:
    has = f"It has {some(beside, 5)}: name one of them" if beside else "Name a file of weights or a workdir"
    return f"no weights in the folder {str(path)!r}: neither checkpoints/, of a workdir, nor model.safetensors. {has}"
  near = difflib.get_close_matches(path.name, beside, n=1)
  advice = f"Did you mean {str(path.parent / near[0])!r}?" if near else f"Allowed: {', '.join(READ)}, or a workdir"
  return f"no file {str(path)!r}. {advice}"


def _check_whole(path):
  """ConfigError for one of several files of a model, if their index is missing or is not read here."""
  part = _PART.fullmatch(path.name)
  if part and int(part[1]) > 1:
    raise ConfigError(
      f"{path}: is one of {int(part[1])} files of a model. Files of .safetensors are read together if their "
      f"{_INDEX.removeprefix('.')} is in the same folder; save others as one file"
    )


def _may_be_weights(path):
  if path.is_dir():
    return (path / "checkpoints").is_dir() or _of_folder(path).is_file()
  return bool(content.ending(path)) and path.is_file()


def _read(path):
  """What `read` gives, of a file on a disk."""
  with reading(path):
    match content.recognise(path):
      case ".npz":
        tensors, about = _npz(path), {}
      case ".safetensors":
        tensors, about = safetensors_files.read(path)
      case _:
        tensors, about = _torch(path), {}
    check_size(path, bytes_of(tensors))
  if not tensors:
    raise ConfigError(f"{path}: holds no tensors")
  return tensors, hub.hints(path) | about


def _npz(path):
  result = {}
  try:
    archive = zipfile.ZipFile(path)
  except zipfile.BadZipFile as error:
    raise ConfigError(f"{path}: cannot be read: it is truncated, or no .npz file ({error}). {AGAIN}") from error
  for member in _members(path, archive, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
    name = archives.array_name(member)
    with archive.open(member) as whole:
      file = io.BytesIO(whole.read(HEADER))  # NumPy inflates whatever length a header has, and then refuses it
      version = np.lib.format.read_magic(file)
      read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
      if version not in read_header:
        raise ConfigError(f"{path}: {name} has version {version} of NumPy's format; allowed: 1.0 and 2.0")
      shape, _, dtype = read_header[version](file)
      data = member.file_size - file.tell()
    if dtype.hasobject:
      raise ConfigError(f"{path}: {name} holds pickled objects, which are never loaded; allowed: arrays of numbers")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != data:
      raise ConfigError(f"{path}: {name} is {show(shape)} of {show(dtype)} by its header, but has {data:,} bytes")

    def values(member=member):
      with archive.open(member) as file:
        return _bfloat16(np.lib.format.read_array(file, allow_pickle=False))

    result[name] = Tensor(shape, dtype, guarded(path, values))
  return result


def _members(path, archive, *compressions):
  """What is in an archive; ConfigError for more than weights are, or packed otherwise."""
  members = archive.infolist()
  if len(members) > MEMBERS:
    raise ConfigError(f"{path}: has {len(members):,} members; allowed: {MEMBERS:,}")
  for member in members:
    if member.compress_type not in compressions:
      raise ConfigError(f"{path}: {member.filename} is compressed, as no such file of weights is")
  if again := archives.repeated(members):
    raise ConfigError(f"{path}: two members are called {show(again)}, and readers differ in which they take. {AGAIN}")
  check_size(path, sum(member.file_size for member in members))
  return members


def _bfloat16(array):
  """NumPy's own format forgets what bfloat16 is, and says two bytes."""
  return array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array


def _torch(path):
  try:
    import torch
  except ImportError:
    raise ConfigError(f"{path}: files of PyTorch need {extras.advice('torch')}; or take a .safetensors file") from None
  # weights_only: tensors and plain containers, no code. Old files are no zip archives and cannot be mapped.
  mapped = zipfile.is_zipfile(path)
  with path.open("rb") as file:
    start = file.read(2)
  if not mapped and start == b"PK":
    raise ConfigError(f"{path}: cannot be read: it is truncated, its end is missing. {AGAIN}")
  if mapped:
    with zipfile.ZipFile(path) as archive:
      _members(path, archive, zipfile.ZIP_STORED)
  try:
    loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
  except pickle.UnpicklingError as error:  # whose text advises to load it all the same
    what = re.search(r"GLOBAL [\w.]+|Unsupported operand \d+", str(error))
    more = what[0] if what else "no pickle of tensors"
    raise ConfigError(
      f"{path}: cannot be read: it is damaged or holds more than tensors ({more}), which is never unpickled, for it "
      "may run any program; take the weights as .safetensors, or as a state dict of tensors alone"
    ) from None
  if not isinstance(loaded, Mapping):
    raise ConfigError(f"{path}: holds a {type(loaded).__name__}, not a state dict of tensors by name")
  tensors: dict[str, Any] = {}
  for name, tensor in _flattened(path, loaded, torch.Tensor):
    if name in tensors:
      raise ConfigError(f"{path}: two tensors are called {show(name)}. Save the file again with one of them")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
      raise ConfigError(f"{path}: {name} has the shape {show(tuple(tensor.shape))}, and fewer values than that")
    tensors[name] = tensor

  def values(tensor):
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).contiguous().numpy()

  def kind(tensor):
    name = str(tensor.dtype).removeprefix("torch.")
    if name == "bfloat16":
      return ml_dtypes.bfloat16
    return name if name in np.sctypeDict else f"V{tensor.element_size()}"

  return {
    name: Tensor(tensor.shape, kind(tensor), guarded(path, lambda tensor=tensor: values(tensor)))
    for name, tensor in tensors.items()
  }


def _flattened(path, loaded, kind):
  """(name, tensor) of all tensors of type `kind` in dictionaries and lists, whose keys are joined with "."."""
  levels, nodes = [("", loaded)], 0
  for _ in range(_DEPTH):
    below = []
    for prefix, value in levels:
      for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
        if isinstance(inner, kind):
          yield f"{prefix}{key}", inner
        elif isinstance(inner, Mapping | list | tuple):
          below.append((f"{prefix}{key}.", inner))
        else:
          continue
        nodes += 1
        if nodes > _NODES:
          raise ConfigError(f"{path}: holds more than {_NODES:,} tensors, dictionaries and lists")
    if not (levels := below):
      return
  raise ConfigError(f"{path}: holds dictionaries and lists in more than {_DEPTH} levels")


def write(path: pathlib.Path, tensors: Tensors, about: dict, before: Callable[[], None] | None = None) -> None:
  """Writes a file whole or not at all, tensor by tensor; `about`, JSON values, goes into the header of .safetensors.

  `before` is called when all is written, see `files.replacing`.
  """
  with files.replacing(path, before) as partial:
    if path.suffix.lower() == ".npz":
      with partial.open("wb") as file:
        np.savez(file, **tensors)
    else:
      safetensors_files.write(partial, tensors, {"format": "pt", "vit_jax": json.dumps(about)})
