"""Runs a verb and records which files of this repository execute: python -m tests.documentation.tracing OUT VERB FLAGS

Writes JSON: "run" lists the files in order of their first call, and "step" those that execute while JAX traces the
train step, which computes the gradient.
"""

import importlib
import json
import pathlib
import sys
import threading
from types import FrameType

ROOT = pathlib.Path(__file__).parents[2]
STEP = ("vit_jax/training/steps.py", "step")  # file and name of the function that JAX traces and differentiates


class Tracer:
  """A profile function that records the files of called functions.

  Attributes:
    run: files in order of their first call, in any thread.
    step: files that execute inside of the train step.
  """

  def __init__(self):
    self.run: dict[str, None] = {}
    self.step: dict[str, None] = {}
    self._files: dict[str, str | None] = {}  # file name of a code object -> path in the repository
    self._inside: FrameType | None = None

  def __call__(self, frame: FrameType, event: str, arg: object) -> None:
    """Records a call or a return, see `sys.setprofile`."""
    if event == "return" and frame is self._inside:
      self._inside = None
    if event != "call":
      return
    code = frame.f_code
    if code.co_filename not in self._files:
      self._files[code.co_filename] = _relative(code.co_filename)
    file = self._files[code.co_filename]
    if file is None or code.co_name == "<module>":
      return
    self.run.setdefault(file)
    if (file, code.co_name) == STEP and threading.current_thread() is threading.main_thread():
      self._inside = frame
    if self._inside is not None and threading.current_thread() is threading.main_thread():
      self.step.setdefault(file)


def _relative(name):
  """Returns the path of a source file in the repository, or None for files of other packages and of tests."""
  path = pathlib.Path(name)
  if not path.is_relative_to(ROOT) or path.parts[len(ROOT.parts)] not in ("vit_jax", "configs"):
    return None
  return path.relative_to(ROOT).as_posix()


def main(out: str, verb: str, flags: list[str]) -> None:
  """Runs a verb with flags and writes the traced files to a JSON file."""
  module = importlib.import_module(f"vit_jax.{verb}")
  tracer = Tracer()
  threading.setprofile(tracer)
  sys.setprofile(tracer)
  try:
    module.main(flags)
  finally:
    sys.setprofile(None)
    threading.setprofile(None)
  pathlib.Path(out).write_text(json.dumps({"run": [*tracer.run], "step": [*tracer.step]}))


if __name__ == "__main__":
  main(sys.argv[1], sys.argv[2], sys.argv[3:])
