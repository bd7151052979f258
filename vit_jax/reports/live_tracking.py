"""Export of a run's metrics to a tracker while the run trains, by the same command that exports them afterwards.

A thread of the first process runs the verb `report` with `--export` from time to time. The verb runs in a process of
its own, so that it neither delays a step nor can stop the run. The file `exports.json` records the lines that were
sent. A restart therefore continues the run in the tracker, and sends each line once.
"""

import logging
import math
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Sequence

from vit_jax import runtime
from vit_jax.reports import trackers
from vit_jax.runtime import children, print_line

PAUSE = 60.0  # minimum number of seconds between two exports
SHARE = 0.05  # minimum pause as a share of the run's time: W&B writes a folder for each export
LIMIT = 120.0  # limit in seconds of an export, and of `LiveTracking.finish` in total
LONGEST = 300  # characters of a problem in a warning


class LiveTracking:
  """The exports of a run, one after the other. As a context, it exports while the run trains.

  A failed export is reported once, and tried again at the next time. It never raises an error. On Linux, no export
  outlives the process of the run. Other systems apply only the time limit if the process is killed.

  Args:
    workdir: workdir of the run.
    tracker: name of the tracker, or None for no exports.
    command: argument list of an export. The default is the verb `report`.

  Example:
    tracking = LiveTracking(pathlib.Path("runs/a"), "mlflow")
    with tracking:
      train()
    tracking.finish()
  """

  def __init__(self, workdir: pathlib.Path, tracker: str | None, command: Sequence[str] | None = None) -> None:
    self._workdir, self._tracker = workdir, tracker
    self._words = ["-m", "vit_jax.report", f"--export={tracker}", str(workdir)]
    self._command = command or [sys.executable, *self._words]
    self._stopped, self._warned = threading.Event(), False
    self._lock, self._abandoned = threading.Lock(), False
    self._process: subprocess.Popen[str] | None = None
    self._thread = threading.Thread(target=self._repeat, daemon=True)

  def __enter__(self) -> "LiveTracking":
    if self._tracker:
      self._thread.start()
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, at: types.TracebackType | None
  ) -> None:
    """Starts no further exports. An export in progress continues, unless the run was stopped or failed."""
    self._stopped.set()
    if error is not None:
      self._abandon()

  def finish(self) -> None:
    """Exports the lines that are not exported yet, and prints the location of the metrics.

    The run is already complete. Therefore a request to stop, such as SIGTERM, ends only the export.
    """
    if not self._tracker:
      return
    print_line(f"  tracker   sending the last metrics to {self._tracker} ...")
    try:
      with runtime.convert_stop_signals():
        line, problem = self._send_last()
    except (runtime.Stop, KeyboardInterrupt):
      self._abandon()
      line, problem = "", "stopped on request before the last metrics were sent"
    if problem:
      command = shlex.join(["python", *self._words])
      logging.warning("log.tracker: %s. The run is complete. To send the metrics, run: %s", problem, command)
    elif line:
      print_line(f"  tracker   {line}")

  def _send_last(self) -> tuple[str, str]:
    """Waits for the export in progress, and runs the last one, within `LIMIT` seconds in total."""
    deadline = time.monotonic() + LIMIT
    self._thread.join(LIMIT)
    if self._thread.is_alive():
      self._abandon()
      return "", self._describe_silence()
    return self._export(max(1.0, deadline - time.monotonic()))

  def _repeat(self) -> None:
    """Exports again and again until the context ends."""
    start_time = time.monotonic()
    while not self._stopped.wait(max(PAUSE, SHARE * (time.monotonic() - start_time))):
      _, problem = self._export(LIMIT)
      if problem and not self._warned and not self._stopped.is_set():
        self._warned = True
        logging.warning("log.tracker: %s. Training continues, and later exports send the same metrics", problem)

  def _abandon(self) -> None:
    """Ends the export in progress, and prevents others."""
    with self._lock:
      self._abandoned = True
      if self._process is not None:
        self._process.terminate()

  def _export(self, limit: float) -> tuple[str, str]:
    """Runs one export for up to `limit` seconds.

    Returns:
      (the line that the export printed, the problem). If the export succeeds, the problem is "". If it fails, the
      line is "". Without metrics, both are "".
    """
    try:
      if not trackers.has_exportable_rows(self._workdir):
        return "", ""
      # Processes that a tracker starts may keep pipes open, so the output is read from files.
      with (
        tempfile.TemporaryFile("w+", errors="replace") as output,
        tempfile.TemporaryFile("w+", errors="replace") as errors,
      ):
        with self._lock:
          if self._abandoned:
            return "", ""
          self._process = process = subprocess.Popen(
            children.tie_to_parent(self._command, limit=math.ceil(limit)),
            # By default MLflow waits for minutes for a server that does not answer.
            env={"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"} | os.environ | {"JAX_PLATFORMS": "cpu"},
            stdin=subprocess.DEVNULL, stdout=output, stderr=errors, text=True,
          )  # fmt: skip
        code = process.wait()
        texts = []
        for file in (output, errors):
          file.seek(0)
          texts.append(file.read())
    except OSError as error:
      return "", f"the export could not run: {error.strerror or error}"
    return self._read_output(code, *texts)

  def _read_output(self, code: int, output: str, errors: str) -> tuple[str, str]:
    """Returns the result of `_export` for an exit code and the output of the process."""
    if code == 0:  # trackers print lines of their own
      return next((line for line in reversed(output.splitlines()) if line.startswith(f"{self._workdir}: ")), ""), ""
    if code == -signal.SIGALRM:
      return "", self._describe_silence()
    if code < 0:
      return "", f"the export was ended by {signal.Signals(-code).name}"
    reason = next((line for line in reversed(errors.splitlines()) if line.startswith("error: ")), "")
    reason = reason.removeprefix("error: ").removesuffix(f". {trackers.ADVICE}")
    return "", reason[:LONGEST] or f"the export ended with exit code {code}"

  def _describe_silence(self) -> str:
    return f"{self._tracker} did not answer for {LIMIT:.0f} s"
