"""Tests of the names of the parts of a step."""

import re

import jax
import pytest

from tests import runs
from vit_jax.data import catalog
from vit_jax.tasks import step_parts
from vit_jax.training import build


@pytest.mark.parametrize("name", ["a-b", "a_b", "Teacher", ""])
def test_part_with_an_ambiguous_name_is_refused(name):
  with pytest.raises(ValueError, match="expected small letters, digits and spaces"):
    step_parts.name_part(name)


@pytest.mark.heavy
def test_program_of_a_step_contains_the_names_of_its_parts():
  made = build.build(runs.run("configs/dinov2.py:glyphs", {"model.depth": "1", "optim.accumulate": "1"}, batch=32),
                     jax.devices()[:1], catalog.open_known_split)  # fmt: skip
  text = made.step.lower(made.state_shapes, made.batch_shapes, made.frozen_weight_shapes).as_text(debug_info=True)
  parts = {step_parts.find_part(name) for name in re.findall(r'loc\("([^"]*)"', text)}
  assert parts == {
    None, "augmentation", "forward and backward", "student", "teacher", "heads and losses", "optimizer and average",
  }  # fmt: skip
