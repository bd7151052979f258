"""Tests that weights and metadata are read from the newest readable checkpoint without changing any file."""

import json
import pathlib
import shutil
import types

import numpy as np
import pytest

from tests.checkpoints.test_store import make_mesh, save_states, shapes_of, state
from vit_jax import checkpoints, schema
from vit_jax.checkpoints import reading
from vit_jax.parallel import sharding

pytestmark = pytest.mark.heavy


def numbers(params):
  return {path: np.asarray(value) for path, value in params.items()}


def test_only_parameters_are_read_from_the_newest_checkpoint(tmp_path):
  g = make_mesh()
  save_states(tmp_path, (10, 20), g).close()
  arrays, about = checkpoints.read_weights(tmp_path)
  expected = numbers(state(20, g).params)
  assert arrays.keys() == expected.keys() and about == {"seconds": 20.0}
  for path, array in arrays.items():
    assert type(array) is np.ndarray
    np.testing.assert_array_equal(array, expected[path])


def test_relative_path_is_read(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  save_states(pathlib.Path("run"), (10,), make_mesh()).close()
  absolute, relative = (checkpoints.read_weights(folder) for folder in (tmp_path / "run", pathlib.Path("run")))
  assert absolute[1] == relative[1] == {"seconds": 10.0} and not checkpoints.describe_damage("run")
  assert all(np.array_equal(array, absolute[0][path]) for path, array in relative[0].items())


def test_damaged_newest_checkpoint_falls_back_to_the_previous_one(tmp_path):
  g = make_mesh()
  save_states(tmp_path, (10, 20), g).close()
  for file in (tmp_path / "checkpoints/20/state").rglob("*"):
    if file.is_file() and file.stat().st_size > 20:
      file.write_bytes(file.read_bytes()[:10])
  before = sorted(tmp_path.rglob("*"))
  arrays, _ = checkpoints.read_weights(tmp_path)
  np.testing.assert_array_equal(arrays["head/bias"], numbers(state(10, g).params)["head/bias"])
  assert sorted(tmp_path.rglob("*")) == before
  for file in (tmp_path / "checkpoints/10/state").rglob("*"):
    if file.is_file():
      file.write_bytes(b"")
  with pytest.raises(schema.ConfigError, match=r"no checkpoint that can be read\n  .*/20: .*\n  .*/10: "):
    checkpoints.read_weights(tmp_path)


def test_changed_bytes_of_parameters_are_an_error(tmp_path):
  save_states(tmp_path, (10,), make_mesh()).close()
  arrays, about = checkpoints.read_weights(tmp_path)
  checkpoints.write_weights(tmp_path / "b", arrays, about)
  again, _ = checkpoints.read_weights(tmp_path / "b")
  assert all(np.array_equal(again[path], arrays[path]) for path in arrays)
  other = {path: array + (path == "head/bias") for path, array in arrays.items()}
  checkpoints.write_weights(tmp_path / "c", other, about)
  shutil.rmtree(tmp_path / "b/checkpoints/0/state")
  shutil.copytree(tmp_path / "c/checkpoints/0/state", tmp_path / "b/checkpoints/0/state")
  with pytest.raises(schema.ConfigError, match="bytes of params/head/bias differ from those that were saved"):
    checkpoints.read_weights(tmp_path / "b")


def edit_metadata(folder, change):
  """Changes the metadata file of a checkpoint."""
  file = folder / "about/metadata"
  metadata = json.loads(file.read_text())
  change(metadata)
  file.write_text(json.dumps(metadata))


EDITS = {
  "a value": lambda metadata: metadata["run"].update(seconds=5.0),
  "one more": lambda metadata: metadata["run"].update(heads=4),
  "nothing left": lambda metadata: metadata["run"].clear(),
  "no object": lambda metadata: metadata.update(run=[1]),
  "a fingerprint": lambda metadata: metadata["fingerprint"].update({"params/head/bias": 1}),
  "no fingerprint": lambda metadata: metadata.pop("fingerprint"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edited_metadata_makes_a_checkpoint_unreadable(tmp_path, edit, caplog):
  g = make_mesh()
  save_states(tmp_path, (10, 20), g).close()
  edit_metadata(tmp_path / "checkpoints/20", EDITS[edit])
  assert checkpoints.read_description(tmp_path) == {"seconds": 10.0}
  assert checkpoints.read_weights(tmp_path)[1] == {"seconds": 10.0}
  assert f"{tmp_path}/checkpoints/20 cannot be read (" in caplog.text and "weights of step 10 are used" in caplog.text
  assert f"{tmp_path}/checkpoints/20 cannot be read" in checkpoints.describe_damage(str(tmp_path))
  assert checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(g)).restore(shapes_of(state(10, g)))[
    1
  ] == {"seconds": 10.0}
  assert (tmp_path / "checkpoints/20.unreadable").is_dir()


def test_checkpoint_of_an_older_version_without_a_digest_is_read(tmp_path):
  save_states(tmp_path, (10,), make_mesh()).close()
  edit_metadata(tmp_path / "checkpoints/10", lambda metadata: metadata.pop("sha256"))
  assert checkpoints.read_description(tmp_path) == {"seconds": 10.0} == checkpoints.read_weights(tmp_path)[1]
  assert checkpoints.describe_damage(str(tmp_path)) == checkpoints.describe_damage(str(tmp_path / "nothing")) == ""


def test_checkpoint_that_fails_the_check_is_skipped(tmp_path):
  g = make_mesh()
  save_states(tmp_path, (10, 20), g).close()

  def check(about):
    if about["seconds"] > 10:
      raise ValueError("too many seconds")

  assert checkpoints.read_description(tmp_path, check) == {"seconds": 10.0}
  store = checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(g))
  assert int(store.restore(shapes_of(state(10, g)), check)[0].step) == 10


def test_reading_an_absent_average_is_an_error(tmp_path):
  save_states(tmp_path, (10,), make_mesh()).close()
  with pytest.raises(
    schema.ConfigError, match=r"step 10 does not contain ema. Train with config.optim.ema to store averaged weights"
  ):
    checkpoints.read_weights(tmp_path, averaged=True)


def test_has_checkpoint_finds_a_saved_checkpoint(tmp_path):
  assert not checkpoints.has_checkpoint(tmp_path)
  save_states(tmp_path, (10,), make_mesh()).close()
  assert checkpoints.has_checkpoint(tmp_path)


def test_metadata_that_need_far_more_memory_than_the_files_are_an_error(tmp_path, monkeypatch):
  save_states(tmp_path, (10,), make_mesh(1)).close()
  assert checkpoints.read_weights(tmp_path)[0]
  monkeypatch.setattr(reading, "MIN_SUSPICIOUS_BYTES", 0)
  assert checkpoints.read_weights(tmp_path)[0]
  monkeypatch.setattr(reading, "MAX_COMPRESSION", 0)
  with pytest.raises(schema.ConfigError, match=r"the files have [\d,]+ bytes, but the arrays need [\d,]+"):
    checkpoints.read_weights(tmp_path)


def test_a_chunk_that_is_larger_than_its_array_counts_in_full(tmp_path):
  (tmp_path / "file").write_bytes(bytes(1000))
  chunk = types.SimpleNamespace(chunk_shape=(2**28, 2))
  array = types.SimpleNamespace(shape=(2,), dtype="float32", storage=chunk)
  with pytest.raises(ValueError, match="the files have 1,000 bytes, but the arrays need 2,147,483,648"):
    reading._check_size(tmp_path, {"a": array})
  chunk.chunk_shape = (2,)
  reading._check_size(tmp_path, {"a": array})
