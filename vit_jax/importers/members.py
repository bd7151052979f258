"""Members of zip archives of weights, checked before anything is allocated."""

import pathlib
import zipfile

from vit_jax import archives
from vit_jax.importers.content import AGAIN
from vit_jax.importers.tensors import check_size
from vit_jax.schema import ConfigError, show

MEMBERS = 10_000  # more than any model has tensors


def check(path: pathlib.Path, archive: zipfile.ZipFile, *compressions: int) -> list[zipfile.ZipInfo]:
  """Returns the members of an archive.

  Args:
    path: of the archive, for errors.
    archive: opened for reading.
    compressions: of the members that are allowed, such as `zipfile.ZIP_STORED`.

  Raises:
    ConfigError: if there are more members than weights have, a name occurs twice, a member is compressed in another
      way, or the members claim to hold more than weights are packed into.
  """
  found = archive.infolist()
  if len(found) > MEMBERS:
    raise ConfigError(f"{path}: has {len(found):,} members; allowed: {MEMBERS:,}")
  for member in found:
    if member.compress_type not in compressions:
      raise ConfigError(f"{path}: {member.filename} is compressed, as no such file of weights is")
  if again := archives.repeated(found):
    raise ConfigError(f"{path}: two members are called {show(again)}, and readers differ in which they take. {AGAIN}")
  check_size(path, sum(member.file_size for member in found))
  return found
