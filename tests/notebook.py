"""Executes examples/quickstart.ipynb and stores its outputs in it: python -m tests.notebook

The notebook is executed in an empty temporary folder, so that it leaves no photographs or runs in the repository.
"""

import os
import pathlib
import tempfile

import nbclient
import nbformat

ROOT = pathlib.Path(__file__).parents[1]
FILE = ROOT / "examples/quickstart.ipynb"
SECONDS = 600  # maximum time of a cell


def read():
  """Returns the stored notebook."""
  return nbformat.read(FILE, as_version=4)


def execute(folder):
  """Returns the notebook with new outputs.

  Args:
    folder: folder in which the cells run.

  Raises:
    CellExecutionError: a cell failed.
  """
  # The kernel is not a test: pytest's variable changes its outputs, and XLA's flags make the training slow.
  removed = ("PYTEST_CURRENT_TEST", "XLA_FLAGS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
  environment = {name: value for name, value in os.environ.items() if name not in removed}
  book = read()
  client = nbclient.NotebookClient(
    book,
    timeout=SECONDS,
    record_timing=False,
    coalesce_streams=True,
    resources={"metadata": {"path": str(folder)}},
  )
  client.execute(env=environment | {"PYTHONPATH": str(ROOT)})
  book.metadata["language_info"] = {"name": "python"}  # without the version of Python
  return book


def main():
  """Executes the notebook and stores it."""
  with tempfile.TemporaryDirectory() as folder:
    book = execute(folder)
  nbformat.write(book, FILE)
  print(f"{FILE.relative_to(ROOT)}: {FILE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
  main()
