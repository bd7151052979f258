"""Tests that the contact sheet is a valid PNG for any names and numbers of images and classes."""

import types

import cv2
import numpy as np
import pytest

from vit_jax.corpora.stats import ConspicuousImages, ImageFacts
from vit_jax.data.bound_data import TrainData
from vit_jax.data.sources import Source
from vit_jax.reports import preview_sheet
from vit_jax.reports.preview_batch import PreviewExample
from vit_jax.schema import Choice, ConfigError

NONE = Choice("none")
RUN = types.SimpleNamespace(
  seed=0,
  batch=4,
  task=Choice("classify", {"label_smoothing": 0.1}),
  data=TrainData(
    "x", dict(image_size=32, crop=Choice("resize"), flip=True, policy=NONE, warp=NONE, mixing=NONE, erasing=NONE)
  ),
)
HOSTILE = ("猫の名前", "x" * 500, "$x_{ $", "a\nb\tc", "", "caf\udce9", "\\frac", "🐈", "<b>", "dog", "dog")


def source(names):
  return Source(
    "x", "train", tuple(names), 900, lambda i: (b"", 0), str, identify=lambda i: f"a/{names[i % len(names)]}/{i}"
  )


def drawn(path, names, examples, counts, worst, exact=True):
  preview_sheet.draw_sheet(path, RUN, source(names), (examples, exact), (np.asarray(counts), 900), 300, worst)
  return cv2.imread(str(path))


@pytest.mark.heavy
@pytest.mark.filterwarnings("error")
def test_hostile_names_do_not_break_a_sheet_and_images_fit_their_tiles(tmp_path):
  image = np.full((40, 80, 3), (200, 30, 60), np.uint8)
  examples = [
    PreviewExample(1, (0, 2), image, image, ((0, 0.625), (2, 0.375))),
    PreviewExample(2, error="$not_{ a complete image"),
    PreviewExample(3, (), image, image, ()),
  ]
  looks = ImageFacts(1, (1,), 40, 80), ImageFacts(4, (2,), 41, 81), ImageFacts(5, error="it is $torn_{" + "x" * 400)
  worst = {
    "tiny": (ConspicuousImages("words", 7, [(2.0, looks[:1])] * 20), [(image,)] * 20),
    "pairs": (ConspicuousImages("words", 1, [(2.0, looks[:2])]), [(image, image)]),
    "unreadable": (ConspicuousImages("words", 1, [(1.0, looks[2:])]), [(None,)]),
  }
  page = drawn(tmp_path / "a.png", HOSTILE, examples, range(len(HOSTILE)), worst, exact=False)
  assert page.shape[1] == preview_sheet.WIDTH
  first = page[preview_sheet.EDGE + 4 * preview_sheet.LINE :][: preview_sheet.TILE, preview_sheet.EDGE :][
    :, : preview_sheet.TILE
  ]
  red = (first == (60, 30, 200)).all(2)  # in the BGR order of OpenCV
  assert (
    red[preview_sheet.TILE // 2].mean() > 0.97 and not red[: preview_sheet.TILE // 4 - 1].any()
  )  # half as high as wide
  assert red.mean() == pytest.approx(0.5, abs=0.03)
  assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.parametrize("classes", [1, 2, 50, 51, 21_843])
def test_heights_of_bars_are_the_sizes_of_classes(classes):
  counts = np.random.default_rng(0).integers(0, 40, classes)
  axes = preview_sheet.Figure().add_subplot()
  preview_sheet.draw_bars(axes, counts, [f"class {i}" for i in range(classes)])
  expected = sorted(counts, reverse=True)
  if classes <= preview_sheet.NAMED:
    assert [bar.get_height() for bar in axes.patches] == expected
    assert axes.get_xticklabels()[0].get_text() == f"class {counts.argmax()}"
  else:
    corners = {tuple(corner) for corner in axes.collections[0].get_paths()[0].vertices.tolist()}
    assert {(at + half, height) for at, height in enumerate(expected) for half in (-0.5, 0.5)} <= corners
  assert axes.get_yscale() == "linear"
  preview_sheet.draw_bars(axes, np.array([10_000, *[3] * (classes + 1)]), [""] * (classes + 2))
  assert axes.get_yscale() == "symlog"  # otherwise the small classes would be invisible


def test_largest_and_smallest_classes_are_listed():
  counts = np.array([5, 0, 90, 7, 7, 1, 2, 3, 4, 6, 8, 9])
  words = [text.words.split() for text in preview_sheet.arrange_extremes(counts, list("abcdefghijkl"), 0)]
  assert words[0][-4:] == ["1", "class", "without", "images"]
  rows = [tuple(line) for line in words[1:] if len(line) == 2]
  assert rows[:2] == [("90", "c"), ("9", "l")] and rows[-2:] == [("1", "f"), ("0", "b")]
  assert len(rows) == len(set(rows)) == 10
  assert len(list(preview_sheet.arrange_extremes(counts[:3], list("abc"), 0))) == 4


@pytest.mark.parametrize(
  ("name", "short"),
  [
    ("train/cat/1.jpg", "1.jpg"),
    ("x/" + "a" * 24, "a" * 24),
    ("x/IMG_000123_" + "y" * 80 + "_small.jpg", "IMG_000123_…yy_small.jpg"),
    ("a b\n c\udce9", "a b c?"),
    ("7", "7"),
  ],
)
def test_long_file_names_are_shortened_in_the_middle(name, short):
  assert preview_sheet.shorten_path(name) == short


def test_only_mixed_targets_are_shown_with_the_label():
  assert not preview_sheet.is_mixed(PreviewExample(0, (3,), target=((3, 1.0),)))
  assert not preview_sheet.is_mixed(PreviewExample(0, (3, 5), target=((3, 0.5), (5, 0.5))))
  assert preview_sheet.is_mixed(PreviewExample(0, (3,), target=((3, 0.6), (5, 0.4))))
  assert preview_sheet.is_mixed(PreviewExample(0, (3, 5), target=((3, 0.7), (5, 0.3))))


def test_name_of_a_sheet_must_end_in_png(tmp_path):
  with pytest.raises(ConfigError, match=r"End the name in \.png"):
    drawn(tmp_path / "a.pdf", "ab", [], [1, 1], {})


def test_error_of_an_unreadable_image_replaces_its_label(monkeypatch, tmp_path):
  words = []
  monkeypatch.setattr(preview_sheet, "_draw_text", lambda page, text: words.append(text.words))
  drawn(
    tmp_path / "a.png",
    ["cat"],
    [PreviewExample(2, error="torn")],
    [3],
    {"tiny": (ConspicuousImages("words", 9, [(2.0, [ImageFacts(1, (0,), 4, 4)])]), [(None,)])},
  )
  assert "torn" in words and "no label" not in words
  assert "tiny: 9, of which the worst 1 are shown. The JSON file contains more" in words


def test_harmless_outliers_are_gray_and_other_outliers_red():
  looks = [(2.0, [ImageFacts(1, (0,), 4000, 3000)])]
  for harmless, colour in ((True, preview_sheet._GREY), (False, preview_sheet._RED)):
    items, _ = preview_sheet.arrange_outliers(
      "huge", ConspicuousImages("words", 1, looks, harmless), [(None,)], source(["cat"])
    )
    title = next(item for item in items if isinstance(item, preview_sheet.TextBox) and item.words == "huge: 1")
    assert title.colour == colour
