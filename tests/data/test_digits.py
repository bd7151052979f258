"""The digits: every one of scikit-learn's images, enlarged, in one of two splits."""

import numpy as np
from sklearn import datasets

from tests.image_files import decoded
from vit_jax.data import digits


def test_the_splits_hold_every_image_once():
  splits = digits.examples()
  assert {split: len(records) for split, records in splits.items()} == {"train": 1437, "test": 360}
  original = datasets.load_digits()
  expected = sorted(
    (digits.encode_png(ink), int(label)) for ink, label in zip(original.images, original.target, strict=True)
  )
  written = sorted((r["image"].getvalue(), r["label"]) for records in splits.values() for r in records)
  assert written == expected


def test_the_permutation_is_the_same_each_time_and_not_the_order_of_the_file():
  one, two = ([r["label"] for r in digits.examples()["test"]] for _ in range(2))
  assert one == two
  # The file goes writer by writer, 0 to 9 in turn: its last 360 labels would come almost equally often, in that order.
  assert (np.diff(one) == 1).mean() < 0.2


def test_a_digit_is_its_ink_enlarged():
  ink = datasets.load_digits().images[0]
  image = decoded(digits.encode_png(ink))
  assert image.shape == (32, 32, 3)
  assert (image == image[..., :1]).all()
  # Averaged back over blocks, the original: bicubic keeps means to a few grey levels.
  back = image[..., 0].reshape(8, 4, 8, 4).mean((1, 3))
  assert np.corrcoef(back.ravel(), ink.ravel())[0, 1] > 0.99
  assert image.max() > 240 and image.min() == 0
