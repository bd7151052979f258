"""Scalars that survive a kill, and a profile that TensorBoard finds."""

import json

import jax
import jax.numpy as jnp
import pytest

from vit_jax.schema import ConfigError
from vit_jax.training import writer


def test_lines_after_the_restart_step_and_torn_lines_are_dropped(tmp_path):
  file = tmp_path / "metrics.jsonl"
  file.write_text('{"step": 1, "a": 1.0}\n{"step": 2, "a": 2.0}\n{"step": 3, "a": 3.0}\n{"step": 3, "b')
  log = writer.Writer(tmp_path, 2, active=True)
  log.write(3, {"a": 4.0})
  log.close()
  lines = [json.loads(line) for line in file.read_text().splitlines()]
  assert lines == [{"step": 1, "a": 1.0}, {"step": 2, "a": 2.0}, {"step": 3, "a": 4.0}]


def test_an_evaluation_that_is_made_again_has_one_line(tmp_path):
  file = tmp_path / "metrics.jsonl"
  before = ['{"step": 2, "test/top1": 0.5}\n', '{"step": 3, "train/loss": 1.0}\n', '{"step": 3, "test/top1": 0.5}\n']
  file.write_text("".join(before))
  writer.Writer(tmp_path, 3, active=True).close()
  assert file.read_text() == "".join(before)
  writer.Writer(tmp_path, 3, active=True, again=True).close()
  assert file.read_text() == "".join(before[:2])


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


@pytest.mark.long
def test_a_trace_has_its_steps_and_no_others(tmp_path):
  trace = writer.Trace(tmp_path, start=10, steps=2)
  double = jax.jit(lambda x: 2 * x)
  for step in range(10, 17):
    with trace.annotate_step(step):
      double(jnp.ones(3)).block_until_ready()
  trace.close()
  (file,) = (tmp_path / "tensorboard").glob("plugins/profile/*/*.xplane.pb")
  events = [
    event
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes
    for line in plane.lines
    for event in line.events
    if event.name == "train"
  ]
  assert sorted(dict(event.stats)["step_num"] for event in events) == [13, 14]


def test_a_run_that_ends_early_writes_the_trace_that_it_has(tmp_path):
  trace = writer.Trace(tmp_path, start=0, steps=100)
  for step in range(5):
    with trace.annotate_step(step):
      pass
  trace.close()
  assert list((tmp_path / "tensorboard").glob("plugins/profile/*/*.xplane.pb"))


def test_without_steps_nothing_is_traced(tmp_path):
  trace = writer.Trace(tmp_path, start=0, steps=0)
  for step in range(5):
    with trace.annotate_step(step):
      pass
  trace.close()
  assert not list(tmp_path.iterdir())


def test_a_trace_that_cannot_be_written_is_a_warning(tmp_path, caplog):
  (tmp_path / "tensorboard").write_text("mine")
  trace = writer.Trace(tmp_path, start=0, steps=2)
  for step in range(6):
    with trace.annotate_step(step):
      pass
  trace.close()
  assert "tensorboard: the trace cannot be written" in caplog.text
  (tmp_path / "tensorboard").unlink()
  jax.profiler.stop_trace()  # what JAX still holds, or no other test could take one


def test_lines_of_others_do_not_stop_a_restart(tmp_path):
  file = tmp_path / "metrics.jsonl"
  lines = [
    b'{"step": 1}',
    b'\xff{"step": 1}',
    b"[" * 100_000,
    b"3",
    b"[]",
    b'{"step": "x"}',
    b'{"step": null}',
    b'{"a": 1}',
  ]
  file.write_bytes(b"\n".join([*lines, b'{"step": 2}']) + b"\n")
  writer.Writer(tmp_path, 2, active=True).close()
  assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [1, 2]


def test_metrics_that_are_no_file_are_named(tmp_path):
  (tmp_path / "metrics.jsonl").mkdir()
  with pytest.raises(ConfigError, match=r"metrics\.jsonl is not a file"):
    writer.Writer(tmp_path, 0, active=True)
