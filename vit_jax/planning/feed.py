"""What a host can make of the images that its chips ask for: an estimate from its cores. Nothing is measured here."""

from vit_jax import config, hardware
from vit_jax.data import catalog

# CPU seconds an image, all threads together: `cpu_seconds_per_image` of `python -m benchmarks.input_pipeline --gil`,
# for JPEGs of 500 x 375 pixels and PHOTOGRAPH bytes, plain to 224 pixels and with RandAugment (2, 10). Of the cores
# that were measured; a TPU host's vCPU is a hyperthread, another processor's.
PLAIN_SECONDS = 2.3e-3
RANDAUGMENT_SECONDS = 3.2e-3
LAYERS, PIXELS, PHOTOGRAPH = 2, 224**2, 90_000
# What is left of PLAIN_SECONDS for an image that costs nothing to decode, as of CIFAR, whose images are kept decoded:
# 0.15 ms of digits at 32 pixels, measured where a photograph took 1.04.
LEAST = 0.14


def seconds_per_image(run: config.Run) -> float:
  """CPU seconds that a training image of a run is estimated to take on a host.

  Reading, decoding and cropping go with the bytes of the stored image, as ImageNet's 115 kB; where the catalog does not
  know them, it is the photograph that was measured. Small crops are cheaper than this (one of 32 pixels took a third of
  224's) and large ones dearer, which is not measured. Each operation of a policy goes with the pixels that the run
  sees. All else is the devices' work.
  """
  data = run.data.args
  size = catalog.CATALOG[run.data.name].image_bytes or PHOTOGRAPH
  policy = data["policy"].args
  operations = policy.get("layers", 0) * policy.get("probability", 1.0)
  operation = (RANDAUGMENT_SECONDS - PLAIN_SECONDS) / LAYERS
  return PLAIN_SECONDS * max(LEAST, size / PHOTOGRAPH) + operations * operation * data["image_size"] ** 2 / PIXELS


def host_rate(run: config.Run, slice_: hardware.Slice) -> float:
  """Images a second that a host of a slice is estimated to make, if all of its cores do nothing else."""
  return slice_.vcpus / seconds_per_image(run)
