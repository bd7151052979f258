"""The words of decisions are plain values: a journal can hold them."""

import dataclasses
import json

from launch.states import State


def test_a_state_survives_json():
  state = State(attempt=2, end=(13, "why"), unverified=(1, 2))
  values = json.loads(json.dumps(dataclasses.asdict(state)))
  assert State(**values | {"end": tuple(values["end"]), "unverified": tuple(values["unverified"])}) == state
