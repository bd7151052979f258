"""Formats of files of weights, recognised by the first bytes of a file and by its name."""

import pathlib

from vit_jax import files
from vit_jax.schema import ConfigError

# Usual endings of files of `torch.save`. The content decides: timm's training writes an ordinary file as `.pth.tar`.
TORCH = (".pth", ".pth.tar", ".pt", ".bin", ".ckpt", ".zip")
READ = (".npz", ".safetensors", *TORCH)

AGAIN = "Save or download the file again"
_START = 512  # bytes, in which a tar archive has its mark


def ending(path: pathlib.Path) -> str:
  """Returns the ending in READ that a name has, or ""."""
  return next((one for one in sorted(READ, key=len, reverse=True) if path.name.lower().endswith(one)), "")


def recognise(path: pathlib.Path) -> str:
  """Returns the format of a file: ".npz", ".safetensors" or ".pth", which stands for all files of PyTorch.

  Args:
    path: a file, which may be in a bucket. Only its first bytes are read.

  Raises:
    ConfigError: if the content is of another format than the name, or of no format that is read.
  """
  with path.open("rb") as file:
    start = file.read(_START)
  named, found = ending(path), _format(start)
  if named:
    _check_weights(path, start)
  if found == ".tar":
    raise ConfigError(f"{path}: is a tar archive by its content. Unpack it by tar -xf, and name the file of weights")
  if not named and found != ".pth":
    if not found:
      raise ConfigError(f"{path}: cannot read {path.suffix or 'a file without ending'!r}; allowed: {', '.join(READ)}")
    raise ConfigError(f"{path}: is {_article(found)} file by its content. Rename it to end in {found}")
  expected = ".pth" if named in TORCH else named
  if found and expected and found != expected:
    raise ConfigError(f"{path}: is {_article(found)} file by its content. Rename it to end in {found}")
  return found or expected


def _article(found):
  return {".npz": "an .npz", ".safetensors": "a .safetensors", ".pth": "a PyTorch"}[found]


def _check_weights(path, start):
  """ConfigError for what is often in the place of weights: no bytes, a pointer of Git LFS, a web page."""
  text = start.lstrip().lower()
  if not text:
    raise ConfigError(f"{path}: cannot be read: it is empty. {AGAIN}")
  if text.startswith(b"version https://git-lfs"):
    raise ConfigError(f"{path}: cannot be read: it is a pointer of Git LFS to the weights. Get them with: git lfs pull")
  if text.startswith((b"<!doctype html", b"<html")):
    raise ConfigError(f"{path}: cannot be read: it is a web page. Download the file itself, not the page about it")


def _format(start):
  """The format of a file with these first bytes; "" if they do not show it."""
  if start.startswith(b"PK\3\4"):  # a zip archive: of arrays, or by torch.save
    length = int.from_bytes(start[26:28], "little")
    first = start[30 : 30 + length]  # the name of its first member
    return (".npz" if first.endswith(b".npy") else ".pth") if length and len(first) == length else ""
  if start[257:262] == b"ustar":
    return ".tar"
  if start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= files.JSON_BYTES:
    return ".safetensors"
  return ".pth" if b"\x80\x02" <= start[:2] <= b"\x80\x05" else ""  # a pickle
