"""Checkpoints: what is read is what was saved, on any mesh; what is broken is set aside and never deleted."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax import checkpoints, config, mesh, runtime, steps

pytestmark = pytest.mark.heavy


def grid(count=8, **sizes):
  return mesh.make(config.Mesh(**sizes), jax.devices()[:count])


def state(step, g, spec=PartitionSpec(("data", "fsdp"))):
  draw = np.random.default_rng(step)
  split = NamedSharding(g, spec)
  params = {
    "blocks/0/kernel": jax.device_put(draw.normal(size=(16, 4)).astype(np.float32), split),
    "head/bias": jax.device_put(draw.normal(size=(3,)).astype(np.float32), mesh.replicated(g)),
  }
  half = jax.device_put(draw.normal(size=(8,)).astype(jnp.bfloat16), mesh.replicated(g))
  return steps.State(jax.device_put(np.int32(step), mesh.replicated(g)), params, {}, {"mu": half})


def shapes_of(tree):
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def same(a, b):
  return all(
    np.array_equal(np.asarray(x), np.asarray(y)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  )


def saved(folder, numbers, g, **options):
  store = checkpoints.Checkpoints(folder, mesh.replicated(g), **options)
  for number in numbers:
    store.save(number, state(number, g), {"seconds": float(number)})
  store.wait()
  return store


def test_the_newest_two_and_every_kth_are_kept(tmp_path):
  store = saved(tmp_path, (10, 20, 30, 40, 50, 60), grid(), keep=2, keep_every=30)
  assert store.steps() == [30, 50, 60]


def test_a_folder_named_from_the_current_one_is_read_too(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  g = grid()
  saved(pathlib.Path("run"), (10,), g).close()
  restored, about = checkpoints.Checkpoints(pathlib.Path("run"), mesh.replicated(g)).restore(shapes_of(state(10, g)))
  assert same(restored, state(10, g)) and about == {"seconds": 10.0}


@pytest.mark.parametrize(("count", "sizes"), [(8, {"data": 1, "fsdp": 8}), (4, {"fsdp": 2}), (1, {})])
def test_a_checkpoint_is_read_onto_other_devices(tmp_path, count, sizes):
  saved(tmp_path, (5,), grid()).close()
  other = grid(count, **sizes)
  wanted = state(5, other, PartitionSpec("fsdp"))
  found, about = checkpoints.Checkpoints(tmp_path, mesh.replicated(other)).restore(shapes_of(wanted))
  assert same(found, wanted)
  assert found.params["blocks/0/kernel"].sharding == wanted.params["blocks/0/kernel"].sharding
  assert about == {"seconds": 5.0}


def test_there_is_nothing_to_restore_in_an_empty_workdir(tmp_path):
  g = grid()
  assert checkpoints.Checkpoints(tmp_path, mesh.replicated(g)).restore(shapes_of(state(0, g))) is None


def parts_of(folder):
  """One file of each kind whose loss matters: array data, array index, fingerprint."""
  data = max((f for f in folder.glob("state/d/*")), key=lambda f: f.stat().st_size)
  return {"data": data, "index": folder / "state/manifest.ocdbt", "fingerprint": folder / "about/metadata"}


DAMAGES = {
  "truncated": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
  "emptied": lambda file: file.write_bytes(b""),
  "flipped": lambda file: file.write_bytes(bytes([file.read_bytes()[0] ^ 0xFF]) + file.read_bytes()[1:]),
  "removed": lambda file: file.unlink(),
}


@pytest.mark.parametrize("part", ["data", "index", "fingerprint"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_is_set_aside_and_the_one_before_is_used(tmp_path, caplog, part, damage):
  g = grid()
  saved(tmp_path, (1, 2), g).close()
  DAMAGES[damage](parts_of(tmp_path / "checkpoints/2")[part])
  store = checkpoints.Checkpoints(tmp_path, mesh.replicated(g))
  found, _ = store.restore(shapes_of(state(1, g)))
  assert same(found, state(1, g))
  assert (tmp_path / "checkpoints/2.unreadable").is_dir()
  assert "checkpoint 2 cannot be read" in caplog.text
  assert store.steps() == [1]
  store.save(2, state(2, g), {})  # the step is free again
  store.wait()
  assert store.steps() == [1, 2]


def test_values_that_are_not_those_saved_are_noticed(tmp_path):
  """Intact files with other numbers: what no checksum of a file can see."""
  g = grid()
  store = saved(tmp_path, (1, 2), g)
  store.close()
  about = tmp_path / "checkpoints/2/about/metadata"
  about.write_text((tmp_path / "checkpoints/1/about/metadata").read_text())
  found, _ = checkpoints.Checkpoints(tmp_path, mesh.replicated(g)).restore(shapes_of(state(1, g)))
  assert int(found.step) == 1


def test_when_none_can_be_read_the_run_ends_and_nothing_changes(tmp_path):
  g = grid()
  saved(tmp_path, (1, 2), g).close()
  for step in (1, 2):
    DAMAGES["emptied"](parts_of(tmp_path / f"checkpoints/{step}")["index"])
  before = sorted(f.relative_to(tmp_path) for f in tmp_path.rglob("*"))
  with pytest.raises(runtime.Stop, match=r"none of the checkpoints can be read(.|\n)*checkpoints/2") as stop:
    checkpoints.Checkpoints(tmp_path, mesh.replicated(g)).restore(shapes_of(state(1, g)))
  assert stop.value.code == 45
  assert sorted(f.relative_to(tmp_path) for f in tmp_path.rglob("*")) == before


def test_a_reader_renames_nothing(tmp_path):
  g = grid()
  saved(tmp_path, (1, 2), g).close()
  DAMAGES["emptied"](parts_of(tmp_path / "checkpoints/2")["index"])
  store = checkpoints.Checkpoints(tmp_path, mesh.replicated(g), read_only=True)
  found, _ = store.restore(shapes_of(state(1, g)))
  assert int(found.step) == 1
  assert (tmp_path / "checkpoints/2").is_dir()


def test_a_save_that_was_killed_is_not_seen(tmp_path):
  g = grid()
  saved(tmp_path, (1,), g).close()
  half = tmp_path / "checkpoints/2.orbax-checkpoint-tmp"
  (half / "state").mkdir(parents=True)
  assert checkpoints.Checkpoints(tmp_path, mesh.replicated(g)).steps() == [1]
