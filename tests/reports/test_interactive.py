"""Tests of the interactive chart: its points match the files, and a page without the optional package names it."""

import dataclasses
import importlib.util
import json
import re

import pytest

from tests.reports import workdirs
from vit_jax.reports import curves, interactive, recorded


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
  folder = tmp_path_factory.mktemp("runs")
  return [recorded.read_run(workdirs.run(folder / name, rate=rate), name) for name, rate in (("a", 100.0), ("b", 50.0))]


def points(html):
  return json.loads(re.search(r'vegaEmbed\("#comparison", (\{.*\}), \{"renderer"', html)[1])["datasets"]["points"]


def make_html(runs):
  return interactive.make_interactive(runs, ["train/loss", "train/top1"]).html


def test_points_of_the_page_match_the_recorded_lines(pair):
  values = points(make_html(pair))
  loss = [each for each in values if each["run"] == "b" and each["metric"] == "train/loss"]
  assert [(each["step"], each["images"]) for each in loss] == [(step, 16 * step) for step in range(2, 13, 2)]
  assert [each["value"] for each in loss] == pytest.approx([2 / step for step in range(2, 13, 2)], rel=1e-4)
  # b is half as fast on the same number of cores.
  assert loss[-1]["hours"] == pytest.approx(192 / 25 / 3600, rel=1e-4)


def test_name_of_a_run_cannot_end_the_script(pair):
  odd = "</script><script>alert(1)</script>"
  html = make_html([dataclasses.replace(pair[0], name=odd), pair[1]])
  assert html.count("</script") == 1 and odd in {each["run"] for each in points(html)}


def test_long_run_is_thinned_and_keeps_its_ends(pair):
  rows = [{"step": step, "train/loss": 1.0, "images_per_second": 10.0} for step in range(1, 5001)]
  values = points(make_html([dataclasses.replace(pair[0], rows=rows), pair[1]]))
  steps = [each["step"] for each in values if each["run"] == "a" and each["metric"] == "train/loss"]
  assert (len(steps), steps[0], steps[-1]) == (interactive.POINTS, 1, 5000)


def test_page_without_the_extra_names_it_and_has_the_other_charts(pair, monkeypatch):
  find = importlib.util.find_spec
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "altair" else find(name))
  parts = curves.make_chapter(pair).parts
  assert [type(part).__name__ for part in parts] == ["Charts", "Charts", "Paragraph"]
  assert "pip install -e '.[report]'" in parts[-1].text
