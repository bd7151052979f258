"""Tests of views of an image.

Views depend on (seed, epoch, record), come from one decoded image, and may share their boxes.
"""

import dataclasses

import numpy as np
import pytest

from tests import streams
from vit_jax import rng
from vit_jax.data import crops, decoding, loader, policies, stream
from vit_jax.data.views import Fields, Views
from vit_jax.schema import Choice, make

CROP = Choice("inception", {"area": (0.2, 1.0), "interpolation": "bicubic"})
PLAIN, COLOURS = Choice("none"), Choice("dino", {"blur": 0.5, "solarize": 0.5})
GLOBAL = Views("global", 8, CROP, (PLAIN, COLOURS))
LOCAL = Views("local", 4, CROP, (COLOURS,) * 3)
FIELDS = Fields(label=False, views=(GLOBAL, LOCAL))


def examples(fields=FIELDS, seed=0, batch=4, count=6, bad=(), **options):
  """Returns training examples. The values of a pixel encode its position in the image."""
  return stream.train_examples(streams.source(count, bad, gradient=not bad), seed, fields, batch, **options)


def take(made, steps=4, start=0, rows=range(4), batch=4, **options):
  return streams.take(loader.batches(made, batch, rows, start, **options), steps)


def assert_equal(found, expected):
  assert found.keys() == expected.keys()
  for name in found:
    np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_example_has_exactly_the_fields_of_the_task():
  views = {"global": ((2, 8, 8, 3), np.uint8), "local": ((3, 4, 4, 3), np.uint8)}
  assert examples().shapes == views
  assert examples(dataclasses.replace(FIELDS, label=True)).shapes == views | {"label": ((), np.int32)}
  cut = {"global": ((2, 16, 12), np.uint8), "local": ((3, 4, 12), np.uint8)}
  assert examples(dataclasses.replace(FIELDS, patch=2)).shapes == cut
  assert [*stream.train_examples(streams.source(4), 0, Fields(label=False), image_size=4).shapes] == ["image", "draw"]


def test_view_is_the_crop_and_the_policy_with_its_own_generators():
  """Computes the views with the functions that crop and change a single image."""
  made, batch = examples(), take(examples(), steps=1)[0]
  for row in range(4):
    record, visit = made.record(row), made.order.visit(row)
    image = decoding.decode(*_checked(made.source, record))
    for view in (GLOBAL, LOCAL):
      for i, policy in enumerate(view.policies):
        draw = rng.make_python_generator(0, f"box {view.name}", visit, record, i)
        mirrored = draw.random() < 0.5
        expected = make(view.crop, crops.CROPS, view.size)(image, draw)
        expected = expected[:, ::-1] if mirrored else expected
        draw = rng.make_python_generator(0, f"view {view.name}", visit, record, i)
        expected = make(policy, policies.POLICIES)(np.ascontiguousarray(expected), draw)
        np.testing.assert_array_equal(batch[view.name][row, i], expected)


def _checked(source, record):
  data, _ = source.read(record)
  return data, decoding.check_image(data, 10**6, 10.0, False)


def test_views_of_an_image_differ_from_each_other_and_between_epochs():
  first, second = take(examples(), steps=2, rows=range(6), batch=6)
  assert len(np.unique(first["local"].reshape(18, -1), axis=0)) == 18
  records = [examples(batch=6).record(i) for i in range(12)]
  for row, record in enumerate(records[:6]):
    again = records[6:].index(record)
    assert (first["global"][row] != second["global"][again]).any()


@pytest.mark.parametrize("patch", [None, 2])
def test_views_do_not_depend_on_processes_or_the_start(patch):
  made = examples(dataclasses.replace(FIELDS, patch=patch))
  whole = take(made, threads=1)
  halves = [take(made, rows=rows, threads=4) for rows in ((0, 1), (2, 3))]
  for step, expected in enumerate(whole):
    assert_equal({name: np.concatenate([half[step][name] for half in halves]) for name in expected}, expected)
  assert_equal(take(made, steps=1, start=3)[0], whole[3])


def test_views_depend_on_the_seed():
  assert (take(examples(seed=1), 1)[0]["global"] != take(examples(), 1)[0]["global"]).any()


def test_views_with_shared_boxes_show_the_same_region():
  """One channel encodes the column of a pixel, another its row. Both views must be mirrored in the same way."""
  gram = Views("gram", 16, CROP, (PLAIN, PLAIN), boxes_of="global")
  plain = dataclasses.replace(GLOBAL, policies=(PLAIN, PLAIN))
  batch = take(examples(Fields(label=False, views=(plain, gram))), steps=1)[0]
  halved = batch["gram"].astype(float).reshape(4, 2, 8, 2, 8, 2, 3).mean((3, 5))
  np.testing.assert_allclose(halved, batch["global"], atol=10)
  own = dataclasses.replace(gram, boxes_of=None)
  batch = take(examples(Fields(label=False, views=(plain, own))), steps=1)[0]
  halved = batch["gram"].astype(float).reshape(4, 2, 8, 2, 8, 2, 3).mean((3, 5))
  assert np.abs(halved - batch["global"]).max() > 30


def test_image_is_decoded_once_for_all_views(monkeypatch):
  decoded = []
  original = decoding.decode
  monkeypatch.setattr(decoding, "decode", lambda *given: (decoded.append(1), original(*given))[1])
  take(examples(count=40), steps=1, threads=1, prefetch=1)
  assert 4 <= len(decoded) <= 12  # at most one for each image of the batches that were built in advance


def test_bad_image_is_replaced_in_all_views():
  made = examples(count=6, bad=(1, 4))
  batches = take(made, steps=3, on_error="skip", max_bad=0.5)
  numbers = np.concatenate([batch["global"][:, 0, 0, 0, 0] for batch in batches])
  assert not {1, 4} & set(numbers.tolist())


def test_dino_policy_applies_each_operation_with_its_probability():
  image = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)

  def count(**probabilities):
    chosen = dict.fromkeys(("jitter", "gray", "blur", "solarize"), 0.0) | probabilities
    policy = make(Choice("dino", chosen), policies.POLICIES)
    results = [policy(image, rng.make_python_generator(0, "test", i)) for i in range(400)]
    return results, np.mean([(result != image).any() for result in results])

  for name in ("jitter", "gray", "blur", "solarize"):
    assert count(**{name: 0.0})[1] == 0 and count(**{name: 1.0})[1] > 0.98
    assert abs(count(**{name: 0.3})[1] - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 400)
  results, _ = count(gray=1.0)
  assert all((result[..., :1] == result).all() for result in results)
  results, _ = count(solarize=1.0)
  np.testing.assert_array_equal(results[0], np.where(image >= 128, 255 - image, image))
