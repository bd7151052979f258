"""Signatures of written weights, in the format of OpenSSF Model Signing (https://model-signing.org).

A signature is the file OUT.sig next to OUT. It covers OUT and the JSON files that are read with OUT, or all files of a
directory. Keys are elliptic curve keys in PEM files. No server is asked.
"""

import contextlib
import importlib
import os
import pathlib
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from vit_jax.importers.hub import metadata
from vit_jax.inference import exported
from vit_jax.schema import ConfigError, extras, format_amount
from vit_jax.schema.errors import format_names
from vit_jax.storage import files, hub_addresses, paths

_KEY_BYTES = 2**16
_KEY = "an elliptic curve key (P-256, P-384 or P-521) in a PEM file"
_PRIVATE = f"Use {_KEY} without a password. To create one, run: openssl ecparam -name prime256v1 -genkey -noout"
_PUBLIC = f"Use the public key of {_KEY}. To create one, run: openssl ec -in KEY -pubout"
_DISTRUST = "Do not use the files, unless you know the reason"
_PIPES = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")  # for example, <(COMMAND) in a shell
_LOCK = "lock"  # file of a workdir that every program replaces while it uses the workdir
# Exceptions of the package for malformed keys and signatures. RecursionError is a RuntimeError.
_PROBLEMS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, MemoryError)


class Signer(Protocol):
  """A configuration of the package that signs with a private key. The key is in memory."""

  def set_hashing_config(self, hashing_config: object) -> "Signer":
    """Selects the files."""

  def sign(self, model_path: pathlib.Path, signature_path: pathlib.Path) -> None:
    """Writes a signature."""


def name_signature(path: pathlib.Path) -> pathlib.Path:
  """Returns the path of the signature of a file or directory."""
  path = path.resolve() if path.name in ("", "..") else path  # "." has no name
  return path.parent / f"{path.name}.sig"


def list_signed_files(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the files that a signature covers: all files of a directory, or a file and the JSON files next to it.

  The file "lock" of a workdir is left out, because programs replace it when they use the workdir.

  Args:
    path: a directory, a weight file or a program.

  Raises:
    ConfigError: a file is a link or no regular file, or the path is an index of several files.
    OSError: a directory cannot be listed.
  """
  if path.is_dir():
    found = sorted(_list_files(path))
  elif path.name.lower().endswith(".index.json"):
    raise ConfigError(f"{path} is the index of several weight files. Use the directory that contains them")
  else:
    own = path.suffix.lower() in (".npz", *exported.FORMATS)  # metadata are in STEM.json
    names = (f"{path.stem}.json",) if own else metadata.SIDECARS
    found = [path, *(file for name in names if os.path.lexists(file := path.with_name(name)))]
  for file in found:
    if file.is_symlink():
      raise ConfigError(f"{file} is a symbolic link, and signatures cover files only. Copy the file to its place")
    if not file.is_file():
      raise ConfigError(f"{file} is not a regular file, and signatures cover regular files only. Remove it")
  return found


def _list_files(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields the files and links in a directory tree, without directories and without the lock of a workdir."""

  def fail(error: OSError) -> None:
    raise error

  for parent, folders, names in os.walk(folder, onerror=fail):
    here = pathlib.Path(parent)
    yield from (here / name for name in names if (here, name) != (folder, _LOCK))
    yield from (link for name in folders if (link := here / name).is_symlink())


def check_signing(path: pathlib.Path, key: pathlib.Path) -> Signer:
  """Checks that a path can be signed, before it is written, and reads the key.

  Args:
    path: the file or directory.
    key: PEM file of the private key. It is read only once, so it may be a pipe.

  Returns:
    The argument of `sign`.

  Raises:
    ConfigError: the package model-signing is missing, the key cannot be used, or the path is in a bucket.
  """
  if paths.is_in_bucket(path):
    raise ConfigError(f"--sign: {path} is in a bucket. Write to a disk, sign, and copy the files with the signature")
  signing = _import_module("signing")
  with _read_key(f"--sign: {key}", key, f"is not a private key. {_PRIVATE}"):
    signer: Signer = signing.Config().use_elliptic_key_signer(private_key=key)
  return signer


def sign(path: pathlib.Path, signer: Signer) -> pathlib.Path:
  """Signs a file with its JSON files, or a directory.

  Args:
    path: the file or directory, on a disk.
    signer: the result of `check_signing`.

  Returns:
    The path of the signature.

  Raises:
    ConfigError: a file is a link or no regular file.
  """
  target = name_signature(path)
  hashing = _make_hashing(list_signed_files(path))
  with files.atomic_write(target) as partial:
    signer.set_hashing_config(hashing).sign(_find_root(path), partial)
  return target


def check_unsigned(path: pathlib.Path) -> None:
  """Raises ConfigError if the signature file of a new output already exists. It belongs to earlier files."""
  signature = name_signature(path)
  if signature.exists() or os.path.lexists(signature):  # also true for a dangling link
    raise ConfigError(f"{signature} already exists and belongs to other files. Remove it, or choose another output")


def verify(path: pathlib.Path, key: pathlib.Path) -> str:
  """Verifies the signature of a file with its JSON files, or of a directory.

  Args:
    path: the file or directory, on a disk.
    key: PEM file of the public key.

  Returns:
    A line that lists the verified files, or their number for a directory.

  Raises:
    ConfigError: the signature is missing, has another key, or does not match the files.
  """
  signature = _find_signature(path)
  covered = list_signed_files(path)
  verifying = _import_module("verifying")
  with _read_key(f"--verify: {key}", key, f"is not a public key. {_PUBLIC}"):
    verifier = verifying.Config().use_elliptic_key_verifier(public_key=key)
  try:
    bundle = files.read_json(signature)
  except ConfigError as error:
    raise ConfigError(f"--verify: {signature} is not a signature. {_DISTRUST} ({error})") from error
  hashing = _make_hashing(covered)
  try:
    verifier.set_hashing_config(hashing).verify(_find_root(path), signature)
  except _list_exception_classes() as error:
    if hashing.digests is None:
      problem = f"{signature} is not a signature of {key}: it is damaged or was made with another key"
    else:
      problem = f"{path} does not match {signature}: {_describe_differences(bundle or {}, hashing.digests)}"
    raise ConfigError(f"--verify: {problem}. {_DISTRUST}") from error
  # The package has compared these names with those in the signature.
  names = format_amount(len(hashing.digests), "file") if path.is_dir() else ", ".join(hashing.digests)
  return f"{path}: the signature of {key} is valid for {names}"


def _find_signature(path: pathlib.Path) -> pathlib.Path:
  """Returns the path of an existing signature. Raises ConfigError if the path or its signature does not exist."""
  if hub_addresses.is_address(path):
    raise ConfigError(
      f"--verify: {path} is on the Hub. Download the files with `hf download NAME --local-dir=DIR`, and verify "
      "DIR/model.safetensors"
    )
  if paths.is_in_bucket(path):
    raise ConfigError(f"--verify: {path} is in a bucket. Copy the files and the signature to a disk")
  if not path.exists():
    raise ConfigError(f"--verify: {path} does not exist. Use the path of a signed file or directory")
  signature = name_signature(path)
  if signature.exists():
    return signature
  advice = "Sign with: convert IN OUT --sign=KEY"
  if path.is_dir() and (others := sorted(path.glob("*.sig"))):
    advice = f"Only files in it are signed. Use such a file: {format_names([file.with_suffix('') for file in others])}"
  raise ConfigError(f"--verify: {signature} does not exist. {advice}")


def _describe_differences(bundle: Mapping[str, Any], actual: Mapping[str, str]) -> str:
  """Returns the differences between the files and the list in their signature. The key has already been checked.

  Args:
    bundle: JSON object of the signature.
    actual: {name of a file: its digest}.
  """
  import base64

  try:
    statement = files.parse_json(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    expected = {each["name"]: each["digest"] for each in statement["predicate"]["resources"]}
  except (ValueError, TypeError, LookupError):
    return "the signature has an unknown format"
  changed = [name for name in actual.keys() & expected.keys() if actual[name] != expected[name]]
  groups = (
    (changed, "changed"),
    (expected.keys() - actual.keys(), "missing"),
    (actual.keys() - expected.keys(), "added"),
  )
  return ", ".join(f"{how}: {format_names(sorted(names), 3)}" for names, how in groups if names)


def _find_root(path: pathlib.Path) -> pathlib.Path:
  """Returns the directory that contains the signed files."""
  return path if path.is_dir() else path.parent


def _make_hashing(covered: Sequence[pathlib.Path]) -> Any:
  """Returns the hashing of the signed files, without other files of the directory.

  Args:
    covered: the files.

  Returns:
    An object for the package. After use, its `digests` map the names of the files to their digests.
  """
  base = _import_module("hashing").Config

  class Hashing(base):  # type: ignore[misc, valid-type] # the package is optional
    digests: dict[str, str] | None = None

    def __init__(self) -> None:
      super().__init__()
      self.set_ignored_paths(paths=(), ignore_git_paths=False)

    def add_ignored_paths(self, **ignored: object) -> None:
      """Does nothing. The signature may list files to ignore, but all files must be verified."""

    def hash(self, model_path: object, *, files_to_hash: object = None) -> Any:
      manifest = super().hash(model_path, files_to_hash=covered)
      self.digests = {each.identifier: each.digest.digest_hex for each in manifest.resource_descriptors()}
      return manifest

  return Hashing()


@contextlib.contextmanager
def _read_key(place: str, key: pathlib.Path, problem: str) -> Iterator[None]:
  """Checks the file of a key, and converts errors of its reader to ConfigError."""
  if paths.is_in_bucket(key):
    raise ConfigError(f"{place} is in a bucket. Copy the key to a disk")
  if not key.exists():
    raise ConfigError(f"{place} does not exist. Use the path of a key file")
  if not str(key).startswith(_PIPES):  # reading another pipe may never end
    if not key.is_file():
      raise ConfigError(f"{place} is not a file. Use the path of a key file")
    if key.stat().st_size > _KEY_BYTES:
      raise ConfigError(f"{place} {problem}")
  try:
    yield
  except _list_exception_classes() as error:
    raise ConfigError(f"{place} {problem}") from error


def _list_exception_classes() -> tuple[type[Exception], ...]:
  """Returns the exception classes of the package and of its libraries for invalid keys and signatures."""
  from cryptography import exceptions

  return (*_PROBLEMS, exceptions.InvalidSignature, exceptions.UnsupportedAlgorithm)


def _import_module(name: str) -> types.ModuleType:
  """Imports a module of the package model-signing."""
  try:
    return importlib.import_module(f"model_signing.{name}")
  except ImportError as error:
    raise ConfigError(f"signatures need {extras.format_advice('sign')} ({error})") from error
