"""Settings and interface that both sides of `benchmarks.gpu_step` share."""

from collections.abc import Callable
from typing import NamedTuple

SIDE, CLASSES = 224, 1000  # pixels, number of classes
RATE, DECAY, CLIP = 1e-4, 0.1, 1.0  # learning rate, weight decay, largest norm of the gradient


class Side(NamedTuple):
  """Training of a model by one framework.

  Attributes:
    steps: trains for a number of steps, waits for the device, and returns the last loss.
    parameters: number of parameters.
    name: name and version of the framework.
  """

  steps: Callable[[int], float]
  parameters: int
  name: str
