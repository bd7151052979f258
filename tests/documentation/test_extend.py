"""The examples of docs/extend work as printed: their files, the lines that register them, their commands and outputs.

Training is reduced to two steps of a small model. A page that changes the package is executed with a changed copy.
"""

import contextlib
import io
import itertools
import json
import math
import os
import pathlib
import re
import runpy
import shutil
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests import runs
from tests.documentation import checks, extraction
from tests.extension_files import clean  # noqa: F401  a fixture
from vit_jax import config
from vit_jax.config import extensions, flags
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.data import catalog
from vit_jax.schema import Choice, ConfigError
from vit_jax.training import build

FOLDER = extraction.ROOT / "docs/extend"
EXAMPLES = extraction.ROOT / "examples/extend"
PAGES = ("reader", "model", "task", "evaluation", "weight-layout", "tracker")
READ = ("attention-part",)  # the package contains its example, and its snippets are executed as those of all pages
OUTSIDE = {"reader": "array_reader", "model": "patch_mlp", "task": "focal_task", "evaluation": "brier_evaluation"}
SHORT = {"--config.total=1ep": "--config.total=2", "--config.total=5ep": "--config.total=2"}
CCT = {key: text for key, text in runs.SMALL.items() if key.startswith("model.")}
KEYS = {"optim.accumulate": "1", "batch": "16"}
METRICS = [{"step": 1, "train/loss": 2.5}, {"step": 2, "train/loss": 2.25, "images_per_second": 9.0},
           {"step": 2, "test/top1": 0.5, "test/loss": 2.0}]  # fmt: skip


def blocks(page, form):
  """Returns the texts of the code blocks of a page whose first line is ```FORM."""
  return re.findall(rf"^```{form}\n(.*?)^```$", (FOLDER / f"{page}.md").read_text(), re.M | re.S)


def files(page):
  """Returns {title: text} of the titled blocks of a page."""
  pattern = r'^```(?:python|text) title="([^"]+)"\n(.*?)^```$'
  return dict(re.findall(pattern, (FOLDER / f"{page}.md").read_text(), re.M | re.S))


def commands(page):
  """Returns the commands of a page as lists of words."""
  return [checks.words(command) for block in blocks(page, "bash") for command in extraction.of_block(block)]


def masked(line):
  """Returns a line without its numbers, the folders of absolute paths, and identifiers of runs."""
  line = re.sub(r"(?<!\S)/\S*/", "/", re.sub(r"-[0-9a-f]{6}\b", "-ID", line))
  return re.sub(r"\s+", " ", re.sub(r"\d[\d,.:]*", "#", line)).strip()


def reduced(words):
  """Returns the arguments of a verb, with two steps of a small model in place of a training."""
  verb, arguments = words[2].removeprefix("vit_jax."), [SHORT.get(word, word) for word in words[3:]]
  if verb == "train":
    small = KEYS | ({} if any(word.startswith("--config.model.name") for word in arguments) else CCT)
    arguments += ["--no-report", *(f"--config.{key}={text}" for key, text in small.items())]
  return [verb, *arguments]


def place(home, page):
  """Writes the files of a page: beside each other, or into a copy of the package that the page changes."""
  for title, text in files(page).items():
    kind, _, name = title.rpartition(" of ")
    if kind and not name.startswith("vit_jax/"):
      continue  # a line of a file that is printed above
    if name.startswith("vit_jax/") and not (home / "package").exists():
      shutil.copytree(extraction.ROOT / "vit_jax", home / "package/vit_jax")
    target = home / "package" / name if name.startswith("vit_jax/") else home / name
    if not kind:
      assert not target.exists(), target
      target.write_text(text)
      continue
    content, row = target.read_text(), r"^TRACKERS = .*\n" if "TRACKERS" in text or "Export" in text else None
    pattern = row or r'^  "efficientnet",\n'
    assert len(re.findall(pattern, content, re.M)) == 1, pattern
    new = {"function": f"{text}\n\n\\g<0>", "line": text if row else f"\\g<0>{text}"}[kind]
    target.write_text(re.sub(pattern, new, content, flags=re.M))


def execute(home, page):
  """Executes the commands of a page in a folder and returns everything that they printed."""
  environment = os.environ | {"PYTHONPATH": f"{home / 'package'}{os.pathsep}{extraction.ROOT}"}
  printed = ""
  for is_verb, group in itertools.groupby(commands(page), lambda words: words[1] == "-m"):
    if is_verb:
      given = json.dumps([reduced(words) for words in group])
      done = subprocess.run(
        [sys.executable, "-m", "tests.several", given], cwd=home, env=environment, capture_output=True, text=True
      )  # fmt: skip
      assert done.returncode == 0 and set(re.findall(r"^exit (\d+)$", done.stdout, re.M)) == {"0"}, done.stdout[-3000:]
      printed += done.stdout
    else:
      for _, script in group:
        with contextlib.redirect_stdout(io.StringIO()) as output:
          runpy.run_path(script)
        printed += output.getvalue()
  return printed


@pytest.fixture
def home(tmp_path, monkeypatch):
  """A folder with the shipped configs and a run that has metrics."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "configs").symlink_to(extraction.ROOT / "configs")
  return tmp_path


@pytest.mark.long
@pytest.mark.sample(math.inf)
@pytest.mark.parametrize("page", PAGES)
def test_an_example_works_as_printed(page, home):
  prepare_dataset("digits")
  if page == "tracker":
    (home / "runs/focal").mkdir(parents=True)
    (home / "runs/focal/config.json").write_text(config.dumps(runs.run()))
    (home / "runs/focal/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in METRICS))
  place(home, page)
  lines = [masked(line) for line in execute(home, page).splitlines()]
  shown = [masked(line) for line in blocks(page, "text")[0].splitlines() if line.strip()]
  position = 0
  for line in shown:
    assert line in lines[position:], f"{line!r} is not among\n" + "\n".join(lines[position:])
    position += lines[position:].index(line) + 1
  CHECKS.get(page, lambda home: None)(home)


def check_evaluation(home):
  """The score is in result.json under the documented name."""
  assert 0 < json.loads((home / "runs/brier/result.json").read_text())["calibration/brier_loss"] < 2


def check_layout(home):
  """The tensors that are written are those that were read."""
  before, after = load_file("lab.safetensors"), load_file("back/lab.safetensors")
  assert before.keys() == after.keys() and all(np.array_equal(before[name], after[name]) for name in before)


def check_tracker(home):
  """The database has each figure once."""
  with contextlib.closing(sqlite3.connect(home / "runs/metrics.db")) as database:
    rows = database.execute("select step, name, value from metrics").fetchall()
  assert rows == [(line["step"], name, value) for line in METRICS for name, value in line.items() if name != "step"]


CHECKS = {"evaluation": check_evaluation, "weight-layout": check_layout, "tracker": check_tracker}


@pytest.mark.parametrize(("page", "name"), OUTSIDE.items())
def test_a_page_shows_the_file_and_the_line_that_registers_it(page, name):
  text = (EXAMPLES / f"{name}.py").read_text()
  line = files(page)[f"line of {name}.py"]
  assert files(page)[f"{name}.py"] == text and text.count(line) == 1 and line.startswith("@register.")
  assert any(f"--import={name}.py" in words for words in commands(page))


@pytest.mark.parametrize(
  ("page", "name", "keys"),
  [("reader", "array_reader", {"path": "digit.npz"}), ("task", "focal_task", {"task.gamma": "-1"})],
)
def test_a_printed_error_is_that_of_the_code(page, name, keys, clean):  # noqa: F811
  (line,) = [block.strip() for block in blocks(page, "text") if block.startswith("error: ")]
  extensions.run_file(EXAMPLES / f"{name}.py")
  with pytest.raises(ConfigError) as error:
    if page == "reader":
      catalog.open_split(Choice("arrays", catalog.DATA["arrays"] and keys | {"train": "train"}), "train")
    else:
      build.complete(config.resolve(flags.load_config("configs/digits.py", {"task.name": "focal"} | keys)))
  assert f"error: {error.value}".replace("error: path", "error: config.data.path") == line


def test_every_page_has_a_file_a_command_and_its_output():
  assert {file.stem for file in FOLDER.glob("*.md")} == {"index", *PAGES, *READ}
  for page in PAGES:
    assert files(page) and commands(page) and blocks(page, "text"), page
    assert 300 <= len((FOLDER / f"{page}.md").read_text().split()) <= 1200, page


def test_numbers_of_an_output_are_masked():
  assert masked("  22  evaluated: test/top1 0.1917") == masked("2 evaluated: test/top1 0.5") != masked("2 evaluated: 1")
  assert masked("to /home/a/runs/metrics.db") == "to /metrics.db" and masked("a-0f3c2a x") == "a-ID x"
  assert pathlib.Path(FOLDER).is_dir()
