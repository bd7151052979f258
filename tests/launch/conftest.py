import os

import pytest

from tests.launch import scripted


@pytest.fixture
def program(tmp_path, monkeypatch):
  """A gcloud that plays a script, in the place of the real one."""
  made = scripted.Gcloud(tmp_path / "program")
  monkeypatch.setenv("PATH", f"{made.folder}{os.pathsep}{os.environ['PATH']}")
  return made
