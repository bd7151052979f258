"""Tests of vit_jax/importers/formats/members.py, which rejects unusual archives by their directory alone."""

import io
import warnings
import zipfile

import pytest

from vit_jax.importers.formats import members
from vit_jax.schema import ConfigError


def archive(path, names, compression=zipfile.ZIP_STORED, claimed=None):
  """Writes an archive with empty members of these names. The last one may claim a size."""
  content = io.BytesIO()
  with zipfile.ZipFile(content, "w", compression) as file, warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for name in names:
      file.writestr(name, b"")
    if claimed:
      file.filelist[-1].file_size = claimed
  path.write_bytes(content.getvalue())
  return zipfile.ZipFile(path)


def test_members_are_returned_in_archive_order(tmp_path):
  with archive(tmp_path / "x", ["b", "a.npy"], zipfile.ZIP_DEFLATED) as file:
    found = members.check_archive(tmp_path / "x", file, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
  assert [member.filename for member in found] == ["b", "a.npy"]


@pytest.mark.parametrize(
  ("names", "compression", "claimed", "message"),
  [
    (["a", "b", "a"], zipfile.ZIP_STORED, None, "two members are named 'a'"),
    (["a", "a.npy"], zipfile.ZIP_STORED, None, "two members are named 'a'"),
    (["a"], zipfile.ZIP_DEFLATED, None, "'a' is compressed"),
    (["a"], zipfile.ZIP_STORED, 2**30, "its tensors claim 1,073,741,824"),
    (map(str, range(members.MEMBERS + 1)), zipfile.ZIP_STORED, None, "has 10,001 members. Allowed: at most 10,000"),
  ],
)
def test_unusual_archives_are_errors(tmp_path, names, compression, claimed, message):
  with archive(tmp_path / "x", names, compression, claimed) as file, pytest.raises(ConfigError, match=message) as error:
    members.check_archive(tmp_path / "x", file, zipfile.ZIP_STORED)
  assert str(error.value).startswith(f"{tmp_path / 'x'}: ")
