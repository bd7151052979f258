"""Exact evaluation: padded rows never count, and neither batch size nor devices change a figure."""

import jax
import numpy as np
import pytest
import tiny
from sklearn.metrics import precision_recall_fscore_support

from vit_jax import build
from vit_jax.evals.accuracy import accuracy


def test_padding_does_not_count_and_every_batch_is_polled():
  batches = [{"row": np.arange(i, i + 4)} for i in (0, 4, 8)]
  label = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 9, 9])
  best = np.stack([label % 3, (label + 1) % 3], 1)
  best[[1, 5]] = [[2, 0], [0, 1]]
  mask = (np.arange(12) < 10).astype(np.float32)

  def predict(params, batch):
    rows = batch["row"]
    return {"label": label[rows], "best": best[rows], "loss": rows.astype(np.float32), "mask": mask[rows]}

  polls = []
  measure = accuracy(predict, lambda split, size: (batch for batch in batches), 3, 4, split="test")
  found = measure({}, lambda: polls.append(1))
  assert found["images"] == 10
  assert found["top1"] == 0.8
  assert found["loss"] == np.arange(10).mean()
  assert found["f1_macro"] == pytest.approx(
    precision_recall_fscore_support(label[:10], best[:10, 0], average="macro", zero_division=0)[2], abs=1e-12
  )
  assert len(polls) == 3


def test_several_labels_may_be_right():
  label = np.array([[0, 2, -1], [1, -1, -1], [3, 4, 5], [-1, -1, -1]])
  best = np.array([[2, 1], [0, 1], [6, 0], [0, 1]])

  def predict(params, batch):
    return {"label": label, "best": best, "loss": np.zeros(4), "mask": np.array([1.0, 1, 1, 0])}

  measure = accuracy(predict, lambda split, size: iter_once(), 7, 4, split="test")
  found = measure({}, lambda: None)
  assert (found["images"], found["top1"], found["top5"]) == (3, 1 / 3, 2 / 3)


def iter_once():
  """One batch, with a close."""
  yield {}


@pytest.fixture(scope="module")
def reference():
  parts = tiny.parts(1)
  return jax.device_get(parts.init().params), {}


@pytest.mark.parametrize(("devices", "batch"), [(1, 16), (8, 16), (8, 200), (4, 360), (8, 8)])
def test_batch_size_and_devices_change_no_figure(reference, devices, batch):
  params, seen = reference
  parts = tiny.parts(devices, evals__test__batch=batch)
  shardings = jax.tree.map(lambda s: s.sharding, parts.state_shapes.params)
  found = parts.evals["test"].measure(jax.device_put(params, shardings), lambda: None)
  assert found["images"] == 360
  loss = found.pop("loss")
  first = seen.setdefault("loss", loss), seen.setdefault("figures", found)
  assert loss == pytest.approx(first[0], abs=1e-6)
  assert found == first[1]


def test_any_split_of_the_data_can_be_measured(reference):
  run = tiny.run(evals__test__split="train[:100]")
  parts = build.build(run, jax.devices()[:1])
  assert parts.evals["test"].measure(reference[0], lambda: None)["images"] == 100
