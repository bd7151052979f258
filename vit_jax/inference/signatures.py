"""Signatures of written weights, in the format of OpenSSF Model Signing (https://model-signing.org).

A signature is the file OUT.sig next to OUT. It covers OUT and the JSON files that are read with OUT, or all files of a
directory. Keys are elliptic curve keys in PEM files. No server is asked.
"""

import contextlib
import importlib
import pathlib
import re
import types
from collections.abc import Iterator, Sequence

from vit_jax.importers.hub import metadata
from vit_jax.schema import ConfigError, extras
from vit_jax.storage import hub_files, paths

_CURVES = (
  "an elliptic curve key in a PEM file without a password, such as that of: openssl ecparam -name prime256v1 -genkey"
)
_PROBLEMS = (ValueError, TypeError, LookupError, AttributeError, OSError)


def name_signature(path: pathlib.Path) -> pathlib.Path:
  """Returns the path of the signature of a file or directory."""
  return path.with_name(f"{path.name}.sig")


def list_signed_files(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files that a signature covers: all files of a directory, or a file and the JSON files next to it.

  Args:
    path: a directory, a weight file or a program.
  """
  if path.is_dir():
    return sorted(file for file in path.rglob("*") if file.is_file())
  names = metadata.SIDECARS if path.suffix.lower() == ".safetensors" else (f"{path.stem}.json",)
  return [path, *(file for name in names if (file := path.with_name(name)).is_file())]


def check_signing(path: pathlib.Path, key: pathlib.Path) -> None:
  """Checks that a path can be signed, before it is written.

  Args:
    path: the file or directory.
    key: PEM file of the private key.

  Raises:
    ConfigError: the package model-signing is missing, the key cannot be used, or the path is in a bucket.
  """
  if paths.in_bucket(path):
    raise ConfigError(f"--sign: {path} is in a bucket. Write to a disk, sign, and copy the files with the signature")
  _load_signer(key)


def sign(path: pathlib.Path, key: pathlib.Path) -> pathlib.Path:
  """Signs a file with its JSON files, or a directory.

  Args:
    path: the file or directory, on a disk.
    key: PEM file of the private key.

  Returns:
    The path of the signature. An existing signature is replaced.

  Raises:
    ConfigError: the key cannot be used.
  """
  target, signer = name_signature(path), _load_signer(key)
  _check_links(path)
  signer.set_hashing_config(_make_hashing(path)).sign(_find_root(path), target)
  return target


def verify(path: pathlib.Path, key: pathlib.Path) -> str:
  """Verifies the signature of a file with its JSON files, or of a directory.

  Args:
    path: the file or directory, on a disk.
    key: PEM file of the public key.

  Returns:
    A line that lists the verified files.

  Raises:
    ConfigError: the signature is missing, has another key, or does not match the files.
  """
  if hub_files.is_address(path):
    raise ConfigError(
      f"--verify: {path} is on the Hub. Download the files with `hf download NAME --local-dir=DIR`, and verify "
      "DIR/model.safetensors"
    )
  signature = name_signature(path)
  for file, advice in ((path, "Name a signed file or directory"), (signature, "Sign with: convert IN OUT --sign=KEY")):
    if not file.exists():
      raise ConfigError(f"--verify: {file} does not exist. {advice}")
  _check_links(path)
  verifying = _import_module("verifying")
  with _convert_errors(f"--verify: {key} is not a public key", f"Name the public key of {_CURVES}"):
    verifier = verifying.Config().use_elliptic_key_verifier(public_key=key)
  advice = f"Do not use the files, unless you know the reason. The signature is {signature}"
  with _convert_errors(f"--verify: {path} does not match its signature", advice):
    verifier.set_hashing_config(_make_hashing(path)).verify(_find_root(path), signature)
  names = [file.relative_to(_find_root(path)).as_posix() for file in list_signed_files(path)]
  return f"{path}: the signature of {key} is valid for {', '.join(names)}"


def _check_links(path: pathlib.Path) -> None:
  """Raises ConfigError if a directory contains a symbolic link, which a signature does not cover."""
  if links := [entry for entry in (path.rglob("*") if path.is_dir() else ()) if entry.is_symlink()]:
    raise ConfigError(
      f"{path} contains the symbolic link {links[0].relative_to(path)}. A signature covers files only. Replace "
      "links by their files"
    )


def _find_root(path: pathlib.Path) -> pathlib.Path:
  """Returns the directory that contains the signed files."""
  return path if path.is_dir() else path.parent


def _make_hashing(path: pathlib.Path) -> object:
  """Returns the hashing of the signed files, without other files of the directory."""
  base = _import_module("hashing").Config

  class Hashing(base):  # type: ignore[misc, valid-type] # the package is optional
    def hash(self, model_path: object, *, files_to_hash: Sequence[object] | None = None) -> object:
      return super().hash(model_path, files_to_hash=list_signed_files(path))

  return Hashing()


def _load_signer(key: pathlib.Path) -> types.SimpleNamespace:
  """Returns a configuration of the package that signs with a key."""
  signing = _import_module("signing")
  with _convert_errors(f"--sign: {key} is not a private key", f"Name {_CURVES}"):
    config: types.SimpleNamespace = signing.Config().use_elliptic_key_signer(private_key=key)
  return config


def _import_module(name: str) -> types.ModuleType:
  """Imports a module of the package model-signing."""
  try:
    return importlib.import_module(f"model_signing.{name}")
  except ImportError as error:
    raise ConfigError(f"signatures need {extras.format_advice('sign')} ({error})") from error


@contextlib.contextmanager
def _convert_errors(problem: str, advice: str) -> Iterator[None]:
  """Converts errors of the package and of its libraries to ConfigError with one line."""
  from cryptography import exceptions

  try:
    yield
  except (*_PROBLEMS, exceptions.InvalidSignature, exceptions.UnsupportedAlgorithm) as error:
    # The package lists the differences as a Python list with digests.
    text = re.sub(r"Signature mismatch: \[['\"]|\\", "", str(error).partition(": Expected")[0])
    reason = " ".join(text.split())[:200] or type(error).__name__
    raise ConfigError(f"{problem} ({reason}). {advice}") from error
