"""The picture of a sweep: shares of variance counted by hand, panels of numbers, names and gaps."""

import cv2
import numpy as np
import pytest

from vit_jax.pictures import DPI
from vit_jax.sweeps import pictures


def test_effects_are_shares_of_the_variance_counted_by_hand():
  rows = [
    ({"lr": lr, "model": model, "seed": seed}, lr + 0.01 * seed) for lr in (1, 2) for model in "ab" for seed in (0, 1)
  ]
  values = np.array([value for _, value in rows])
  by_lr = [values[:4].mean(), values[4:].mean()]
  expected = sum(4 * (mean - values.mean()) ** 2 for mean in by_lr) / np.sum((values - values.mean()) ** 2)
  assert pictures.explained(rows, "lr") == pytest.approx(expected)
  assert pictures.explained(rows, "model") == pytest.approx(0, abs=1e-12)
  assert pictures.explained([({"lr": 1}, 0.5)], "lr") == 0


@pytest.mark.heavy
@pytest.mark.parametrize("values", [(1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0, 1e3), ("a $x$", "é" * 60, None), (1,)])
def test_effects_of_numbers_names_and_gaps_are_drawn(tmp_path, values):
  rows = [({} if value is None else {"key": value, "seed": 0}, 0.1 * i) for i, value in enumerate(values)]
  pictures.effects(rows, ["key", "seed"], "val/top1", tmp_path / "it.png")
  drawn = cv2.imread(str(tmp_path / "it.png"))
  assert drawn.shape[0] == 4 * DPI
  assert drawn.std() > 5
