"""The engines, with one module for each backend. The class `Engine` of a module implements `launch.engine.Engine`."""

import importlib

from launch.assumptions import Guarded
from launch.engine import Engine
from launch.spec import Run

MODULES = {"local": "hosts"}  # backends that share the module of another backend


def engine(run: Run) -> Engine:
  """Returns the engine of a run's backend."""
  module = importlib.import_module(f"launch.backends.{MODULES.get(run.backend, run.backend)}")
  return Guarded(module.Engine(run), run.backend)
