"""Tests that checkpoints are restored exactly on any mesh, and that damaged ones are renamed and never deleted."""

import contextlib
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax import checkpoints, config, runtime
from vit_jax.checkpoints import reading, store
from vit_jax.parallel import sharding
from vit_jax.training import steps

pytestmark = pytest.mark.heavy


def make_mesh(count=8, **sizes):
  return sharding.make_mesh(config.Mesh(**sizes), jax.devices()[:count])


def state(step, mesh, spec=PartitionSpec(("data", "fsdp"))):
  draw = np.random.default_rng(step)
  split = NamedSharding(mesh, spec)
  params = {
    "blocks/0/kernel": jax.device_put(draw.normal(size=(16, 4)).astype(np.float32), split),
    "head/bias": jax.device_put(draw.normal(size=(3,)).astype(np.float32), sharding.make_replicated_sharding(mesh)),
  }
  half = jax.device_put(draw.normal(size=(8,)).astype(jnp.bfloat16), sharding.make_replicated_sharding(mesh))
  return steps.State(jax.device_put(np.int32(step), sharding.make_replicated_sharding(mesh)), params, {}, {"mu": half})


def shapes_of(tree):
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def same(a, b):
  return all(
    np.array_equal(np.asarray(x), np.asarray(y)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  )


def save_states(folder, numbers, mesh, **options):
  store = checkpoints.Checkpoints(folder, sharding.make_replicated_sharding(mesh), **options)
  for number in numbers:
    store.save(number, state(number, mesh), {"seconds": float(number)})
  store.wait()
  return store


def test_newest_two_and_every_kth_checkpoint_are_kept(tmp_path):
  store = save_states(tmp_path, (10, 20, 30, 40, 50, 60), make_mesh(), keep=2, keep_every=30)
  assert store.list_steps() == [30, 50, 60]


def test_relative_path_is_restored(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  mesh = make_mesh()
  save_states(pathlib.Path("run"), (10,), mesh).close()
  restored, about = checkpoints.Checkpoints(pathlib.Path("run"), sharding.make_replicated_sharding(mesh)).restore(
    shapes_of(state(10, mesh))
  )
  assert same(restored, state(10, mesh)) and about == {"seconds": 10.0}


def test_only_large_replicated_arrays_are_divided_among_devices(tmp_path):
  replicated = sharding.make_replicated_sharding(make_mesh())
  arrays = {"small": (8, 2**14 - 1), "large": (8, 2**14)}  # float32: slices of slightly less and of exactly 64 KiB
  with contextlib.closing(checkpoints.Checkpoints(tmp_path, replicated)) as saves:
    saves.save(1, {name: jax.device_put(np.ones(shape, np.float32), replicated) for name, shape in arrays.items()}, {})
    saves.wait()
  stored = ocp.PyTreeCheckpointHandler().metadata(tmp_path / "checkpoints/1/state").tree
  assert {name: tuple(array.storage.write_shape or array.storage.chunk_shape) for name, array in stored.items()} == {
    "small": arrays["small"],
    "large": (1, 2**14),
  }


@pytest.mark.parametrize(("count", "sizes"), [(8, {"data": 1, "fsdp": 8}), (4, {"fsdp": 2}), (1, {})])
def test_checkpoint_is_restored_onto_another_mesh(tmp_path, count, sizes):
  save_states(tmp_path, (5,), make_mesh()).close()
  other = make_mesh(count, **sizes)
  wanted = state(5, other, PartitionSpec("fsdp"))
  found, about = checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(other)).restore(shapes_of(wanted))
  assert same(found, wanted)
  assert found.params["blocks/0/kernel"].sharding == wanted.params["blocks/0/kernel"].sharding
  assert about == {"seconds": 5.0}


def test_restoring_from_an_empty_workdir_returns_no_state(tmp_path):
  mesh = make_mesh()
  assert (
    checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(mesh)).restore(shapes_of(state(0, mesh)))
    is None
  )


def parts_of(folder):
  """Returns one file of each important type: array data, array index, fingerprint."""
  data = max((f for f in folder.glob("state/d/*")), key=lambda f: f.stat().st_size)
  return {"data": data, "index": folder / "state/manifest.ocdbt", "fingerprint": folder / "about/metadata"}


DAMAGES = {
  "truncated": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
  "emptied": lambda file: file.write_bytes(b""),
  "flipped": lambda file: file.write_bytes(bytes([file.read_bytes()[0] ^ 0xFF]) + file.read_bytes()[1:]),
  "removed": lambda file: file.unlink(),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("part", ["data", "index", "fingerprint"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_newest_checkpoint_is_renamed_and_the_previous_one_used(tmp_path, caplog, part, damage):
  mesh = make_mesh()
  save_states(tmp_path, (1, 2), mesh).close()
  DAMAGES[damage](parts_of(tmp_path / "checkpoints/2")[part])
  store = checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(mesh))
  found, _ = store.restore(shapes_of(state(1, mesh)))
  assert same(found, state(1, mesh))
  assert (tmp_path / "checkpoints/2.unreadable").is_dir()
  assert "checkpoint 2 cannot be read" in caplog.text
  assert store.list_steps() == [1]
  store.save(2, state(2, mesh), {})  # the step is free again
  store.wait()
  assert store.list_steps() == [1, 2]


def test_values_that_differ_from_the_fingerprint_are_rejected(tmp_path):
  """The files are intact but contain other values, which checksums of files do not detect."""
  mesh = make_mesh()
  store = save_states(tmp_path, (1, 2), mesh)
  store.close()
  about = tmp_path / "checkpoints/2/about/metadata"
  about.write_text((tmp_path / "checkpoints/1/about/metadata").read_text())
  found, _ = checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(mesh)).restore(
    shapes_of(state(1, mesh))
  )
  assert int(found.step) == 1


def test_run_stops_without_changes_if_every_checkpoint_is_damaged(tmp_path):
  mesh = make_mesh()
  save_states(tmp_path, (1, 2), mesh).close()
  for step in (1, 2):
    DAMAGES["emptied"](parts_of(tmp_path / f"checkpoints/{step}")["index"])
  before = sorted(f.relative_to(tmp_path) for f in tmp_path.rglob("*"))
  with pytest.raises(runtime.Stop, match=r"no checkpoint can be read(.|\n)*checkpoints/2") as stop:
    checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(mesh)).restore(shapes_of(state(1, mesh)))
  assert stop.value.code == 45
  assert sorted(f.relative_to(tmp_path) for f in tmp_path.rglob("*")) == before


def test_read_only_store_does_not_rename_checkpoints(tmp_path):
  mesh = make_mesh()
  save_states(tmp_path, (1, 2), mesh).close()
  DAMAGES["emptied"](parts_of(tmp_path / "checkpoints/2")["index"])
  store = checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(mesh), read_only=True)
  found, _ = store.restore(shapes_of(state(1, mesh)))
  assert int(found.step) == 1
  assert (tmp_path / "checkpoints/2").is_dir()


def remove_manifest(folder):
  """Removes the manifest of all arrays, which Orbax does not write for names with brackets (a bug)."""
  (folder / "state/manifest.ocdbt").unlink()


def rename_array(folder):
  (folder / "state/_METADATA").write_text(re.sub("head/bias", "head/bios", (folder / "state/_METADATA").read_text()))


def write_zeros(folder):
  for file in (folder / "state").rglob("d/*"):
    file.write_bytes(bytes(file.stat().st_size))


def remove_description(folder):
  (folder / "about/metadata").unlink()


UNREADABLE = [remove_manifest, rename_array, write_zeros, remove_description]


@pytest.fixture
def spoiled(monkeypatch):
  """Returns an empty list. Functions that a test appends damage each save before it is read back."""
  spoilers, check = [], store.check_readable

  def spoil(folder):
    for spoiler in spoilers:
      spoiler(folder)
    check(folder)

  monkeypatch.setattr(store, "check_readable", spoil)
  return spoilers


@pytest.mark.parametrize("spoiler", UNREADABLE, ids=lambda spoiler: spoiler.__name__)
def test_unreadable_save_is_discarded_and_removes_no_checkpoint(tmp_path, spoiled, spoiler):
  mesh = make_mesh()
  checkpoint = save_states(tmp_path, (10, 20), mesh, keep=2)
  spoiled.append(spoiler)
  with pytest.raises(OSError, match=r"could not be saved: the data that were written cannot be read back \(") as error:
    checkpoint.save(30, state(30, mesh), {})
    checkpoint.save(40, state(40, mesh), {})
  code, line = runtime.describe_exit(error.value)
  assert code == runtime.EXIT_CONFIG and len(line.splitlines()) == 1
  assert "The last complete checkpoint is step 20" in line and str(tmp_path / "checkpoints") in line
  with contextlib.suppress(OSError):
    checkpoint.close()
  assert reading.list_steps(tmp_path) == [10, 20]
  again = checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(mesh))
  assert same(again.restore(shapes_of(state(20, mesh)))[0], state(20, mesh))
  again.close()


def test_first_save_of_a_process_is_read_back_before_it_returns(tmp_path, spoiled):
  spoiled.append(remove_manifest)
  checkpoint = checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(make_mesh()))
  with pytest.raises(OSError, match=r"cannot be read back.*No earlier checkpoint exists"):
    checkpoint.save(10, state(10, make_mesh()), {})
  assert reading.list_steps(tmp_path) == []


def test_reading_back_covers_metadata_manifest_and_two_arrays(tmp_path, monkeypatch):
  save_states(tmp_path, (10,), make_mesh()).close()
  read = []
  monkeypatch.setattr(reading, "_read_arrays", lambda state, wanted: read.append(set(wanted)) or {})
  reading.check_readable(tmp_path / "checkpoints/10")
  # Of the arrays with at most 16 bytes, the half-precision array with 8 values is the largest.
  monkeypatch.setattr(reading, "MAX_READ_BACK_BYTES", 16)
  reading.check_readable(tmp_path / "checkpoints/10")
  assert read == [{"step", "params/blocks/0/kernel"}, {"step", "optimizer/mu"}]


def test_partial_save_of_a_killed_run_is_ignored(tmp_path):
  mesh = make_mesh()
  save_states(tmp_path, (1,), mesh).close()
  half = tmp_path / "checkpoints/2.orbax-checkpoint-tmp"
  (half / "state").mkdir(parents=True)
  assert checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(mesh)).list_steps() == [1]
