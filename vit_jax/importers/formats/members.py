"""Checks of the members of zip archives, before memory is allocated for them."""

import pathlib
import zipfile

from vit_jax.importers.formats.content import AGAIN
from vit_jax.importers.formats.lazy_tensors import check_size
from vit_jax.schema import ConfigError, show
from vit_jax.storage import archives

MEMBERS = 10_000  # more than the number of tensors of any model


def check_archive(path: pathlib.Path, archive: zipfile.ZipFile, *compressions: int) -> list[zipfile.ZipInfo]:
  """Returns the members of an archive.

  Args:
    path: path of the archive, for error messages.
    archive: the archive, opened for reading.
    compressions: compression methods that are allowed for the members, such as `zipfile.ZIP_STORED`.

  Raises:
    ConfigError: if the archive has too many members, or two members with the same name. Also if a compression method is
      not allowed, or the claimed size is implausible for weights.
  """
  found = archive.infolist()
  if len(found) > MEMBERS:
    raise ConfigError(f"{path}: the archive has {len(found):,} members. Allowed: at most {MEMBERS:,}")
  for member in found:
    if member.compress_type not in compressions:
      raise ConfigError(f"{path}: {show(member.filename)} is compressed, but files of weights are never compressed")
  if again := archives.find_repeated_name(found):
    raise ConfigError(f"{path}: two members are named {show(again)}, and readers differ in which one they use. {AGAIN}")
  check_size(path, sum(member.file_size for member in found))
  return found
