"""Downloads of weights from the Hugging Face Hub to its cache.

The library huggingface_hub makes all requests. It keeps downloaded files in its cache, continues interrupted downloads
and reads tokens. Only .safetensors files and two JSON files are downloaded, never a pickle.

The library compares only sizes. Therefore the digest of each file is compared with the list of the repository after the
download. A record in the cache of the repository contains the verified files, so that a cached commit needs no request.
"""

import errno
import functools
import hashlib
import json
import os
import pathlib
import re
import types
from collections.abc import Iterable, Mapping, Sequence

from vit_jax.schema import ConfigError, show
from vit_jax.schema.errors import format_names
from vit_jax.storage import files, paths
from vit_jax.storage.hub_addresses import COMMIT, PREFIX, Address, is_address, parse_address
from vit_jax.storage.hub_library import check_answers, convert_errors, import_library

# Names of the weights in a repository: one file, or the index of several files.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_SIDECARS = ("config.json", "preprocessor_config.json")
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_PICKLES = (".bin", ".pth", ".pt", ".ckpt", ".pkl")
_DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")  # SHA-256 of a file in LFS, or SHA-1 of a file in Git
_RECORDS = "vit_jax"  # folder of the records in the cache of a repository


def is_pinned(text: str) -> bool:
  """Returns whether a text is a valid address with a commit."""
  try:
    return parse_address(text).commit is not None
  except ConfigError:
    return False


def pin_commit(path: str) -> str:
  """Returns an address with the commit of its revision.

  The Hub is asked for the commit once in a process. If the Hub cannot be reached, the commit in the cache is used.

  Args:
    path: an address, or any other path, which is returned unchanged.

  Raises:
    ConfigError: the address is invalid, or the commit cannot be found.
  """
  if not is_address(path) or (address := parse_address(path)).commit:
    return path
  return str(address._replace(commit=_find_commit(address)))


def resolve_weights(path: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the path of weights on a disk or in a bucket. Weights on the Hub are downloaded to its cache.

  A process asks the Hub only once for the commit of a revision, so that all its reads use the same file.

  Args:
    path: a path like that of `paths.resolve_path`, or an address on the Hub.

  Raises:
    ConfigError: the path or address is invalid, or the weights cannot be downloaded or are damaged.
  """
  if not is_address(path):
    return paths.resolve_path(path)
  address = parse_address(path)
  hub, commit = import_library(address), address.commit or _find_commit(address)
  with convert_errors(address):
    return _find_verified(hub, address.repository, commit) or _download(hub, address, commit)


def _download(hub: types.ModuleType, address: Address, commit: str) -> pathlib.Path:
  """Downloads the weights of a commit that are not in the cache, verifies all of them, and returns their path."""
  import httpx2
  from huggingface_hub import errors

  try:
    digests = _list_digests(hub, address, commit)
  except (errors.OfflineModeIsEnabled, httpx2.TransportError):
    if path := _find_unverified(hub, address.repository, commit):
      return path
    raise
  if not (chosen := _choose_files(digests)):
    raise ConfigError(_describe_absent(address, sorted(digests)))
  found = {
    name: pathlib.Path(hub.hf_hub_download(address.repository, name, revision=commit, library_name="vit_jax"))
    for name in chosen
  }
  for name, file in found.items():
    _verify(address, file, digests[name])
  record = _find_record(found[chosen[-1]])
  try:
    record.parent.mkdir(exist_ok=True)
    files.write_text(record, json.dumps({name: _describe_file(file) for name, file in found.items()}))
  except OSError as error:
    if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):  # a shared cache, which is verified every time
      raise
  return found[chosen[-1]]


def _list_digests(hub: types.ModuleType, address: Address, commit: str) -> dict[str, str]:
  """Returns {path: digest} of a commit: SHA-256 (LFS), the blob digest (Git), or "" if unknown."""
  with check_answers(address):
    found = hub.HfApi(library_name="vit_jax").model_info(address.repository, revision=commit, files_metadata=True)
    digests = {each.rfilename: each.lfs.sha256 if each.lfs else each.blob_id or "" for each in found.siblings or ()}
    if not all(isinstance(text, str) for pair in digests.items() for text in pair):
      raise TypeError("a name or digest of a file is not a text")
  return digests


def _verify(address: Address, file: pathlib.Path, digest: str) -> None:
  """Compares a downloaded file with its digest in the list of the repository. A damaged file is removed."""
  if not _DIGEST.fullmatch(digest):
    raise ConfigError(
      f"{address}: the server lists no digest of {file.name}, so the file cannot be verified. Check HF_ENDPOINT"
    )
  computed = hashlib.sha256() if len(digest) == 64 else hashlib.sha1(b"blob %d\0" % file.stat().st_size)
  with file.open("rb") as content:
    while block := content.read(2**22):
      computed.update(block)
  if computed.hexdigest() == digest:
    return
  link = file
  while link.is_symlink():  # to the file in the cache, which is removed too
    after = link.parent / os.readlink(link)
    link.unlink()
    link = after
  link.unlink()
  raise ConfigError(
    f"{address}: {file.name} is damaged. The server lists the digest {digest}, but the file has "
    f"{computed.hexdigest()}. The file was removed from the cache. Run the same command again, or check HF_ENDPOINT "
    "and the proxy"
  )


def _find_record(weights: pathlib.Path) -> pathlib.Path:
  """Returns the path of the record of verified files for models--OWNER--NAME/snapshots/COMMIT/model.safetensors."""
  commit = weights.parent
  return commit.parent.parent / _RECORDS / f"{commit.name}.json"


def _describe_file(file: pathlib.Path) -> list[int]:
  """Returns the size and modification time of a file, which identify the verified file."""
  status = file.stat()
  return [status.st_size, status.st_mtime_ns]


def _find_verified(hub: types.ModuleType, repository: str, commit: str) -> pathlib.Path | None:
  """Returns the path of weights that are in the cache and were verified, or None."""
  for weights in WEIGHTS:
    path = _find_cached(hub, repository, weights, commit)
    verified: Mapping[str, object] = (path and files.read_json(_find_record(path))) or {}
    if path and weights in verified:
      found = {name: _find_cached(hub, repository, name, commit) for name in verified}
      return path if all(each and _describe_file(each) == verified[name] for name, each in found.items()) else None
  return None


def _find_unverified(hub: types.ModuleType, repository: str, commit: str) -> pathlib.Path | None:
  """Returns the path of cached weights that have no valid record, or None if they are not cached."""
  for name in WEIGHTS:
    if path := _find_cached(hub, repository, name, commit):
      # None means that the program that cached the weights has not looked for the file.
      if hub.try_to_load_from_cache(repository, _SIDECARS[0], revision=commit) is None:
        raise ConfigError(
          f"{PREFIX}{repository}: the cache contains {name} without {_SIDECARS[0]}, which describes the images. Run "
          "the command once with access to the network"
        )
      return path
  return None


def _find_cached(hub: types.ModuleType, repository: str, name: str, commit: str) -> pathlib.Path | None:
  """Returns the path of a file in the cache, or None if the cache does not contain the file."""
  path = hub.try_to_load_from_cache(repository, name, revision=commit)
  return pathlib.Path(path) if isinstance(path, str) else None


def _choose_files(names: Iterable[str]) -> list[str]:
  """Returns the files to download: JSON files, shards, and last the file that `importers` reads; or [] without weights.

  Args:
    names: paths of all files in the repository.
  """
  names = sorted(names)
  weights = next((name for name in WEIGHTS if name in names), None)
  if weights is None:
    return []
  shards = [name for name in names if _SHARD.fullmatch(name)] if weights == WEIGHTS[1] else []
  return [*(name for name in _SIDECARS if name in names), *shards, weights]


def find_repository_name(folder: pathlib.Path) -> str | None:
  """Returns the name of a repository for the directory of a commit in the Hub's cache, or None for other directories.

  Args:
    folder: a directory, such as models--timm--vit_tiny_patch16_224/snapshots/COMMIT.
  """
  if folder.parent.name != "snapshots" or not (name := folder.parent.parent.name).startswith("models--"):
    return None
  return name.rpartition("--")[2]


@functools.cache
def _find_commit(address: Address) -> str:
  """Returns the commit that a revision had at the first call."""
  hub = import_library(address)
  with convert_errors(address), check_answers(address):
    found = hub.HfApi(library_name="vit_jax").resolve_revision(address.repository, revision=address.revision)
    commit = str(found.resolved)
  if not COMMIT.fullmatch(commit):
    raise ConfigError(f"{address}: the server returned the commit {show(commit)}. Check HF_ENDPOINT")
  return commit


def _describe_absent(address: Address, names: Sequence[str]) -> str:
  """Returns the error message for a repository without .safetensors weights.

  Args:
    address: the repository.
    names: paths of all its files.
  """
  problem = "the repository contains no model.safetensors"
  if others := [name for name in names if name.endswith(".safetensors")]:
    advice = f"It contains {format_names(others, 3)}: download the file, and name its path"
  elif pickles := [name for name in names if name.endswith(_PICKLES)]:
    advice = (
      f"It contains only pickles ({format_names(pickles, 3)}), which may run code and are not downloaded. Use a "
      "revision or a repository with .safetensors"
    )
  else:
    advice = "Use a repository of a model with .safetensors"
  return f"{address}: {problem}. {advice}"
