"""Preparation of the first import of JAX:

selection of the CPU platform, and errors for invalid environment variables.
"""

import importlib.metadata
import importlib.util
import os
import pathlib
import sys
from collections.abc import Mapping, MutableMapping

_GOOGLE, _NETWORK_CARD = "0x1ae0", "0x0042"  # PCI vendor, and its network card, which is not a TPU


def select_platform(environment: MutableMapping[str, str] = os.environ, root: str = "/") -> None:
  """Sets JAX_PLATFORMS=cpu if libtpu is installed, no TPU is attached, and JAX has no other accelerator.

  Otherwise JAX would first try to start libtpu, which prints errors at each start. A value that the user has set is
  kept.

  Args:
    environment: environment variables to read and change.
    root: root of the file system to inspect.
  """
  if "JAX_PLATFORMS" in environment or importlib.util.find_spec("libtpu") is None or is_tpu_attached(environment, root):
    return
  # Support for CUDA, ROCm and other accelerators is installed as plug-ins.
  if importlib.util.find_spec("jax_plugins") is None and not importlib.metadata.entry_points(group="jax_plugins"):
    environment["JAX_PLATFORMS"] = "cpu"


def import_jax(environment: Mapping[str, str] = os.environ) -> None:
  """Imports JAX. If JAX refuses an environment variable, the program prints one line and ends with exit code 2.

  Args:
    environment: the environment variables of JAX.
  """
  try:
    importlib.import_module("jax")
  except ValueError as error:
    names = [name for name in environment if name.startswith("JAX_")]
    named = [name for name in names if name.lower() in str(error).lower()]
    values = ", ".join(f"{name}={environment[name]!a}" for name in named or names)
    print(f"error: {values}: JAX refuses it ({error}). Correct the value, or unset it.", file=sys.stderr, flush=True)
    sys.exit(2)


def is_tpu_attached(environment: MutableMapping[str, str], root: str = "/") -> bool:
  """Returns whether device files, PCI devices or variables of Cloud TPU show that this machine has a TPU.

  Args:
    environment: environment variables.
    root: root of the file system to inspect.
  """
  if any(name.startswith("TPU_") for name in environment):
    return True
  if any(any(pathlib.Path(root).glob(pattern)) for pattern in ("dev/accel*", "dev/vfio/[0-9]*")):
    return True
  return any(_is_tpu(device) for device in pathlib.Path(root, "sys/bus/pci/devices").glob("*"))


def _is_tpu(device: pathlib.Path) -> bool:
  """Returns whether a PCI device is a TPU."""
  try:
    vendor, number = ((device / name).read_text().strip() for name in ("vendor", "device"))
  except OSError:  # a device that is being removed
    return False
  return vendor == _GOOGLE and number != _NETWORK_CARD
