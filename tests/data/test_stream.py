"""Tests of the stream of batches.

It is a pure function of (seed, step), with each record once per epoch. Bad images are named or replaced.
"""

import collections

import cv2
import numpy as np
import pytest
from einops import rearrange

from tests.streams import RANDOM, evaluation, file, records, same, source, train, training
from vit_jax import rng, schema
from vit_jax.data import catalog, crops, images, randaugment, sources, stream
from vit_jax.data.views import Fields


@pytest.mark.parametrize(("count", "batch"), [(60, 20), (70, 16), (1, 4), (5, 12), (300, 100)])
def test_every_epoch_is_a_new_permutation(count, batch):
  steps = -(-3 * count // batch)
  batches = train(source(count), batch, steps)
  seen = records(batches)[: 3 * count].reshape(3, count)
  for epoch in seen:
    assert sorted(epoch) == list(range(count))
  if count > 1:
    assert len({tuple(epoch) for epoch in seen}) == 3
  np.testing.assert_array_equal(np.concatenate([b["label"] for b in batches])[: 3 * count], seen.ravel() % 3)
  for b in batches:
    assert {name: (array.dtype, array.shape[1:]) for name, array in b.items()} == {
      "image": (np.uint8, (2, 2, 3)),
      "label": (np.int32, ()),
      "draw": (np.uint32, ()),
    }


def test_permutation_is_uncorrelated_with_the_order_of_records():
  seen = records(train(source(2000), 500, 4))
  # A random permutation has one fixed point on average. Its correlation with the order is 0 +- 0.022.
  assert (seen == np.arange(2000)).sum() < 6
  assert abs(np.corrcoef(seen, np.arange(2000))[0, 1]) < 0.08


def test_seeds_give_different_streams():
  one, two = (records(train(source(100), 100, 2, seed=seed)) for seed in (0, 1))
  # Also one epoch later: the second epoch of seed 0 must not be the first epoch of seed 1.
  assert (one[:100] != two[:100]).any() and (one[100:] != two[:100]).any()


def test_example_is_drawn_again_each_epoch_and_flipped_half_of_the_time():
  batches = train(source(1, gradient=True), 400, 1, image_size=20, flip=True)
  rising = batches[0]["image"][:, 0, -1, 2] > batches[0]["image"][:, 0, 0, 2]
  assert 150 < rising.sum() < 250
  crops = train(source(1, gradient=True), 50, 1, **RANDOM)[0]["image"]
  assert len({crop.tobytes() for crop in crops}) > 45


def test_draw_depends_on_seed_epoch_and_record():
  count, batch = 50, 40
  whole = train(source(count), batch, 5)
  seen = records(whole)[: 4 * count].reshape(4, count)
  draws = np.concatenate([b["draw"] for b in whole])[: 4 * count].reshape(4, count)
  by_record = np.array([draw[np.argsort(record)] for draw, record in zip(draws, seen, strict=True)])
  assert len(np.unique(by_record)) == 4 * count
  assert by_record[2, 17] == int(rng.make_python_generator(0, "example", 2, 17).random() * 2**32)
  # The draws do not depend on the batch size or the crop, but on the seed.
  other = train(source(count), 25, 8, image_size=4)
  np.testing.assert_array_equal(np.concatenate([b["draw"] for b in other]), draws.ravel())
  assert (train(source(count), batch, 1, seed=1)[0]["draw"] != whole[0]["draw"]).all()


@pytest.mark.parametrize("patch", [1, 2, 4])
def test_images_may_be_cut_into_patches(patch):
  args = RANDOM | {"policy": schema.Choice("randaugment")}
  plain = train(source(30, gradient=True), 16, 3, **args)
  found = train(source(30, gradient=True), 16, 3, patch=patch, **args)
  for one, other in zip(plain, found, strict=True):
    expected = rearrange(one["image"], "b (h i) (w j) c -> b (h w) (i j c)", i=patch, j=patch)
    np.testing.assert_array_equal(other["image"], expected)
    np.testing.assert_array_equal(other["label"], one["label"])
  shapes = stream.train_examples(source(30), 0, Fields(patch), image_size=4).shapes
  assert {name: (array.shape[1:], array.dtype) for name, array in found[0].items()} == shapes


def test_patch_is_ordered_by_rows_columns_and_channels():
  image = np.arange(4 * 4 * 3, dtype=np.uint8).reshape(4, 4, 3)
  made = sources.Source(
    "m", "t", ("a",), 1, lambda i: (cv2.imencode(".png", image[..., ::-1])[1].tobytes(), 0), lambda i: "m"
  )
  found = train(made, 1, 1, patch=2, image_size=4)[0]["image"][0]
  np.testing.assert_array_equal(found[1], image[:2, 2:].ravel())
  np.testing.assert_array_equal(found[2], image[2:, :2].ravel())


def test_policy_is_applied_after_crop_and_flip_with_draws_of_the_record():
  args = RANDOM | {"image_size": 16}
  plain = train(source(20, gradient=True), 20, 2, **args)
  found = train(source(20, gradient=True), 20, 2, **args, policy=schema.Choice("randaugment", {"layers": 3}))
  assert np.mean([(a["image"] != b["image"]).any((1, 2, 3)).mean() for a, b in zip(plain, found, strict=True)]) > 0.5
  # Applies the policy itself to the images without it.
  policy = randaugment.randaugment(layers=3)
  draws = [rng.make_python_generator(0, "example", e, r) for e in range(2) for r in range(20)]
  by_number = {int(draw.random() * 2**32): draw for draw in draws}
  for one, other in zip(plain, found, strict=True):
    for image, changed, draw in zip(one["image"], other["image"], one["draw"], strict=True):
      numbers = by_number[int(draw)]
      numbers.random()  # decides the flip
      crops.inception(16)(np.zeros((20, 20, 3), np.uint8), numbers)
      np.testing.assert_array_equal(changed, policy(image, numbers))


# Labels.


def test_lists_of_labels_are_padded_rows():
  def label(i):
    return tuple(range(i % 4))[::-1]

  made = source(40, labels=3, label=label)
  batches = train(made, 20, 2)
  for number, row in zip(records(batches), np.concatenate([b["label"] for b in batches]), strict=True):
    np.testing.assert_array_equal(row, [*label(number), *[-1] * (3 - number % 4)])
  assert batches[0]["label"].dtype == np.int32
  assert stream.train_examples(made, 0).shapes["label"] == ((3,), np.int32)
  evaluated = list(evaluation(made, 16, range(16)))
  np.testing.assert_array_equal(evaluated[1]["label"][3], [2, 1, 0])  # record 19
  np.testing.assert_array_equal(evaluated[2]["label"][8:], -1)  # past the end
  # A list with one label per record is that label.
  one = source(40, label=lambda i: (i % 3,))
  same(train(source(40), 20, 2), train(one, 20, 2))


@pytest.mark.parametrize(
  ("labels", "label", "message"),
  [
    (2, (0, 1, 2), "record 0: 3 labels, but at most 2 are allowed. Set data.labels to 3 or more"),
    (1, (0, 1), "record 0: 2 labels, but at most 1 are allowed. Set data.labels to 2 or more"),
    (1, (), "record 0: no label. Set data.labels above 1"),
    (2, (0, 3), "record 0: label 3 is not one of 3 classes"),
    (2, (-1,), "record 0: label -1 is not one of 3 classes"),
  ],
)
def test_labels_that_do_not_fit_are_an_error_and_not_a_bad_image(labels, label, message):
  with pytest.raises(images.ImageError, match=message):
    train(source(1, labels=labels, label=lambda i: label), 1, 1, on_error="skip")


# Bad images.


def test_bad_image_is_an_error_that_names_it():
  with pytest.raises(images.ImageError, match=r"made, record 13: not a complete image.*data.on_error=skip"):
    train(source(40, bad=[13]), 20, 2)
  with pytest.raises(images.ImageError, match="made, record 13"):
    list(evaluation(source(40, bad=[13]), 20, range(20)))


def test_bad_file_of_a_folder_is_named(tmp_path):
  for i in range(10):
    (tmp_path / "train/a").mkdir(parents=True, exist_ok=True)
    (tmp_path / f"train/a/{i}.png").write_bytes(file(i))
  (tmp_path / "train/a/3.png").write_bytes(file(3)[:-20])
  (tmp_path / "train/a/4.png").unlink()
  (tmp_path / "train/a/4.png").symlink_to(tmp_path / "nowhere")
  photos = catalog.open_split(schema.Choice("folder", {"path": str(tmp_path), "test": "train"}), "train")
  names = [photos.identify(i) for i in range(len(photos))]
  for name in ("train/a/3.png", "train/a/4.png"):
    record = names.index(name)
    with pytest.raises(images.ImageError, match=rf"split 'train', record {record} \(file '.*/{name}'\)"):
      bad = sources.Source("x", "x", ("a",), 1, lambda i, r=record: photos.read(r), lambda i, r=record: photos.place(r))
      train(bad, 1, 1)


@pytest.mark.heavy
def test_replacement_of_a_skipped_image_depends_on_seed_epoch_and_record():
  count, bad = 3000, [7, 1234]
  args = {"on_error": "skip"}
  batches = training(source(count, bad), 500, range(500), **args)
  taken = [next(batches) for _ in range(12)]
  assert batches.skipped == 2
  batches.close()
  good = records(train(source(count), 500, 12))
  seen = records(taken)
  np.testing.assert_array_equal(seen[~np.isin(good, bad)], good[~np.isin(good, bad)])
  assert not np.isin(seen, bad).any()
  replaced = seen[np.isin(good, bad)]
  assert len(replaced) == 4 and len(set(replaced)) > 2
  np.testing.assert_array_equal(np.concatenate([b["label"] for b in taken]), seen % 3)
  # The same images after a restart and for other rows. They do not depend on the bad images seen so far.
  step = int(np.flatnonzero(np.isin(good, bad))[-1]) // 500
  same([taken[step]], train(source(count, bad), 500, 1, start=step, **args))
  same(
    [{k: v[250:] for k, v in taken[step].items()}],
    train(source(count, bad), 500, 1, start=step, rows=range(250, 500), **args),
  )


@pytest.mark.heavy
@pytest.mark.parametrize(
  ("count", "bad", "stops"), [(360, 6, True), (360, 5, False), (7000, 7, False), (7000, 8, True)]
)
def test_more_bad_images_than_five_and_a_thousandth_stop_the_run(count, bad, stops):
  made = source(count, bad=range(bad))
  if stops:
    with pytest.raises(
      images.ImageError,
      match=rf"of {count:,} records are bad. Allowed: the larger of 0.1% .config.data.max_bad. and 5 .*Fix them: made",
    ):
      train(made, count, 1, on_error="skip")
  else:
    train(made, count, 2, on_error="skip")


def test_label_without_a_class_is_an_error_and_not_a_bad_image():
  made = sources.Source("made", "test", ("a",), 5000, lambda i: (file(i), -1), lambda i: f"made, record {i}")
  with pytest.raises(images.ImageError, match="label -1 is not one of 1 class"):
    train(made, 1, 1, on_error="skip")


# Evaluation.


@pytest.mark.parametrize(("count", "batch"), [(40, 16), (32, 16), (5, 16), (1, 1), (101, 100)])
@pytest.mark.parametrize("hosts", [1, 2])
def test_evaluation_reads_each_record_once_in_order(count, batch, hosts):
  if batch % hosts:
    return
  seen, lengths = collections.Counter(), set()
  for host in range(hosts):
    rows = range(host * batch // hosts, (host + 1) * batch // hosts)
    batches = list(evaluation(source(count), batch, rows, threads=2))
    lengths.add(len(batches))
    assert all(len(b["valid"]) == batch // hosts for b in batches)
    mask = np.concatenate([b["valid"] for b in batches]) == 1
    seen.update(records(batches)[mask].tolist())
    assert (np.concatenate([b["label"] for b in batches])[mask] == records(batches)[mask] % 3).all()
    if hosts == 1:
      np.testing.assert_array_equal(records(batches)[mask], np.arange(count))
  assert seen == collections.Counter(range(count))
  assert lengths == {-(-count // batch)}


def test_skipped_test_image_is_masked_and_counted():
  batches = evaluation(source(1500, bad=[17]), 100, range(100), on_error="skip")
  taken = list(batches)
  mask = np.concatenate([b["valid"] for b in taken])
  assert batches.skipped == 1
  assert np.flatnonzero(mask == 0).tolist() == [17]


# Resources.


def test_images_are_cached_only_within_the_memory_limit(monkeypatch):
  for room, reads in ((2**28, 30), (0, 90)):
    monkeypatch.setattr(images, "KEEP", room)
    made, count = source(30), collections.Counter()
    counting = sources.Source(
      "made", "x", made.classes, 30, lambda i, m=made, c=count: c.update([i]) or m.read(i), made.place
    )
    train(counting, 30, 3, threads=1)
    assert count.total() <= 30 if reads == 30 else count.total() >= 90


def test_random_crops_are_refused_for_evaluation():
  with pytest.raises(schema.ConfigError, match=r"unknown name 'inception'") as caught:
    stream.eval_examples(source(3), test_crop=schema.Choice("inception"))
  assert caught.value.place == "test_crop.name"
