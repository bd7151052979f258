"""Tests of the report in a real browser.

The layout does not overflow at 400 and 1280 pixels. All text is readable in light and dark themes.
"""

import json
import re

import numpy as np
import pytest

from tests import browser
from tests import predictions as made
from tests.reports import workdirs
from tests.reports.test_mistakes import details_of
from vit_jax.evals import metrics
from vit_jax.reports import curves, heatmaps, mistakes, page, recorded, report, scaling, verdict

pytestmark = [
  pytest.mark.heavy,  # starts a browser
  pytest.mark.skipif(
    browser.installed() is None, reason="no Chromium and no Chrome is installed; run: apt-get install chromium"
  ),
]
WIDTHS, THEMES = (400, 1280), ("light", "dark")
LONG = "a_name_without_any_space_that_is_far_longer_than_a_column"

# Layout errors: elements that are wider than their container or outside the page, headers that are not above their
# column, and overlapping labels of charts.
LAYOUT = """
(() => {
  const found = [], root = document.documentElement, at = e => `${e.tagName} ${e.textContent.slice(0, 40)}`;
  document.querySelectorAll('details').forEach(e => e.open = true);
  if (root.scrollWidth > root.clientWidth) found.push(`document: ${root.scrollWidth} of ${root.clientWidth}`);
  for (const e of document.querySelectorAll('body *')) {
    const box = e.getBoundingClientRect();
    if (!box.width || (e.closest('svg') && e.tagName !== 'svg')) continue;
    if (box.right > root.clientWidth + 1 || box.left < -1) found.push(`outside: ${at(e)}`);
    if (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline' && e.tagName !== 'svg')
      found.push(`overflows: ${at(e)} ${e.scrollWidth} of ${e.clientWidth}`);
  }
  for (const table of document.querySelectorAll('table')) {
    const heads = [...table.querySelectorAll('th')].filter(e => e.getBoundingClientRect().width);
    for (const row of heads.length ? table.tBodies[0].rows : [])
      heads.forEach((head, i) => {
        if (Math.abs(head.getBoundingClientRect().left - row.cells[i].getBoundingClientRect().left) > 1)
          found.push(`not above its column: ${at(head)}`);
      });
  }
  for (const svg of document.querySelectorAll('svg:not(#comparison svg)')) {
    const texts = [...svg.querySelectorAll('text')].map(e => [e.textContent, e.getBoundingClientRect()]);
    texts.forEach(([text, a], i) => texts.slice(i + 1).forEach(([other, b]) => {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 3) found.push(`on top of each other: ${text} and ${other}`);
    }));
    for (const [text, box] of texts) if (box.right > root.clientWidth + 1) found.push(`outside: text ${text}`);
  }
  return [...new Set(found)];
})()
"""

# Texts with less contrast to their background than WCAG 2.2 requires (4.5 to 1, criterion 1.4.3).
CONTRAST = """
(() => {
  const parse = text => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  let texts = 0;
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || ['SCRIPT', 'NOSCRIPT', 'STYLE', 'OPTION'].includes(e.tagName)) continue;
    const style = getComputedStyle(e), colour = parse(e.closest('svg') ? style.fill : style.color);
    const [a, b] = [light(colour), light(behind(e))].sort((x, y) => y - x);
    texts += 1;
    if ((a + 0.05) / (b + 0.05) < 4.5) found.push(`${walker.currentNode.data.slice(0, 30)} ${colour} on ${behind(e)}`);
  }
  return {texts, found: [...new Set(found)], page: getComputedStyle(document.body).backgroundColor};
})()
"""


@pytest.fixture(scope="module")
def shown():
  with browser.Browser() as opened:
    yield opened


def one_run(folder):
  """Returns the chapters of a run with long names, without training a model."""
  workdir = workdirs.run(folder / "b")
  command = f"python -m vit_jax.train --config=configs/digits.py --workdir=/data/{LONG} --config.total=3ep"
  about = {"config": "configs/folder.py:cct_2_3x2_32", "about": f"Result: {'99 % of all images, ' * 9}"}
  about |= {"changes": [f"data.path: /data/{LONG}", "total: 6"], "command": command, "processor": "X"}
  (workdir / "recipe.json").write_text(json.dumps(about))
  run = recorded.read_run(workdir, "b")
  names = [f"class {i}" if i else LONG for i in range(10)]
  details = details_of(made.drawn(3, 200, 10, 10), names)
  details = details._replace(source=details.source.__class__(**{**details.source.__dict__, "identify": lambda i: LONG}))
  squares = [np.full((32, 32, 3), 40 * i, np.uint8) for i in range(4)]
  columns = ["picture", "last layer", "rollout", "pooling weights"]
  strip = page.Picture(
    heatmaps.join_images([heatmaps.scale_image(square) for square in squares]), [f"test/{LONG}/1.jpg"]
  )
  bounds = metrics.compute_intervals(details.predictions, 10, 20)
  return [
    verdict.make_chapter([run]),
    curves.make_chapter([run]),
    mistakes.make_chapter(details, lambda of: [squares[i % 4] for i, _ in enumerate(of)], bounds),
    page.Chapter("Inside", [page.Gallery("Where the model looks", [strip] * 2, "", 460, columns)]),
  ]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
  """Returns {name: file} of a page about one run and a page about several runs."""
  folder = tmp_path_factory.mktemp("pages")
  runs = [
    recorded.read_run(workdirs.run(folder / f"{LONG}_{i}", seed=i, top1=0.9 - i / 50, rate=90 + 7 * i), f"{LONG}_{i}")
    for i in range(3)
  ]
  several = [verdict.make_chapter(runs), curves.make_chapter(runs), scaling.make_chapter(runs)]
  page.write_page(folder / "one.html", "b: cct_2_3x2_32 on digits", "about", one_run(folder))
  page.write_page(folder / "several.html", f"{LONG}_0, {LONG}_1: 3 runs", "about", several)
  return {name: folder / f"{name}.html" for name in ("one", "several")}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("which", ["one", "several"])
def test_page_does_not_overflow_or_overlap(shown, pages, which, width):
  shown.open(pages[which], width)
  shown.wait("!document.querySelector('#comparison') || document.querySelector('#comparison svg')")
  assert shown.evaluate("document.documentElement.clientWidth") == width
  assert shown.evaluate(LAYOUT) == []


HEADS = {
  "a recipe": ["", "configs/folder.py:cct_2_3x2_32"],
  "a path": ["", f"/data/{LONG}/configs/folder.py:cct_2_3x2_32"],
  "two runs": ["key", f"runs/{LONG}_1", f"runs/{LONG}_2"],
  "words": ["figure", "mean_per_class_accuracy_of_all", "95 % (Wilson)", "expected calibration error"],
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_header_of_a_column_is_shown_completely(shown, tmp_path, head, width):
  rows = [["changed by flags", *(["data.path: /photos\ntotal: 6"] * (len(head) - 1))], ["a", *"bcd"[: len(head) - 1]]]
  page.write_page(tmp_path / "a.html", "a", "about", [page.Chapter("A", [page.Table("T", head, rows)])])
  shown.open(tmp_path / "a.html", width)
  assert shown.evaluate(LAYOUT) == []
  ends = shown.evaluate("""
    [...document.querySelectorAll('th')].map(e => {
      const text = document.createRange();
      text.selectNodeContents(e);
      const place = e.closest('.wide').getBoundingClientRect();
      return [text.getBoundingClientRect().right, Math.min(e.getBoundingClientRect().right, place.right)];
    })
  """)
  assert len(ends) == len(head) and all(text <= place + 0.5 for text, place in ends), ends


def test_short_words_of_a_header_are_not_broken(shown, tmp_path):
  head = ["figure", "95 % interval", "calibration error", "method"]
  page.write_page(tmp_path / "a.html", "a", "about", [page.Chapter("A", [page.Table("T", head, [["x" * 60] * 4])])])
  shown.open(tmp_path / "a.html", 400)
  heights = "[...document.querySelectorAll('th')].map(e => e.getBoundingClientRect().height)"
  assert max(shown.evaluate(heights)) < 2 * 21 + 8  # two lines of 14 px x 1.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("which", ["one", "several"])
def test_all_text_is_readable_in_light_and_dark_themes(shown, pages, which, theme):
  shown.open(pages[which], 1280, dark=theme == "dark")
  found = shown.evaluate(CONTRAST)
  assert found["page"] == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[theme]
  assert found["texts"] > 100 and found["found"] == []


def test_layout_and_contrast_checks_detect_errors(shown, tmp_path):
  style = "body{margin:0;background:#fff;color:#999}th{position:relative;left:9px}"
  table = "<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>b</td></tr></tbody></table>"
  wide = f"<div style='width:424px'>wide</div><div style='width:90px;overflow:auto'>{LONG}</div>{table}"
  texts = "<svg width=90 height=30><text x=5 y=15>one</text><text x=8 y=15>two</text></svg>"
  (tmp_path / "bad.html").write_text(f"<!doctype html><style>{style}</style>{wide}{texts}")
  shown.open(tmp_path / "bad.html", 400)
  kinds = {re.split("[: ]", each)[0] for each in shown.evaluate(LAYOUT)}
  assert kinds == {"document", "outside", "overflows", "not", "on"}
  assert shown.evaluate(CONTRAST)["found"]


def test_numbers_on_coloured_cells_are_readable():
  def light(colour):
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]

  for behind, ink in (((255, 255, 255), (0x1D, 0x21, 0x26)), ((0x14, 0x17, 0x1A), (0xE6, 0xE9, 0xEC))):
    for colour in (mistakes.RIGHT, mistakes.WRONG):
      cell = mistakes.STRONGEST * np.array(colour) + (1 - mistakes.STRONGEST) * np.array(behind)
      low, high = sorted([light(cell / 255), light(np.array(ink) / 255)])
      assert (high + 0.05) / (low + 0.05) >= 4.5


def test_page_contains_title_command_date_and_duration(tmp_path):
  one_run(tmp_path)
  about = report.read_contents([tmp_path / "b"])
  assert report.make_title([tmp_path / "b"], about) == "b: cct_2_3x2_32 on digits"
  cells = workdirs.texts(verdict.make_chapter(about.runs))
  assert cells["Run", "command"][0].startswith("python -m vit_jax.train --config=configs/digits.py")
  assert cells["Run", "started"] == ["01 January 1970, 00:00 UTC"]
  assert cells["Run", "duration"] == ["2 min 24 s in 2 attempts"]
