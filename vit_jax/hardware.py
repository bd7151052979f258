"""Chips: memory and peak arithmetic of one JAX device, by `device_kind`."""

import os
from typing import NamedTuple


class Chip(NamedTuple):
  """One JAX device: a core on TPU v2 and v3, a chip from v4 on, a GPU."""

  memory: int  # bytes
  peak: float  # bfloat16 FLOP/s, dense


# Vendors' data sheets: cloud.google.com/tpu/docs/system-architecture (per chip, halved for v2 and v3), nvidia.com.
CHIPS = {
  "TPU v2": Chip(8 * 2**30, 23e12),
  "TPU v3": Chip(16 * 2**30, 61.5e12),
  "TPU v4": Chip(32 * 2**30, 275e12),
  "TPU v5 lite": Chip(16 * 2**30, 197e12),
  "TPU v5": Chip(95 * 2**30, 459e12),
  "TPU v6 lite": Chip(32 * 2**30, 918e12),
  "NVIDIA A100-SXM4-40GB": Chip(40 * 2**30, 312e12),
  "NVIDIA A100-SXM4-80GB": Chip(80 * 2**30, 312e12),
  "NVIDIA H100 80GB HBM3": Chip(80 * 2**30, 989e12),
  "NVIDIA H200": Chip(141 * 10**9, 989e12),
}


def peak(device) -> float | None:
  """Peak FLOP/s of a device, None where the chip is not in the table (a CPU, say)."""
  chip = CHIPS.get(device.device_kind)
  return chip.peak if chip else None


def memory(device) -> int | None:
  """Bytes that one device may hold; on a CPU the machine's memory shared by its devices, None where unknown."""
  if device.device_kind in CHIPS:
    return CHIPS[device.device_kind].memory
  if device.platform == "cpu" and hasattr(os, "sysconf"):
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // len(device.client.local_devices())
  return None
