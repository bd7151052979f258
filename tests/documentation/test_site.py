"""The documentation site contains every page, key, choice and flag, and fits into narrow and wide windows."""

import dataclasses
import functools
import importlib.util
import re
import subprocess
import sys

import pytest
import yaml

from docs.generated import docstrings
from launch import errors as launch_errors
from launch import flags as launch_flags
from tests import browser
from tests.documentation import extraction, test_flags
from vit_jax import config, evals, runtime, schema, tasks
from vit_jax.__main__ import VERBS
from vit_jax.data import catalog, crops, erasing, mixup, order, policies, warping
from vit_jax.evals import probes
from vit_jax.models import attention_outputs, rotary, table, vit_choices
from vit_jax.models.published.model import Registered
from vit_jax.optim import schedules, value_schedules
from vit_jax.tasks import dinov2_choices, distill, masked_patches
from vit_jax.training import build

_SPEC = importlib.util.spec_from_file_location("generate", extraction.ROOT / "docs/generate.py")
generate = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(generate)
SETTINGS = yaml.safe_load((extraction.ROOT / "mkdocs.yml").read_text())
NARROW, WIDE = 400, 1280  # CSS pixels
TABLES = {
  "config": (build.OPTIM, schedules.SCHEDULES, value_schedules.SCHEDULES_FROM_START, tasks.TASKS, distill.TARGETS,
             masked_patches.TARGETS, value_schedules.VALUE_SCHEDULES, dinov2_choices.MASKS, dinov2_choices.GRAMS),
  "data": (catalog.READERS, catalog.DATA, order.ORDERS, crops.CROPS, crops.TEST_CROPS, policies.POLICIES,
           warping.WARPS, mixup.MIXINGS, erasing.ERASINGS),
  "model": (vit_choices.ATTENTION, attention_outputs.OUTPUTS, vit_choices.MLP, vit_choices.NORM, vit_choices.POSITION,
            rotary.ROTARY),
  "evals": (evals.REPEATED, probes.PROBES, probes.OF_SHARES),
}  # fmt: skip


@functools.cache
def pages():
  """Returns {path: text} of the generated pages."""
  return generate.make_pages()


def paths(nav):
  """Returns the paths of all pages of a navigation."""
  if isinstance(nav, str):
    return [nav]
  return [path for entry in (nav.values() if isinstance(nav, dict) else nav) for path in paths(entry)]


def lines_of(page):
  """Returns (key, rest of its line) of the list items of a generated page."""
  return re.findall(r"^- `([^`]+)`: (.*)$", pages()[f"reference/{page}.md"], re.M)


def keys_of(page):
  """Returns the keys that a generated page lists."""
  return {key for key, _ in lines_of(page)}


def shipped(choices):
  """Returns {name: functions} of a table, without names that other tests have registered."""
  entries = {name: entry if isinstance(entry, tuple) else (entry,) for name, entry in choices.items()}
  return {name: each for name, each in entries.items() if docstrings.is_shipped(each[0])}


def test_the_navigation_names_every_page_once():
  found = paths(SETTINGS["nav"])
  written = {page.relative_to(extraction.ROOT / "docs").as_posix() for page in (extraction.ROOT / "docs").rglob("*.md")}
  assert sorted(found) == sorted(written | pages().keys())


def test_the_groups_of_the_navigation_are_in_order():
  groups = [name for entry in SETTINGS["nav"] for name in entry]
  assert groups == [
    "Get started", "Guides", "Concepts", "Extend", "Reference", "Models", "Results", "Questions", "Changelog"
  ]  # fmt: skip


def test_fonts_are_local():
  assert SETTINGS["theme"]["font"] is False and "offline" in SETTINGS["plugins"]


@pytest.mark.parametrize("page", TABLES)
def test_the_reference_contains_every_choice(page):
  text = pages()[f"reference/{page}.md"]
  names = {name for choices in TABLES[page] for name in shipped(choices)}
  assert [name for name in names if not re.search(rf"^#+ {name}$|`{name}`", text, re.M)] == []


@pytest.mark.parametrize("page", TABLES)
def test_the_reference_contains_every_key_of_a_choice(page):
  functions = [function for choices in TABLES[page] for each in shipped(choices).values() for function in each]
  keys = {key for function in functions for key in schema.read_keywords(function)}
  assert len(keys) > 5 and keys - keys_of(page) == set()


def test_the_reference_contains_every_key_of_a_model():
  rows = [row for row in table.TABLE.values() if not isinstance(row, Registered)]
  keys = {key for row in rows for key in schema.read_keywords(row.make)}
  assert len(keys) > 30 and keys - keys_of("model") == set()


@pytest.mark.parametrize("kind", [config.Run, config.Measurement, config.Init, config.Mesh, config.Limits])
def test_the_reference_contains_every_key_of_a_group(kind):
  assert {field.name.rstrip("_") for field in dataclasses.fields(kind)} - keys_of("config") == set()


@pytest.mark.parametrize("page", TABLES)
def test_a_key_has_its_type_its_default_and_a_sentence(page):
  form = r"[^;]+; (?:required|default: [^.].*?)\. [A-Z0-9\"`(].{3,}"
  assert [key for key, text in lines_of(page) if not re.fullmatch(form, text)] == []


@pytest.mark.parametrize(
  ("key", "text"),
  [
    ("label_smoothing", "a number from 0 to 1, below 1; default: `0.0`. "),
    ("lr", "a number above 0; required. "),
    ("decay", "`times_lr` or `independent`; default: `times_lr`. "),
    ("warmup", "a length of training; default: `0`. "),
  ],
)
def test_ranges_and_defaults_are_those_of_the_code(key, text):
  assert any(name == key and line.startswith(text) for name, line in lines_of("config"))


@pytest.mark.parametrize("verb", VERBS)
def test_the_reference_contains_every_flag_of_a_verb(verb):
  chapter = pages()["reference/flags.md"].split(f"## vit\\_jax.{verb}\n")[1].split("\n## ")[0]
  assert [flag for flag in test_flags.flags_of_verb(verb) if f"`{flag}`" not in chapter] == []


@pytest.mark.parametrize("verb", launch_flags.VERBS)
def test_d13_the_reference_describes_every_flag_of_launch(verb):
  chapter = pages()["reference/launch.md"].split(f"## launch {verb}\n")[1].split("\n## ")[0]
  described = re.findall(r"^- (`.*`): \w.*$", chapter, re.M)
  flags = [flag for names in test_flags.flags_of_launch(verb) for flag in names]
  assert flags and [flag for flag in flags if not any(f"`{flag}`" in names for names in described)] == []


@pytest.mark.parametrize("page", extraction.PAGES, ids=extraction.name_of)
def test_links_to_generated_pages_name_the_website(page):
  for paragraph in re.split(r"\n\n|\n- ", page.read_text()):
    assert "website" in paragraph or not re.search(r"\]\((?:\.\./)*reference/", paragraph), paragraph


def test_the_reference_contains_every_exit_code():
  text = pages()["reference/exit-codes.md"]
  found = {(title, int(code)) for title, code in re.findall(r"^### (\w+): (\d+)$", text, re.M)}
  assert found == {("Verbs", code) for code in runtime.EXITS} | {("launch", code) for code in launch_errors.EXITS}


@pytest.mark.parametrize(("title", "exits"), [("Verbs", runtime.EXITS), ("launch", launch_errors.EXITS)])
def test_the_reference_explains_every_exit_code(title, exits):
  found = re.findall(rf"^### {title}: (\d+)\n\n(.+)\.\n\nWhat to do: (.+)\.$", pages()["reference/exit-codes.md"], re.M)
  assert {int(code): (meaning, action) for code, meaning, action in found} == exits


@pytest.fixture(scope="module")
def site(tmp_path_factory):
  """The folder of the built site; the build fails at any warning, such as a link without a target."""
  folder = tmp_path_factory.mktemp("site")
  done = subprocess.run(
    [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={folder}"],
    cwd=extraction.ROOT, capture_output=True, text=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stdout + done.stderr
  return folder


@pytest.fixture(scope="module")
def window():
  """A real browser."""
  if browser.installed() is None:
    pytest.skip("no Chromium or Chrome is installed")
  with browser.Browser() as opened:
    yield opened


@pytest.mark.long
def test_the_site_loads_only_local_files(site):
  for page in site.rglob("*.html"):
    for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page.read_text()):
      assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag), f"{page.name}: {tag}"
  for style in site.rglob("*.css"):
    assert not re.search(r"@import|url\(\s*[\"']?(?:https?:)?//", style.read_text()), style.name


@pytest.mark.long
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_no_page_is_wider_than_its_window(site, window, width):
  wide = {}
  for page in sorted(site.rglob("*.html")):
    window.open(page, width)
    if (found := window.evaluate("document.documentElement.scrollWidth")) > width:
      wide[page.name] = found
  assert wide == {}


@pytest.mark.long
def test_the_search_works_in_a_page_on_a_disk(site, window):
  window.open(site / "index.html", WIDE)
  window.evaluate("document.querySelector('[data-md-component=search-query]').focus()")
  window.send("Input.insertText", text="label_smoothing")
  window.wait("document.querySelectorAll('.md-search-result__item').length > 0")
