"""Tests of the record of files that a user ran."""

import os

import pytest

from tests.extension_files import clean, forget, recorded, written  # noqa: F401  a fixture
from vit_jax.config import extensions
from vit_jax.config.extensions import memory
from vit_jax.schema import ConfigError
from vit_jax.storage import files

pytestmark = pytest.mark.usefixtures("clean")


def test_file_of_another_owner_is_not_imported(tmp_path, monkeypatch):
  rows = recorded(written(tmp_path))
  if os.getuid() == 0:
    os.chown(rows[0]["file"], 12345, -1)
  else:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
  with pytest.raises(ConfigError, match="did not use"):
    extensions.restore(rows, tmp_path / "run")


def test_path_of_a_file_is_remembered(tmp_path):
  file = written(tmp_path)
  extensions.run_file(file)
  (note,) = (tmp_path / "cache/vit_jax/extensions").iterdir()
  assert files.read_json(note) == {"file": str(file), "module": ""}
  note.write_text("{")
  assert memory.find_remembered(str(file)) is None
