"""What a run writes for TensorBoard: scalars, which metrics.jsonl gets too, pictures, its config, and a profile."""

import functools
import io
import json
import logging
import pathlib
import tempfile

import jax

from vit_jax import appending, events, files, paths, runtime
from vit_jax.schema import ConfigError, texts


class Writer:
  """Scalars to TensorBoard files and to `metrics.jsonl`, by process 0 only: a resource with a close."""

  def __init__(self, workdir: pathlib.Path, start: int, active: bool, again: bool = False):
    """`start` is the step that the run begins at: later lines, of a run that was killed, are dropped; and those of
    evaluations of that step, if these are made `again`."""
    self._active = active
    if not active:
      return
    file = workdir / "metrics.jsonl"
    chosen = functools.partial(_kept, start=start, again=again)
    if not paths.in_bucket(file):
      _drop_after(file, chosen)
    self._lines = appending.appended(file)
    if paths.in_bucket(file):
      self._lines.keep(chosen)
    self._events = events.EventFile(workdir / "tensorboard")

  def write(self, step: int, scalars: dict[str, float]) -> None:
    """One line and one point per scalar; returns at once. OSError if the line cannot be written."""
    if self._active:
      self._lines.add((json.dumps({"step": step, **scalars}) + "\n").encode())
      self._events.write(step, scalars)

  def image(self, step: int, name: str, png: bytes) -> None:
    """A picture for TensorBoard alone, the bytes of a PNG."""
    if self._active:
      self._events.image(step, name, png)

  def text(self, step: int, name: str, markdown: str) -> None:
    """A text for TensorBoard alone."""
    if self._active:
      self._events.text(step, name, markdown)

  def flush(self) -> None:
    """Brings all lines where a restart finds them: before a state is saved that they lead up to."""
    if self._active:
      self._lines.flush()
      self._events.flush()

  def close(self) -> None:
    """Ends both files."""
    if self._active:
      self._events.close()
      self._lines.close()


class Trace:
  """A profile of some steps for TensorBoard: a resource with a close."""

  SKIPPED = 3  # the first steps of a process are not like the others

  def __init__(self, workdir: pathlib.Path, start: int, steps: int):
    """`start` is the step that the process begins at; of 0 `steps` nothing is written."""
    self._folder = workdir / "tensorboard"
    self._local = None  # where JAX writes what then goes to a bucket, which it cannot write to
    self._first, self._end = start + self.SKIPPED, start + self.SKIPPED + steps
    self._running = False

  def step(self, step: int) -> jax.profiler.StepTraceAnnotation:
    """Context around a step; the profile begins and ends with certain ones."""
    if step == self._end:
      self.close()
    elif step == self._first:
      self._local = tempfile.TemporaryDirectory(prefix="vit_jax_") if paths.in_bucket(self._folder) else None
      jax.profiler.start_trace(self._local.name if self._local else str(self._folder))
      self._running = True
    return jax.profiler.StepTraceAnnotation("train", step_num=step)

  def close(self) -> None:
    """Ends and writes the profile, if one is being taken."""
    if self._running:
      self._running = False
      try:
        jax.profiler.stop_trace()
        if self._local:
          with self._local as folder:
            files.copy(pathlib.Path(folder), self._folder)
      except (jax.errors.JaxRuntimeError, OSError) as error:
        logging.warning("%s: the trace cannot be written (%s); the run goes on", self._folder, str(error)[:200])
      else:
        runtime.say(f"wrote a trace; look at it with: tensorboard {texts.flag('logdir', self._folder)}")


def _drop_after(path, chosen):
  """Keeps the lines of a file on a disk that are `chosen`."""
  if not path.exists():
    return
  if not path.is_file():
    raise ConfigError(f"{path} is no file; remove it")
  with path.open("rb") as lines:
    kept = chosen(lines)
  files.write_text(path, kept.decode())


def _kept(lines, start, again):
  """The whole lines of steps up to `start`; a kill may have left later ones, or half a line. See `Writer`."""
  lines = io.BytesIO(lines) if isinstance(lines, bytes) else lines
  kept = []
  while line := lines.readline(files.JSON_BYTES):
    try:
      values = files.parse_json(line)
      evaluated = not any(name.startswith("train/") for name in values)
      if values["step"] < start + (not (again and evaluated)):
        kept.append(line.decode().rstrip("\r\n") + "\n")
    except (ValueError, KeyError, TypeError, AttributeError):
      continue  # torn by a kill, or none of ours
  return "".join(kept).encode()
