"""Tests that runs with a workdir in a bucket match runs on a disk in bits, log lines and errors."""

import contextlib
import json
import pathlib

import jax
import pytest

from tests import runs
from tests.checkpoints.test_store import make_mesh, same, shapes_of
from tests.storage.test_errors import SAME, large
from vit_jax import checkpoints
from vit_jax.checkpoints import reading
from vit_jax.checkpoints import store as store_module
from vit_jax.parallel import sharding
from vit_jax.schema import ConfigError
from vit_jax.storage import files
from vit_jax.training import loop, writer

pytestmark = pytest.mark.heavy
RATES = ("images_per_second", "images_per_second_per_chip", "data_wait", "mfu")  # these differ between runs


@pytest.fixture(scope="module")
def parts():
  """A run of 12 steps on one device."""
  return runs.parts(1)


@pytest.fixture(scope="module")
def complete_run(parts, tmp_path_factory):
  """The workdir of the same run on a disk without faults."""
  workdir = tmp_path_factory.mktemp("whole")
  loop.train(parts, workdir)
  return workdir


def lines(workdir):
  """Returns the metrics of a workdir without rates."""
  rows = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
  return [{key: value for key, value in row.items() if key not in RATES} for row in rows]


@pytest.mark.long
def test_interrupted_run_in_a_bucket_resumes_exactly(parts, complete_run, bucket_server, bucket):
  with bucket_server.troubled(latency=0.005, busy=0.03, resets=0.02):
    with pytest.raises(InterruptedError):
      loop.train(runs.dying(parts, 5), bucket)
    assert sorted(path.name for path in (bucket / "checkpoints").iterdir()) == ["3"]
    result = loop.train(parts, bucket, profile=2)
  expected = json.loads((complete_run / "result.json").read_text())
  assert {key: result[key] for key in SAME} == {key: expected[key] for key in SAME}
  assert files.read_json(bucket / "result.json") == result
  assert (bucket / "config.json").read_text() == (complete_run / "config.json").read_text()
  assert lines(bucket) == lines(complete_run)
  assert result["goodput"]["attempts"] == 2
  assert [path.name for path in bucket.iterdir() if path.name == "tensorboard"]
  assert list((bucket / "tensorboard/plugins/profile").iterdir())
  assert not pathlib.Path("gs:").exists()


@pytest.mark.long
def test_lines_of_later_steps_are_removed_in_a_bucket_as_on_a_disk(tmp_path, bucket):
  text = '{"step": 1, "a": 1.0}\n{"step": 2, "a": 2.0}\n{"step": 3, "a": 3.0}\n{"step": 3, "b'
  for workdir in (tmp_path, bucket):
    (workdir / "metrics.jsonl").write_text(text)
    log = writer.Writer(workdir, 2, active=True)
    log.write(3, {"a": 4.0})
    log.close()
  expected = [{"step": 1, "a": 1.0}, {"step": 2, "a": 2.0}, {"step": 3, "a": 4.0}]
  for workdir in (tmp_path, bucket):
    assert [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()] == expected


@pytest.mark.long
def test_flush_writes_metrics_to_the_bucket(bucket):
  log = writer.Writer(bucket, 0, active=True)
  log.write(1, {"a": 1.0})
  assert not (bucket / "metrics.jsonl").exists()
  log.flush()
  assert (bucket / "metrics.jsonl").read_text() == '{"step": 1, "a": 1.0}\n'
  log.close()


@pytest.mark.long
def test_tensorboard_events_in_a_bucket_are_readable(tmp_path, bucket):
  from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

  log = writer.Writer(bucket, 0, active=True)
  for step in (1, 2, 3):
    log.write(step, {"train/loss": 1 / step})
  log.close()
  (file,) = (bucket / "tensorboard").iterdir()
  (tmp_path / file.name).write_bytes(file.read_bytes())
  events = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0})
  events.Reload()
  points = events.Tensors("train/loss") if "train/loss" in events.Tags()["tensors"] else events.Scalars("train/loss")
  assert [point.step for point in points] == [1, 2, 3]


# Checkpoints.


@pytest.fixture
def saved(bucket):
  """Saves three checkpoints, and returns the bucket and the states by step."""
  g = make_mesh(1)
  states = {step: large(step, g) for step in (1, 2, 3)}
  store = checkpoints.Checkpoints(bucket, sharding.make_replicated_sharding(g), keep=3)
  for step, state in states.items():
    store.save(step, state, {"step": step})
  store.close()
  return bucket, states


def restore(workdir, state, **options):
  store = checkpoints.Checkpoints(workdir, sharding.make_replicated_sharding(make_mesh(1)), keep=3, **options)
  try:
    return store.restore(shapes_of(state))
  finally:
    store.close()


@pytest.mark.long
def test_damaged_checkpoint_in_a_bucket_falls_back_to_the_previous_one(saved):
  workdir, states = saved
  folder = workdir / "checkpoints/3"
  (folder / "about/metadata").write_bytes(b"")
  before = {path.name for path in folder.iterdir()}
  state, about = restore(workdir, states[2])
  assert about == {"step": 2}
  assert same(state, states[2])
  assert sorted(path.name for path in (workdir / "checkpoints").iterdir()) == ["1", "2", "3.unreadable"]
  assert {path.name for path in (workdir / "checkpoints/3.unreadable").iterdir()} == before
  assert checkpoints.read_description(workdir) == {"step": 2}


@pytest.mark.long
def test_save_without_a_commit_marker_is_ignored(saved):
  workdir, states = saved
  (workdir / "checkpoints/3/commit_success.txt").unlink()
  assert checkpoints.read_description(workdir) == {"step": 2}
  assert checkpoints.has_checkpoint(workdir)
  arrays, about = checkpoints.read_weights(workdir)
  assert about == {"step": 2}
  assert {path: array.tobytes() for path, array in arrays.items()} == {
    path: jax.device_get(array).tobytes() for path, array in states[2].params.items()
  }
  assert restore(workdir, states[2])[1] == {"step": 2}
  assert sorted(path.name for path in (workdir / "checkpoints").iterdir()) == ["1", "2"]  # the third is removed


@pytest.mark.long
def test_remains_of_killed_saves_are_removed_before_steps_are_listed(bucket, bucket_server):
  for name in ("4/state/d/1", "4/about/metadata", "8/state/manifest.ocdbt"):
    (bucket / "checkpoints" / name).write_text("half")
  with bucket_server.troubled(latency=0.05):
    store = checkpoints.Checkpoints(bucket, sharding.make_replicated_sharding(make_mesh(1)))
    assert not (bucket / "checkpoints").exists()
  assert store.list_steps() == []
  store.close()


@pytest.mark.long
def test_forbidden_reads_from_a_bucket_damage_no_checkpoint(saved, bucket_server):
  workdir, states = saved
  store = checkpoints.Checkpoints(workdir, sharding.make_replicated_sharding(make_mesh(1)), keep=3)
  with bucket_server.troubled(refused=True), pytest.raises(PermissionError):
    store.restore(shapes_of(states[3]))
  store.close()
  with bucket_server.troubled(refused=True), pytest.raises(PermissionError) as error:
    checkpoints.Checkpoints(workdir, sharding.make_replicated_sharding(make_mesh(1)), read_only=True)
  assert "could not be saved" not in str(error.value)  # the folder is only read
  assert sorted(path.name for path in (workdir / "checkpoints").iterdir()) == ["1", "2", "3"]


def test_forbidden_save_to_a_bucket_keeps_the_last_checkpoint(saved, bucket_server):
  workdir, states = saved
  store = checkpoints.Checkpoints(workdir, sharding.make_replicated_sharding(make_mesh(1)), keep=3)
  with bucket_server.troubled(refused=True), pytest.raises(PermissionError, match="could not be saved") as error:
    store.save(4, large(4, make_mesh(1)), {})
    store.wait()
  assert error.value.filename == str(workdir / "checkpoints")
  with contextlib.suppress(OSError):
    store.close()
  assert same(restore(workdir, states[3])[0], states[3])


@pytest.mark.long
@pytest.mark.parametrize("gone", ["state/manifest.ocdbt", "about/metadata"])
def test_unreadable_save_in_a_bucket_removes_no_checkpoint(saved, monkeypatch, gone):
  workdir, states = saved
  check = store_module.check_readable
  monkeypatch.setattr(store_module, "check_readable", lambda folder: ((folder / gone).unlink(), check(folder)))
  store = checkpoints.Checkpoints(workdir, sharding.make_replicated_sharding(make_mesh(1)), keep=1)
  with pytest.raises(OSError, match=r"cannot be read back.*The last complete checkpoint is step 3"):
    store.save(4, large(4, make_mesh(1)), {})
  with contextlib.suppress(OSError):
    store.close()
  assert reading.list_steps(workdir) == [1, 2, 3]
  assert same(restore(workdir, states[3])[0], states[3])


def test_bucket_path_unsuitable_for_checkpoints_is_an_early_error(bucket):
  with pytest.raises(ConfigError, match="cannot be saved under a name with '\\['"):
    checkpoints.Checkpoints(bucket / "a[1", sharding.make_replicated_sharding(make_mesh(1)))
  assert not bucket.exists()
