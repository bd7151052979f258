"""Figures against scikit-learn, FLOPs against XLA's count, rates, and files that survive a kill."""

import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss, precision_recall_fscore_support, top_k_accuracy_score

from vit_jax import metrics


@pytest.mark.parametrize(("images", "classes", "present"), [(1000, 10, 10), (37, 5, 3), (5, 100, 100), (1, 7, 7)])
def test_counts_equal_scikit_learn(images, classes, present):
  draw = np.random.default_rng(images)
  label = draw.integers(0, present, images).astype(np.int32)
  scores = draw.normal(size=(images, classes))
  scores[np.arange(images), label] += draw.integers(0, 4, images)
  best = np.argsort(-scores, axis=1, kind="stable")[:, : min(5, classes)].astype(np.int32)
  probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
  loss = -np.log(probabilities[np.arange(images), label])
  counts = metrics.Counts(classes)
  for part in np.array_split(np.arange(images), 3):
    counts.add(label[part], best[part], loss[part])
  found = counts.result()

  assert found.pop("images") == images
  expected = {
    "top1": accuracy_score(label, best[:, 0]),
    "top5": top_k_accuracy_score(label, scores, k=5, labels=np.arange(classes)) if classes > 5 else 1.0,
    "loss": log_loss(label, probabilities, labels=np.arange(classes)),
  }
  for average in ("weighted", "macro"):
    values = precision_recall_fscore_support(label, best[:, 0], average=average, zero_division=0)
    expected |= {f"{name}_{average}": value for name, value in zip(("precision", "recall", "f1"), values, strict=False)}
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    assert abs(found[name] - value) < 1e-12, name


@pytest.mark.parametrize("most", [1, 3, 8])
def test_counts_of_several_labels_equal_scikit_learn_on_indicators(most):
  draw = np.random.default_rng(most)
  images, classes = 400, 12
  labels = np.full((images, most), -1, np.int32)
  for row in labels:
    count = draw.integers(most > 1 and 0, most + 1) if most > 1 else 1
    row[:count] = draw.integers(0, 9, count)  # some twice; three classes never
  best = np.argsort(-draw.normal(size=(images, classes)), axis=1)[:, :5].astype(np.int32)
  counts = metrics.Counts(classes)
  for part in np.array_split(np.arange(images), 3):
    counts.add(labels[part], best[part], np.ones(len(part)))
  found = counts.result()

  sets = [set(row) - {-1} for row in labels.tolist()]
  assert found["top1"] == np.mean([b[0] in s for b, s in zip(best, sets, strict=True)])
  assert found["top5"] == np.mean([bool(s & set(b)) for b, s in zip(best.tolist(), sets, strict=True)])
  true, guessed = (np.zeros((images, classes), int) for _ in range(2))
  for i, s in enumerate(sets):
    true[i, list(s)] = 1
  guessed[np.arange(images), best[:, 0]] = 1
  for average in ("weighted", "macro"):
    values = precision_recall_fscore_support(true, guessed, average=average, zero_division=0)
    for name, value in zip(("precision", "recall", "f1"), values, strict=False):
      assert abs(found[f"{name}_{average}"] - value) < 1e-12, (name, average)


def test_flops_equal_xlas_count_where_nothing_loops():
  def network(x, kernel, w):
    y = jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.einsum("bhwc,cd->bd", y, w)

  shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 16, 16, 8), (4, 4, 8, 32), (32, 10))]
  by_hand = 2 * (4 * 8 * 8 * 32) * (4 * 4 * 8) + 2 * (4 * 8 * 8) * 32 * 10
  assert metrics.flops(network, *shapes) in (by_hand, by_hand - 2 * (4 * 8 * 8 - 4) * 32 * 10)


def test_flops_count_every_turn_of_a_loop():
  w = jax.ShapeDtypeStruct((7, 16, 16), jnp.float32)
  x = jax.ShapeDtypeStruct((4, 16), jnp.float32)

  def scanned(x, w):
    return jax.lax.scan(lambda x, w: (jax.checkpoint(jnp.dot)(x, w), None), x, w)[0]

  assert metrics.flops(scanned, x, w) == 7 * 2 * 4 * 16 * 16


def test_the_clock_leaves_pauses_out_and_starts_with_the_second_lap():
  clock = metrics.Clock(images=100, seconds=1.0)
  assert clock.lap(50) == {}
  assert clock.rate == 100
  with clock.wait():
    time.sleep(0.05)
  with clock.pause():
    time.sleep(0.5)
  rates = clock.lap(50)
  assert rates["images_per_second"] > 50 / 0.4  # 0.05 s of work; half a second more if the pause counted
  assert rates["data_wait"] > 0.1
  assert clock.images == 150


def test_lines_after_the_restart_step_and_torn_lines_are_dropped(tmp_path):
  file = tmp_path / "metrics.jsonl"
  file.write_text('{"step": 1, "a": 1.0}\n{"step": 2, "a": 2.0}\n{"step": 3, "a": 3.0}\n{"step": 3, "b')
  writer = metrics.Writer(tmp_path, 2, active=True)
  writer.write(3, {"a": 4.0})
  writer.close()
  lines = [json.loads(line) for line in file.read_text().splitlines()]
  assert lines == [{"step": 1, "a": 1.0}, {"step": 2, "a": 2.0}, {"step": 3, "a": 4.0}]


def test_tensorboard_reads_what_was_written(tmp_path):
  from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

  writer = metrics.Writer(tmp_path, 0, active=True)
  for step in (1, 2):
    writer.write(step, {"train/loss": 1 / step})
  writer.close()
  events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"tensors": 0})
  events.Reload()
  points = events.Tensors("train/loss") if "train/loss" in events.Tags()["tensors"] else events.Scalars("train/loss")
  assert [p.step for p in points] == [1, 2]


def test_other_processes_write_nothing(tmp_path):
  writer = metrics.Writer(tmp_path, 0, active=False)
  writer.write(1, {"a": 1.0})
  writer.close()
  assert not list(tmp_path.iterdir())
