"""Rates of steady steps, and the seconds of a run that is stopped and goes on."""

import time

import pytest

from vit_jax.clock import Clock


def test_the_clock_leaves_pauses_out_and_starts_with_the_second_lap():
  watch = Clock(images=100, seconds=1.0)
  assert watch.lap(50) == {}
  assert watch.rate == 100
  with watch.wait():
    time.sleep(0.05)
  with watch.pause():
    time.sleep(0.5)
  rates = watch.lap(50)
  assert rates["images_per_second"] > 50 / 0.4  # 0.05 s of work; half a second more if the pause counted
  assert rates["data_wait"] > 0.1
  assert watch.images == 150


def test_a_clock_without_a_whole_lap_has_no_rate():
  watch = Clock()
  watch.lap(0)
  assert watch.rate is None


def test_images_in_no_time_have_no_rate():
  assert Clock(images=64, seconds=0.0).rate is None


def test_a_run_that_goes_on_takes_the_seconds_of_both_parts_and_none_after_its_last_step():
  first = Clock()
  time.sleep(0.02)
  first.stop()
  stopped = first.train_seconds
  second = Clock(**first.counts())
  time.sleep(0.02)
  assert 0.02 <= stopped == first.train_seconds
  second.stop()
  assert second.train_seconds >= stopped + 0.02
  assert second.counts() == {"images": 0, "seconds": 0.0, "train_seconds": second.train_seconds}


def test_time_counts_also_where_an_error_ends_it():
  watch = Clock()
  watch.lap(0)
  with pytest.raises(KeyError), watch.pause():
    time.sleep(0.1)
    raise KeyError
  assert watch.lap(1)["images_per_second"] > 10
