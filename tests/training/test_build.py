"""Assembly: nothing is allocated before it is asked for, and state is born where it lives."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests import runs
from vit_jax import config, trees
from vit_jax.config import flags
from vit_jax.data import catalog
from vit_jax.schema import ConfigError
from vit_jax.training import build

pytestmark = pytest.mark.heavy


def test_parameters_and_optimizer_state_are_born_sharded():
  parts = runs.parts(8, **{"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2, "model.heads": 2})
  state = parts.create_initial_state()
  for name, leaf in trees.flatten(state).items():
    assert leaf.sharding == trees.flatten(parts.state_shapes)[name].sharding, name
  query = state.params["blocks/0/attention/query/kernel"]
  assert query.sharding.spec == P("fsdp", "tensor", None)
  adam = [
    leaf for name, leaf in trees.flatten(state.optimizer).items() if name.endswith("blocks/0/attention/query/kernel")
  ]
  assert len(adam) == 2
  assert all(leaf.sharding == query.sharding for leaf in adam)


@pytest.mark.long
def test_the_step_keeps_every_array_where_it_was():
  parts = runs.parts(8, **{"mesh.data": 2, "mesh.fsdp": 4})
  batches = parts.open_batches(0)
  state, _ = parts.step(parts.create_initial_state(), next(batches), {})
  batches.close()
  expected = trees.flatten(parts.state_shapes)
  assert all(leaf.sharding == expected[name].sharding for name, leaf in trees.flatten(state).items())


@pytest.mark.long
def test_all_devices_start_with_the_same_numbers():
  one, eight = (
    runs.parts(1).create_initial_state(),
    runs.parts(8, **{"mesh.data": 1, "mesh.fsdp": 8}).create_initial_state(),
  )
  for path, value in one.params.items():
    np.testing.assert_array_equal(value, eight.params[path], err_msg=path)


def test_the_stream_begins_at_any_step():
  parts = runs.parts(2)
  stream = parts.open_batches(0)
  expected = [jax.device_get(next(stream)) for _ in range(4)][3]
  stream.close()
  stream = parts.open_batches(3)
  found = jax.device_get(next(stream))
  stream.close()
  assert found.keys() == parts.batch_shapes.keys()
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value)
    assert (found[name].shape, found[name].dtype) == (parts.batch_shapes[name].shape, parts.batch_shapes[name].dtype)


def test_what_is_printed_first_says_the_order_that_is_not_the_usual_one():
  assert " images, batch " in runs.parts(1).format_overview()
  blocks = {"data.order.name": "blocks", "data.order.size": 8, "data.order.window": 4}
  assert (
    " images in blocks of 8, shuffled over windows of 4 blocks, batch " in runs.parts(1, **blocks).format_overview()
  )


def test_images_may_have_several_labels():
  def listed(choice, split):
    """The digits, each also said to be one more, modulo ten; even ones only that."""
    source = catalog.open_split(choice, split)

    def read(i):
      image, label = source.read(i)
      return image, ((label + 1) % 10,) if label % 2 == 0 else (label, (label + 1) % 10)

    return dataclasses.replace(source, read=read, labels=3)

  runs.parts(1)  # the data are there
  parts = build.build(runs.run(task__loss="sigmoid"), jax.devices(), listed)
  batches = parts.open_batches(0)
  batch = next(batches)
  batches.close()
  assert batch["label"].shape == parts.batch_shapes["label"].shape == (16, 3)
  state, metrics = parts.step(parts.create_initial_state(), batch, {})
  # Ten decisions at even odds for each image, before anything is learned: the head starts at zero.
  assert float(metrics["loss"]) == pytest.approx(10 * np.log(2), rel=0.2)
  figures = parts.evals["test"].measure(state.params, lambda: None).figures
  assert figures["images"] == 360 and 0 <= figures["top1"] <= figures["top5"] <= 1


def test_flops_are_those_of_the_published_model():
  run = runs.run(model__depth="default", model__width="default", model__heads="default", model__hidden="default")
  parts = build.build(run, jax.devices())
  assert parts.forward_flops / 2 == pytest.approx(0.035e9, rel=0.02)  # 0.035 G multiply-adds, with attention


def test_e6_the_overview_names_the_definition_of_its_flops():
  parts = runs.parts(1)
  assert f"{parts.forward_flops / 1e9:.3g} GFLOP per image (forward pass); " in parts.format_overview()


@pytest.mark.parametrize("frozen", ["['blocks/.*']", "['embedding/.*', 'position/table']"])
def test_frozen_parameters_hold_no_optimizer_state_and_stay(frozen):
  parts = runs.parts(8, optim__frozen=frozen, **{"mesh.fsdp": 2})
  batches = parts.open_batches(0)
  state = parts.create_initial_state()
  before = jax.device_get(state.params)
  state, _ = parts.step(state, next(batches), {})
  state, _ = parts.step(state, next(batches), {})
  batches.close()
  held = [
    path for path in before if path.startswith(("blocks/",) if "blocks" in frozen else ("embedding/", "position/"))
  ]
  assert held
  for path in before:
    same = np.array_equal(before[path], state.params[path])
    assert same == (path in held or path == "pool/score/bias"), path
    assert (path in held) != any(path in name for name in trees.flatten(state.optimizer)), path


@pytest.mark.long
@pytest.mark.parametrize("changes", [{"model.scan": "true"}, {"model.remat": "full"}, {"model.dtype": "bfloat16"}])
def test_the_models_switches_reach_it_from_the_config(changes):
  parts = runs.parts(8, **changes)
  batches = parts.open_batches(0)
  state, metrics = parts.step(parts.create_initial_state(), next(batches), {})
  batches.close()
  assert np.isfinite(metrics["loss"])
  assert all(value.dtype == np.float32 for value in state.params.values())
  assert any("blocks/attention" in path for path in state.params) == ("model.scan" in changes)


@pytest.mark.parametrize(("total", "warmup"), [("30000ep", "40k"), ("3ep", "400k"), ("100", "2ep"), ("4000Mex", "10k")])
def test_schedule_that_some_data_can_fit_is_accepted(total, warmup):
  assert runs.run(total=total, optim__warmup=warmup).total == total


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"schedule.cooldown": "120%", "warmup": "10%"},
      r"schedule\.cooldown: the run of 90ep is too short for warmup=10% and schedule\.cooldown=120%",
    ),
    ({"warmup": "100ep"}, r"warmup: the run of 90ep is too short for warmup=100ep"),
    ({"schedule.end": "1"}, r"schedule\.end: 1\.0 is above the peak, lr 0\.001"),
  ],
)
def test_schedule_that_no_data_can_fit_is_an_error_before_the_data_are_read(tmp_path, changes, message):
  words = {f"optim.{key}": text for key, text in changes.items()} | {"data.path": str(tmp_path / "absent")}
  run = config.resolve(flags.load_config(f"{runs.ROOT}/configs/folder.py", words))
  with pytest.raises(ConfigError, match=rf"^config\.optim\.{message}"):
    build.complete(run)


def test_warmup_in_steps_may_fit_depending_on_the_number_of_images(tmp_path):
  words = {"optim.warmup": "10k", "data.path": str(tmp_path / "absent")}
  build.complete(config.resolve(flags.load_config(f"{runs.ROOT}/configs/folder.py", words)))
