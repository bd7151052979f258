"""What the evaluations of a run take: whole splits forward, every so often and at the end. They are not compiled."""

from typing import NamedTuple

from vit_jax import build
from vit_jax.data import catalog


class Evaluation(NamedTuple):
  """One of a run's evaluations by images of a split."""

  times: int  # over the run, twice as many where the average of the weights is measured too
  images: int  # each time, with what fills the last batch up


def of(parts: build.Parts) -> dict[str, Evaluation | None]:
  """{name: how often and of how many images}; None for one that does not go over a split, as few-shot probes."""
  return {name: _of(parts, choice, parts.evals[name].every) for name, choice in parts.run.evals.items()}


def _of(parts, choice, every):
  if not {"data", "split", "batch"} <= choice.args.keys():
    return None
  source = catalog.known_split(choice.args["data"] or parts.run.data, choice.args["split"])
  batch = choice.args["batch"] or parts.run.batch
  weights = 1 if parts.run.optim.args["ema"] is None else 2
  return Evaluation(weights * -(-parts.total // every), -(-len(source) // batch) * batch)


def share(parts: build.Parts, flops: float) -> float:
  """Of a train step of so many FLOPs on all devices, the forward pass of its batch; a third without recomputation."""
  return parts.forward_flops * parts.run.batch / flops


def hours(evaluations: dict[str, Evaluation | None], images_per_second: float) -> float:
  """Of all of them over a run, at a rate of the whole slice."""
  return sum(each.times * each.images for each in evaluations.values() if each) / images_per_second / 3600
