"""Files of torch.save, read without PyTorch and without running any code in them.

A file contains a pickle, which `pickles` parses, and the values of the tensors. The values are members of a zip
archive. Before PyTorch 1.6 they followed the pickle one after the other. The format is defined in
`torch/serialization.py`.
"""

import dataclasses
import functools
import pathlib
import re
import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO

from vit_jax.importers.formats import members, pickles, torch_tensors
from vit_jax.importers.formats.content import AGAIN
from vit_jax.importers.formats.lazy_tensors import Tensor
from vit_jax.importers.formats.pickles import BuildObject
from vit_jax.importers.formats.torch_tensors import Storage, describe_conversion
from vit_jax.schema import ConfigError, show
from vit_jax.schema.errors import format_names

_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001  # values in files before PyTorch 1.6
_PICKLE = 2**28  # maximum bytes of a pickle, which does not contain the values of tensors


def read(path: pathlib.Path) -> tuple[dict[str, Tensor], list[str]]:
  """Reads the names and shapes of all tensors in a file.

  Levels of dictionaries, lists and objects are joined with ".". The parameters and buffers of a pickled module get the
  names of its state dict.

  Args:
    path: a local file.

  Returns:
    The tensors by name, and notes for the user. The values of a tensor are read when they are used.

  Raises:
    ConfigError: if the file is damaged, does not contain a dictionary or object, or calls functions that only attacks
      need.
  """
  called: dict[str, None] = {}
  with path.open("rb") as file:
    zipped = file.read(2) == b"PK"
    file.seek(0)
    try:
      loaded, starts = (_read_zip if zipped else _read_legacy)(
        path, file, functools.partial(torch_tensors.build_tensor, called)
      )
    except pickles.AttackError as error:
      raise ConfigError(
        f"{path}: cannot be read: it calls {show(str(error))}, which no file of weights needs. It was not called. Do "
        "not load the file by other programs, and get the weights from another source"
      ) from error
  tensors = torch_tensors.find_tensors(path, loaded, starts)
  objects = [name for name in called if not _PLAIN.fullmatch(name)]
  note = f"objects in the file were read as data, without running their code: {format_names(objects, 6)}"
  return tensors, [note] * bool(objects)


# Numbers and strings that pickles create with calls.
_PLAIN = re.compile(
  r"torch\.(Size|device)|_codecs\.encode|numpy\.dtype|numpy\.(_?core)\.multiarray\.(scalar|_reconstruct)"
)


# Readers for the two forms of a file. Both return the pickled value, and {key: (start, number of bytes)} of the values.


def _read_zip(path: pathlib.Path, file: BinaryIO, build: BuildObject) -> Any:
  try:
    archive = zipfile.ZipFile(file)
  except zipfile.BadZipFile:
    raise ConfigError(f"{path}: cannot be read: it is truncated, its end is missing. {AGAIN}") from None
  found = {member.filename: member for member in archive.infolist()}
  roots = [name.removesuffix("data.pkl") for name in found if name.split("/")[1:] == ["data.pkl"]]
  if len(roots) != 1:
    raise ConfigError(
      f"{path}: this is a zip archive without a PyTorch model. If it contains a file of weights, unpack it"
    )
  root = roots[0]
  if f"{root}constants.pkl" in found:
    raise ConfigError(
      f"{path}: this is a TorchScript program, and programs are not executed. {describe_conversion(path)}"
    )
  members.check_archive(path, archive, zipfile.ZIP_STORED)
  if (order := f"{root}byteorder") in found and archive.read(order) != b"little":
    raise ConfigError(f"{path}: its byte order is not supported. {describe_conversion(path)}")
  start, size = _locate_member(file, found[f"{root}data.pkl"])
  if size > _PICKLE:
    raise ConfigError(f"{path}: its pickle has {size:,} bytes in addition to the tensors. Allowed: at most {_PICKLE:,}")
  file.seek(start)
  loaded = pickles.load_pickle(file, build, torch_tensors.create_storage)
  prefix = f"{root}data/"
  return loaded, {
    name.removeprefix(prefix): _locate_member(file, member) for name, member in found.items() if name.startswith(prefix)
  }


def _locate_member(file: BinaryIO, member: zipfile.ZipInfo) -> tuple[int, int]:
  """Returns (start, number) of the bytes of a stored member."""
  file.seek(member.header_offset)
  header = file.read(30)
  if header[:4] != b"PK\3\4":
    raise zipfile.BadZipFile(f"{show(member.filename)} is not at its offset in the archive's directory")
  names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
  return member.header_offset + 30 + names, member.file_size


def _read_legacy(path: pathlib.Path, file: BinaryIO, build: BuildObject) -> Any:
  """Reads a file from before PyTorch 1.6: three header values, the pickled value, keys, and values by key."""
  storages: dict[str, Storage] = {}

  def storage(pid: object) -> Storage:
    if isinstance(pid, tuple) and pid[:1] == ("module",) and len(pid) > 1:  # a class with its source code
      return pid[1]
    made = torch_tensors.create_storage(pid)
    return dataclasses.replace(storages.setdefault(made.key, made), first=made.first)

  magic = pickles.load_pickle(file, build, storage)
  version = pickles.load_pickle(file, build, storage) if magic == _MAGIC else None
  if version != _VERSION:
    raise ConfigError(f"{path}: this is a pickle, but torch.save did not write it. {describe_conversion(path)}")
  system = pickles.load_pickle(file, build, storage)
  if isinstance(system, Mapping) and system.get("little_endian", True) is not True:
    raise ConfigError(f"{path}: its byte order is not supported. {describe_conversion(path)}")
  loaded, keys = pickles.load_pickle(file, build, storage), pickles.load_pickle(file, build, storage)
  starts, position, end = {}, file.tell(), path.stat().st_size
  for key in keys:
    file.seek(position)
    count = int.from_bytes(file.read(8), "little", signed=True)
    known = storages[key].dtype
    if known is None or count < 0:
      raise ConfigError(f"{path}: the type of its values is not supported. {describe_conversion(path)}")
    starts[key] = position + 8, count * known.itemsize
    position = sum(starts[key])
    if position > end:
      raise ConfigError(f"{path}: cannot be read: it is truncated within its tensors. {AGAIN}")
  return loaded, starts
