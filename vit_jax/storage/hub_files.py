"""Weights on the Hugging Face Hub: addresses, downloads and uploads.

An address is hf:OWNER/NAME, hf:OWNER/NAME@REVISION, or hf:OWNER/NAME@REVISION:COMMIT. A revision is a branch, a tag or
a commit. The last form is pinned: the revision had this commit when the address was first used.

The library huggingface_hub makes all requests. It keeps downloaded files in its cache, continues interrupted downloads
and reads tokens. Only .safetensors files and two JSON files are downloaded, never a pickle.
"""

import contextlib
import errno
import functools
import os
import pathlib
import re
import types
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vit_jax.schema import ConfigError, extras, show
from vit_jax.schema.errors import format_names
from vit_jax.storage import paths

PREFIX = "hf:"
# Names of the weights in a repository: one file, or the index of several files.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_SIDECARS = ("config.json", "preprocessor_config.json")
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_PICKLES = (".bin", ".pth", ".pt", ".ckpt", ".pkl")
_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_REPOSITORY = re.compile(rf"(?=.{{1,96}}$)(?!.*(?:--|\.\.|\.git$)){_NAME}/{_NAME}")
_REVISION = re.compile(r"(?!.*(?:\.\.|//|/\.|\.lock$))[A-Za-z0-9_][A-Za-z0-9_./+-]*(?<![./])")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MAIN = "main"  # the default branch of every repository on the Hub


class Address(NamedTuple):
  """The location of weights on the Hub.

  Attributes:
    repository: owner and name.
    revision: branch, tag or commit. None selects the default branch.
    commit: the commit of the revision, or None if it is not known yet.
  """

  repository: str
  revision: str | None = None
  commit: str | None = None

  def __str__(self) -> str:
    """Returns the address as users write it."""
    version = self.revision if self.commit in (None, self.revision) else f"{self.revision or _MAIN}:{self.commit}"
    return f"{PREFIX}{self.repository}" + (f"@{version}" if version else "")


def is_address(path: str | os.PathLike[str]) -> bool:
  """Returns whether a path is an address on the Hub."""
  return os.fspath(path).startswith(PREFIX)


def parse_address(text: str | os.PathLike[str]) -> Address:
  """Parses an address.

  Args:
    text: the address, such as "hf:timm/vit_small_patch16_224.augreg_in21k@main".

  Raises:
    ConfigError: the text is not a valid address.

  Example:
    from vit_jax.storage import hub_files

    assert hub_files.parse_address("hf:google/vit-base-patch16-224@main").revision == "main"
  """
  text = os.fspath(text)
  repository, at, version = text.removeprefix(PREFIX).partition("@")
  if not text.startswith(PREFIX) or not _REPOSITORY.fullmatch(repository):
    raise ConfigError(
      f"{show(text)}: expected the name of a repository on the Hugging Face Hub. Write hf:OWNER/NAME or "
      "hf:OWNER/NAME@REVISION"
    )
  if not at:
    return Address(repository)
  revision, colon, commit = version.partition(":")
  if not _REVISION.fullmatch(revision) or (colon and not _COMMIT.fullmatch(commit)):
    raise ConfigError(
      f"{show(text)}: {show(version)} is not a revision. Write a branch, a tag or the 40 digits of a commit"
    )
  return Address(repository, revision, commit or (revision if _COMMIT.fullmatch(revision) else None))


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
    ConfigError: the path or address is invalid, or the weights cannot be downloaded.
  """
  if not is_address(path):
    return paths.resolve_path(path)
  address = parse_address(path)
  hub, commit = _import_library(address), address.commit or _find_commit(address)
  with _convert_errors(address):
    names = _list_names(hub, address.repository, commit)
    if not (chosen := _choose_files(names)):
      raise ConfigError(_describe_absent(address, names))
    # Files in the cache need no request, and show no progress.
    if not all(_find_cached(hub, address.repository, name, commit) for name in chosen):
      hub.snapshot_download(address.repository, revision=commit, allow_patterns=chosen, library_name="vit_jax")
    return pathlib.Path(hub.hf_hub_download(address.repository, chosen[-1], revision=commit, local_files_only=True))


def _list_names(hub: types.ModuleType, repository: str, commit: str) -> list[str]:
  """Returns the paths of the files in a commit, from the cache or from the Hub."""
  import httpx2
  from huggingface_hub import errors

  try:
    files = hub.get_cached_repo_tree(repository, revision=commit)
    return sorted(file.path for file in files)
  except errors.CachedRepoTreeNotFoundError:  # other programs cache files without a list
    pass
  try:
    files = hub.HfApi(library_name="vit_jax").list_repo_tree(repository, revision=commit)
    return sorted(file.path for file in files)
  except (errors.OfflineModeIsEnabled, httpx2.TransportError):
    for name in WEIGHTS:
      if path := _find_cached(hub, repository, name, commit):
        # None means that the program that cached the weights has not looked for the file.
        if hub.try_to_load_from_cache(repository, _SIDECARS[0], revision=commit) is None:
          raise ConfigError(
            f"{PREFIX}{repository}: the cache contains {name} without {_SIDECARS[0]}, which describes the images. Run "
            "the command once with access to the network"
          ) from None
        return sorted(file.name for file in path.parent.iterdir())
    raise


def _find_cached(hub: types.ModuleType, repository: str, name: str, commit: str) -> pathlib.Path | None:
  """Returns the path of a file in the cache, or None if the cache does not contain the file."""
  path = hub.try_to_load_from_cache(repository, name, revision=commit)
  return pathlib.Path(path) if isinstance(path, str) else None


def _choose_files(names: Sequence[str]) -> list[str]:
  """Returns the files to download: JSON files, shards, and last the file that `importers` reads; or [] without weights.

  Args:
    names: paths of all files in the repository.
  """
  weights = next((name for name in WEIGHTS if name in names), None)
  if weights is None:
    return []
  shards = [name for name in names if _SHARD.fullmatch(name)] if weights == WEIGHTS[1] else []
  return [*(name for name in _SIDECARS if name in names), *shards, weights]


def upload(folder: pathlib.Path, address: Address, public: bool) -> str:
  """Uploads the files of a folder to a new or empty repository, in one commit.

  Args:
    folder: the folder.
    address: the repository, without a revision.
    public: whether a repository that does not exist yet becomes public.

  Returns:
    The address of the web page of the commit.

  Raises:
    ConfigError: the address has a revision, the repository contains files or is public although `public` is false, or
      the Hub refuses the upload.
  """
  if address.revision:
    raise ConfigError(f"{address}: an upload makes a new commit of the branch main. Remove @{address.revision}")
  hub = _import_library(address)
  with _convert_errors(address):
    api = hub.HfApi(library_name="vit_jax")
    api.create_repo(address.repository, private=not public, exist_ok=True)
    if not public and not api.model_info(address.repository).private:
      raise ConfigError(f"{address}: the repository exists and is public. Set --public, or name a new repository")
    if names := sorted({*api.list_repo_files(address.repository)} - {".gitattributes"}):
      raise ConfigError(f"{address}: the repository already contains {format_names(names, 3)}. Name a new repository")
    commit = api.upload_folder(
      repo_id=address.repository, folder_path=folder, commit_message="Upload weights with vit_jax"
    )
    return str(commit.commit_url)


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
  hub = _import_library(address)
  with _convert_errors(address):
    found = hub.HfApi(library_name="vit_jax").resolve_revision(address.repository, revision=address.revision)
    commit = str(found.resolved)
  if not _COMMIT.fullmatch(commit):
    raise ConfigError(f"{address}: the server returned the commit {show(commit)}. Check HF_ENDPOINT")
  return commit


def _import_library(address: Address) -> types.ModuleType:
  """Imports huggingface_hub, which takes a fraction of a second."""
  try:
    return _import_hub()
  except ImportError as error:
    raise ConfigError(f"{address}: weights on the Hub need {extras.format_advice('hub')} ({error})") from error


@functools.cache
def _import_hub() -> types.ModuleType:
  import huggingface_hub

  huggingface_hub.logging.set_verbosity_error()  # it prints each warning twice, and pages about unreachable servers
  return huggingface_hub


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


@contextlib.contextmanager
def _convert_errors(address: Address) -> Iterator[None]:
  """Converts errors of the library and of its connections to ConfigError with one line."""
  import httpx2
  from huggingface_hub import constants, errors, is_offline_mode

  account = "set HF_TOKEN, or run `hf auth login`"
  try:
    yield
  except ConfigError:
    raise
  except errors.GatedRepoError as error:
    page = f"{constants.ENDPOINT}/{address.repository}"
    raise ConfigError(f"{address}: access is restricted. Accept the terms at {page}, then {account}") from error
  except errors.RepositoryNotFoundError as error:
    raise ConfigError(
      f"{address}: this repository does not exist or is private. Check the name. If it is private, {account}"
    ) from error
  except errors.RevisionNotFoundError as error:
    page = f"{constants.ENDPOINT}/{address.repository}/commits"
    raise ConfigError(f"{address}: this revision does not exist. Choose a revision from {page}") from error
  except (
    errors.RevisionResolutionError,
    errors.LocalEntryNotFoundError,
    errors.OfflineModeIsEnabled,
    httpx2.TransportError,
  ) as error:
    where = f"the cache {constants.HF_HUB_CACHE} does not contain the weights"
    if is_offline_mode():
      raise ConfigError(f"{address}: HF_HUB_OFFLINE is set, and {where}. Unset it and run the command once") from error
    reason = f"{constants.ENDPOINT} cannot be reached ({_find_reason(error)}), and {where}"
    raise ConfigError(f"{address}: {reason}. Check the network, HF_ENDPOINT and the proxy") from error
  except errors.HfHubHTTPError as error:
    status = error.response.status_code
    answer = (
      f"{status} ({error.server_message})" if error.server_message else f"{status} {error.response.reason_phrase}"
    )
    advice = f"To use an account with access, {account}" if status in (401, 403) else "Try again later"
    raise ConfigError(f"{address}: the Hub answered with {answer}. {advice}") from error
  except (httpx2.HTTPError, errors.XetDownloadError, OSError, ValueError, RuntimeError) as error:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
      advice = f"Make room on the disk of {constants.HF_HUB_CACHE}, or set HF_HOME"
    else:
      advice = "Run the same command again. The download continues where it stopped"
    raise ConfigError(f"{address}: {_find_reason(error)}. {advice}") from error


def _find_reason(error: BaseException) -> str:
  """Returns one short line about the first cause of an error, without addresses, which may contain signatures."""
  while error.__cause__ is not None:
    error = error.__cause__
  text = re.sub(r"https?://\S+", "...", " ".join(str(error).split()))
  return f"{type(error).__name__}: {text[:160]}" if text else type(error).__name__
