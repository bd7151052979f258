"""Estimated rate at which a host can prepare images, computed from the number of its cores without a measurement."""

import operator
from collections.abc import Sequence

from vit_jax.data import catalog
from vit_jax.data.bound_data import TrainData
from vit_jax.data.views import Views
from vit_jax.parallel import hardware
from vit_jax.schema import Choice
from vit_jax.training.bound_run import BoundRun

# CPU seconds per image, summed over threads: `cpu_seconds_per_image` of `python -m benchmarks.input_pipeline --gil`.
# Images are JPEGs of 500 x 375 pixels and PHOTOGRAPH bytes. They are resized to 224 pixels, without augmentation and
# with RandAugment (2, 10). The values hold for the measured cores. The vCPU of a TPU host is a hyperthread of another
# processor.
PLAIN_SECONDS = 2.3e-3
RANDAUGMENT_SECONDS = 3.2e-3
LAYERS, PIXELS, PHOTOGRAPH = 2, 224**2, 90_000
# CPU seconds of one operation of a policy, or of all its operations, and of scaling a whole photograph for a crop. They
# were measured in the same process as RandAugment's operation, which took 0.43 ms there.
POLICY_SECONDS = {
  "randaugment": (RANDAUGMENT_SECONDS - PLAIN_SECONDS) / LAYERS,
  "randaugment_increasing": 3.0e-3,
  "autoaugment": 3.0e-3,
  "three_augment": 2.1e-3,
  "colour_jitter": 1.1e-3,
  "dino": 4.4e-3,  # blur on half of the crops; measured 2.1 times three_augment and 3.9 times colour_jitter
}
SCALING_SECONDS = {"area": 2.2e-3, "bilinear": 3.7e-3, "random": 4.5e-3, "bicubic": 5.4e-3, "lanczos": 7.8e-3}
# Share of PLAIN_SECONDS for an image that needs no decoding, such as those of CIFAR, which are stored decoded. Digits
# at 32 pixels took 0.15 ms where a photograph took 1.04 ms.
LEAST = 0.14


def estimate_seconds_per_image(run: BoundRun, views: Sequence[Views] = ()) -> float:
  """Returns the estimated CPU seconds that a host needs for a training image of a run, with all of its views.

  The estimate has three terms. All other work is done by the devices.

  - Reading, decoding and cropping are proportional to the bytes of the stored image, such as 115 kB for ImageNet. If
    the catalog does not contain the size, the size of the measured photograph is used.
  - Scaling without aliasing is proportional to the share of the image that is scaled.
  - Each operation of a policy is proportional to the pixels of the training images.

  The size of the crop is ignored, because it was measured for 224 pixels only. Small crops are cheaper than estimated
  (32 pixels took a third of the time of 224 pixels), and large crops are more expensive.

  Args:
    run: a completed run.
    views: views of an image that the task of the run needs. Empty for one image.
  """
  images = (get_image_bytes(run.data) or PHOTOGRAPH) / PHOTOGRAPH
  crops: list[tuple[Choice, Choice, int]] = [(run.data.crop, run.data.policy, run.data.image_size)]
  if views:
    crops = [(view.crop, policy, view.size) for view in views for policy in view.policies]
  seconds = PLAIN_SECONDS * max(LEAST, images)
  for crop, policy, size in crops:
    scaling = sum(crop.args.get("area", (1, 1))) / 2 * SCALING_SECONDS.get(crop.args.get("interpolation", ""), 0)
    operations = policy.args.get("layers", 1) * policy.args.get("probability", 1.0)
    seconds += scaling * images + operations * POLICY_SECONDS.get(policy.name, 0) * size**2 / PIXELS
  return seconds


def get_image_bytes(data: TrainData) -> float | None:
  """Returns the average bytes of a stored image, or None if the catalog does not contain the size.

  The parts of a mixture are averaged by their weights.

  Args:
    data: name and arguments of a dataset.
  """
  if data.name != "mixture":
    return catalog.CATALOG[data.name].image_bytes
  weights = [part.args["weight"] for part in data.parts]
  sizes = [size for part in data.parts if (size := catalog.CATALOG[part.name].image_bytes) is not None]
  return sum(map(operator.mul, weights, sizes)) / sum(weights) if len(sizes) == len(weights) else None


def estimate_host_rate(run: BoundRun, slice_: hardware.Slice, views: Sequence[Views] = ()) -> float:
  """Returns the estimated images/s that a host of a slice can prepare with all of its cores.

  Args:
    run: a completed run.
    slice_: the slice of the host.
    views: see `estimate_seconds_per_image`.
  """
  return slice_.vcpus / estimate_seconds_per_image(run, views)
