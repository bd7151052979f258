"""Estimated cost of the evaluations of a run.

The evaluations process whole splits with a forward pass, at regular intervals and at the end. They are not compiled.
"""

from typing import NamedTuple

from vit_jax.data import catalog
from vit_jax.evals import BoundEval
from vit_jax.training.experiment import Experiment


class EvaluationCount(NamedTuple):
  """An evaluation of a run that processes the images of a split.

  Attributes:
    times: number of measurements during the run, doubled if averaged weights are also evaluated.
    images: number of images of each measurement, including the padding of the last batch.
  """

  times: int
  images: int


def list_evaluations(experiment: Experiment) -> dict[str, EvaluationCount | None]:
  """Returns the number of times and images of each evaluation, by name.

  Args:
    experiment: the run that was built.

  Returns:
    {name: evaluation}, with None for an evaluation that does not process a split, such as a few-shot probe.
  """
  return {
    name: _describe_evaluation(experiment, choice, experiment.evals[name].every)
    for name, choice in experiment.run.evals.items()
  }


def _describe_evaluation(experiment: Experiment, choice: BoundEval, every: int) -> EvaluationCount | None:
  if choice.split is None:
    return None
  source = catalog.open_known_split(choice.data or experiment.run.data, choice.split)
  batch = choice.batch or experiment.run.batch
  weights = 1 if experiment.run.optim.ema is None else 2
  return EvaluationCount(weights * -(-experiment.total // every), -(-len(source) // batch) * batch)


def compute_step_share(experiment: Experiment, flops: float) -> float:
  """Returns the forward pass of a batch as a share of the FLOPs of a train step.

  Args:
    experiment: the run that was built.
    flops: FLOPs of a train step on all devices. Without recomputation the share is one third.
  """
  return experiment.forward_flops * experiment.run.batch / flops


def sum_hours(evaluations: dict[str, EvaluationCount | None], images_per_second: float) -> float:
  """Returns the hours of all evaluations of a run.

  Args:
    evaluations: the result of `list_evaluations`.
    images_per_second: images/s of the whole slice.
  """
  return sum(each.times * each.images for each in evaluations.values() if each) / images_per_second / 3600
