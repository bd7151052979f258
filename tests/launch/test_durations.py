"""Tests of durations on the command line, and of the default limits."""

import pytest

from launch import spec
from launch.errors import LaunchError
from launch.spec import Limits


@pytest.mark.parametrize(
  ("text", "seconds"), [("90s", 90), ("30m", 1800), ("6h", 21_600), ("2d", 172_800), ("0.5h", 1800), ("1.25s", 1.25)]
)
def test_duration_has_a_unit(text, seconds):
  assert spec.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "6", "h", "0s", "-1h", "6 h", "6H", "1e3s", "infs", "٣s", "6h\n", "9999999s"])
def test_invalid_duration_is_refused(text):
  with pytest.raises(LaunchError, match="90s, 30m, 6h or 2d"):
    spec.parse_duration(text)


def test_default_limits_are_consistent():
  usual = Limits()
  # A worker is dead after many missing reports instead of a single late one. Deletions wait for a stop.
  assert 5 * usual.beat < usual.silence < usual.stall
  assert usual.grace < usual.delete and usual.pause * 30 <= 900
