"""FLOPs against XLA's count, rates, and files that survive a kill."""

import json
import time

import jax
import jax.numpy as jnp

from vit_jax import clock, flops, writer


def test_flops_equal_xlas_count_where_nothing_loops():
  def network(x, kernel, w):
    y = jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.einsum("bhwc,cd->bd", y, w)

  shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 16, 16, 8), (4, 4, 8, 32), (32, 10))]
  by_hand = 2 * (4 * 8 * 8 * 32) * (4 * 4 * 8) + 2 * (4 * 8 * 8) * 32 * 10
  assert flops.count(network, *shapes) in (by_hand, by_hand - 2 * (4 * 8 * 8 - 4) * 32 * 10)


def test_flops_count_every_turn_of_a_loop():
  w = jax.ShapeDtypeStruct((7, 16, 16), jnp.float32)
  x = jax.ShapeDtypeStruct((4, 16), jnp.float32)

  def scanned(x, w):
    return jax.lax.scan(lambda x, w: (jax.checkpoint(jnp.dot)(x, w), None), x, w)[0]

  assert flops.count(scanned, x, w) == 7 * 2 * 4 * 16 * 16


def test_the_clock_leaves_pauses_out_and_starts_with_the_second_lap():
  watch = clock.Clock(images=100, seconds=1.0)
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


def test_lines_after_the_restart_step_and_torn_lines_are_dropped(tmp_path):
  file = tmp_path / "metrics.jsonl"
  file.write_text('{"step": 1, "a": 1.0}\n{"step": 2, "a": 2.0}\n{"step": 3, "a": 3.0}\n{"step": 3, "b')
  log = writer.Writer(tmp_path, 2, active=True)
  log.write(3, {"a": 4.0})
  log.close()
  lines = [json.loads(line) for line in file.read_text().splitlines()]
  assert lines == [{"step": 1, "a": 1.0}, {"step": 2, "a": 2.0}, {"step": 3, "a": 4.0}]


def test_tensorboard_reads_what_was_written(tmp_path):
  from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

  log = writer.Writer(tmp_path, 0, active=True)
  for step in (1, 2):
    log.write(step, {"train/loss": 1 / step})
  log.close()
  events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"tensors": 0})
  events.Reload()
  points = events.Tensors("train/loss") if "train/loss" in events.Tags()["tensors"] else events.Scalars("train/loss")
  assert [p.step for p in points] == [1, 2]


def test_other_processes_write_nothing(tmp_path):
  log = writer.Writer(tmp_path, 0, active=False)
  log.write(1, {"a": 1.0})
  log.close()
  assert not list(tmp_path.iterdir())
