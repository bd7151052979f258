"""What a run reports: TensorBoard and metrics.jsonl, rates of steady steps, FLOPs."""

import concurrent.futures
import json
import logging
import math
import os
import pathlib
import time

import jax
import jax.extend.core

from vit_jax import runtime


class Writer:
  """Scalars to TensorBoard files (clu) and to `metrics.jsonl`, by process 0 only: a resource with a close."""

  def __init__(self, workdir: pathlib.Path, start: int, active: bool):
    """`start` is the step that the run begins at: later lines, of a run that was killed, are dropped."""
    self._active = active
    if not active:
      return
    self._file = workdir / "metrics.jsonl"
    _drop_after(self._file, start)
    self._lines = open(self._file, "a", buffering=1)
    # TensorFlow takes seconds to import: another thread does it while XLA compiles.
    self._pool = concurrent.futures.ThreadPoolExecutor(1)
    self._tensorboard = self._pool.submit(_tensorboard, workdir / "tensorboard")

  def write(self, step: int, scalars: dict[str, float]) -> None:
    """One line and one point per scalar; returns at once."""
    if self._active:
      self._lines.write(json.dumps({"step": step, **scalars}) + "\n")
      self._pool.submit(lambda: self._tensorboard.result().write_scalars(step, scalars)).add_done_callback(_warn)

  def close(self) -> None:
    """Flushes both."""
    if self._active:
      self._lines.close()
      self._pool.submit(lambda: self._tensorboard.result().close()).result()
      self._pool.shutdown()


def _tensorboard(directory):
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  import tensorflow as tf

  tf.config.set_visible_devices([], "GPU")  # TensorFlow must not take the accelerator's memory
  from clu import metric_writers

  return metric_writers.SummaryWriter(str(directory))


def _warn(future):
  if error := future.exception():
    logging.warning("TensorBoard: %s; metrics.jsonl has the figures all the same", error)


def _drop_after(path, start):
  """Keeps the whole lines of steps up to `start`; a kill may have left later ones, or half a line."""
  if not path.exists():
    return
  kept = []
  for line in path.read_text().splitlines():
    try:
      if json.loads(line)["step"] <= start:
        kept.append(line + "\n")
    except (json.JSONDecodeError, KeyError, TypeError):
      continue  # torn by a kill
  runtime.write_text(path, "".join(kept))


class Clock:
  """Images a second over steady steps: compilation, evaluations and saves are taken out.

  It begins with the images and seconds of earlier sessions of the same run.
  """

  def __init__(self, images: int = 0, seconds: float = 0.0):
    self.images, self.seconds = images, seconds
    self._since = None
    self._paused = self._waited = 0.0

  def lap(self, images: int) -> dict[str, float]:
    """Rates since the last lap, in which `images` were trained on; the first lap only starts the clock."""
    now, since = time.perf_counter(), self._since
    paused, waited = self._paused, self._waited
    self._since, self._paused, self._waited = now, 0.0, 0.0
    if since is None:
      return {}
    seconds = max(now - since - paused, 1e-9)
    self.images += images
    self.seconds += seconds
    return {"images_per_second": images / seconds, "data_wait": min(waited / seconds, 1.0)}

  def pause(self) -> "_Timer":
    """Context whose time does not count: evaluation, saving."""
    return _Timer(self, "_paused")

  def wait(self) -> "_Timer":
    """Context whose time counts as waiting for data."""
    return _Timer(self, "_waited")

  @property
  def rate(self) -> float | None:
    """Images a second over all laps; None before the first whole lap."""
    return self.images / self.seconds if self.images else None


class _Timer:
  def __init__(self, clock, field):
    self._clock, self._field = clock, field

  def __enter__(self):
    self._start = time.perf_counter()

  def __exit__(self, *_):
    spent = time.perf_counter() - self._start
    setattr(self._clock, self._field, getattr(self._clock, self._field) + spent)


def flops(function, *args) -> int:
  """FLOPs of the matrix products and convolutions of a function, from its jaxpr; loops count each turn.

  XLA's own count takes a loop's body once, and counts recomputation: this is the model's arithmetic, for MFU.
  """
  return _count(jax.make_jaxpr(function)(*args).jaxpr)


def _count(jaxpr):
  total = 0
  for equation in jaxpr.eqns:
    turns = equation.params["length"] if equation.primitive.name == "scan" else 1
    inner = [_count(part) for part in jax.extend.core.jaxprs_in_params(equation.params)]
    one_of = equation.primitive.name == "cond"  # also what chooses a formulation by platform
    total += turns * (max(inner) if one_of else sum(inner))
    match equation.primitive.name:
      case "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        total += 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)
      case "conv_general_dilated":
        kernel, numbers = equation.invars[1].aval.shape, equation.params["dimension_numbers"]
        per_output = math.prod(kernel) // kernel[numbers.rhs_spec[0]]
        total += 2 * math.prod(equation.outvars[0].aval.shape) * per_output
  return total
