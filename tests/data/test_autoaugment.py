"""Tests of AutoAugment: arguments of the published implementations, probabilities, and whole pairs against Pillow."""

import functools
import random

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from tests import modules
from vit_jax import schema
from vit_jax.data import autoaugment
from vit_jax.data.randaugment import Operation

SIGNED = {"Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel"}
FACTORS = ("Color", "Contrast", "Brightness", "Sharpness")
PILLOW = {  # image, argument
  "AutoContrast": lambda image, _: ImageOps.autocontrast(image),
  "Equalize": lambda image, _: ImageOps.equalize(image),
  "Invert": lambda image, _: ImageOps.invert(image),
  "Posterize": lambda image, bits: ImageOps.posterize(image, bits),
  "Solarize": lambda image, threshold: ImageOps.solarize(image, threshold),
  **{name: lambda image, factor, name=name: getattr(ImageEnhance, name)(image).enhance(factor) for name in FACTORS},
}


def test_25_pairs_use_known_operations():
  for rows, ops, highest in autoaugment.PAIRS.values():
    assert len(rows) == 25 and all(len(pair) == 2 for pair in rows)
    for name, probability, magnitude in (op for pair in rows for op in pair):
      assert name in ops and 0 <= probability <= 1 and 0 <= magnitude <= highest


@pytest.mark.parametrize(
  ("pairs", "sums"), [("imagenet", (31.0, 287)), ("imagenet_v0", (29.8, 240)), ("cifar10", (26.5, 267))]
)
def test_sums_of_probabilities_and_magnitudes_match_the_published_tables(pairs, sums):
  every = [op for pair in autoaugment.PAIRS[pairs][0] for op in pair]
  assert (sum(p for _, p, _ in every), sum(m for *_, m in every)) == (pytest.approx(sums[0]), sums[1])


@pytest.mark.parametrize("magnitude", range(11))
def test_arguments_of_the_imagenet_pairs_match_timm(magnitude):
  def argument(table, name, sign=1):
    return table[name].argument(magnitude, sign)

  share, timm, original = magnitude / 10, autoaugment.TIMM, autoaugment.ORIGINAL
  assert argument(timm, "Posterize") == int(share * 4)
  assert argument(original, "Posterize") == int(share * 4) + 4
  assert argument(timm, "Solarize") == min(256, int(share * 256)) == argument(original, "Solarize")
  assert argument(timm, "SolarizeAdd") == min(128, int(share * 110))
  for name in FACTORS:
    assert argument(timm, name) == argument(original, name, -1) == pytest.approx(share * 1.8 + 0.1)
  for name, limit in (("Rotate", 30), ("ShearX", 0.3), ("ShearY", 0.3), ("TranslateYRel", 0.45)):
    assert argument(timm, name) == pytest.approx(share * limit) == -argument(original, name, -1)


@pytest.mark.parametrize("magnitude", range(10))
def test_arguments_of_the_cifar_pairs_are_ten_equal_steps(magnitude):
  def argument(name, sign=1):
    return autoaugment.TEN[name].argument(magnitude, sign)

  limits = {"Rotate": 30, "ShearX": 0.3, "ShearY": 0.3, "TranslateXRel": 150 / 331, "TranslateYRel": 150 / 331}
  for name, limit in limits.items():
    steps = np.linspace(0, limit, 10)
    assert argument(name) == pytest.approx(steps[magnitude]) == -argument(name, -1)
  for name in FACTORS:
    step = np.linspace(0, 0.9, 10)[magnitude]
    assert (argument(name), argument(name, -1)) == pytest.approx((1 + step, 1 - step))
  assert argument("Posterize") == np.round(np.linspace(8, 4, 10))[magnitude]
  assert argument("Solarize") == pytest.approx(np.linspace(256, 0, 10)[magnitude])


def note(seen, name, image, argument, fill, choice):
  seen.append((name, *argument, fill, choice))
  return image


@pytest.mark.parametrize("pairs", autoaugment.PAIRS)
def test_pairs_are_drawn_equally_and_operations_with_their_probability(pairs, monkeypatch):
  rows, ops, highest = autoaugment.PAIRS[pairs]
  seen, images = [], 10_000
  table = {
    name: Operation(lambda magnitude, sign: (magnitude, sign), functools.partial(note, seen, name)) for name in ops
  }
  monkeypatch.setitem(autoaugment.PAIRS, pairs, (rows, table, highest))
  policy, draw = autoaugment.autoaugment(pairs=pairs, fill=(1, 2, 3)), random.Random(0)
  for _ in range(images):
    policy(None, draw)
  expected = {}
  for name, probability, magnitude in (op for pair in rows for op in pair):
    expected[name, magnitude] = expected.get((name, magnitude), 0) + probability / 25
  for key, share in expected.items():
    count = sum((name, magnitude) == key for name, magnitude, *_ in seen)
    assert count / images == pytest.approx(share, abs=0.012), key
  assert np.mean([sign for _, _, sign, *_ in seen]) == pytest.approx(0, abs=0.05)
  assert np.mean([kind == "bicubic" for *_, kind in seen]) == pytest.approx(0.5, abs=0.03)
  assert {fill for *_, fill, _ in seen} == {(1, 2, 3)}


@pytest.mark.parametrize("pairs", autoaugment.PAIRS)
def test_pairs_of_colour_operations_match_pillow(pairs, monkeypatch):
  rows, ops, highest = autoaugment.PAIRS[pairs]
  image = modules.pictures(1, 40, 31)[0]
  coloured = [pair for pair in rows if {name for name, *_ in pair} <= set(PILLOW)]
  assert len(coloured) > 8
  for pair in coloured:
    always = tuple((name, 1.0, magnitude) for name, _, magnitude in pair)
    monkeypatch.setitem(autoaugment.PAIRS, pairs, ((always,), ops, highest))
    for seed in (0, 1):
      draw, expected = random.Random(seed), Image.fromarray(image)
      draw.random()  # chooses the pair
      for name, _, magnitude in pair:
        draw.random()
        sign = (-1, 1)[int(draw.random() * 2)]
        draw.random()  # chooses the interpolation
        argument = ops[name].argument(magnitude, sign)
        black = name == "Posterize" and not argument  # Pillow 13 refuses 0 bits
        expected = Image.new("RGB", expected.size) if black else PILLOW[name](expected, argument)
      ours = autoaugment.autoaugment(pairs=pairs)(image, random.Random(seed))
      np.testing.assert_array_equal(ours, np.asarray(expected), err_msg=str(pair))


def test_magnitudes_may_vary_within_the_scale(monkeypatch):
  seen = []
  table = {"Rotate": Operation(lambda magnitude, sign: (magnitude,), functools.partial(note, seen, "Rotate"))}
  monkeypatch.setitem(autoaugment.PAIRS, "imagenet", (((("Rotate", 1.0, 9), ("Rotate", 0.0, 9)),), table, 10))
  policy, draw = autoaugment.autoaugment(magnitude_std=0.5), random.Random(0)
  for _ in range(4000):
    policy(None, draw)
  magnitudes = [magnitude for _, magnitude, *_ in seen]
  assert len(magnitudes) == 4000 and max(magnitudes) == 10
  assert (np.median(magnitudes), np.std(magnitudes)) == (pytest.approx(9, abs=0.03), pytest.approx(0.5, abs=0.03))


def test_unknown_pairs_are_refused():
  with pytest.raises(schema.ConfigError, match="Allowed: imagenet, imagenet_v0, cifar10"):
    schema.bind(schema.Choice("autoaugment", {"pairs": "svhn"}), (autoaugment.autoaugment,))
