"""Files that extend the package, for tests: they are written, run, and forgotten."""

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
  """Nothing is registered, nothing is remembered, and the import path stays as it is."""
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  monkeypatch.setattr(sys, "path", list(sys.path))
  forget()
  yield
  forget()
  # Only the test's own modules: a second import of others would make second classes of the same names.
  for name, module in list(sys.modules.items()):
    if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
      del sys.modules[name]


def forget():
  """Makes this process one that has imported no extension."""
  for name in names._names.values():
    sys.modules.pop(name.extension.module, None)
    name.remove()
  names._names.clear()
  running._loaded.clear()
  running._given.clear()
  records._warned.clear()


def written(folder, name="own_task", stem="own"):
  """A file that registers a task."""
  file = folder / f"{stem}.py"
  file.parent.mkdir(parents=True, exist_ok=True)
  file.write_text(TASK.format(name=name))
  return file


def recorded(file, name="own_task"):
  """The record of a file that this user ran, in a process that has not run it."""
  extensions.run_file(file)
  rows = extensions.record({name})
  forget()
  return json.loads(json.dumps(rows))
