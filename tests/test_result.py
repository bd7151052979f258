"""result.json: what is read of it is of the kind that a run writes."""

import json

import pytest

from vit_jax import result, schema

GOOD = {
  "steps": 12,
  "images": 360,
  "train_seconds": 3.5,
  "images_per_second": None,
  "top1": 0.5,
  "packages": {"a": "1"},
}


def test_a_result_is_read_as_it_was_written(tmp_path):
  assert result.read(tmp_path) is None
  result.write(tmp_path, GOOD)
  assert result.read(tmp_path) == GOOD


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("train_seconds", None), ("train_seconds", "3"), ("images", "360"), ("test/images", []), ("images", True),
    ("steps", {}), ("images_per_second", "fast"), ("skipped_images", None), ("train_seconds", float("nan")),
  ],
)  # fmt: skip
def test_a_result_of_another_kind_is_said_and_made_again(tmp_path, capsys, name, value):
  (tmp_path / "result.json").write_text(json.dumps(GOOD | {name: value}))
  assert result.read(tmp_path) is None
  assert f"result.json: {name} is {str(value)!r}, which is no number" in capsys.readouterr().out


def test_a_file_that_holds_no_object_is_one_line(tmp_path):
  (tmp_path / "result.json").write_text("[1]")
  with pytest.raises(schema.ConfigError, match="holds no JSON object"):
    result.read(tmp_path)
