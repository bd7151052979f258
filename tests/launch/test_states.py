"""Tests that event logs can store states, and that every engine has the six operations of the interface."""

import dataclasses
import importlib
import inspect
import json

import pytest

from launch import states
from launch.states import State

OPERATIONS = ["create", "look", "delete", "list_resources", "build_shell_command", "build_commands"]


def test_state_survives_json():
  state = State(attempt=2, end=(13, "why"), unverified=(1, 2))
  values = json.loads(json.dumps(dataclasses.asdict(state)))
  assert State(**values | {"end": tuple(values["end"]), "unverified": tuple(values["unverified"])}) == state


def test_states_are_different_words():
  stages = {states.IDLE, states.WATCHING, states.DELETING, states.OVER}
  assert len({*states.STATES}) == len(states.STATES) and stages & {*states.STATES} == {states.DELETING}


def test_interface_has_six_operations():
  functions = (name for name, value in vars(states.Engine).items() if inspect.isfunction(value))
  assert [name for name in functions if not name.startswith("_")] == OPERATIONS


@pytest.mark.parametrize("name", ["gke", "hosts", "qr"])
def test_engines_have_the_operations_of_the_interface(name):
  own = importlib.import_module(f"launch.{name}").Engine
  public = [name for name, value in vars(own).items() if inspect.isfunction(value) and not name.startswith("_")]
  assert sorted(public) == sorted(OPERATIONS)
  for call in OPERATIONS:
    expected = list(inspect.signature(getattr(states.Engine, call)).parameters)
    assert list(inspect.signature(getattr(own, call)).parameters) == expected, call
