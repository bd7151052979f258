"""What a host can make of the images that its chips ask for: an estimate from its cores. Nothing is measured here."""

import operator

from vit_jax import config, hardware
from vit_jax.data import catalog
from vit_jax.schema import Choice

# CPU seconds an image, all threads together: `cpu_seconds_per_image` of `python -m benchmarks.input_pipeline --gil`,
# for JPEGs of 500 x 375 pixels and PHOTOGRAPH bytes, plain to 224 pixels and with RandAugment (2, 10). Of the cores
# that were measured; a TPU host's vCPU is a hyperthread, another processor's.
PLAIN_SECONDS = 2.3e-3
RANDAUGMENT_SECONDS = 3.2e-3
LAYERS, PIXELS, PHOTOGRAPH = 2, 224**2, 90_000
# CPU seconds of an operation of other policies, or of all of theirs, and of scaling a whole photograph as a crop may;
# measured in one process beside RandAugment's operation, which took 0.43 ms there.
POLICY_SECONDS = {
  "randaugment": (RANDAUGMENT_SECONDS - PLAIN_SECONDS) / LAYERS,
  "randaugment_increasing": 3.0e-3,
  "autoaugment": 3.0e-3,
  "three_augment": 2.1e-3,
  "colour_jitter": 1.1e-3,
}
SCALING_SECONDS = {"area": 2.2e-3, "bilinear": 3.7e-3, "random": 4.5e-3, "bicubic": 5.4e-3, "lanczos": 7.8e-3}
# What is left of PLAIN_SECONDS for an image that costs nothing to decode, as of CIFAR, whose images are kept decoded:
# 0.15 ms of digits at 32 pixels, measured where a photograph took 1.04.
LEAST = 0.14


def seconds_per_image(run: config.Run) -> float:
  """CPU seconds that a training image of a run is estimated to take on a host.

  Reading, decoding and cropping go with the bytes of the stored image, as ImageNet's 115 kB; where the catalog does not
  know them, it is the photograph that was measured. Small crops are cheaper than this (one of 32 pixels took a third of
  224's) and large ones dearer, which is not measured. Scaling without aliasing goes with the share of the image that is
  scaled. Each operation of a policy goes with the pixels that the run sees. All else is the devices' work.
  """
  data = run.data.args
  images = (image_bytes(run.data) or PHOTOGRAPH) / PHOTOGRAPH
  crop = data["crop"].args
  scaling = sum(crop.get("area", (1, 1))) / 2 * SCALING_SECONDS.get(crop.get("interpolation"), 0)
  policy = data["policy"]
  operations = policy.args.get("layers", 1) * policy.args.get("probability", 1.0)
  changing = operations * POLICY_SECONDS.get(policy.name, 0)
  return PLAIN_SECONDS * max(LEAST, images) + scaling * images + changing * data["image_size"] ** 2 / PIXELS


def image_bytes(data: Choice) -> float | None:
  """Of a stored image, on average, where the catalog knows it: of a mixture its parts count by their weights."""
  if data.name != "mixture":
    return catalog.CATALOG[data.name].image_bytes
  weights, each = zip(*((part.args["weight"], image_bytes(part)) for part in data.args["parts"]), strict=True)
  return None if None in each else sum(map(operator.mul, weights, each)) / sum(weights)


def host_rate(run: config.Run, slice_: hardware.Slice) -> float:
  """Images a second that a host of a slice is estimated to make, if all of its cores do nothing else."""
  return slice_.vcpus / seconds_per_image(run)
