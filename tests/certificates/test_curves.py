"""vit_jax/certificates/curves.py: bands from a few seeds, compared with formulas of NumPy and with published seeds."""

import itertools
import json

import numpy as np
import pytest
from scipy import stats

from benchmarks import certificates as rates
from benchmarks import published_curves
from tests import runs
from vit_jax import certificates
from vit_jax.certificates import curves

REFERENCE = runs.ROOT.parent / "shared" / "reference" / "curves"
ALGOPERF = [curve for curve in certificates.list_curves() if "algoperf" in curve.name]


def make_curve(seeds, fractions=(0.0, 0.5, 1.0), **changes):
  """A curve whose spread contains only its own setting."""
  fractions, seeds = np.array(fractions), np.array(seeds, float)
  degrees = np.array([len(seeds) - 1])
  spread = curves.Spread(fractions, seeds.var(0, ddof=1)[None], degrees)
  values = dict(
    name="a", source="b", published="c", config={}, split="test", fine_tuned=False, fractions=fractions, seeds=seeds
  )
  return certificates.Curve(**(values | dict(spread=spread, setting=0) | changes))


def test_band_is_the_prediction_interval_of_a_normal_distribution():
  band = make_curve([[0.1, 0.5, 0.6], [0.1, 0.6, 0.6], [0.1, 0.55, 0.6]]).compute_band(0.5)
  values = np.array([0.5, 0.6, 0.55])
  half = stats.t.ppf(0.995, 2) * values.std(ddof=1) * np.sqrt(1 + 1 / 3)
  assert band == pytest.approx((0.55, half))


def test_band_contains_99_percent_of_further_runs():
  generator = np.random.default_rng(0)
  inside = []
  for _ in range(2000):
    *seeds, further = generator.normal(0.5, 0.01, 5)
    band = make_curve([[value] for value in seeds], [1.0]).compute_band(1.0)
    inside.append(band.low <= further <= band.high)
  assert 0.984 < np.mean(inside) < 0.996


def test_mean_is_interpolated_and_other_fractions_have_no_band():
  curve = make_curve([[0.0, 0.4, 0.6], [0.0, 0.4, 0.6]], (0.1, 0.5, 0.9))
  assert curve.compute_band(0.3).mean == pytest.approx(0.2)
  assert curve.compute_band(0.05) is None and curve.compute_band(0.95) is None


def test_spread_of_a_setting_is_drawn_to_the_median_of_all_settings():
  variances = np.array([[1.0], [4.0], [100.0]])
  spread = curves.Spread(np.array([0.5]), variances, np.array([3, 3, 3]))
  assert spread.compute_std(0.5, None) == pytest.approx(2.0)
  assert spread.compute_std(0.5, 0) == pytest.approx(((4 * 2 + 1) / 3) ** 0.5)
  assert spread.compute_std(0.9, 2) == pytest.approx(((4 * 2 + 100) / 3) ** 0.5)  # the nearest fraction


def test_spread_is_averaged_over_neighbouring_fractions():
  fractions = np.array([0.1, 0.3, 0.4, 0.5, 0.8])
  spread = curves.Spread(fractions, np.array([[9.0, 1.0, 4.0, 7.0, 100.0]]), np.array([3]))
  assert spread.compute_std(0.4, 0) == pytest.approx(((4 + 7) / 2) ** 0.5)  # from 0.32 to 0.5
  assert spread.compute_std(0.38, 0) == pytest.approx(2.0)  # from 0.304 to 0.475


def test_other_types_double_the_width_and_a_reading_error_is_added():
  plain = make_curve([[0.5], [0.52]], [1.0])
  band, wide = plain.compute_band(1.0), plain.compute_band(1.0, widened=True)
  assert wide.half_width == pytest.approx(2 * band.half_width)
  read = make_curve([[0.5], [0.52]], [1.0], reading_error=0.003).compute_band(1.0)
  assert read.half_width == pytest.approx(band.half_width + 0.003)
  assert make_curve([[0.9], [0.99]], [1.0]).compute_band(1.0).high == 1.0


def test_curve_without_a_seed_has_a_spread_without_it():
  curve = ALGOPERF[1]
  left = rates.remove_seed(curve, 2)
  assert len(left.seeds) == 3 and left.spread.total_degrees == curve.spread.total_degrees - 1
  np.testing.assert_allclose(left.spread.variances[1], curve.seeds[[0, 1, 3]].var(0, ddof=1))
  np.testing.assert_array_equal(left.spread.variances[0], curve.spread.variances[0])
  with pytest.raises(ValueError, match="single seed"):
    rates.remove_seed(next(each for each in certificates.list_curves() if "deit3" in each.name), 0)


def test_published_means_are_those_of_the_reference_table():
  for fraction, mean in ((0.02, 10.64), (0.05, 34.01), (0.1, 52.93), (0.25, 65.24), (0.5, 71.23), (0.75, 76.05)):
    # The table averages the nearest evaluations, the curves are interpolated.
    assert 100 * ALGOPERF[1].compute_band(fraction).mean == pytest.approx(mean, abs=0.15)
  deit3 = {curve.name: curve for curve in certificates.list_curves()}["configs/deit3.py:B,i1k,800"]
  assert [round(100 * deit3.compute_band(f).mean, 2) for f in (0.05, 0.5, 1.0)] == [50.77, 78.0, 82.82]


def test_published_seeds_pass_and_other_settings_fail_by_10_percent():
  wrong, count, stopped = rates.measure_false_alarms(ALGOPERF)
  assert count == 5 * 4 * 6  # 2, 5, 10, 25, 50 and 75 %
  assert wrong <= 6 and stopped == 0
  unstable, *_ = rates.measure_false_alarms([ALGOPERF[3]])  # the rate of trial 4 is five times as high
  assert wrong - unstable <= 1
  missed = {pair for pair, (some, _) in rates.measure_misses(ALGOPERF).items() if some}
  # Trials 1 and 3 differ only in the label smoothing.
  assert missed <= {(f"configs/algoperf_vit.py:{a}", f"configs/algoperf_vit.py:{b}") for a, b in ("13", "31")}


def test_digits_seeds_pass():
  digits = next(curve for curve in certificates.list_curves() if curve.name == "configs/digits.py")
  assert digits.seeds.shape[0] == 5 and digits.fractions[-1] == 1.0
  wrong, count, stopped = rates.measure_false_alarms([digits])
  assert wrong <= 1 and count == 5 * 8 and stopped == 0


def test_campaign_prints_rates(capsys, monkeypatch):
  monkeypatch.setattr("sys.argv", ["certificates"])
  rates.main()
  text = capsys.readouterr().out
  assert "false alarms" in text and "runs below twice in a row" in text and "configs/algoperf_vit.py:3" in text


@pytest.mark.parametrize("curve", certificates.list_curves(), ids=lambda curve: curve.name)
def test_config_of_a_curve_is_the_shipped_recipe(curve):
  assert curve.config == published_curves.select_groups(curve.name)
  assert (np.diff(curve.fractions) > 0).all() and curve.fractions[0] >= 0 and curve.fractions[-1] <= 1
  assert curve.seeds.shape == (len(curve.seeds), len(curve.fractions))
  assert curve.seeds.min() >= 0 and curve.seeds.max() <= 1 and curve.seeds.max() > 0.5


def test_every_curve_has_another_name():
  names = [curve.name for curve in certificates.list_curves()]
  assert len(names) == len(set(names)) == 5 + 18 + 1 + 1


@pytest.mark.skipif(not REFERENCE.exists(), reason="shared/reference/curves is absent")
def test_files_are_those_that_the_converter_writes(tmp_path, monkeypatch):
  monkeypatch.setattr(published_curves, "FOLDER", tmp_path)
  monkeypatch.setattr("sys.argv", ["published_curves", f"--curves={REFERENCE}"])
  published_curves.main()
  for name in ("algoperf", "deit3", "big_vision"):
    assert (tmp_path / f"{name}.json").read_bytes() == (runs.ROOT / f"vit_jax/certificates/{name}.json").read_bytes()


def test_converter_reads_the_digits_of_workdirs(tmp_path, monkeypatch):
  digits = next(curve for curve in certificates.list_curves() if curve.name == "configs/digits.py")
  for index, seed in enumerate(digits.seeds):
    (tmp_path / str(index)).mkdir()
    rows = [{"step": 1, "train/loss": 2.0}]
    rows += [{"step": round(674 * f), "test/top1": v} for f, v in zip(digits.fractions, seed, strict=True)]
    (tmp_path / str(index) / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
  (tmp_path / "made").mkdir()
  monkeypatch.setattr(published_curves, "FOLDER", tmp_path / "made")
  monkeypatch.setattr("sys.argv", ["published_curves", f"--digits={tmp_path}"])
  published_curves.main()
  assert (tmp_path / "made/digits.json").read_bytes() == (runs.ROOT / "vit_jax/certificates/digits.json").read_bytes()


def test_bands_of_different_settings_are_narrower_than_their_distance():
  """At 10 %, the means of the trials differ by more than half of the width of a range."""
  for a, b in itertools.combinations((0, 1, 3, 4), 2):
    one, other = ALGOPERF[a].compute_band(0.1), ALGOPERF[b].compute_band(0.1)
    assert abs(one.mean - other.mean) > one.half_width
