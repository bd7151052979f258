"""What runs a run: one module for each backend, whose `Engine` does what `launch.engine.Engine` says."""

import importlib

from launch.assumptions import Guarded
from launch.engine import Engine
from launch.spec import Run


def engine(run: Run) -> Engine:
  """The engine of a run's backend."""
  return Guarded(importlib.import_module(f"launch.backends.{run.backend}").Engine(run), run.backend)
