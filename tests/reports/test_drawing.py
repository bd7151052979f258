"""Charts: what is drawn is in the SVG, the same bytes each time."""

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


def test_words_of_a_chart_are_text_and_no_formulas():
  text = drawn("one")
  words = re.findall(r"<text[^>]*>([^<]*)</text>", text)
  assert {"images seen", "loss", "$a$ &lt; b"} <= set(words)
  assert "var(--series-3)" in text


def test_a_chart_is_the_same_each_time_and_shares_no_names_with_another():
  assert drawn("one") == drawn("one")
  ids = [set(re.findall(r'id="([^"]*)"', drawn(name))) for name in ("one", "two")]
  assert ids[0] and not ids[0] & ids[1]


def test_a_chart_is_as_wide_as_drawn_or_as_the_page():
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
def test_a_long_name_keeps_its_two_ends(text, line):
  assert drawing.fit_text(text) == line
  assert len(drawing.fit_text(text)) <= 24


def test_names_that_look_like_colours_or_begin_with_an_underscore_are_in_the_legend():
  with drawing.use_style():
    made, [axes] = drawing.make_figure(4, 3)
    for name in (drawing.INK, drawing.SERIES[0], "_hidden"):
      axes.plot([0, 1], label=drawing.fit_label(name))
    axes.legend()
    words = re.findall(r"<text[^>]*>([^<]*)</text>", drawing.render_svg(made, "one"))
  assert {drawing.INK, drawing.SERIES[0], "\u2060_hidden"} <= set(words)
