"""Tests of predictions for many files on several devices: order, bad files, and independence of the devices."""

import jax
import numpy as np
import pytest

from tests import small_weights
from tests.image_files import encode, picture
from vit_jax.inference import batches, predictor, stored
from vit_jax.schema import ConfigError

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """Returns eleven files, two of them bad, and a missing file."""
  root = tmp_path_factory.mktemp("photos")
  for i in range(11):
    data = encode(picture(40 + i, 50, seed=i), "JPEG" if i % 2 else "PNG")
    (root / f"{i}.jpg").write_bytes(data[:100] if i in (0, 7) else data)
  return [str(root / f"{i}.jpg") for i in range(11)] + [str(root / "none.jpg")]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
  return small_weights.file(tmp_path_factory.mktemp("weights"))


def computed(use, files, count, together, polls=None):
  rows = batches.predict_files(use, files, jax.devices()[:count], "head", lambda: (polls or []).append(1), together)
  return [row for some in rows for row in some]


def test_rows_match_single_images_for_any_devices_and_batches(weights, files):
  use, model = stored.load(weights), predictor.load(weights)
  one, two = computed(use, files, 1, 64), computed(use, files, 2, 2)
  for rows in (one, two):
    assert [row.file for row in rows] == files
    assert [i for i, row in enumerate(rows) if row.reason] == [0, 7, 11]
  assert "No such file" in one[11].reason and "not a complete image" in one[7].reason
  assert [row.reason for row in one] == [row.reason for row in two]
  good = [i for i, row in enumerate(one) if not row.reason]
  expected = model.predict([files[i] for i in good])
  for rows in (one, two):
    for i, single in zip(good, expected, strict=True):
      assert tuple(rows[i].best) == single.numbers
      np.testing.assert_allclose(rows[i].probability, single.probabilities, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose([rows[i].features for i in good], model.features([files[i] for i in good]), 1e-3, 1e-3)


def test_only_bad_files_give_rows_without_predictions(weights, files):
  rows = computed(stored.load(weights), [files[0], files[7]], 2, 64)
  assert [row.best for row in rows] == [None, None]


def test_file_with_outputs_that_are_not_finite_is_named(weights, files):
  use = stored.load(weights)
  use = use._replace(arrays={**use.arrays, "head/bias": np.full_like(use.arrays["head/bias"], np.nan)})
  with pytest.raises(ConfigError, match=r"image '.*1\.jpg': output 'logits' is not finite"):
    computed(use, files, 2, 2)
