"""Tests of the start and end of a run with a single process."""

import signal

import pytest

from vit_jax import config, runtime
from vit_jax.schema import ConfigError

pytestmark = pytest.mark.heavy  # starts the threads of a watchdog


def test_single_process_is_supervised_and_restores_signal_handlers():
  before = signal.getsignal(signal.SIGTERM)
  with runtime.join_processes(config.Limits(step=600.0)) as watch:
    watch.step = 1
    watch.poll()
    assert signal.getsignal(signal.SIGTERM) is not before
  assert signal.getsignal(signal.SIGTERM) is before


def test_error_inside_the_context_reaches_the_caller():
  with pytest.raises(ConfigError, match="the reason"), runtime.join_processes():
    raise ConfigError("the reason")
