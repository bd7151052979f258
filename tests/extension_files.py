"""Helpers for tests that write, run and forget files that extend the package."""

import json
import sys

import pytest

from vit_jax.config import extensions
from vit_jax.config.extensions import names, records, running

TASK = """
from vit_jax import register
from vit_jax.tasks.classify import Classify

@register.task({name!r})
class Own(Classify):
  pass
"""


@pytest.fixture
def clean(tmp_path, monkeypatch):
  """Starts with no registered and no remembered extensions, and restores the import path."""
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  monkeypatch.setattr(sys, "path", list(sys.path))
  forget()
  yield
  forget()
  # Only the test's own modules, because a second import of others would create second classes of the same names.
  for name, module in list(sys.modules.items()):
    if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
      del sys.modules[name]


def forget():
  """Resets this process to the state before any extension was imported."""
  for name in names._names.values():
    sys.modules.pop(name.extension.module, None)
    name.remove()
  names._names.clear()
  running._loaded.clear()
  running._given.clear()
  records._warned.clear()


def written(folder, name="own_task", stem="own"):
  """Writes a file that registers a task."""
  file = folder / f"{stem}.py"
  file.parent.mkdir(parents=True, exist_ok=True)
  file.write_text(TASK.format(name=name))
  return file


def recorded(file, name="own_task"):
  """Runs a file, forgets it in this process, and returns its record."""
  extensions.run_file(file)
  rows = extensions.record({name})
  forget()
  return json.loads(json.dumps(rows))
