"""Files that are replaced at once or not at all."""

import pytest

from vit_jax import files
from vit_jax.schema import ConfigError


def test_a_file_is_replaced_at_once(tmp_path):
  file = tmp_path / "result.json"
  files.write_text(file, "old")
  files.write_text(file, '{"a": 1}')
  assert files.read_json(file) == {"a": 1}
  assert [f.name for f in tmp_path.iterdir()] == ["result.json"]
  assert files.read_json(tmp_path / "none.json") is None
  file.write_text('{"a"')
  with pytest.raises(ConfigError, match="cannot be read as JSON"):
    files.read_json(file)
