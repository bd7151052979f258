"""Adds the generated pages to the documentation site.

MkDocs calls the functions `on_...` for each build. `make_pages()` returns the same pages for tests.
"""

import pathlib
import re
import sys
import typing

if typing.TYPE_CHECKING:
  from mkdocs.config.defaults import MkDocsConfig
  from mkdocs.structure.files import Files
  from mkdocs.structure.pages import Page

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from docs.generated import config_pages, flag_pages, metrics_page  # noqa: E402


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
  """Adds the generated pages to those of the folder, see MkDocs' hooks."""
  from mkdocs.structure.files import File  # not needed by tests of the pages

  for path, text in make_pages().items():
    files.append(File.generated(config, path, content=text))
  return files


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
  """Replaces links to files of the repository by their text, because the site does not contain these files."""
  return re.sub(r"\[([^\]]+)\]\((?:\.\./)*[\w/.-]+\.(?:py|ipynb)\)", r"\1", markdown)


def on_post_build(config: "MkDocsConfig") -> None:
  """Replaces the address of the script for the search in pages on a disk by a local copy."""
  site = pathlib.Path(config.site_dir)
  for file in site.rglob("*.html"):
    up = "../" * (len(file.relative_to(site).parts) - 1)
    text = file.read_text()
    file.write_text(text.replace("https://unpkg.com/iframe-worker/shim", f"{up}assets/frame-worker.js"))


def make_pages() -> dict[str, str]:
  """Returns {path: Markdown text} of all generated pages."""
  return {
    "index.md": make_first_page(),
    "reference/config.md": config_pages.make_config_page(),
    "reference/data.md": config_pages.make_data_page(),
    "reference/model.md": config_pages.make_model_page(),
    "reference/evals.md": config_pages.make_evaluations_page(),
    "reference/flags.md": flag_pages.make_flags_page(),
    "reference/launch.md": flag_pages.make_launch_page(),
    "reference/exit-codes.md": flag_pages.make_exit_codes_page(),
    "reference/metrics.md": metrics_page.make_metrics_page(),
    "reference/python.md": make_python_page(),
  }


def make_first_page() -> str:
  """Returns the README with links that are relative to the folder of the documentation."""
  return (ROOT / "README.md").read_text().replace("](docs/", "](")


def make_python_page() -> str:
  """Returns the page of the Python interface, which mkdocstrings fills from the docstrings."""
  names = ("vit_jax.load", "vit_jax.inference.predictor.Predictor", "vit_jax.models.create", "vit_jax.models.names",
           "vit_jax.config.recipe", "vit_jax.config.measurement", "vit_jax.config.Sweep", "vit_jax.config.product",
           "vit_jax.config.zipped", "vit_jax.config.sample", "vit_jax.register")  # fmt: skip
  return "\n\n".join(["# Python", "See [use in Python](../guides/python.md).", *(f"::: {name}" for name in names)])
