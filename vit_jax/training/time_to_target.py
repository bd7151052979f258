"""Time to target: the step and the hours at which an evaluation of a run first reached a figure."""

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax import config
from vit_jax.evals import selection
from vit_jax.evals.metrics import FALLING, is_share
from vit_jax.runtime import print_line
from vit_jax.schema import ConfigError, suggest_nearest
from vit_jax.training import writer
from vit_jax.training.bound_run import BoundRun

Record = dict[str, Any]  # the keys metric, value, step and hours. The last two are None until the target is reached


def check_target(run: BoundRun) -> None:
  """Checks that an evaluation of a run measures the figure of its target.

  Args:
    run: a bound run.

  Raises:
    ConfigError: the target is incomplete, its figure is not measured, or its value is a percentage.
  """
  target = run.log.target
  if (target.metric is None) != (target.value is None):
    missing, given = ("metric", "value") if target.metric is None else ("value", "metric")
    raise ConfigError(f"missing, but config.log.target.{given} is set. Set both or neither", missing)
  if target.metric is None or target.value is None:
    return
  known = [f"{name}/{figure}" for name in run.evals for figure in run.list_figure_names(name)]
  metric = selection.format_name(target.metric)
  if metric not in known:
    remark = (
      " The prefix 'test/' may be omitted." if any(name.startswith(f"{selection.TEST}/") for name in known) else ""
    )
    raise ConfigError(f"the run does not measure {target.metric!r}.{suggest_nearest(metric, known)}{remark}", "metric")
  if metric.endswith(("images", "entropy")):
    raise ConfigError(f"{target.metric!r} does not measure quality. Use another figure, such as a loss", "metric")
  if is_share(target.metric) and target.value > 1:
    raise ConfigError(f"expected a share between 0 and 1, got {target.value:g}. For 75 %, write 0.75", "value")


def start_record(target: config.Target, stored: Mapping[str, Any] | None) -> Record | None:
  """Returns the record of a run at the start of an attempt, or None without a target.

  The caller adds the evaluations of earlier attempts with `add_logged_evaluations`.

  Args:
    target: the target of the run.
    stored: the record in the checkpoint. A record of another target is ignored.
  """
  if target.metric is None:
    return None
  wanted = {"metric": selection.format_name(target.metric), "value": target.value}
  if stored is not None and {**stored, **wanted} == stored:
    return dict(stored)
  return wanted | {"step": None, "hours": None}


def update_record(record: Record, step: int, figures: Mapping[str, float], seconds: float) -> Record:
  """Returns the record after an evaluation.

  Args:
    record: the record before.
    step: number of completed steps.
    figures: values by name.
    seconds: time of training in seconds.
  """
  named = {selection.format_name(name): value for name, value in figures.items()}
  value = named.get(record["metric"])
  if record["step"] is not None or value is None or not is_reached(record["metric"], value, record["value"]):
    return record
  return record | {"step": step, "hours": seconds / 3600}


def add_logged_evaluations(record: Record, rows: Iterable[Mapping[str, float]]) -> Record:
  """Updates a record with the evaluations of earlier attempts in metrics.jsonl. Their hours are unknown.

  Args:
    record: the record before.
    rows: lines of metrics.jsonl, sorted by step.
  """
  for row in rows:
    updated = update_record(record, int(row["step"]), row, 0.0)
    if updated is not record:
      return updated | {"hours": None}
  return record


def format_logged_target(record: Mapping[str, Any]) -> str:
  """Returns a line about a target that an earlier attempt reached."""
  return f"{record['step']:>7}  reached {format_target(record)}, according to metrics.jsonl"


def print_target_of_finished_run(
  target: config.Target, stored: Mapping[str, Any] | None, workdir: pathlib.Path
) -> None:
  """Prints the step at which a finished run reached a new target.

  Args:
    target: the target of the command.
    stored: the target in result.json.
    workdir: the workdir.
  """
  record = start_record(target, stored)
  if record is None or record == stored:
    return
  record = add_logged_evaluations(record, writer.read_rows(workdir))
  print_line(
    f"time to {format_target(record)}: {format_time(record)}, according to metrics.jsonl. result.json is not changed, "
    "because the run is finished"
  )


def is_reached(metric: str, value: float, target: float) -> bool:
  """Returns whether a figure is at least as good as a target. Losses and errors must fall."""
  return value <= target if metric.endswith(FALLING) else value >= target


def format_target(record: Mapping[str, Any]) -> str:
  """Returns a target as text, such as "validation/top1 77.31 %"."""
  value, metric = record["value"], record["metric"]
  return f"{metric} {100 * value:.2f} %" if is_share(metric) else f"{metric} {value:.4f}"


def format_time(record: Mapping[str, Any]) -> str:
  """Returns the step and the hours of a record as text, or "not reached"."""
  if record["step"] is None:
    return "not reached"
  return f"step {record['step']:,}" + (f", {record['hours']:,.3g} h" if record["hours"] is not None else "")
