"""Containers of tensors: .npz and .safetensors read and written, .pth and .bin read. Nothing but tensors is unpickled.

Files are opened lazily: names, shapes and types first, the values of a tensor when it is wanted.
"""

import contextlib
import difflib
import json
import pathlib
import pickle
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from vit_jax import files
from vit_jax.importers.layout import Tensor, Tensors
from vit_jax.schema import ConfigError

TORCH = (".pth", ".pt", ".bin", ".ckpt", ".zip")  # torch.save, whatever the name
READ = (".npz", ".safetensors", *TORCH)
WRITTEN = (".npz", ".safetensors")

# Where training codes keep the weights beside other things.
_WRAPPERS = ("state_dict", "model", "model_state_dict", "model_state", "module", "net", "params")
# What stands in front of every name in some files; of several the longest that fits.
_PREFIXES = ("opt/target/", "params/img/", "params/", "target/", "img/", "module.", "model.", "state_dict.")


def read(path: pathlib.Path) -> tuple[Tensors, dict[str, Any]]:
  """(tensors by name, hints of what stands beside them); ConfigError for what is no file of weights."""
  if path.is_dir():
    path = path / "model.safetensors"
  if not path.is_file():
    near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*")], n=1)
    raise ConfigError(f"no file {str(path)!r}." + (f" Did you mean {str(path.parent / near[0])!r}?" if near else ""))
  suffix = path.suffix.lower()
  if suffix not in READ:
    raise ConfigError(f"{path}: cannot read {path.suffix or 'a file without ending'!r}; allowed: {', '.join(READ)}")
  with _damage(path):
    match suffix:
      case ".npz":
        tensors, about = _npz(path), {}
      case ".safetensors":
        tensors, about = _safetensors(path)
      case _:
        tensors, about = _torch(path), {}
  if not tensors:
    raise ConfigError(f"{path}: holds no tensors")
  return without_prefix(tensors), _hints(path) | about


@contextlib.contextmanager
def _damage(path):
  """Turns what libraries raise on a damaged or hostile file into one line."""
  try:
    yield
  except (
    safetensors.SafetensorError,
    zipfile.BadZipFile,
    zlib.error,
    pickle.UnpicklingError,
    EOFError,
    KeyError,
    NotImplementedError,
    OSError,
    RuntimeError,
    SyntaxError,
    ValueError,
  ) as error:
    if isinstance(error, ConfigError):
      raise
    what = " ".join(str(error).split())[:200] or type(error).__name__
    raise ConfigError(f"{path}: cannot be read: {what}") from error


def _guarded(path, function):
  """`function` with its failures reported as the file's."""

  def read():
    with _damage(path):
      return function()

  return read


def _npz(path):
  result = {}
  archive = zipfile.ZipFile(path)
  for member in archive.infolist():
    name = member.filename.removesuffix(".npy")
    with archive.open(member) as file:
      version = np.lib.format.read_magic(file)
      read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
      if version not in read_header:
        raise ConfigError(f"{path}: {name} has version {version} of NumPy's format; allowed: 1.0 and 2.0")
      shape, _, dtype = read_header[version](file)
    if dtype.hasobject:
      raise ConfigError(f"{path}: {name} holds pickled objects, which are never loaded; allowed: arrays of numbers")

    def values(member=member):
      with archive.open(member) as file:
        return _bfloat16(np.lib.format.read_array(file, allow_pickle=False))

    result[name] = Tensor(shape, dtype, _guarded(path, values))
  return result


def _bfloat16(array):
  """NumPy's own format forgets what bfloat16 is, and says two bytes."""
  return array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array


def _safetensors(path):
  file = safetensors.safe_open(path, framework="np")
  result = {}
  for name in file.keys():  # noqa: SIM118  it is no dict
    piece = file.get_slice(name)
    kind = _KINDS.get(piece.get_dtype())
    if kind is None:
      raise ConfigError(f"{path}: {name} has type {piece.get_dtype()}; allowed: {', '.join(_KINDS)}")
    result[name] = Tensor(piece.get_shape(), kind, _guarded(path, lambda name=name: file.get_tensor(name)))
  about = (file.metadata() or {}).get("vit_jax")
  return result, {"description": json.loads(about)} if about else {}


_KINDS = {"F64": "f8", "F32": "f4", "F16": "f2", "BF16": ml_dtypes.bfloat16, "I64": "i8", "I32": "i4"}
_KINDS |= {"I16": "i2", "I8": "i1", "U8": "u1", "BOOL": "?"}


def _torch(path):
  try:
    import torch
  except ImportError:
    raise ConfigError(
      f"{path}: files of PyTorch need the extra torch: pip install 'vit_jax[torch]'; or take a .safetensors file"
    ) from None
  # weights_only: tensors and plain containers, no code. Old files are no zip archives and cannot be mapped.
  loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
  while isinstance(loaded, Mapping):
    tensors = {str(name): value for name, value in loaded.items() if isinstance(value, torch.Tensor)}
    inside = [loaded[key] for key in _WRAPPERS if isinstance(loaded.get(key), Mapping)]
    if tensors or not inside:
      break
    loaded = inside[0]
  else:
    raise ConfigError(f"{path}: holds a {type(loaded).__name__}, not a state dict of tensors by name")

  def values(tensor):
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).contiguous().numpy()

  kinds = {torch.bfloat16: np.dtype(ml_dtypes.bfloat16)}
  return {
    name: Tensor(
      tensor.shape,
      kinds.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch."),
      _guarded(path, lambda tensor=tensor: values(tensor)),
    )
    for name, tensor in tensors.items()
  }


def without_prefix(tensors):
  """The tensors whose names have the prefix, without it; all of them where there is none."""
  for prefix in _PREFIXES:
    chosen = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    if chosen:
      return without_prefix(chosen)
  return tensors


def _hints(path):
  """Hints about the model from beside the tensors: the file's name, and a config.json as hubs have it."""
  hints = {"name": path.name}
  beside = path.parent / "config.json"
  if not beside.is_file() or path.suffix.lower() == ".npz":
    return hints
  try:
    config = json.loads(beside.read_text())
  except ValueError as error:
    raise ConfigError(f"{beside}: is no JSON: {error}") from error
  if not isinstance(config, dict):
    return hints
  if isinstance(config.get("architecture"), str):  # timm
    hints["name"] = config["architecture"]
  names = {"num_attention_heads": "heads", "layer_norm_eps": "norm_eps", "image_size": "image_size"}
  hints |= {ours: config[theirs] for theirs, ours in names.items() if isinstance(config.get(theirs), int | float)}
  gelu = {"gelu": "erf", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}.get(str(config.get("hidden_act")))
  return hints | ({"gelu": gelu} if gelu else {})


def write(path: pathlib.Path, arrays: Mapping[str, np.ndarray], about: dict) -> None:
  """Writes a file whole or not at all; `about`, JSON values, goes into the header of .safetensors."""
  with files.replacing(path) as partial:
    if path.suffix.lower() == ".npz":
      with partial.open("wb") as file:
        np.savez(file, **arrays)
    else:
      metadata = {"format": "pt", "vit_jax": json.dumps(about)}
      safetensors.numpy.save_file(dict(arrays), partial, metadata=metadata)
