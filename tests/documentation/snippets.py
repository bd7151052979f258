"""The Python code that the pages show, in fenced blocks."""

import re
from typing import NamedTuple

from tests.documentation import extraction

# The first line of an excerpt that cannot be executed alone -> the file that has all of it, and a test that runs it.
EXCERPTS = {
  "checkpoint = torch.load": (
    "tests/importers/formats/test_torch_files.py",
    "tests/importers/formats/test_torch_files.py",
  ),
  "import timm": ("tests/importers/test_timm.py", "tests/importers/test_timm.py"),
  'register.dataset("birds"': ("tests/test_register.py", "tests/test_register.py"),
}


class Snippet(NamedTuple):
  """A block of Python code and its page."""

  code: str
  page: str


def snippets() -> list[Snippet]:
  """Returns the fenced blocks of Python of all pages, in their order."""
  return [
    Snippet(code, extraction.name_of(page))
    for page in extraction.PAGES
    for code in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.M | re.S)
  ]


def excerpt(snippet: Snippet) -> str | None:
  """Returns the key of `EXCERPTS` with which a block starts; None if the block can be executed."""
  return next((start for start in EXCERPTS if snippet.code.startswith(start)), None)
