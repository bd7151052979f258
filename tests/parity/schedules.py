"""Parity checks of learning rates by step (big_vision, vision_transformer) or by epoch (timm)."""

import json
import pathlib
from collections.abc import Iterator

import jax
import numpy as np

from tests.parity.compare import Result, compare
from vit_jax.optim import schedules
from vit_jax.schema import Choice, Duration


def _rates(name, peak, total, warmup, batch, examples, steps, **arguments):
  """Returns the values of a schedule of `optim` at these steps."""

  def length(duration):
    return Duration(duration).count_steps(batch, examples, total)

  schedule = schedules.create_schedule(Choice(name, arguments), peak, total, length(warmup), length)
  return np.asarray(jax.jit(jax.vmap(schedule))(np.asarray(steps, np.int32)))


def check(file: pathlib.Path) -> Iterator[Result]:
  """Checks learning rates by step (big_vision, vision_transformer), or at both ends of each epoch (timm)."""
  for curve in json.loads(file.read_text())["curves"]:
    yield (_epoch_curve if "epochs" in curve else _step_curve)(f"{file.stem}/{curve['name']}", curve)


def _step_curve(name, curve):
  theirs = dict(curve["arguments"])
  kind, total, peak = theirs.pop("decay_type"), theirs.pop("total_steps"), theirs.pop("base", 1.0)
  batch, examples = theirs.pop("batch_size", 1), theirs.pop("data_size", 1)
  peak *= batch / 256 if theirs.pop("scale_with_batchsize", False) else 1
  warmup = theirs.pop("warmup_steps", 0)
  if "warmup_percent" in theirs:
    warmup = f"{100 * theirs.pop('warmup_percent')}%"
  if "warmup_epochs" in theirs:
    warmup = f"{theirs.pop('warmup_epochs')}ep"
  match kind:
    case "rsqrt":
      names = {"timescale": "timescale", "shift": "shift", "cooldown_steps": "cooldown"}
      arguments = {ours: theirs.pop(key) for key, ours in names.items() if key in theirs}
    case "stair":
      arguments = {"at": theirs.pop("steps"), "factors": theirs.pop("mults")}
    case "polynomial":
      arguments = {"power": float(theirs.pop("power")), "end": theirs.pop("end")}
    case _:
      end = theirs.pop("linear_end", 0.0)  # the original cosine does not use it
      arguments = {"end": end if kind == "linear" else 0.0}
  if theirs:
    return Result(name, float("inf"), f"unknown arguments {sorted(theirs)}")
  rates = _rates(kind, peak, total, warmup, batch, examples, curve["steps"], **arguments)
  return compare(name, rates, curve["values"], 5e-7 * max(curve["values"]))


def _epoch_curve(name, curve):
  theirs, results = curve["arguments"], []
  warmup, start = theirs["warmup_t"], theirs["warmup_lr_init"]
  if "t_initial" in theirs:
    kind, cooldown = "epoch_cosine", 10
    epochs = theirs["t_initial"] + cooldown + (warmup if theirs["warmup_prefix"] else 0)
    arguments = {"end": theirs["lr_min"], "cooldown": f"{cooldown}ep", "after_warmup": theirs["warmup_prefix"]}
  else:
    epochs, kind, arguments = 300, "epoch_step", {"every": f"{theirs['decay_t']}ep", "factor": theirs["decay_rate"]}
  for batch, examples in ((1, 1), (128, 1437), (128, 50_000)):
    total = Duration(f"{epochs}ep").count_steps(batch, examples)
    first = np.array([-(-e * examples // batch) for e in curve["epochs"]])
    last = np.array([-(-(e + 1) * examples // batch) - 1 for e in curve["epochs"]])
    for steps in first, last:
      rates = _rates(kind, theirs["lr"], total, f"{warmup}ep", batch, examples, steps, start=start, **arguments)
      # float32 has 24 significant bits. The table itself is computed in float64.
      results.append(compare(name, rates, curve["values"], 1e-7 * max(curve["values"])))
  return next((r for r in results if r.wrong), max(results, key=lambda r: r.error))
