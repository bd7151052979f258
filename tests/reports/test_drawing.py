"""Tests of charts: the SVG contains the drawn data, and it is reproducible."""

import re

import pytest

from vit_jax.reports import drawing


def drawn(name):
  with drawing.use_style():
    made, [axes] = drawing.make_figure(4, 3)
    axes.plot([0, 1], [2, 3], color=drawing.SERIES[3], label="$a$ < b")
    axes.set(xlabel="images seen", title="loss")
    axes.legend()
    return drawing.render_svg(made, name)


def test_words_of_a_chart_are_text_and_not_formulas():
  text = drawn("one")
  words = re.findall(r"<text[^>]*>([^<]*)</text>", text)
  assert {"images seen", "loss", "$a$ &lt; b"} <= set(words)
  assert "var(--series-3)" in text


def test_chart_is_reproducible_and_shares_no_ids_with_another():
  assert drawn("one") == drawn("one")
  ids = [set(re.findall(r'id="([^"]*)"', drawn(name))) for name in ("one", "two")]
  assert ids[0] and not ids[0] & ids[1]


def test_width_of_a_chart_is_its_drawn_width():
  head = drawn("one").partition(">")[0]
  assert 'style="width: 288pt"' in head and " height=" not in head


@pytest.mark.parametrize(
  ("text", "line"),
  [
    ("x" * 24, "x" * 24),
    ("train/cat/" + "x" * 30 + ".jpg", "train/cat/x…xxxxxxxx.jpg"),
    ("two\n  lines", "two lines"),
    ("caf\udce9\x1b[31m", "caf??[31m"),
    ("", ""),
  ],
)
def test_long_name_keeps_its_two_ends(text, line):
  assert drawing.fit_text(text) == line
  assert len(drawing.fit_text(text)) <= 24


def test_names_that_look_like_colours_or_are_hidden_are_in_the_legend():
  with drawing.use_style():
    made, [axes] = drawing.make_figure(4, 3)
    for name in (drawing.INK, drawing.SERIES[0], "_hidden"):
      axes.plot([0, 1], label=drawing.fit_label(name))
    axes.legend()
    words = re.findall(r"<text[^>]*>([^<]*)</text>", drawing.render_svg(made, "one"))
  assert {drawing.INK, drawing.SERIES[0], "\u2060_hidden"} <= set(words)
