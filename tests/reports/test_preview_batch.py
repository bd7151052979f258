"""Tests that the preview of the first batch matches the computation of the first training step."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import runs
from tests.corpora import folders
from vit_jax import rng, tasks
from vit_jax.data import augment, catalog
from vit_jax.data.mixup import MIXINGS
from vit_jax.reports import preview_batch
from vit_jax.schema import Choice, read_keywords
from vit_jax.training import build

DRAWN = {
  "data.policy.name": "randaugment", "data.erasing.name": "random", "data.mixing.name": "mixup_cutmix",
  "data.mixing.mode": "elem", "data.erasing.fill": "zero", "task.label_smoothing": "0.1",
}  # fmt: skip


@pytest.mark.heavy
def test_first_images_match_the_first_training_step(tmp_path):
  root = folders.folder(tmp_path, 40)
  run = runs.run("configs/folder.py", runs.IMAGENET | DRAWN, data__path=root, data__test="train")
  parts = build.build(run, jax.devices()[:1])
  assert parts.task.fields.patch == 16
  whole = next(batches := parts.open_batches(0))
  batches.close()

  @jax.jit
  def first_step(rows, step):
    return parts.task.examples(rows, tasks.Context(step, {}, {}), rng.derive_key(run.seed, step, "augment"))

  expected = first_step(whole, jnp.zeros((), jnp.int32))
  examples, exact = preview_batch.compute_first_images(run, parts.images.source, 10)
  assert exact and len(examples) == 10
  mixed = 0
  for row, example in enumerate(examples):
    image = np.asarray(expected["image"][row], np.float32).reshape(2, 2, 16, 16, 3).swapaxes(1, 2).reshape(32, 32, 3)
    assert np.abs(example.seen - np.clip((image * 0.5 + 0.5) * 255, 0, 255)).max() <= 0.5 + 1e-3
    target = np.zeros(2)
    for label, share in example.target:
      target[label] = share
    np.testing.assert_allclose(0.9 * target + 0.1 / 2, expected["target"][row], atol=6e-3)
    mixed += 0.01 < target[0] < 0.99
    assert example.record == parts.images.record(row)
    assert example.labels == (parts.images.source.label(example.record),)
    assert example.original.shape == (40, 50, 3)
  assert mixed > 1


@pytest.mark.heavy
@pytest.mark.parametrize("name", MIXINGS)
def test_mixing_depends_only_on_the_row_and_its_partner(name):
  """Checks every mixing, because the preview of a new mixing that reads other rows would be incorrect."""
  # all other mixings reverse the batch
  options = {"partner": "rolled"} if "partner" in read_keywords(MIXINGS[name]) else {}
  function = augment.build("float32", 0, None, lambda duration: 1, mixing=Choice(name, options))
  images = np.random.default_rng(0).integers(0, 256, (40, 6, 6, 3), dtype=np.uint8)
  targets, draws = np.eye(40, dtype=np.float32), np.arange(40, dtype=np.uint32)

  def mixed(rows):
    return jax.jit(function)(jax.random.key(3), images[rows], targets[rows], draws[rows], 0)

  for few, all_ in zip(mixed(preview_batch.select_rows(40, 5)), mixed(list(range(40))), strict=True):
    np.testing.assert_allclose(few[:5], all_[:5], atol=1e-6)


@pytest.mark.heavy
def test_first_view_of_each_image_is_shown_for_self_distillation(tmp_path):
  root = folders.folder(tmp_path, 8)
  small = {"data.name": "folder", "data.path": str(root), "data.test": "train", "batch": "8", "total": "2"}
  run = dataclasses.replace(runs.run("configs/dino.py:glyphs", small), evals={})
  parts = build.build(run, jax.devices()[:1])
  whole = next(batches := parts.open_batches(0))
  batches.close()
  examples, exact = preview_batch.compute_first_images(run, parts.images.source, 5)
  assert exact and len(examples) == 5
  for row, example in enumerate(examples):
    cut = np.asarray(whole["global"][row, 0]).reshape(8, 8, 4, 4, 3).swapaxes(1, 2).reshape(32, 32, 3)
    np.testing.assert_array_equal(example.seen, cut)
    assert example.target == () and example.original.shape == (40, 50, 3)


def test_selected_rows_are_the_shown_rows_and_their_partners():
  assert preview_batch.select_rows(64, 3) == [0, 1, 2, 61, 62, 63]
  assert preview_batch.select_rows(4, 3) == [0, 1, 2, 3] == preview_batch.select_rows(4, 24)


@pytest.mark.heavy
def test_bad_image_is_reported_or_replaced_as_in_the_run(tmp_path):
  root = folders.folder(tmp_path, 8)
  for file in (root / "train/cat").iterdir():
    file.write_bytes(file.read_bytes()[:100] if file.name in ("0.jpg", "1.jpg") else file.read_bytes())
  run = runs.run("configs/folder.py", runs.IMAGENET, data__path=root, batch=16, data__test="train", data__validation=0)
  run = dataclasses.replace(run, evals={})
  source = catalog.open_split(run.data, "train")
  ends, _ = preview_batch.compute_first_images(run, source)
  assert [example.error is None for example in ends].count(False) == 2
  assert all("not a complete image" in example.error for example in ends if example.error)
  skipping = dataclasses.replace(run, data=run.data.replace(on_error="skip"))
  replaced, _ = preview_batch.compute_first_images(skipping, source)
  assert all(example.error is None and example.seen.shape == (32, 32, 3) for example in replaced)
  names = {source.identify(example.record) for example in replaced}
  assert not names & {"train/cat/0.jpg", "train/cat/1.jpg"}
