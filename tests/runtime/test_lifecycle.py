"""Start and end of the processes of a run: one process alone."""

import signal

import pytest

from vit_jax import config, runtime
from vit_jax.schema import ConfigError

pytestmark = pytest.mark.heavy  # starts the threads of a watchdog


def test_a_process_alone_is_supervised_and_leaves_the_handlers_as_they_were():
  before = signal.getsignal(signal.SIGTERM)
  with runtime.join_processes(config.Limits(step=600.0)) as watch:
    watch.step = 1
    watch.poll()
    assert signal.getsignal(signal.SIGTERM) is not before
  assert signal.getsignal(signal.SIGTERM) is before


def test_an_error_inside_reaches_the_caller():
  with pytest.raises(ConfigError, match="the reason"), runtime.join_processes():
    raise ConfigError("the reason")
