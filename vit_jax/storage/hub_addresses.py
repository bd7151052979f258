"""Addresses of weights on the Hugging Face Hub.

An address is hf:OWNER/NAME, hf:OWNER/NAME@REVISION, or hf:OWNER/NAME@REVISION:COMMIT. A revision is a branch, a tag or
a commit. The last form is pinned: the revision had this commit when the address was first used.
"""

import os
import re
from typing import NamedTuple

from vit_jax.schema import ConfigError, show

PREFIX = "hf:"
COMMIT = re.compile(r"[0-9a-f]{40}")
_MAIN = "main"  # the default branch of every repository on the Hub
_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_REPOSITORY = re.compile(rf"(?=.{{1,96}}$)(?!.*(?:--|\.\.|\.git$)){_NAME}/{_NAME}")
_REVISION = re.compile(r"(?!.*(?:\.\.|//|/\.|\.lock$))[A-Za-z0-9_][A-Za-z0-9_./+-]*(?<![./])")
# A repository in another form, such as HF:OWNER/NAME, hf.co/OWNER/NAME or the address of its web page.
_OTHER = re.compile(
  rf"(?:(?:https?:/{{1,2}})?(?:www\.)?(?:huggingface\.co|hf\.co)/(?:models/)?|hf:/*)(?P<repository>{_NAME}/{_NAME})"
  r"(?:(?:/(?:tree|blob|resolve|commit)/|@)(?P<revision>[\w.+-]+))?(?:[/?#].*)?",
  re.IGNORECASE,
)


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
    from vit_jax.storage import hub_addresses

    assert hub_addresses.parse_address("hf:google/vit-base-patch16-224@main").revision == "main"
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
  if not _REVISION.fullmatch(revision) or (colon and not COMMIT.fullmatch(commit)):
    raise ConfigError(
      f"{show(text)}: {show(version)} is not a revision. Write a branch, a tag or the 40 digits of a commit"
    )
  return Address(repository, revision, commit or (revision if COMMIT.fullmatch(revision) else None))


def suggest_address(text: str) -> str:
  """Returns " Did you mean hf:OWNER/NAME?" for a repository on the Hub in another form, otherwise "".

  Args:
    text: a path that does not exist, such as "https://huggingface.co/OWNER/NAME" or "OWNER/NAME".
  """
  if other := _OTHER.fullmatch(text):
    address = Address(other["repository"], other["revision"])
  else:
    # A path with an existing first folder is more likely to be a misspelt file.
    if not _REPOSITORY.fullmatch(text) or os.path.exists(text.partition("/")[0]):
      return ""
    address = Address(text)
  return f" Did you mean {address}?" if _REPOSITORY.fullmatch(address.repository) else ""
