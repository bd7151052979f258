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

from vit_jax import files, paths
from vit_jax.importers import hub, safetensors_files
from vit_jax.importers.tensors import Tensor, Tensors, bytes_of, check_size, guarded, reading
from vit_jax.schema import ConfigError, show

TORCH = (".pth", ".pt", ".bin", ".ckpt", ".zip")  # torch.save, whatever the name
READ = (".npz", ".safetensors", *TORCH)
WRITTEN = (".npz", ".safetensors")

# Hugging Face's models of several files: the list of these, and one of them.
_INDEX, _SHARD = ".safetensors.index.json", re.compile(r"(.+)-\d{5}-of-\d{5}\.safetensors")

# Refused before anything is allocated: more members than any model has tensors, and longer headers than NumPy allows
# once it has read them.
MEMBERS, HEADER = 10_000, 2**14

# Where training codes keep the weights beside other things.
_WRAPPERS = ("state_dict", "model", "model_state_dict", "model_state", "module", "net", "params", "teacher")
# What stands in front of every name in some files; of several the longest that fits.
_PREFIXES = (
  "opt/target/",
  "params/img/",
  "params/",
  "target/",
  "img/",
  "module.",
  "model.",
  "state_dict.",
  "backbone.",
  "visual.",
)


def read(path: pathlib.Path) -> tuple[Tensors, dict[str, Any]]:
  """(tensors by name, hints of what stands beside them); ConfigError for what is no file of weights."""
  with reading(path):
    path = _of_folder(path) if path.is_dir() else path
    if (shard := _SHARD.fullmatch(path.name)) and (index := path.with_name(f"{shard[1]}{_INDEX}")).is_file():
      path = index
    there = path.is_file()
  if not there and paths.in_bucket(path):
    raise ConfigError(f"no object {str(path)!r} in the bucket")
  if not there:
    raise ConfigError(f"no file {str(path)!r}.{_advice(path)}")
  if path.name.endswith(_INDEX):
    tensors, hints = safetensors_files.read_sharded(path)
    return without_prefix(tensors), hints
  suffix = path.suffix.lower()
  if suffix not in READ:
    raise ConfigError(f"{path}: cannot read {path.suffix or 'a file without ending'!r}; allowed: {', '.join(READ)}")
  local = files.local(path, (*hub.BESIDE, f"{path.stem}.json"))
  try:
    return _read(local, suffix)
  except ConfigError as error:
    raise ConfigError(str(error).replace(str(local), str(path))) from error


def _of_folder(path):
  """The file of weights in a folder of Hugging Face, or that which lists several."""
  index = path / f"model{_INDEX}"
  return index if index.is_file() and not (path / "model.safetensors").is_file() else path / "model.safetensors"


def _advice(path):
  """What is called like a path that is not there and may be weights; for a folder, that it has none."""
  if path.parent.is_dir() and path.name == "model.safetensors":
    return f" {str(path.parent)!r} is neither a workdir, with checkpoints/, nor a folder of Hugging Face"
  with reading(path):
    beside = [each for each in path.parent.glob("*") if _may_be_weights(each)]
  near = difflib.get_close_matches(path.name, [each.name for each in beside], n=1)
  return f" Did you mean {str(path.parent / near[0])!r}?" if near else f" Allowed: {', '.join(READ)}, or a workdir"


def _may_be_weights(path):
  if path.is_dir():
    return (path / "checkpoints").is_dir() or _of_folder(path).is_file()
  return path.suffix.lower() in READ and path.is_file()


def _read(path, suffix):
  """What `read` gives, of a file on a disk."""
  with reading(path):
    match suffix:
      case ".npz":
        tensors, about = _npz(path), {}
      case ".safetensors":
        tensors, about = safetensors_files.read(path)
      case _:
        tensors, about = _torch(path), {}
    check_size(path, bytes_of(tensors))
  if not tensors:
    raise ConfigError(f"{path}: holds no tensors")
  return without_prefix(tensors), hub.hints(path) | about


def _npz(path):
  result = {}
  archive = zipfile.ZipFile(path)
  for member in _members(path, archive, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
    name = member.filename.removesuffix(".npy")
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
  check_size(path, sum(member.file_size for member in members))
  return members


def _bfloat16(array):
  """NumPy's own format forgets what bfloat16 is, and says two bytes."""
  return array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array


def _torch(path):
  try:
    import torch
  except ImportError:
    raise ConfigError(
      f"{path}: files of PyTorch need the extra torch: pip install 'vit_jax[torch]'; or take a .safetensors file"
    ) from None
  # weights_only: tensors and plain containers, no code. Old files are no zip archives and cannot be mapped.
  mapped = zipfile.is_zipfile(path)
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
  for _ in _WRAPPERS:  # of which some may be inside of others, but none inside of itself
    if not isinstance(loaded, Mapping):
      raise ConfigError(f"{path}: holds a {type(loaded).__name__}, not a state dict of tensors by name")
    tensors = {str(name): value for name, value in loaded.items() if isinstance(value, torch.Tensor)}
    inside = [loaded[key] for key in _WRAPPERS if isinstance(loaded.get(key), Mapping)]
    if tensors or not inside:
      break
    loaded = inside[0]
  else:
    raise ConfigError(f"{path}: holds no tensors, only mappings inside of mappings")
  for name, tensor in tensors.items():
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
      raise ConfigError(f"{path}: {name} has the shape {show(tuple(tensor.shape))}, and fewer values than that")

  def values(tensor):
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).contiguous().numpy()

  kinds = {torch.bfloat16: np.dtype(ml_dtypes.bfloat16)}
  return {
    name: Tensor(
      tensor.shape,
      kinds.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch."),
      guarded(path, lambda tensor=tensor: values(tensor)),
    )
    for name, tensor in tensors.items()
  }


def without_prefix(tensors):
  """The tensors whose names have the prefix, without it; all of them where there is none."""
  for prefix in _PREFIXES:
    if prefix == "model." and "embeddings.patch_embeddings.weight" in tensors:
      continue  # Transformers' DINOv3, with its layers in `model.layer.` and the rest beside
    chosen = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    if chosen:
      return without_prefix(chosen)
  return tensors


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
