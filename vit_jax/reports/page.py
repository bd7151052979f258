"""HTML pages: chapters of figures, tables and images in one file that loads no other files."""

import base64
import functools
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import cv2
import jinja2
import numpy as np

from vit_jax.reports.drawing import make_drawable
from vit_jax.storage import files

TEMPLATE = "page.html.j2"
LARGE = 2**14  # size of a PNG in bytes above which JPEG is used
WORD = 14  # maximum number of characters of a word in a table's head that is never broken


class Paragraph(NamedTuple):
  """A paragraph of plain text.

  Attributes:
    text: the text.
    table: title of a table on the page to which a link follows the text, or "".
  """

  text: str
  table: str = ""


class Table(NamedTuple):
  """A table with cells of plain text. Numbers must already be formatted.

  Attributes:
    title: title of the table.
    head: headings of the columns.
    rows: cells of each row.
    about: text below the title.
    open: whether the table is visible without a click.
  """

  title: str
  head: Sequence[str]
  rows: Sequence[Sequence[str]]
  about: str = ""
  open: bool = True


class Chart(NamedTuple):
  """A drawing of `drawing.render_svg`, which uses the colours of the page."""

  title: str
  svg: str
  about: str = ""


class Charts(NamedTuple):
  """Several drawings of `drawing.render_svg`. A row contains as many as fit."""

  title: str
  svgs: Sequence[str]
  about: str = ""


class Picture(NamedTuple):
  """An image with a caption.

  Attributes:
    pixels: the image, uint8 (H, W, 3).
    lines: lines of the caption.
    wrong: whether the image is marked as wrong.
    before: image to the left of `pixels`.
  """

  pixels: np.ndarray
  lines: Sequence[str] = ()
  wrong: bool = False
  before: np.ndarray | None = None


class Gallery(NamedTuple):
  """A gallery of images. A row contains as many as fit.

  Attributes:
    title: title of the gallery.
    pictures: the images.
    about: text below the title.
    side: width of an image in CSS pixels. Smaller images show their pixels as squares.
    columns: headings of the parts of each image. All parts have the same width.
  """

  title: str
  pictures: Sequence[Picture]
  about: str = ""
  side: int = 96
  columns: Sequence[str] = ()


class Interactive(NamedTuple):
  """HTML and scripts of this package, which are inserted unchanged. Without scripts, `instead` is shown."""

  title: str
  html: str
  instead: Table
  about: str = ""


Part = Paragraph | Table | Chart | Charts | Gallery | Interactive


class Chapter(NamedTuple):
  """A chapter of a page."""

  title: str
  parts: Sequence[Part]
  about: str = ""


def write_page(path: pathlib.Path, title: str, about: str, chapters: Sequence[Chapter]) -> None:
  """Writes a page atomically. HTML in texts is escaped. Chapters without parts are omitted.

  Args:
    path: the file, with the suffix .html.
    title: title of the page.
    about: one line below the title.
    chapters: the chapters in order.

  Raises:
    ConfigError: the suffix is not .html, or the directory does not exist.

  Example:
    write_page(pathlib.Path("a.html"), "Runs", "two runs", [Chapter("Notes", [Paragraph("Both runs have finished.")])])
  """
  files.check_path(path, (".html",))
  files.write_text(path, render_page(title, about, chapters))


def render_page(title: str, about: str, chapters: Sequence[Chapter]) -> str:
  """Returns a page as HTML.

  Args:
    title: title of the page.
    about: one line below the title.
    chapters: the chapters in order.
  """
  chapters = [chapter for chapter in chapters if chapter.parts]
  parts = [part for chapter in chapters for part in chapter.parts]
  linked = list(dict.fromkeys(part.table for part in parts if isinstance(part, Paragraph) and part.table))
  return _load_template().render(title=title, about=about, chapters=chapters, linked=linked)


def embed_image(pixels: np.ndarray) -> str:
  """Encodes an image as a data URI.

  Small images become lossless PNG. Images above `LARGE` bytes as PNG become JPEG of quality 90.

  Args:
    pixels: uint8 (H, W, 3) or (H, W).
  """
  pixels, form = pixels[..., ::-1] if pixels.ndim == 3 else pixels, "png"
  done, data = cv2.imencode(".png", pixels)
  if done and len(data) > LARGE:  # a photograph of 192 pixels takes 60 kB as PNG and 10 kB as JPEG
    done, data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 90])
    form = "jpeg"
  assert done, pixels.shape
  return f"data:image/{form};base64,{base64.b64encode(data.tobytes()).decode()}"


@functools.cache
def _load_template() -> jinja2.Template:
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
    autoescape=True,
    finalize=lambda value: make_drawable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters["embedded"] = embed_image
  environment.tests["long"] = lambda text: max(map(len, text.split()), default=0) > WORD
  environment.tests["kind"] = lambda part, name: type(part).__name__ == name
  return environment.get_template(TEMPLATE)
