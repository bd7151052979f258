"""Programs that benchmarks start, and packages that benchmarks need."""

import importlib.util
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence

from vit_jax import runtime, schema


def require(module: str, extra: str) -> None:
  """Checks that a Python module is installed.

  Args:
    module: name of the module.
    extra: extra of this package that installs it.

  Raises:
    ConfigError: the module is not installed.
  """
  if importlib.util.find_spec(module) is None:
    raise schema.ConfigError(f"{module} is not installed. Run: pip install -e '.[{extra}]'")


def find_program(name: str, extra: str) -> str:
  """Returns the path of a program in the directory of this Python or in PATH.

  Args:
    name: name of the program.
    extra: extra of this package that installs it.

  Raises:
    ConfigError: the program is not installed.
  """
  places = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))
  if found := shutil.which(name, path=places):
    return found
  raise schema.ConfigError(f"{name} is not installed. Run: pip install -e '.[{extra}]'")


def read_output(words: Sequence[str]) -> str:
  """Runs a program and returns its standard output.

  Ctrl-C reaches only this process, which then ends the program. Otherwise both processes would report the interruption.

  Args:
    words: program and arguments.

  Raises:
    Stop: the program failed. The exception has its exit code and its last line of standard error.
  """
  result = subprocess.run(words, capture_output=True, text=True, process_group=0)
  if result.returncode:
    last = (result.stderr.strip().splitlines() or ["no message"])[-1].removeprefix("error: ")
    raise runtime.Stop(max(1, result.returncode), f"error: {words[0]}: {last} (exit code {result.returncode})")
  return result.stdout
