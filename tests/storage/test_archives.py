"""Tests of archives of arrays: they are read as they were written, and duplicate names are refused."""

import io

import numpy as np
import pytest

from tests import archive_files
from vit_jax.storage import archives, files


def test_arrays_are_read_by_name_from_a_path_and_an_open_file(tmp_path):
  file, a, b = tmp_path / "x.npz", np.arange(6.0).reshape(2, 3), np.array("text")
  np.savez(file, a=a, b=b)
  for source in (file, str(file), io.BytesIO(file.read_bytes())):
    read = archives.load(source, "b", "a")
    assert read[0] == b and read[1].dtype == a.dtype
    np.testing.assert_array_equal(read[1], a)
  with pytest.raises(KeyError):
    archives.load(file, "c")


@pytest.mark.parametrize("names", [("a.npy", "a.npy"), ("a.npy", "b.npy", "a.npy"), ("b.npy", "a.npy", "a")])
def test_two_arrays_with_one_name_are_refused(tmp_path, names):
  (tmp_path / "x.npz").write_bytes(archive_files.archive(*names))
  with pytest.raises(ValueError, match="two members are named 'a'"):
    archives.load(tmp_path / "x.npz", "b")


def test_only_the_repeated_array_makes_an_archive_invalid(tmp_path):
  np.savez(tmp_path / "x.npz", a=np.ones(2))
  archives.load(tmp_path / "x.npz", "a")
  archive_files.repeat(tmp_path / "x.npz", "a")
  with pytest.raises(ValueError, match="two members are named 'a'"):
    archives.load(tmp_path / "x.npz", "a")


def test_invalid_and_pickled_archives_are_refused(tmp_path):
  np.save(tmp_path / "array.npy", np.ones(3))
  np.savez(tmp_path / "pickled.npz", a=np.array([{"a": 1}]))
  for name in ("array.npy", "pickled.npz"):
    with pytest.raises(files.DAMAGE):
      archives.load(tmp_path / name, "a")
