"""Tests of the exchange between processes, with a single process. test_peers.py starts several processes."""

import numpy as np
import pytest

from vit_jax import runtime
from vit_jax.runtime import exchange
from vit_jax.schema import ConfigError


def test_single_process_agrees_with_itself():
  assert exchange.gather_texts("text", "name") == ["text"]
  assert exchange.describe_missing() == ""
  runtime.barrier("name")
  runtime.check_equal_facts({"config": {"lr": 0.1}})
  runtime.raise_together(None)
  values = np.array([0.1, 1e300])
  assert runtime.copy_from_first(values) is values


def test_problem_is_raised_as_an_error():
  with pytest.raises(ConfigError, match="no such file"):
    runtime.raise_together("no such file")
