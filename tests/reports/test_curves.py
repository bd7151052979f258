"""Tests of curves: every chart contains all runs."""

import dataclasses
import re

import pytest

from tests.reports import reading, workdirs
from tests.reports.test_interactive import points
from vit_jax.reports import curves, recorded


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
  folder = tmp_path_factory.mktemp("runs")
  return [recorded.read_run(workdirs.run(folder / name, rate=rate), name) for name, rate in (("a", 100.0), ("b", 50.0))]


def test_every_recorded_metric_has_a_chart(pair):
  titles = [panel.title for panel in curves.select_panels(pair)]
  assert titles == ["loss", "top-1", "learning rate", "images a second", "waiting for data"]
  one, several = curves.make_chapter(pair[:1]), curves.make_chapter(pair)
  assert [len(part.svgs) for part in one.parts] == [5, 2]
  assert [type(part).__name__ for part in several.parts] == ["Charts", "Charts", "Interactive"]
  assert "var(--series-0)" in several.parts[0].svgs[0] and "var(--series-1)" in several.parts[0].svgs[0]
  assert "var(--series-1)" not in one.parts[0].svgs[0]


def test_probes_during_training_are_curves_with_averaged_weights(pair):
  probed = [
    {"step": step, **{f"digits/{ema}ridge_{k}shot": step / 12 for ema in ("", "ema_") for k in (1, 10, 5)},
     "digits/ridge_10shot_std": 0.1}
    for step in (6, 12)
  ]  # fmt: skip
  runs = [dataclasses.replace(run, rows=[*run.rows, *probed]) for run in pair]
  panel = curves.select_panels(runs)[-1]
  assert panel == curves.Panel("digits/ridge 10shot", ["digits/ridge_10shot", "digits/ema_ridge_10shot"], percent=True)
  assert curves.make_chapter(runs).parts[0].about.endswith("For probes, dashed lines show the averaged weights.")
  drawn = {each["metric"] for each in points(curves.make_chapter(runs).parts[-1].html)}
  assert set(panel.metrics) <= drawn


def test_run_without_metrics_has_no_curves(pair):
  assert not curves.make_chapter([dataclasses.replace(pair[0], rows=[])]).parts


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (950, "950"), (1500, "1.5k"), (2.5e7, "25M"), (3e9, "3G")])
def test_counts_are_abbreviated(count, text):
  assert curves.format_count(count) == text


def test_axis_ticks_are_few_and_short(pair):
  # 1/3 of a core-hour and its multiples do not have short decimals.
  rows = [{"step": step, "train/loss": 1.0, "images_per_second": 0.0061} for step in range(1, 40)]
  svg = curves.draw_panel([dataclasses.replace(pair[0], rows=rows)], curves.Panel("loss", ["train/loss"]), "hours")
  ticks = [text for text in reading.words(svg) if re.fullmatch(r"[\d.e+-]+", text)]
  assert len(ticks) < 14 and max(map(len, ticks)) <= 6


def test_run_without_a_metric_has_no_entry_in_the_legend(pair):
  rows = [{"step": 2, "train/loss": 1.0}, {"step": 4, "train/loss": 0.5}]
  silent = [{"step": 2, "train/top1": 0.1}]
  runs = [dataclasses.replace(run, rows=each) for run, each in zip(pair, (rows, silent), strict=True)]
  words = reading.words(curves.draw_panel(runs, curves.Panel("loss", ["train/loss"]), "images"))
  assert "a" in words and "b" not in words


def test_dashed_lines_show_val_or_else_test_and_are_named(pair):
  both = [{"step": 6, "val/loss": 0.5, "val/top1": 0.1, "test/loss": 0.1}, {"step": 12, "val/loss": 0.4}]
  runs = [dataclasses.replace(pair[0], rows=[*pair[0].rows, *both])]
  assert curves.select_panels(runs)[0].metrics == ["train/loss", "val/loss"]
  assert "dashed lines show the split 'val'." in curves.make_chapter(runs).parts[0].about
  early = [dataclasses.replace(pair[0], rows=[{"step": 6, "test/loss": 0.5}, *pair[0].rows])]
  assert (
    "dashed lines show the split 'test', with 'test' measured during training."
    in curves.make_chapter(early).parts[0].about
  )
  # these runs measured test only at the end
  assert "during training" not in curves.make_chapter(pair[:1]).parts[0].about
