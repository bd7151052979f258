"""What backends have in common: words, and the calls of the one interface."""

import importlib
import inspect
import pathlib

import pytest

from launch import engine, states

BACKENDS = sorted(
  file.stem
  for file in (pathlib.Path(engine.__file__).parent / "backends").glob("*.py")
  if file.stem != "__init__" and "class Engine" in file.read_text()
)
CALLS = [name for name, value in vars(engine.Engine).items() if inspect.isfunction(value) and not name.startswith("_")]


def test_states_are_different_words():
  stages = {states.IDLE, states.WATCHING, engine.DELETING, states.OVER}
  assert len({*engine.STATES}) == len(engine.STATES) and stages & {*engine.STATES} == {engine.DELETING}


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_has_every_call_with_the_parameters_of_the_interface(name):
  own = importlib.import_module(f"launch.backends.{name}").Engine
  for call in CALLS:
    expected = list(inspect.signature(getattr(engine.Engine, call)).parameters)
    assert list(inspect.signature(getattr(own, call)).parameters) == expected, call
