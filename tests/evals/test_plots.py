"""Tests of the image of a confusion matrix: a valid PNG with readable, correct cells for any class names."""

import pathlib

import cv2
import numpy as np
import pytest

from vit_jax.evals import plots
from vit_jax.schema import ConfigError


def matrix_of(classes):
  """Returns a diagonal with some confusions. Class 1 has no images."""
  matrix = np.random.default_rng(classes).integers(0, 3, (classes, classes)) + 40 * np.eye(classes, dtype=np.int64)
  matrix[1] = 0
  return matrix


@pytest.mark.heavy
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
  ("classes", "width", "height"),
  [(2, 7, 6), (10, 8, 7), (20, 13, 12), (50, 15.5, 14.5), (51, 15.5, 14.5), (1000, 15.5, 14.5)],
)
def test_image_is_readable_for_few_and_many_classes(tmp_path, classes, width, height):
  plots.write_confusion_png(matrix_of(classes), [f"class {i}" for i in range(classes)], tmp_path / "a.png")
  image = cv2.imread(str(tmp_path / "a.png"))
  assert image.shape == (height * plots.DPI, width * plots.DPI, 3)
  blue, _, red = np.moveaxis(image.astype(int), 2, 0)
  assert (blue - red > 60).sum() > 1000  # the diagonal and the colour bar
  assert (image == 255).mean() > 0.1
  assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


def test_rows_are_labels_and_cells_are_shares_of_a_row(tmp_path):
  matrix = np.array([[0, 900, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
  plots.write_confusion_png(matrix, ["", "", "", ""], tmp_path / "a.png")
  image = cv2.imread(str(tmp_path / "a.png")).astype(int)
  # The frame of the matrix is the first black line across and down, and the last across. The lines of the bar come
  # later.
  black = (image < 60).all(2)
  down, across = (np.flatnonzero(black.sum(axis) > 500) for axis in (1, 0))
  top, left, cell = down[0], across[0], (down[-1] - down[0]) / 4

  def colour(row, column):
    middle = image[int(top + (row + 0.2) * cell), int(left + (column + 0.2) * cell)]
    return middle.tolist()

  assert np.abs(across - left - 4 * cell).min() < 3  # a square
  assert colour(0, 1) == colour(1, 1)  # all images of the label, 900 or one
  assert sum(colour(0, 1)) < sum(colour(3, 0)) < sum(colour(0, 0))
  assert colour(0, 0) == colour(1, 0) == colour(2, 0) == colour(2, 3)
  assert colour(3, 0) == colour(3, 3)


@pytest.mark.heavy
@pytest.mark.filterwarnings("error")
def test_any_class_name_can_be_drawn(tmp_path):
  names = ["猫の名前", "naïve Straße", "x" * 500, "$x_{ $", "a\nb\tc", "", "caf\udce9", "\\frac", "🐈", "dog", "dog"]
  plots.write_confusion_png(matrix_of(11), names, tmp_path / "a.png")
  assert cv2.imread(str(tmp_path / "a.png")).shape == (7.5 * plots.DPI, 8.5 * plots.DPI, 3)


@pytest.mark.parametrize(
  ("name", "short"),
  [
    ("x" * 24, "x" * 24),
    ("x" * 25, "x" * 23 + "…"),
    ("Ж" * 30, "Ж" * 23 + "…"),
    ("two\n  lines", "two lines"),
    ("caf\udce9", "caf?"),
  ],
)
def test_names_are_shortened_to_one_line_of_24_characters(name, short):
  assert plots.shorten_name(name) == short


@pytest.mark.filterwarnings("error")
def test_no_images_give_an_empty_image(tmp_path):
  plots.write_confusion_png(np.zeros((3, 3), np.int64), ["a", "b", "c"], tmp_path / "a.png")
  assert cv2.imread(str(tmp_path / "a.png")) is not None


@pytest.mark.parametrize(("share", "text"), [(1, "100"), (0.999, "99.9"), (0.5, "50"), (1 / 3, "33.3"), (0.001, "0.1")])
def test_cells_contain_percentages(share, text):
  axes = plots.Figure().add_subplot()
  plots.write_percentages(axes, np.array([[share, 0.0]]))
  assert [cell.get_text() for cell in axes.texts] == [text]


def test_drawing_keeps_global_state_and_needs_no_display(tmp_path, monkeypatch):
  from matplotlib import pyplot, rcParams

  monkeypatch.delenv("DISPLAY", raising=False)
  before = dict(rcParams)
  plots.write_confusion_png(matrix_of(3), ["a", "b", "c"], tmp_path / "a.png")
  assert pyplot.get_fignums() == []
  assert dict(rcParams) == before


def test_interrupted_write_keeps_the_previous_image(tmp_path, monkeypatch):
  def half(self, content):
    with self.open("wb") as file:
      file.write(content[:4])
    raise OSError("disk full")

  (tmp_path / "a.png").write_text("old")
  monkeypatch.setattr(pathlib.Path, "write_bytes", half)
  with pytest.raises(OSError, match="disk full"):
    plots.write_confusion_png(matrix_of(3), ["a", "b", "c"], tmp_path / "a.png")
  assert (tmp_path / "a.png").read_bytes() == b"old"
  assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.parametrize(
  ("name", "message"), [("a.pdf", r"End the name in \.png$"), ("none/a.png", "the folder .* does not exist")]
)
def test_unwritable_path_is_refused(tmp_path, name, message):
  with pytest.raises(ConfigError, match=message):
    plots.write_confusion_png(matrix_of(3), ["a", "b", "c"], tmp_path / name)


@pytest.mark.filterwarnings("error")
def test_grid_contains_every_image_with_its_text_and_blanks():
  colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250)]
  images = [np.full((20 + i, 30, 3), colour, np.uint8) for i, colour in enumerate(colours)]
  words = [["a $x$ $y$", "日本"], ["b" * 90, ""], ["", "c"], ["none", "to see"]]
  drawn = plots.render_png(plots.draw_image_grid([*images, None], words, columns=2), 100)
  pixels = cv2.imdecode(np.frombuffer(drawn, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
  side, line = 100 * plots.TILE, 100 * plots.LINE
  assert pixels.shape == (round(2 * (side + 2 * line)), round(2 * side), 3)
  middle = [pixels[int(y * (side + 2 * line) + 0.7 * side), int(x * side + side / 2)] for y in (0, 1) for x in (0, 1)]
  np.testing.assert_array_equal(middle[:3], colours)
  assert middle[3].tolist() == [255, 255, 255]
  assert (pixels[int(side) : int(side + 2 * line), : int(side)] < 200).any()  # texts
  assert plots.render_png(plots.draw_image_grid([], []), 50)[:4] == b"\x89PNG"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
  ("name", "drawn"),
  [
    ("cat 🐈", "cat U+1F408"),
    ("猫", "U+732B"),
    ("caf\u00e9 \u0416 \u03b1", "caf\u00e9 \u0416 \u03b1"),
    ("\udce9", "?"),
    ("🐈" * 9, "U+1F408U+1F408U+1F408…"),
    ("a\0b", "aU+0000b"),
  ],
)
def test_characters_missing_in_the_font_become_their_code_points(name, drawn):
  assert plots.shorten_name(name) == drawn
  assert len(plots.render_png(plots.draw_image_grid([None], [[name]]), 40)) > 100  # does not warn about a missing glyph
