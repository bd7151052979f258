"""Settings of Hypothesis: few and always the same examples. `python -m tests.campaigns.launch` draws more."""

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
  """A scripted gcloud that replaces the real program."""
  made = scripted.Gcloud(tmp_path / "program")
  for group in ("queued-resources", "tpu-vm"):  # the list confirms that a resource is not found
    made.answers(group, "list", [])
  monkeypatch.setenv("PATH", f"{made.folder}{os.pathsep}{os.environ['PATH']}")
  return made
