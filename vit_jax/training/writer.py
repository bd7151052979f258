"""Output files of a run: metrics.jsonl, and TensorBoard files with scalars, pictures, texts and a profile."""

import functools
import io
import json
import logging
import pathlib
import tempfile
from collections.abc import Callable
from typing import IO

import jax

from vit_jax import runtime
from vit_jax.checkpoints import forms
from vit_jax.schema import ConfigError, texts
from vit_jax.storage import append, files, paths
from vit_jax.training import tensorboard

METRICS = "metrics.jsonl"


class Writer:
  """Writes scalars to TensorBoard files and to `metrics.jsonl`. Only process 0 writes. It must be closed.

  Args:
    workdir: the workdir.
    start: step from which the run continues. Lines of later steps, which were written before a kill, are removed.
    active: whether this process writes.
    again: whether evaluations of step `start` will be repeated. Their lines are then also removed.
  """

  def __init__(self, workdir: pathlib.Path, start: int, active: bool, again: bool = False) -> None:
    self._active = active
    if not active:
      return
    file = workdir / METRICS
    chosen = functools.partial(_keep_until, start=start, again=again)
    if not paths.is_in_bucket(file):
      _drop_after(file, chosen)
    self._lines = append.open_append(file)
    if isinstance(self._lines, append.BucketAppender):
      self._lines.keep(chosen)
    self._events = tensorboard.EventFile(workdir / "tensorboard")

  def write(self, step: int, scalars: dict[str, float]) -> None:
    """Writes one line, and one point for each scalar. Returns without waiting for a bucket.

    Args:
      step: step of the scalars.
      scalars: values by name.

    Raises:
      OSError: the line cannot be written.
    """
    if self._active:
      self._lines.add((json.dumps({"step": step, **scalars}) + "\n").encode())
      self._events.write(step, scalars)

  def write_image(self, step: int, name: str, png: bytes) -> None:
    """Writes an image to TensorBoard.

    Args:
      step: step of the image.
      name: tag of the image.
      png: bytes of a PNG file.
    """
    if self._active:
      self._events.write_image(step, name, png)

  def write_text(self, step: int, name: str, markdown: str) -> None:
    """Writes a text to TensorBoard.

    Args:
      step: step of the text.
      name: tag of the text.
      markdown: the text.
    """
    if self._active:
      self._events.write_text(step, name, markdown)

  def flush(self) -> None:
    """Makes all lines available for a restart. It must be called before a checkpoint of the same step is saved."""
    if self._active:
      self._lines.flush()
      self._events.flush()

  def close(self) -> None:
    """Closes both files."""
    if self._active:
      self._events.close()
      self._lines.close()


class Trace:
  """Writes a profile of some steps for TensorBoard. It must be closed.

  Args:
    workdir: the workdir.
    start: step from which the process continues.
    steps: number of steps to profile. With 0 no profile is written.
  """

  SKIPPED = 3  # the first steps of a process are not typical

  def __init__(self, workdir: pathlib.Path, start: int, steps: int) -> None:
    self._folder = workdir / "tensorboard"
    # local directory for a profile that is then copied to a bucket, because JAX cannot write to buckets
    self._local: tempfile.TemporaryDirectory[str] | None = None
    self._first, self._end = start + self.SKIPPED, start + self.SKIPPED + steps
    self._running = False

  def annotate_step(self, step: int) -> jax.profiler.StepTraceAnnotation:
    """Returns the context for a step. Starts the profile at its first step, and ends it at its last step."""
    if step == self._end:
      self.close()
    elif step == self._first:
      self._local = tempfile.TemporaryDirectory(prefix="vit_jax_") if paths.is_in_bucket(self._folder) else None
      jax.profiler.start_trace(self._local.name if self._local else str(self._folder))
      self._running = True
    return jax.profiler.StepTraceAnnotation("train", step_num=step)

  def close(self) -> None:
    """Ends and writes the profile, if one is being recorded."""
    if self._running:
      self._running = False
      try:
        jax.profiler.stop_trace()
        if self._local:
          with self._local as folder:
            files.copy_to_bucket(pathlib.Path(folder), self._folder)
      except (jax.errors.JaxRuntimeError, OSError) as error:
        logging.warning("%s: the trace cannot be written (%s). The run continues", self._folder, str(error)[:200])
      else:
        runtime.print_line(f"wrote a trace. View it with: tensorboard {texts.format_flag('logdir', self._folder)}")


def read_rows(workdir: pathlib.Path) -> list[dict[str, float]]:
  """Returns the numbers in complete lines of metrics.jsonl, sorted by step. An incomplete last line is ignored.

  Args:
    workdir: the workdir.
  """
  rows = []
  for line in append.read_appended(workdir / METRICS).splitlines():
    try:
      values = files.parse_json(line)
    except ValueError:
      continue
    if isinstance(values, dict) and forms.is_number(values.get("step")):
      rows.append({key: value for key, value in values.items() if forms.is_number(value)})
  return sorted(rows, key=lambda row: row["step"])


def _drop_after(path: pathlib.Path, chosen: Callable[[IO[bytes]], bytes]) -> None:
  """Filters the lines of a file on a disk."""
  if not path.exists():
    return
  if not path.is_file():
    raise ConfigError(f"{path} is not a file. Remove it")
  with path.open("rb") as lines:
    kept = chosen(lines)
  files.write_text(path, kept.decode())


def _keep_until(lines: bytes | IO[bytes], start: int, again: bool) -> bytes:
  """Returns the complete lines up to step `start`.

  After a kill, the file may contain later lines or an incomplete line.
  """
  lines = io.BytesIO(lines) if isinstance(lines, bytes) else lines
  kept = []
  while line := lines.readline(files.JSON_BYTES):
    try:
      values = files.parse_json(line)
      evaluated = not any(name.startswith("train/") for name in values)
      if values["step"] < start + (not (again and evaluated)):
        kept.append(line.decode().rstrip("\r\n") + "\n")
    except (ValueError, KeyError, TypeError, AttributeError):
      continue  # incomplete because of a kill, or not written by this program
  return "".join(kept).encode()
