"""Functions that read the parts of a page."""

import html
import re

from vit_jax.reports import page


def table(chapter: page.Chapter, title: str) -> list[dict[str, str]]:
  """Returns the rows of a table as {column: cell}."""
  part = named(chapter, title)
  return [dict(zip(part.head, row, strict=True)) for row in part.rows]


def named(chapter: page.Chapter, title: str) -> page.Part:
  """Returns the part with this title."""
  (part,) = [part for part in chapter.parts if getattr(part, "title", None) == title]
  return part


def titles(chapter: page.Chapter) -> list[str]:
  """Returns the titles of a chapter's parts, or the texts of parts without a title."""
  return [getattr(part, "title", None) or part.text for part in chapter.parts]


def words(svg: str) -> list[str]:
  """Returns the texts of a drawing."""
  return [html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]
