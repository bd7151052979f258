"""What stands in parts of a page, as a reader finds it."""

import html
import re

from vit_jax.reports import page


def table(chapter: page.Chapter, title: str) -> list[dict[str, str]]:
  """The rows of a table by its head."""
  part = named(chapter, title)
  return [dict(zip(part.head, row, strict=True)) for row in part.rows]


def named(chapter: page.Chapter, title: str) -> page.Part:
  """The part with this title."""
  (part,) = [part for part in chapter.parts if getattr(part, "title", None) == title]
  return part


def titles(chapter: page.Chapter) -> list[str]:
  """Of its parts, with the texts of those that have none."""
  return [getattr(part, "title", None) or part.text for part in chapter.parts]


def words(svg: str) -> list[str]:
  """The texts of a drawing."""
  return [html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]
