"""Uploads of weights to the Hugging Face Hub."""

import contextlib
import pathlib
from collections.abc import Mapping
from typing import Any

from vit_jax.schema import ConfigError, texts
from vit_jax.schema.errors import format_names
from vit_jax.storage.hub_addresses import PREFIX, Address
from vit_jax.storage.hub_library import check_answers, convert_errors, import_library


def check_upload(address: Address, public: bool) -> None:
  """Checks that an upload is possible, without changing anything on the Hub.

  Args:
    address: the repository, without a revision.
    public: whether a repository that does not exist yet becomes public.

  Raises:
    ConfigError: the address has a revision, the token is missing or may not write, the repository contains files or is
      public although `public` is false, or the Hub cannot be reached.
  """
  if address.revision:
    raise ConfigError(f"{address}: an upload makes a new commit of the branch main. Remove @{address.revision}")
  hub = import_library(address)
  from huggingface_hub import errors

  with convert_errors(address, uploads=True):
    api = hub.HfApi(library_name="vit_jax")
    with check_answers(address):
      _check_account(api.whoami(), address)
    with contextlib.suppress(errors.RepositoryNotFoundError):  # the upload creates the repository
      _check_repository(api, address, public)


def _check_account(account: Mapping[str, Any], address: Address) -> None:
  """Raises ConfigError if the account of the token cannot create a repository at an address.

  Args:
    account: the answer of the Hub about the token.
    address: the repository.
  """
  role = account["auth"]["accessToken"]["role"] if account["auth"]["type"] == "access_token" else None
  if role == "read":
    raise ConfigError(f"{address}: the token may only read. Create a token that may write, and set HF_TOKEN")
  owner, _, name = address.repository.partition("/")
  owners = [account["name"], *(each["name"] for each in account["orgs"])]
  # The Hub compares owners without case. A fine-grained token lists its permissions in another form.
  if role == "write" and owner.lower() not in [str(each).lower() for each in owners]:
    raise ConfigError(
      f"{address}: the token may write to repositories of {format_names(owners, 5)}. Write {PREFIX}{owners[0]}/{name}, "
      "or use another token"
    )


def _check_repository(api: Any, address: Address, public: bool) -> None:
  """Raises ConfigError if an existing repository contains files, or is public although `public` is false."""
  with check_answers(address):
    info = api.model_info(address.repository)
    names = sorted({each.rfilename for each in info.siblings or ()} - {".gitattributes"})
    private = bool(info.private)
  if not public and not private:
    raise ConfigError(f"{address}: the repository exists and is public. Set --public, or use a new repository")
  if names:
    raise ConfigError(f"{address}: the repository already contains {format_names(names, 3)}. Use a new repository")


def upload(folder: pathlib.Path, address: Address, public: bool) -> str:
  """Uploads the files of a folder to a new or empty repository, in one commit.

  Args:
    folder: the folder.
    address: the repository, without a revision. See `check_upload`.
    public: whether a repository that does not exist yet becomes public.

  Returns:
    The address of the web page of the commit.

  Raises:
    ConfigError: the repository contains files or is public although `public` is false, or the Hub refuses the upload.
  """
  hub = import_library(address)
  with convert_errors(address, uploads=True):
    api = hub.HfApi(library_name="vit_jax")
    with check_answers(address):
      api.create_repo(address.repository, private=not public, exist_ok=True)
    _check_repository(api, address, public)
    with check_answers(address):
      commit = api.upload_folder(
        repo_id=address.repository, folder_path=folder, commit_message="Upload weights with vit_jax"
      )
      return texts.hide_passwords(str(commit.commit_url))
