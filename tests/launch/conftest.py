"""The same few examples each time; `python -m tests.campaigns.launch` draws others, and more."""

import os

import hypothesis
import pytest

from tests.launch import scripted

EXAMPLES = int(os.environ.get("VITJAX_EXAMPLES", "0"))
hypothesis.settings.register_profile(
  "launch", deadline=None, database=None, max_examples=EXAMPLES or 25, derandomize=not EXAMPLES
)
hypothesis.settings.load_profile("launch")


@pytest.fixture
def program(tmp_path, monkeypatch):
  """A gcloud that plays a script, in the place of the real one."""
  made = scripted.Gcloud(tmp_path / "program")
  for group in ("queued-resources", "tpu-vm"):  # which confirms that something is not found
    made.answers(group, "list", [])
  monkeypatch.setenv("PATH", f"{made.folder}{os.pathsep}{os.environ['PATH']}")
  return made
