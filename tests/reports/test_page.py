"""Tests of the page: text is escaped, no external resource is loaded, and the file contains all displayed data."""

import base64
import html.parser
import re

import cv2
import numpy as np
import pytest

from vit_jax.reports import drawing, page
from vit_jax.schema import ConfigError

HOSTILE = "<script>alert(\"1\")</script> & 'x' {{ 7 * 7 }} \udcff\x1b[31m"
TABLE = page.Table("A table", ["class", "images"], [[HOSTILE, "1,437"]])
PIXELS = np.random.default_rng(0).integers(0, 255, (5, 7, 3), np.uint8)


class Reader(html.parser.HTMLParser):
  """A parser of the tags, attributes and texts that a browser reads."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.words = [], []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))

  def handle_data(self, data):
    self.words.append(data)


def rendered(*parts):
  return page.render_page("Run", "about it", [page.Chapter("One", parts), page.Chapter("Empty", [])])


def test_html_in_names_stays_text():
  with drawing.use_style():
    made, [axes] = drawing.make_figure(3, 2)
    axes.plot([1, 2], label=drawing.make_drawable(HOSTILE))
    axes.legend()
    chart = page.Chart(HOSTILE, drawing.render_svg(made, "one"))
  gallery = page.Gallery(HOSTILE, [page.Picture(PIXELS, [HOSTILE], wrong=True)])
  text = page.render_page(
    HOSTILE, HOSTILE, [page.Chapter(HOSTILE, [TABLE, chart, gallery, page.Paragraph(HOSTILE)], HOSTILE)]
  )
  seen = Reader(text)
  assert "script" not in {tag for tag, _ in seen.tags}
  shown = HOSTILE.replace("\udcff", "?").replace("\x1b", "?")
  assert sum(shown in words for words in seen.words) >= 9, "{{ }} is no template, and all of it is there"
  assert text.encode() and "\x1b" not in text


def test_page_loads_no_external_resource():
  with drawing.use_style():
    made, [axes] = drawing.make_figure(3, 2)
    axes.imshow([[1, 2], [3, 4]])
    chart = page.Chart("Picture", drawing.render_svg(made, "one"))
  seen = Reader(rendered(chart, page.Gallery("Pictures", [page.Picture(PIXELS)])))
  links = [value for _, attrs in seen.tags for key, value in attrs.items() if key in ("src", "href", "xlink:href")]
  assert links and all(link.startswith(("#", "data:")) for link in links)
  policy = next(attrs["content"] for tag, attrs in seen.tags if attrs.get("http-equiv"))
  assert policy.startswith("default-src 'none'; img-src data:;")


def test_pixels_of_the_page_match_the_image():
  seen = Reader(rendered(page.Gallery("Pictures", [page.Picture(PIXELS, ["a.jpg"])])))
  data = next(attrs["src"] for tag, attrs in seen.tags if tag == "img").removeprefix("data:image/png;base64,")
  decoded = cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_COLOR_RGB)
  np.testing.assert_array_equal(decoded, PIXELS)


def test_two_images_are_side_by_side_and_large_ones_nearly_equal():
  smooth = cv2.resize(np.random.default_rng(1).integers(0, 255, (6, 6, 3), np.uint8), (300, 200))
  noisy = cv2.add(smooth, np.random.default_rng(2).integers(0, 9, smooth.shape, np.uint8))
  seen = Reader(rendered(page.Gallery("Pictures", [page.Picture(PIXELS, ["a.jpg"], before=noisy)], side=96)))
  before, after = [attrs for tag, attrs in seen.tags if tag == "img"]
  assert next(attrs["style"] for tag, attrs in seen.tags if tag == "figure") == "width: 196px"
  assert (before["alt"], after["alt"]) == ("", "a.jpg")
  assert "class" not in before and after["class"] == "squares"  # seven pixels in 96
  kind, data = before["src"].split(";base64,")
  decoded = cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_COLOR_RGB)
  assert kind == "data:image/jpeg" and len(data) < 60_000
  assert decoded.shape == noisy.shape and np.abs(decoded.astype(int) - noisy).mean() < 4


def test_gallery_may_use_the_whole_width():
  text = rendered(*(page.Gallery("Some", [page.Picture(PIXELS)], side=side) for side in (344, 96)))
  galleries = [attrs["class"] for _, attrs in Reader(text).tags if "gallery" in attrs.get("class", "")]
  assert galleries == ["gallery strips", "gallery"]


def test_charts_have_the_colours_of_the_page_and_unique_ids():
  with drawing.use_style():
    charts = []
    for name in ("one", "two"):
      made, both = drawing.make_figure(6, 2, 1, 2)
      for axes in both:
        axes.plot([1, 2, 3], marker="o", label="loss")
        axes.fill_between([0, 1], [1, 2], alpha=0.3)
        axes.legend()
      charts.append(page.Chart(name, drawing.render_svg(made, name)))
  text = rendered(*charts)
  assert "var(--series-0)" in text and "currentColor" in text
  assert not re.search("|".join((drawing.INK, drawing.FAINT, *drawing.SERIES)), text)
  ids = [attrs["id"] for _, attrs in Reader(text).tags if "id" in attrs]
  assert len(set(ids)) == len(ids)
  assert set(re.findall(r"url\(#([^)]+)\)|href=\"#([^\"]+)\"", text)) <= {(i, "") for i in ids} | {("", i) for i in ids}


def test_empty_chapter_is_left_out_and_a_folded_table_is_kept():
  text = rendered(TABLE._replace(open=False))
  assert "<details>" in text and "1,437" in text and "Empty" not in text


def test_page_without_scripts_shows_a_table():
  text = rendered(page.Interactive("Compare", "<div id=vis></div>", TABLE))
  assert "1,437" in text[text.index("<noscript>") : text.index("</noscript>")]


def test_name_of_a_page_must_end_in_html(tmp_path):
  with pytest.raises(ConfigError, match=r"\.html"):
    page.write_page(tmp_path / "report.pdf", "Run", "", [])
  page.write_page(tmp_path / "report.html", "Run", "", [page.Chapter("One", [TABLE])])
  assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
