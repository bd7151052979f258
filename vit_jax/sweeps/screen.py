"""Display of running trials: a live table in a terminal, otherwise one line per change."""

import contextlib
import pathlib
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Self

import rich.live
import rich.table

from vit_jax.evals import selection
from vit_jax.evals.metrics import is_share
from vit_jax.runtime import print_line
from vit_jax.sweeps import results
from vit_jax.sweeps.trials import Trial, count_statuses

_ORDER = ("running", "failed", "diverged", "absent", "done", "waiting")


class TrialScreen:
  """A context that displays trials.

  Args:
    trials: all trials, in the order of their numbers.
    metric: figure by which the sweep decides. If it is None or a trial does not have it, the trial shows the figure of
      `selection.select_criterion`.
    log_of: returns the log file of a trial. Its last line is shown while the trial runs.
  """

  def __init__(self, trials: Sequence[Trial], metric: str | None, log_of: Callable[[Trial], pathlib.Path]) -> None:
    self._trials, self._metric, self._log_of = trials, metric, log_of
    self._start_time = time.monotonic()
    self._live: rich.live.Live | None = None

  def __enter__(self) -> Self:
    if sys.stdout.isatty():
      self._live = rich.live.Live(self.make_table(), auto_refresh=False, transient=True)
      self._live.start()
    return self

  def __exit__(self, *error: object) -> None:
    self._close()

  def _close(self) -> None:
    live, self._live = self._live, None
    if live:
      with contextlib.suppress(OSError):  # the terminal may be closed
        live.stop()

  def report_change(self, trial: Trial) -> None:
    """Prints the new status of a trial if the output is not a terminal."""
    if not self._live:
      number = f"{self._trials.index(trial) + 1}/{len(self._trials)}"
      outcome = self._format_figure(trial) or trial.error
      print_line(f"{time.strftime('%H:%M:%S')}  {trial.status:<9} {number}  {trial}  {outcome}".rstrip())

  def refresh(self) -> None:
    """Redraws the table."""
    if self._live:
      try:
        self._live.update(self.make_table(), refresh=True)
      except OSError:  # the terminal was closed, which must not end the sweep
        self._close()

  def make_table(self) -> rich.table.Table:
    """Returns a table with a row for each trial, running trials first. The title contains the counts."""
    minutes = (time.monotonic() - self._start_time) / 60
    order = ("done", "running", "waiting", "failed", "diverged", "absent")
    table = rich.table.Table(title=f"{count_statuses(self._trials, order)}, {minutes:.0f} min", expand=True)
    table.add_column("trial", ratio=2, overflow="fold")
    table.add_column("status", min_width=8, no_wrap=True)
    table.add_column("figure", min_width=16, no_wrap=True)
    table.add_column("last words", ratio=3, no_wrap=True)
    for trial in sorted(self._trials, key=lambda t: _ORDER.index(t.status)):
      last = read_last_line(self._log_of(trial)) if trial.status == "running" else trial.error
      table.add_row(str(trial), trial.status, self._format_figure(trial), last)
    return table

  def _format_figure(self, trial: Trial) -> str:
    """Returns the figure of a trial with its name, such as "val/top1 90.57 %", or "" if the trial has no figure."""
    name = self._metric
    if name not in trial.figures:
      chosen = results.find_criterion([trial], None)
      name = chosen and chosen.metric
    if name is None:
      return ""
    value = trial.figures[name]
    return (
      f"{selection.format_name(name)} {100 * value:.2f} %"
      if is_share(name)
      else f"{selection.format_name(name)} {value:.4f}"
    )


def read_last_line(log: pathlib.Path) -> str:
  """Returns the last line of a log, or "" if the log does not exist.

  A carriage return, as printed by progress bars, also ends a line.
  """
  with contextlib.suppress(OSError), log.open("rb") as file:
    file.seek(max(0, log.stat().st_size - 2000))
    lines = re.split(r"[\r\n]+", file.read().decode(errors="replace").rstrip())
    return lines[-1].strip()
  return ""
