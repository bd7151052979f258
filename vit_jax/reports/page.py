"""The page itself: chapters of figures, tables and pictures as one HTML file that loads nothing from anywhere."""

import base64
import functools
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import cv2
import jinja2
import numpy as np

from vit_jax import files
from vit_jax.reports.drawing import drawable

TEMPLATE = "page.html.j2"
LARGE = 2**14  # bytes of a PNG


class Words(NamedTuple):
  """Plain text, a paragraph of its own."""

  text: str


class Table(NamedTuple):
  """A table whose cells are plain text; numbers are written as the reader shall see them."""

  title: str
  head: Sequence[str]
  rows: Sequence[Sequence[str]]
  about: str = ""
  open: bool = True  # False: folded away until somebody asks for it


class Chart(NamedTuple):
  """A drawing of `drawing.svg`, whose colours are those of the page."""

  title: str
  svg: str
  about: str = ""


class Charts(NamedTuple):
  """Drawings of `drawing.svg` side by side, as many in a row as there is room for."""

  title: str
  svgs: Sequence[str]
  about: str = ""


class Picture(NamedTuple):
  """Pixels uint8 [H, W, 3], and what stands below them, line by line."""

  pixels: np.ndarray
  lines: Sequence[str] = ()
  wrong: bool = False  # it is marked
  before: np.ndarray | None = None  # pixels that stand left of it


class Gallery(NamedTuple):
  """Pictures side by side, as many in a row as there is room for."""

  title: str
  pictures: Sequence[Picture]
  about: str = ""
  side: int = 96  # CSS pixels that each takes of the width; what has fewer shows its pixels as squares
  columns: Sequence[str] = ()  # headings above the parts of each picture, which are equally wide


class Interactive(NamedTuple):
  """HTML and scripts of our own making, which stand in the page as they are; `instead` for those without scripts."""

  title: str
  html: str
  instead: Table
  about: str = ""


Part = Words | Table | Chart | Charts | Gallery | Interactive


class Chapter(NamedTuple):
  """A chapter of the page."""

  title: str
  parts: Sequence[Part]
  about: str = ""


def write(path: pathlib.Path, title: str, about: str, chapters: Sequence[Chapter]) -> None:
  """Writes a page, whole or not at all. Texts stay texts, whatever HTML is in them.

  Chapters without parts are left out.

  Args:
    path: ends in .html; ConfigError for any other, or where there is no such folder.
    title: of the page.
    about: one line below it.
    chapters: in this order.
  """
  files.check_path(path, (".html",))
  files.write_text(path, render(title, about, chapters))


def render(title: str, about: str, chapters: Sequence[Chapter]) -> str:
  """The page as HTML."""
  chapters = [chapter for chapter in chapters if chapter.parts]
  return _template().render(title=title, about=about, chapters=chapters)


def embedded(pixels: np.ndarray) -> str:
  """A data URI of pixels uint8 [H, W, 3] or [H, W]: PNG without loss, of what would be large JPEG of quality 90."""
  pixels, form = pixels[..., ::-1] if pixels.ndim == 3 else pixels, "png"
  done, data = cv2.imencode(".png", pixels)
  if done and len(data) > LARGE:  # photographs of 192 pixels: 60 kB against 10
    done, data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 90])
    form = "jpeg"
  assert done, pixels.shape
  return f"data:image/{form};base64,{base64.b64encode(data).decode()}"


@functools.cache
def _template():
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
    autoescape=True,
    finalize=lambda value: drawable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters["embedded"] = embedded
  environment.tests["kind"] = lambda part, name: type(part).__name__ == name
  return environment.get_template(TEMPLATE)
