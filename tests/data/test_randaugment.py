"""Tests of RandAugment: published arguments, probabilities and policies.

Its operations are tested in test_operations.py.
"""

import functools
import random

import numpy as np
import pytest

from tests import modules
from vit_jax import schema
from vit_jax.data import policies, randaugment

GRAY = (128, 128, 128)
SIGNED = {"Rotate", "ShearX", "TranslateY"}


def test_increasing_arguments_at_magnitude_nine_are_the_published_ones():
  def both(name):
    return tuple(randaugment.INCREASING[name].argument(9.0, sign) for sign in (1, -1))

  assert both("Rotate") == pytest.approx((27, -27))
  assert both("ShearX") == both("ShearY") == pytest.approx((0.27, -0.27))
  assert both("TranslateXRel") == both("TranslateYRel") == pytest.approx((0.405, -0.405))
  for name in ("ColorIncreasing", "ContrastIncreasing", "BrightnessIncreasing", "SharpnessIncreasing"):
    assert both(name) == pytest.approx((1.81, 0.19))
    assert randaugment.INCREASING[name].argument(10.0, -1) == pytest.approx(0.1)
  assert both("PosterizeIncreasing") == (1, 1)
  assert both("SolarizeIncreasing") == (26, 26)
  assert both("SolarizeAdd") == (99, 99)
  assert both("AutoContrast") == both("Equalize") == both("Invert") == (None, None)
  bits = [randaugment.INCREASING["PosterizeIncreasing"].argument(m, 1) for m in (0, 2.4, 2.5, 5, 7.5, 9.99, 10)]
  assert bits == [4, 4, 3, 2, 1, 1, 0]


@pytest.mark.parametrize(
  ("level", "expected"),
  [
    (2, (6, 0, 51, 22, 0.46, 0.06, 20, 8)),
    (10, (30, 4, 256, 110, 1.9, 0.3, 100, 40)),
    (15, (45, 6, 384, 165, 2.8, 0.45, 150, 60)),
    (20, (60, 8, 512, 220, 3.7, 0.6, 200, 80)),
  ],
)
def test_published_arguments_match_the_tensorflow_code(level, expected):
  names = ("Rotate", "Posterize", "Solarize", "SolarizeAdd", "Contrast", "ShearX", "TranslateY", "Cutout")
  ops = [randaugment.PUBLISHED[name] for name in names]
  assert tuple(op.argument(float(level), 1) for op in ops) == pytest.approx(expected)
  minus = tuple(op.argument(float(level), -1) for op in ops)
  assert minus == pytest.approx([-e if n in SIGNED else e for n, e in zip(names, expected, strict=True)])


# Policies.


def test_policies_without_operations_return_the_image_without_draws():
  image = modules.pictures(1, 40, 40)[0]
  for policy in (
    randaugment.none(),
    randaugment.randaugment(layers=0),
    randaugment.randaugment_increasing(layers=0),
  ):
    assert policy(image, None) is image


@pytest.mark.parametrize("name", ["randaugment", "randaugment_increasing"])
def test_policy_depends_only_on_the_generator(name):
  policy, image = policies.POLICIES[name](), modules.pictures(1, 64, 64)[0]
  before = image.copy()
  results = [policy(image, random.Random(seed)) for seed in range(60)]
  np.testing.assert_array_equal(image, before)
  for seed, result in enumerate(results):
    np.testing.assert_array_equal(policy(image, random.Random(seed)), result)
    assert result.shape == image.shape and result.dtype == np.uint8
  # a quarter of the results of `increasing` are the image itself
  assert len({result.tobytes() for result in results}) > 35


class Recorder:
  """A table of operations that record their arguments and return the image unchanged."""

  def __init__(self, table):
    self.seen = []
    self.table = {
      name: randaugment.Operation(lambda m, s: (m, s), functools.partial(self.note, name)) for name in table
    }

  def note(self, name, image, argument, fill, choice):
    self.seen.append((name, *argument, fill, choice))
    return image


def shares(values):
  names, counts = np.unique(values, return_counts=True)
  return dict(zip(names.tolist(), counts / counts.sum(), strict=True))


@pytest.mark.heavy
def test_increasing_probabilities_are_the_published_ones(monkeypatch):
  recorder, images, untouched = Recorder(randaugment.INCREASING), 10_000, 0
  monkeypatch.setattr(randaugment, "INCREASING", recorder.table)
  policy = randaugment.randaugment_increasing(fill=(124, 116, 104))
  draw = random.Random(0)
  for _ in range(images):
    before = len(recorder.seen)
    policy(None, draw)
    untouched += len(recorder.seen) == before
  names, magnitudes, signs, fills, kinds = zip(*recorder.seen, strict=True)
  assert untouched / images == pytest.approx(0.25, abs=0.015)
  assert len(names) / images == pytest.approx(1.0, abs=0.03)
  share = shares(names)
  assert len(share) == 15
  np.testing.assert_allclose(list(share.values()), 1 / 15, atol=0.008)
  assert shares(signs)[1] == pytest.approx(0.5, abs=0.02)
  assert shares(kinds)["bicubic"] == pytest.approx(0.5, abs=0.02)
  assert set(fills) == {(124, 116, 104)}
  # N(9, 0.5) is clipped at 10, two standard deviations above the mean.
  assert max(magnitudes) == 10 and np.mean(np.array(magnitudes) == 10) == pytest.approx(0.0228, abs=0.005)
  assert np.median(magnitudes) == pytest.approx(9, abs=0.02)
  assert np.std(magnitudes) == pytest.approx(0.5, abs=0.02)


def test_published_probabilities_are_equal_and_the_magnitude_is_fixed(monkeypatch):
  recorder, images = Recorder(randaugment.PUBLISHED), 10_000
  monkeypatch.setattr(randaugment, "PUBLISHED", recorder.table)
  policy = randaugment.randaugment(layers=3, magnitude=15.0)
  draw = random.Random(0)
  for _ in range(images):
    policy(None, draw)
  names, magnitudes, signs, fills, places = zip(*recorder.seen, strict=True)
  assert len(names) == 3 * images  # no operation is skipped
  np.testing.assert_allclose(list(shares(names).values()), 1 / 16, atol=0.006)
  assert set(magnitudes) == {15.0} and set(fills) == {GRAY}
  assert shares(signs)[1] == pytest.approx(0.5, abs=0.02)
  np.testing.assert_allclose(np.quantile(places, [0.1, 0.5, 0.9], axis=0).T, [[0.1, 0.5, 0.9]] * 2, atol=0.02)


def test_arguments_of_the_policies_reach_the_operations(monkeypatch):
  recorder = Recorder(randaugment.INCREASING)
  monkeypatch.setattr(randaugment, "INCREASING", recorder.table)
  policy = randaugment.randaugment_increasing(
    layers=4, magnitude=3.0, magnitude_std=0.0, probability=1.0, interpolation="bicubic"
  )
  policy(None, random.Random(0))
  assert len(recorder.seen) == 4
  assert {(magnitude, choice) for _, magnitude, _, _, choice in recorder.seen} == {(3.0, "bicubic")}


def test_mended_contrast_changes_only_images_with_contrast():
  image = modules.pictures(1, 64, 64)[0]
  results = [
    [randaugment.randaugment(layers=1, contrast=kind)(image, random.Random(seed)).tobytes() for seed in range(100)]
    for kind in ("published", "mended")
  ]
  differing = [seed for seed, pair in enumerate(zip(*results, strict=True)) if len(set(pair)) == 2]
  chosen = [
    seed for seed in range(100) if list(randaugment.PUBLISHED)[int(random.Random(seed).random() * 16)] == "Contrast"
  ]
  assert differing == chosen != []


@pytest.mark.parametrize(
  ("name", "arguments", "output"),
  [
    ("randaugment", {"layers": -1}, "layers: -1 is out of range"),
    ("randaugment", {"magnitude": 31}, "magnitude: 31.0 is out of range"),
    ("randaugment", {"contrast": "fixed"}, "Allowed: published, mended"),
    ("randaugment", {"magnitude_std": 0.5}, "unknown key"),
    ("randaugment_increasing", {"magnitude": 10.5}, "magnitude: 10.5 is out of range"),
    ("randaugment_increasing", {"magnitude_std": -0.5}, "magnitude_std"),
    ("randaugment_increasing", {"probability": 50}, "probability"),
    ("randaugment_increasing", {"interpolation": "nearest"}, "Allowed: random, bilinear, bicubic"),
    ("randaugment_increasing", {"fill": (128, 128)}, "has 2 values. Expected 3"),
    ("randaugment_increasing", {"fill": (128, 128, 256)}, "256 is out of range"),
  ],
)
def test_invalid_arguments_are_refused_with_the_allowed_values(name, arguments, output):
  with pytest.raises(schema.ConfigError, match=output):
    schema.bind(schema.Choice(name, arguments), (policies.POLICIES[name],))
  bound = schema.bind(schema.Choice(name), (policies.POLICIES[name],))
  assert callable(policies.POLICIES[name](**bound.args))
