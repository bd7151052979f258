"""vit_jax/reports/published.py: the band behind a curve and the table of verdicts."""

import dataclasses
import re

import numpy as np
import pytest

from tests.reports import workdirs
from tests.training.test_comparison import publish
from vit_jax.reports import curves, page, published, recorded, verdict


def read(folder, name="a", **changes):
  return recorded.read_run(workdirs.run(folder / name, **changes), name)


@pytest.fixture
def run(tmp_path, monkeypatch):
  made = read(tmp_path)
  publish(made.run, 0.8, monkeypatch)
  more = [{"step": 3, "test/top1": 0.8}, {"step": 6, "test/top1": 0.1}]
  return dataclasses.replace(made, rows=sorted([*made.rows, *more], key=lambda row: row["step"]))


def test_verdicts_of_recorded_evaluations(run):
  verdicts = published.compare_recorded_run(run).verdicts
  assert [(each.step, each.verdict) for each in verdicts] == [(3, "on track"), (6, "below"), (12, "on track")]
  (table,) = published.make_tables([run])
  assert table.title == "a and the published curve of recipe"
  assert [(row[0], row[1], row[4]) for row in table.rows] == [
    ("25 %", "80.00", "on track"), ("50 %", "10.00", "below"), ("100 %", "90.00", "on track"),
  ]  # fmt: skip
  assert all(row[2] == "80.00" and re.fullmatch(r"\d+\.\d to \d+\.\d", row[3]) for row in table.rows)


def test_band_is_drawn_once_behind_the_accuracy_over_images(run):
  (band,) = published.find_bands([run, run])
  np.testing.assert_array_equal(band.images, [0, 12 * 16])
  expected = published.compare_recorded_run(run).match.curve.compute_band(1.0)
  assert (band.low[1], band.high[1]) == (expected.low, expected.high)
  chapter = curves.make_chapter([run])
  plain = curves.make_chapter([with_certificate(run, "off")])
  changed = [a != b for a, b in zip(chapter.parts[0].svgs, plain.parts[0].svgs, strict=True)]
  titles = [panel.title for panel in curves.select_panels([run])]
  assert [title for title, other in zip(titles, changed, strict=True) if other] == ["top-1"]
  assert "The grey area contains a further run of recipe with a probability of at least 99%." in chapter.parts[0].about
  assert "grey area" not in plain.parts[0].about


def test_first_chapter_names_the_last_verdict_and_links_to_the_table(run, tmp_path):
  paragraph = published.summarise_verdicts(run)
  assert paragraph.text.startswith(
    "Compared with the published curve of recipe at 100 %: top-1 90.0 %, published 80.0 % (3"
  )
  assert paragraph.text.endswith(": on track.") and paragraph in verdict.make_chapter([run]).parts
  html = page.render_page("", "", [verdict.make_chapter([run]), curves.make_chapter([run])])
  (anchor,) = re.findall(r': on track. <a href="#([\w-]+)">Table</a>', html)
  assert re.findall(rf'<h3 id="{anchor}">(.*?)</h3>', html) == ["a and the published curve of recipe"]
  assert published.summarise_verdicts(with_certificate(run, "off")) is None


def test_first_chapter_explains_a_stop_below_the_curve(run):
  rows = [{"step": 3, "test/top1": 0.2}, {"step": 6, "test/top1": 0.1}]
  below = dataclasses.replace(run, rows=rows, result={})
  assert published.summarise_verdicts(below).text.endswith(": below.")
  assert published.summarise_verdicts(with_certificate(below, "stop")).text.endswith(
    ": below. The run stops with exit code 46: top-1 was below the expected range of recipe at two consecutive "
    "verdicts, after 25 and 50 % of the schedule. The same command continues it with --config.log.certificate=report."
  )


def with_certificate(run, mode):
  return dataclasses.replace(
    run, run=dataclasses.replace(run.run, log=dataclasses.replace(run.run.log, certificate=mode))
  )


def test_run_with_another_config_has_a_note_but_no_band(tmp_path, run):
  other = read(tmp_path, "other", optim__lr=1e-3)
  assert published.find_bands([other]) == [] and published.make_tables([other]) == []
  assert "optim.lr" in published.compare_recorded_run(other).reason
