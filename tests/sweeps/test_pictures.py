"""Tests of the picture of a sweep: shares of variance computed by hand, and panels of numbers, names and gaps."""

import cv2
import numpy as np
import pytest
from matplotlib.figure import Figure

from vit_jax.evals.plots import DPI
from vit_jax.sweeps import pictures


def test_effects_match_shares_of_variance_computed_by_hand():
  rows = [
    ({"lr": lr, "model": model, "seed": seed}, lr + 0.01 * seed) for lr in (1, 2) for model in "ab" for seed in (0, 1)
  ]
  values = np.array([value for _, value in rows])
  by_lr = [values[:4].mean(), values[4:].mean()]
  expected = sum(4 * (mean - values.mean()) ** 2 for mean in by_lr) / np.sum((values - values.mean()) ** 2)
  assert pictures.compute_eta_squared(rows, "lr") == pytest.approx(expected)
  assert pictures.compute_eta_squared(rows, "model") == pytest.approx(0, abs=1e-12)
  assert pictures.compute_eta_squared([({"lr": 1}, 0.5)], "lr") == 0


@pytest.mark.heavy
@pytest.mark.parametrize("values", [(1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0, 1e3), ("a $x$", "é" * 60, None), (1,)])
def test_effects_of_numbers_names_and_gaps_are_drawn(tmp_path, values):
  rows = [({} if value is None else {"key": value, "seed": 0}, 0.1 * i) for i, value in enumerate(values)]
  pictures.draw_effects(rows, ["key", "seed"], "val/top1", tmp_path / "it.png")
  drawn = cv2.imread(str(tmp_path / "it.png"))
  assert drawn.shape[0] == 4 * DPI
  assert drawn.std() > 5


@pytest.mark.heavy
def test_settings_are_drawn_with_their_mean_and_deviation(tmp_path, monkeypatch):
  drawn = []
  monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
  groups = {"position=learned": [0.9, 0.8, 0.7], "position=factored position_at=shared $x": [0.5]}
  with pytest.raises(FileNotFoundError):  # savefig is replaced, so the file is missing
    pictures.draw_settings(groups, "top1", tmp_path / "it.png")
  (axes,) = drawn[0].axes
  assert [label.get_text() for label in axes.get_yticklabels()] == list(groups)
  one, two = (bar.lines[2][0].get_segments()[0][:, 0] for bar in axes.containers)
  np.testing.assert_allclose(one, [0.7, 0.9], atol=1e-9)  # 0.8 and statistics.stdev([0.9, 0.8, 0.7]) = 0.1
  np.testing.assert_allclose(two, [0.5, 0.5])
  monkeypatch.undo()
  pictures.draw_settings(groups, "top1", tmp_path / "it.png")
  assert cv2.imread(str(tmp_path / "it.png")).std() > 5


@pytest.mark.parametrize(
  ("key", "values", "joined"),
  [
    ("optim.lr", (0.1, 0.2, 0.3), True),
    ("seed", (0, 1, 2), False),
    ("seed", tuple(range(9)), False),
    ("model.name", ("a", "b"), False),
    ("data.flip", (True, False), False),
    ("optim.clip", (1.0, None), False),
  ],
)
def test_line_joins_only_ordered_numbers(key, values, joined):
  axes = Figure().subplots()
  rows = [({key: value}, metric) for value in values for metric in (0.5, 0.6)]
  pictures.draw_panel(axes, pictures.group_by_value(rows, key), key)
  *points, means = axes.lines
  assert (means.get_linestyle() == "-") == joined
  assert all(line.get_linestyle() == "None" for line in points)
  assert list(means.get_ydata()) == pytest.approx([0.55] * len(values))
  assert all(len(set(line.get_xdata())) == 2 for line in points)  # side by side
