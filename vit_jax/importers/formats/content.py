"""Detection of the format of a weight file, from its first bytes and its name."""

import pathlib

from vit_jax.schema import ConfigError
from vit_jax.storage import files

# Usual suffixes of files of `torch.save`. The content decides, because timm writes an ordinary file as `.pth.tar`.
TORCH = (".pth", ".pth.tar", ".pt", ".bin", ".ckpt", ".zip")
READ = (".npz", ".safetensors", *TORCH)

AGAIN = "Save or download the file again"
_START = 512  # number of bytes that include the signature of a tar archive


def find_suffix(path: pathlib.Path) -> str:
  """Returns the suffix of a path if it is in READ, otherwise ""."""
  return next((one for one in sorted(READ, key=len, reverse=True) if path.name.lower().endswith(one)), "")


def detect_format(path: pathlib.Path) -> str:
  """Returns the format of a file: ".npz", ".safetensors", or ".pth" for all PyTorch files.

  Args:
    path: a file, local or in a bucket. Only its first bytes are read.

  Raises:
    ConfigError: if the content does not match the name, or the format is not supported.
  """
  with path.open("rb") as file:
    start = file.read(_START)
  named, found = find_suffix(path), _match_format(start)
  if named:
    _check_weights(path, start)
  if found == ".tar":
    raise ConfigError(f"{path}: this is a tar archive. Unpack it with tar -xf, and use the weight file inside")
  if not named and found != ".pth":
    if not found:
      raise ConfigError(f"{path}: cannot read {path.suffix or 'a file without ending'!r}. Allowed: {', '.join(READ)}")
    raise ConfigError(f"{path}: the content is that of {_add_article(found)} file. Rename it to end in {found}")
  expected = ".pth" if named in TORCH else named
  if found and expected and found != expected:
    raise ConfigError(f"{path}: the content is that of {_add_article(found)} file. Rename it to end in {found}")
  return found or expected


def _add_article(found: str) -> str:
  return {".npz": "an .npz", ".safetensors": "a .safetensors", ".pth": "a PyTorch"}[found]


def _check_weights(path: pathlib.Path, start: bytes) -> None:
  """Raises ConfigError for an empty file, a Git LFS pointer or a web page, which are common in place of weights."""
  text = start.lstrip().lower()
  if not text:
    raise ConfigError(f"{path}: cannot be read: it is empty. {AGAIN}")
  if text.startswith(b"version https://git-lfs"):
    raise ConfigError(f"{path}: cannot be read: it is a pointer of Git LFS to the weights. Get them with: git lfs pull")
  if text.startswith((b"<!doctype html", b"<html")):
    raise ConfigError(f"{path}: cannot be read: it is a web page. Download the file itself, not the page about it")


def _match_format(start: bytes) -> str:
  """Returns the format of a file with these first bytes, or "" if they do not determine the format."""
  if start.startswith(b"PK\3\4"):  # a zip archive, either of arrays or from torch.save
    length = int.from_bytes(start[26:28], "little")
    first = start[30 : 30 + length]  # the name of its first member
    return (".npz" if first.endswith(b".npy") else ".pth") if length and len(first) == length else ""
  if start[257:262] == b"ustar":
    return ".tar"
  if start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= files.JSON_BYTES:
    return ".safetensors"
  return ".pth" if b"\x80\x02" <= start[:2] <= b"\x80\x05" else ""  # a pickle
