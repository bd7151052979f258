"""Examples are drawn anew each time, few of them, and on a loaded machine each may take its time."""

import os

import hypothesis
import pytest

from tests.launch import scripted

hypothesis.settings.register_profile("launch", deadline=None, database=None, max_examples=25)
hypothesis.settings.load_profile("launch")


@pytest.fixture
def program(tmp_path, monkeypatch):
  """A gcloud that plays a script, in the place of the real one."""
  made = scripted.Gcloud(tmp_path / "program")
  monkeypatch.setenv("PATH", f"{made.folder}{os.pathsep}{os.environ['PATH']}")
  return made
