"""Tests of examples/quickstart.ipynb: the stored file, its example folder, and an execution of all cells."""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys

import nbformat
import pytest
from PIL import Image

from examples import photographs
from tests import notebook

BOOK = notebook.read()
CODE = [cell for cell in BOOK.cells if cell.cell_type == "code"]
PICTURES = {"report", "predict", "attention"}  # cells that draw


def read_text(cell):
  """Returns the text that a cell has printed."""
  return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def count_pictures(cell):
  return sum("image/png" in output.get("data", {}) for output in cell.outputs)


def read_words(text):
  """Returns the texts of JSON values, without images."""
  values = json.loads(text, object_pairs_hook=lambda pairs: {key: value for key, value in pairs if key != "image/png"})
  return json.dumps(values)


def test_stored_notebook_is_valid_and_small():
  nbformat.validate(BOOK)
  assert notebook.FILE.stat().st_size < 300_000


def test_all_cells_were_executed_in_order_without_errors():
  assert [cell.execution_count for cell in CODE] == [*range(1, len(CODE) + 1)]
  assert {output.output_type for cell in CODE for output in cell.outputs} == {"stream", "display_data"}
  assert {output.name for cell in CODE for output in cell.outputs if output.output_type == "stream"} == {"stdout"}
  assert {cell.id for cell in CODE if cell.outputs} == {cell.id for cell in CODE} - {"install"}
  assert {cell.id: count_pictures(cell) for cell in CODE if count_pictures(cell)} == dict.fromkeys(PICTURES, 1)


def test_stored_notebook_names_no_machine():
  text = read_words(notebook.FILE.read_text())
  assert re.findall(r"(?:file://|~/|(?<![\w.:}])/(?:home|root|tmp|usr|work|Users|var|opt)\b)\S*", text) == []
  assert socket.gethostname() not in text and str(pathlib.Path.home()) + "/" not in text
  assert all(cell.metadata == {} for cell in BOOK.cells)
  assert BOOK.metadata.keys() == {"kernelspec", "language_info"}


def test_cells_are_formatted():
  ruff = pathlib.Path(sys.executable).with_name("ruff")
  for words in (["format", "--check"], ["check"]):
    done = subprocess.run([ruff, *words, notebook.FILE], cwd=notebook.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_example_folder_is_that_of_the_script(tmp_path, monkeypatch):
  for name in ("PHOTOS", "RUN", "PATH"):
    monkeypatch.setenv(name, os.environ.get(name, ""))  # the cell changes them, and the fixture restores them
  monkeypatch.chdir(tmp_path)
  photographs.main("expected")
  (source,) = [cell.source for cell in CODE if cell.id == "photos"]
  exec(compile(source, "photos", "exec"), {"pathlib": pathlib, "sys": sys})
  written, expected = (
    {str(file.relative_to(folder)): Image.open(file).tobytes() for file in pathlib.Path(folder).rglob("*.jpg")}
    for folder in ("photos", "expected")
  )
  assert len(expected) == 168 and written == expected


@pytest.mark.heavy
@pytest.mark.parametrize(
  ("words", "message"),
  [
    ([], "error: the following arguments are required: FOLDER. Use: python examples/photographs.py FOLDER\n"),
    (["a", "b"], "error: unrecognized arguments: b. Use: python examples/photographs.py FOLDER\n"),
    (["."], "error: .: already exists. Name another folder, or remove it.\n"),
  ],
)
def test_script_of_the_example_folder_reports_mistakes_in_one_line(words, message, tmp_path):
  script = [sys.executable, notebook.ROOT / "examples/photographs.py", *words]
  done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True)
  assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


@pytest.mark.long
def test_notebook_trains_probes_and_predicts_in_an_empty_folder(tmp_path):
  cells = {cell.id: cell for cell in notebook.execute(tmp_path).cells if cell.cell_type == "code"}
  run = tmp_path / "runs/quickstart"
  classes, chance = {"china", "flower", "hopper"}, 1 / 3
  assert json.loads((run / "result.json").read_text())["top1"] > 2 * chance
  assert (run / "report.html").exists() and "205/205  100%" in read_text(cells["train"])
  figures = re.search(r"^  ridge .*$", read_text(cells["probe"]), re.M)[0]
  accuracies = [float(number) / 100 for number in re.findall(r"([\d.]+)%", figures)]
  assert len(accuracies) == 4 and min(accuracies) > 2 * chance
  lines = re.findall(r"^photos/test/(\w+)/\d+\.jpg: (\w+) ([\d.]+)%$", read_text(cells["predict"]), re.M)
  assert len(lines) == 6 and {predicted for _, predicted, _ in lines} <= classes
  assert sum(label == predicted for label, predicted, _ in lines) > 6 * chance
  assert {name for name, cell in cells.items() if count_pictures(cell) == 1} == PICTURES
  assert {output.output_type for cell in cells.values() for output in cell.outputs} == {"stream", "display_data"}
