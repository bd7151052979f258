"""The table of stages."""

import dataclasses

import pytest

from vit_jax.tasks import TASKS, Task


@pytest.mark.parametrize("name", TASKS)
def test_a_stage_is_a_frozen_value_with_the_methods_of_the_protocol(name):
  stage = TASKS[name]
  assert dataclasses.is_dataclass(stage) and stage.__dataclass_params__.frozen
  for method in ("examples", "init", "objective", "predict"):
    assert callable(getattr(stage, method)) and callable(getattr(Task, method))
