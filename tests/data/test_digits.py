"""Tests of the digits: every image of scikit-learn, enlarged, in one of two splits."""

import numpy as np
from sklearn import datasets

from tests.image_files import decoded
from vit_jax.data import digits


def test_splits_contain_every_image_once():
  splits = digits.examples()
  assert {split: len(records) for split, records in splits.items()} == {"train": 1437, "test": 360}
  original = datasets.load_digits()
  expected = sorted(
    (digits.encode_png(ink), int(label)) for ink, label in zip(original.images, original.target, strict=True)
  )
  written = sorted((r["image"].getvalue(), r["label"]) for records in splits.values() for r in records)
  assert written == expected


def test_permutation_is_deterministic_and_not_the_order_of_the_file():
  one, two = ([r["label"] for r in digits.examples()["test"]] for _ in range(2))
  assert one == two
  # The file is ordered by writer, with the digits 0 to 9 in turn. Its last 360 labels would be almost equally frequent,
  # and in that order.
  assert (np.diff(one) == 1).mean() < 0.2


def test_digit_image_is_the_enlarged_original():
  ink = datasets.load_digits().images[0]
  image = decoded(digits.encode_png(ink))
  assert image.shape == (32, 32, 3)
  assert (image == image[..., :1]).all()
  # Block means restore the original: bicubic interpolation keeps means to a few gray levels.
  back = image[..., 0].reshape(8, 4, 8, 4).mean((1, 3))
  assert np.corrcoef(back.ravel(), ink.ravel())[0, 1] > 0.99
  assert image.max() > 240 and image.min() == 0
