"""Data of accelerators: memory and speed of one JAX device, and the names of the TPU slices that can be rented.

Google publishes its figures per chip. A JAX device is half a chip on TPU v2, v3 and TPU7x (Ironwood), and a whole chip
on the other generations.
"""

import contextlib
import difflib
import math
import os
import pathlib
import platform
import re
from typing import NamedTuple

import jax

GIB = 2**30


class Chip(NamedTuple):
  """Memory and rates of one JAX device. Rates are per second.

  Attributes:
    memory: memory in bytes. For a TPU it is the memory that the compiler makes available.
    peak: dense bfloat16 FLOPs.
    bandwidth: bytes read from or written to memory.
    clock: cycles.
    links: bytes sent to other chips of the slice, over all links together.
    network: bytes sent to other slices.
    int8: operations with int8 numbers. NaN if the device has no such units.
  """

  memory: int
  peak: float
  bandwidth: float = math.nan
  clock: float = math.nan
  links: float = math.nan
  network: float = math.nan
  int8: float = math.nan


# Memory: the usable memory that libtpu 0.0.42 reports. v2 and v3: Jouppi et al. 2020 (links of 496 and 656 Gbit/s, four
# per chip). v4: Jouppi et al. 2023. Later generations: docs.cloud.google.com/tpu/docs, with clocks computed from the
# peak and the number of multipliers. TPU7x: docs.cloud.google.com/tpu/docs/tpu7x, half of the figures of a chip. Its
# clock assumes four units of 256 x 256 multipliers per device, as on v6e. NVIDIA: data sheets. int8: `get_tpu_info` of
# JAX 0.10.2. According to it and to libtpu 0.0.42, int8 is not faster than bfloat16 on v4 and TPU7x. TPU7x has float8
# units instead.
CHIPS = {
  "TPU v2": Chip(int(7.48 * GIB), 23e12, 350e9, 700e6, 124e9),
  "TPU v3": Chip(int(15.48 * GIB), 61.5e12, 450e9, 940e6, 164e9),
  "TPU v4": Chip(int(30.75 * GIB), 275e12, 1228e9, 1050e6, 300e9, 6.25e9),
  "TPU v5 lite": Chip(int(15.75 * GIB), 197e12, 819e9, 1500e6, 200e9, 3.1e9, 394e12),
  "TPU v5": Chip(int(95.74 * GIB), 459e12, 2765e9, 1750e6, 600e9, 6.25e9, 918e12),
  "TPU v6 lite": Chip(int(31.25 * GIB), 918e12, 1640e9, 1750e6, 400e9, 12.5e9, 1836e12),
  "TPU7x": Chip(int(94.75 * GIB), 1153.5e12, 3690e9, 2200e6, 300e9, 6.25e9),
  "NVIDIA A100-SXM4-40GB": Chip(40 * GIB, 312e12, 1555e9),
  "NVIDIA A100-SXM4-80GB": Chip(80 * GIB, 312e12, 2039e9),
  "NVIDIA H100 80GB HBM3": Chip(80 * GIB, 989e12, 3352e9),
  "NVIDIA H200": Chip(141 * 10**9, 989e12, 4800e9),
}


class Generation(NamedTuple):
  """A TPU generation, with slices that are grids of chips.

  Attributes:
    kind: `device_kind` of its devices.
    cores: cores of a chip in Cloud TPU's slice names. For example, v3-32 has 16 chips.
    devices: number of JAX devices per chip.
    dimensions: dimensions of the grid.
    sizes: numbers of chips of the slices that can be rented.
    vcpus: {number of chips of a host: its vCPUs}.
  """

  kind: str
  cores: int
  devices: int
  dimensions: int
  sizes: tuple[int, ...]
  vcpus: dict[int, int]


def _list_doublings(first: int, last: int) -> tuple[int, ...]:
  return tuple(first * 2**i for i in range((last // first).bit_length()))


# Source: docs.cloud.google.com/tpu/docs. The slices are tested against libtpu, which supports all of them. vCPUs from
# v5e on: VM types on the pages of these generations. The pages of v2, v3 and v4 list no vCPUs. Their values are those
# of the known VMs.
GENERATIONS = {
  "v2": Generation("TPU v2", 2, 2, 2, (4, 16, 64, 128, 256), {4: 96}),
  "v3": Generation("TPU v3", 2, 2, 2, (4, *_list_doublings(16, 1024)), {4: 96}),
  "v4": Generation("TPU v4", 2, 1, 3, _list_doublings(4, 2048), {4: 240}),
  "v5e": Generation("TPU v5 lite", 1, 1, 2, (1, *_list_doublings(4, 256)), {1: 24, 4: 112, 8: 224}),
  "v5p": Generation("TPU v5", 2, 1, 3, _list_doublings(4, 4096), {4: 208}),
  "v6e": Generation("TPU v6 lite", 1, 1, 2, (1, *_list_doublings(4, 256)), {1: 44, 4: 180, 8: 180}),
  "tpu7x": Generation("TPU7x", 2, 2, 3, _list_doublings(4, 2048), {4: 224}),
}


class Slice(NamedTuple):
  """A TPU that can be rented: a number of equal slices of one generation, each a grid of chips.

  Attributes:
    name: libtpu's name, such as "v3:4x4".
    generation: key of `GENERATIONS`.
    grid: sides of the grid of chips.
    slices: number of slices.
  """

  name: str
  generation: str
  grid: tuple[int, ...]
  slices: int = 1

  @property
  def rented(self) -> str:
    """The name that all output uses, such as v3-32 or v5e-16. Cloud TPU's commands call the latter v5litepod-16."""
    name = f"{self.generation}-{math.prod(self.grid) * GENERATIONS[self.generation].cores}"
    return f"{self.slices}x{name}" if self.slices > 1 else name

  @property
  def chip(self) -> Chip:
    """Data of one device of the slice."""
    return CHIPS[GENERATIONS[self.generation].kind]

  @property
  def chips(self) -> int:
    """Number of chips of all slices."""
    return math.prod(self.grid) * self.slices

  @property
  def cores(self) -> int:
    """Number of TensorCores, the unit in which costs of TPU v2, v3, v4 and v5p are published."""
    return self.chips * GENERATIONS[self.generation].cores

  @property
  def hosts(self) -> int:
    """Number of host machines. Each host feeds its own chips."""
    whole = math.prod(self.grid)
    # A host has four chips. In the e generations, a slice of eight chips has a single host.
    return self.slices * (1 if whole <= (8 if self.generation.endswith("e") else 4) else whole // 4)

  @property
  def vcpus(self) -> int:
    """Number of vCPUs of one host."""
    return GENERATIONS[self.generation].vcpus[self.chips // self.hosts]


def list_slices(generation: str) -> list[Slice]:
  """Returns the slices of a generation, from the smallest to the largest.

  The sides of a slice are powers of two, and as equal as possible.
  """
  kind, result = GENERATIONS[generation], []
  for chips in kind.sizes:
    bits = chips.bit_length() - 1
    grid = tuple(sorted(2 ** ((bits + i) // kind.dimensions) for i in range(kind.dimensions)))
    if chips == 4 and kind.dimensions == 3:
      grid = (2, 2, 1)  # one host, with a flat grid
    result.append(Slice(f"{generation}:{'x'.join(map(str, grid))}", generation, grid))
  return result


_NAME = re.compile(r"(?:(\d+)x)?(v\d[a-z]*|tpu7x)([:-])(.+)")


def parse_slice(text: str) -> Slice:
  """Parses the name of a TPU slice: "v3-32", "v3:4x4", "v5litepod-16", or "2xv5e-256" for two slices.

  Args:
    text: the name.

  Raises:
    ValueError: if the name is not one of the slices that can be rented.

  Example:
    from vit_jax.parallel import hardware

    hardware.parse_slice("v3-32").grid  # (4, 4)
  """
  match = _NAME.fullmatch(text.strip())
  count, generation, sign, size = match.groups() if match else (None, "", "", "")
  generation, colon = generation.replace("v5litepod", "v5e"), sign == ":"
  names = {}
  for known in [generation] if generation in GENERATIONS else GENERATIONS:
    names |= {s.name if colon else f"{known}-{s.rented.rpartition('-')[2]}": s for s in list_slices(known)}
  slice_ = names.get(f"{generation}{sign}{size}")
  if not slice_ or count == "0":
    near = difflib.get_close_matches(text, names, 1, 0.5)
    raise ValueError(
      f"{text!r} is not a TPU slice." + (f" Did you mean {near[0]!r}?" if near else "") + " Write one such as v3-32, "
      f"v3:4x4, or 2xv5e-256 for two. Allowed: {', '.join(names)}"
    )
  return slice_._replace(slices=int(count or 1))


def get_cpu_name() -> str:
  """Returns the model name of this machine's CPU, or "" if the system does not report one."""
  with contextlib.suppress(OSError):
    for line in pathlib.Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
      if line.startswith("model name"):
        return line.partition(":")[2].strip()
  return platform.processor()


def get_peak_flops(device: jax.Device) -> float | None:
  """Returns the peak bfloat16 FLOP/s of a device, or None if the device is not in the table, such as a CPU."""
  chip = CHIPS.get(device.device_kind)
  return chip.peak if chip else None


def get_memory(device: jax.Device) -> int | None:
  """Returns the memory of one device in bytes, or None if unknown.

  CPU devices share the memory of the machine equally.
  """
  if device.device_kind in CHIPS:
    return CHIPS[device.device_kind].memory
  if device.platform == "cpu" and hasattr(os, "sysconf"):
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // len(device.client.local_devices())
  return None
