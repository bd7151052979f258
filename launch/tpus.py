"""TPU slices that can be rented: their numbers of chips and hosts, and their names for gcloud and GKE.

Source: docs.cloud.google.com/tpu/docs, as of 2026. A test compares the number of devices with libtpu. `launch` does not
rely on this table alone, because it also counts the hosts that report.
"""

import dataclasses
import difflib
import re

from .errors import LaunchError


@dataclasses.dataclass(frozen=True)
class Generation:
  """A TPU generation.

  Args:
    word: first word of Cloud TPU's names of slices.
    cores: number by which these names count a chip: v3-32 has 16 chips.
    devices: JAX devices per chip.
    dimensions: dimensions of the grid of chips.
    chips: numbers of chips of all slices that can be rented.
    runtime: version of the software of the VMs, or "" if Cloud TPU's API does not offer the generation.
    zones: zones in which Cloud TPU's API offers the generation.
    gke: GKE's names of a slice of one host and of several hosts.
  """

  word: str
  cores: int
  devices: int
  dimensions: int
  chips: tuple[int, ...]
  runtime: str
  zones: tuple[str, ...]
  gke: tuple[str, str]


def _list_doublings(first: int, last: int) -> tuple[int, ...]:
  return tuple(first * 2**i for i in range((last // first).bit_length()))


_UBUNTU = "tpu-ubuntu2204-base"
GENERATIONS = {
  "v2": Generation(
    "v2", 2, 2, 2, (4, 16, 64, 128, 256), _UBUNTU,
    ("us-central1-b", "us-central1-a", "us-central1-c", "europe-west4-a", "asia-east1-c"),
    ("tpu-v2-device", "tpu-v2-slice"),
  ),
  "v3": Generation(
    "v3", 2, 2, 2, (4, *_list_doublings(16, 1024)), _UBUNTU, ("europe-west4-a", "us-central1-a", "us-central1-b"),
    ("tpu-v3-device", "tpu-v3-slice"),
  ),
  "v4": Generation("v4", 2, 1, 3, _list_doublings(4, 2048), _UBUNTU, ("us-central2-b",), ("tpu-v4-podslice",) * 2),
  "v5e": Generation(
    "v5litepod", 1, 1, 2, (1, *_list_doublings(4, 256)), "v2-alpha-tpuv5-lite",
    ("us-central1-a", "us-south1-a", "us-west1-c", "us-west4-a", "europe-west4-b"), ("tpu-v5-lite-podslice",) * 2,
  ),
  "v5p": Generation(
    "v5p", 2, 1, 3, _list_doublings(4, 4096), "v2-alpha-tpuv5", ("us-central1-a", "us-east5-a", "europe-west4-b"),
    ("tpu-v5p-slice",) * 2,
  ),
  "v6e": Generation(
    "v6e", 1, 1, 2, (1, *_list_doublings(4, 256)), "v2-alpha-tpuv6e",
    ("us-central1-b", "us-east1-d", "us-east5-a", "us-east5-b", "europe-west4-a", "asia-northeast1-b"),
    ("tpu-v6e-slice",) * 2,
  ),
  "tpu7x": Generation("tpu7x", 2, 2, 3, _list_doublings(4, 2048), "", (), ("tpu7x",) * 2),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Slice:
  """A slice of a generation.

  Args:
    generation: a key of GENERATIONS.
    chips: number of chips.
  """

  generation: str
  chips: int

  @property
  def kind(self) -> Generation:
    """Returns the generation."""
    return GENERATIONS[self.generation]

  @property
  def rented(self) -> str:
    """Returns gcloud's --accelerator-type, such as v3-32 or v5litepod-16."""
    return f"{self.kind.word}-{self.chips * self.kind.cores}"

  @property
  def hosts(self) -> int:
    """Returns the number of VMs. A VM has four chips; one of an e generation has eight if it is the whole slice."""
    return 1 if self.chips <= (8 if self.generation.endswith("e") else 4) else self.chips // 4

  @property
  def devices(self) -> int:
    """Returns the number of JAX devices of all hosts."""
    return self.chips * self.kind.devices

  @property
  def grid(self) -> str:
    """Returns GKE's topology, such as 4x4: its sides are powers of two, and as equal as possible."""
    bits, dimensions = self.chips.bit_length() - 1, self.kind.dimensions
    if self.chips == 4 and dimensions == 3:
      return "2x2x1"  # one host, which is flat
    return "x".join(str(side) for side in sorted(2 ** ((bits + i) // dimensions) for i in range(dimensions)))

  @property
  def accelerator(self) -> str:
    """Returns GKE's name, for cloud.google.com/gke-tpu-accelerator."""
    return self.kind.gke[self.hosts > 1]

  @property
  def name(self) -> str:
    """Returns the name in `launch`, such as v3-32 or v5e-16."""
    return f"{self.generation}-{self.chips * self.kind.cores}"


def list_slices() -> dict[str, Slice]:
  """Returns all slices by their names."""
  every = (Slice(name, chips) for name, kind in GENERATIONS.items() for chips in kind.chips)
  return {slice_.name: slice_ for slice_ in every}


def normalise_name(rented: str) -> str:
  """Returns the name of a slice from gcloud's name. An unknown name is returned as it is."""
  return next((slice_.name for slice_ in list_slices().values() if slice_.rented == rented), rented)


def find_slice(text: str, vm: bool = False) -> Slice:
  """Returns the slice of a name such as v3-32, v5e-16 or v5litepod-16. Raises LaunchError for any other name.

  Args:
    text: the name.
    vm: raise LaunchError if Cloud TPU's API does not offer the slice as TPU VMs.
  """
  names = list_slices()
  name = re.sub("^v5litepod", "v5e", text)
  if name in names:
    if vm and not names[name].kind.runtime:
      raise LaunchError(f"--tpu: Cloud TPU's API does not offer {names[name].generation}. Use --backend=gke")
    return names[name]
  generation, _, size = name.partition("-")
  allowed = [each for each in names if each.partition("-")[0] == generation] or [*names]
  if size.isdecimal() and len(allowed) < len(names):
    near = [min(allowed, key=lambda each: abs(int(each.partition("-")[2]) - int(size[:9])))]
  else:
    near = difflib.get_close_matches(name, names, 1, 0.5)
  guess = f" Did you mean {near[0]!r}?" if near else ""
  raise LaunchError(f"--tpu: {text[:40]!r} is not a TPU slice.{guess} Allowed: {', '.join(allowed)}")
