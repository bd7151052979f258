"""The bound form of a run, in which every argument has a checked and typed value. `build.complete` returns it."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from vit_jax import config, optim, tasks
from vit_jax.data.bound_data import TrainData
from vit_jax.evals import BoundEval, list_figure_names
from vit_jax.schema import Bound, DerivedTable, Duration
from vit_jax.training import steps


class BoundOptim(Bound):
  """A bound choice of `config.optim`."""

  @property
  def lr(self) -> float:
    """Peak learning rate."""
    return self.args["lr"]

  @property
  def accumulate(self) -> int:
    """Number of micro-batches of a step."""
    return self.args["accumulate"]

  @property
  def ema(self) -> float | None:
    """Decay of the moving average of the parameters, or None without an average."""
    return self.args["ema"]

  def create_average_decay(self, total: int, count_steps: Callable[[Duration], int]) -> optim.Schedule | None:
    """Returns the decay of the moving average as a function of the step, see `optim.create_average_decay`.

    Args:
      total: number of steps of the run.
      count_steps: function that converts a duration to a number of steps.
    """
    return self.call(optim.create_average_decay, total, count_steps)


OPTIM = DerivedTable(
  optim.RULES,
  lambda name, functions: (*functions, steps.accumulate_gradients, optim.create_average_decay),
  kind=BoundOptim,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoundRun(config.Run):
  """A run with bound choices. As JSON it is equal to the `config.Run` with the same values.

  Attributes:
    model: the model.
    data: the dataset and the preparation of images.
    optim: the optimizer and its schedule.
    task: the training objective.
    evals: evaluations by name.
  """

  model: Bound
  data: TrainData
  optim: BoundOptim
  task: Bound
  evals: Mapping[str, BoundEval]

  @property
  def dtype(self) -> np.dtype:
    """Type of the model's activations."""
    return np.dtype(self.model.args["dtype"])

  def list_figure_names(self, evaluation: str) -> list[str]:
    """Returns the names of the figures of an evaluation, with those of the moving average.

    Args:
      evaluation: name of the evaluation.
    """
    names = list_figure_names(self.evals[evaluation])
    return names + [f"ema_{name}" for name in names] if self.optim.ema else names

  @property
  def learns_classes(self) -> bool:
    """True if the task learns classes. Otherwise the model has no head."""
    return tasks.TASKS[self.task.name].classes
