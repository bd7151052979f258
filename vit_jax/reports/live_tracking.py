"""Export of a run's metrics to a tracker while the run trains, by the same command that exports them afterwards.

A thread of the first process runs the verb `report` with `--export` from time to time. The verb runs in a process of
its own, so that it neither delays a step nor can stop the run. The file `exports.json` records the lines that were
sent. A restart therefore continues the run in the tracker, and sends each line once.
"""

import logging
import os
import pathlib
import subprocess
import sys
import threading
import time
import types

from vit_jax.reports import trackers
from vit_jax.runtime import print_line

PAUSE = 60.0  # minimum number of seconds between two exports
SHARE = 0.05  # minimum pause as a share of the run's time: W&B writes a folder for each export
LIMIT = 120.0  # maximum number of seconds of an export, and of the wait for the last one


class LiveTracking:
  """The exports of a run, one after the other. As a context, it exports while the run trains.

  A failed export is reported once, and tried again at the next time. It never raises an error.

  Args:
    workdir: workdir of the run.
    tracker: name of the tracker, or None for no exports.

  Example:
    tracking = LiveTracking(pathlib.Path("runs/a"), "mlflow")
    with tracking:
      train()
    tracking.finish()
  """

  def __init__(self, workdir: pathlib.Path, tracker: str | None) -> None:
    self._workdir, self._tracker = workdir, tracker
    self._stopped, self._warned = threading.Event(), False
    self._thread = threading.Thread(target=self._repeat, daemon=True)

  def __enter__(self) -> "LiveTracking":
    if self._tracker:
      self._thread.start()
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, at: types.TracebackType | None
  ) -> None:
    """Starts no further exports. An export in progress ends by itself, also if the run was stopped."""
    self._stopped.set()

  def finish(self) -> None:
    """Exports the lines that are not exported yet, and prints the location of the metrics."""
    if not self._tracker:
      return
    self._thread.join(LIMIT)
    if self._thread.is_alive():
      self._warn(f"an export to {self._tracker} has not ended, so the last lines were not sent")
    elif line := self._export():
      print_line(f"  tracker   {line}")

  def _repeat(self) -> None:
    """Exports again and again until the context ends."""
    began = time.monotonic()
    while not self._stopped.wait(max(PAUSE, SHARE * (time.monotonic() - began))):
      self._export()

  def _export(self) -> str:
    """Runs one export, and returns the line that it printed, or "" if it failed or there are no metrics."""
    try:
      if not trackers.has_exportable_rows(self._workdir):
        return ""
      done = subprocess.run(
        [sys.executable, "-m", "vit_jax.report", f"--export={self._tracker}", str(self._workdir)],
        env=os.environ | {"JAX_PLATFORMS": "cpu"}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        errors="replace", timeout=LIMIT,
      )  # fmt: skip
    except subprocess.TimeoutExpired:
      return self._warn(f"{self._tracker} did not answer for {LIMIT:.0f} s")
    except OSError as error:
      return self._warn(str(error))
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    if done.returncode:
      return self._warn(lines[-1].removeprefix("error: ") if lines else f"the export ended with {done.returncode}")
    return lines[-1] if lines else ""

  def _warn(self, problem: str) -> str:
    """Reports the first problem, and returns ""."""
    if not self._warned:
      self._warned = True
      logging.warning("log.tracker: %s. Training continues, and later exports send the same metrics", problem)
    return ""
