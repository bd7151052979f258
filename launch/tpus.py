"""TPU slices that can be rented: how many hosts they have, and their names for gcloud and for GKE.

Facts of docs.cloud.google.com/tpu/docs, as of 2026; the number of devices is tested against libtpu. `launch` never
starts a run on the table's word alone: it counts the hosts that have come.
"""

import dataclasses
import difflib
import re

from launch.errors import LaunchError


@dataclasses.dataclass(frozen=True)
class Generation:
  """A TPU generation.

  Args:
    word: what Cloud TPU's name of a slice begins with.
    cores: that this name counts for one chip: v3-32 has 16 chips.
    devices: of JAX, a chip.
    dimensions: of the grid of chips.
    chips: of all the slices that are rented.
    runtime: the version of the VM's software.
    zones: where it is rented, the best known first.
    gke: what GKE calls it, of a slice of one host and of several.
    machine: GKE's machine type of a host with so many chips.
  """

  word: str
  cores: int
  devices: int
  dimensions: int
  chips: tuple
  runtime: str
  zones: tuple
  gke: tuple
  machine: str = ""


def _doubling(first, last):
  return tuple(first * 2**i for i in range((last // first).bit_length()))


_UBUNTU = "tpu-ubuntu2204-base"
GENERATIONS = {
  "v2": Generation(
    "v2", 2, 2, 2, (4, 16, 64, 128, 256), _UBUNTU,
    ("us-central1-b", "us-central1-a", "us-central1-c", "europe-west4-a", "asia-east1-c"),
    ("tpu-v2-device", "tpu-v2-slice"),
  ),
  "v3": Generation(
    "v3", 2, 2, 2, (4, *_doubling(16, 1024)), _UBUNTU, ("europe-west4-a", "us-central1-a", "us-central1-b"),
    ("tpu-v3-device", "tpu-v3-slice"),
  ),
  "v4": Generation(
    "v4", 2, 1, 3, _doubling(4, 2048), _UBUNTU, ("us-central2-b",),
    ("tpu-v4-podslice", "tpu-v4-podslice"), "ct4p-hightpu-{}t",
  ),
  "v5e": Generation(
    "v5litepod", 1, 1, 2, (1, *_doubling(4, 256)), "v2-alpha-tpuv5-lite",
    ("us-central1-a", "us-south1-a", "us-west1-c", "us-west4-a", "europe-west4-b"),
    ("tpu-v5-lite-podslice", "tpu-v5-lite-podslice"), "ct5lp-hightpu-{}t",
  ),
  "v5p": Generation(
    "v5p", 2, 1, 3, _doubling(4, 4096), "v2-alpha-tpuv5", ("us-central1-a", "us-east5-a", "europe-west4-b"),
    ("tpu-v5p-slice", "tpu-v5p-slice"), "ct5p-hightpu-{}t",
  ),
  "v6e": Generation(
    "v6e", 1, 1, 2, (1, *_doubling(4, 256)), "v2-alpha-tpuv6e",
    ("us-central1-b", "us-east1-d", "us-east5-a", "us-east5-b", "europe-west4-a", "asia-northeast1-b"),
    ("tpu-v6e-slice", "tpu-v6e-slice"), "ct6e-standard-{}t",
  ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Slice:
  """A slice of a generation, with so many chips."""

  generation: str
  chips: int

  @property
  def kind(self) -> Generation:
    """Its generation's facts."""
    return GENERATIONS[self.generation]

  @property
  def rented(self) -> str:
    """gcloud's --accelerator-type: v3-32, v5litepod-16."""
    return f"{self.kind.word}-{self.chips * self.kind.cores}"

  @property
  def hosts(self) -> int:
    """VMs, of four chips each; but up to eight chips of an e generation are one."""
    return 1 if self.chips <= (8 if self.generation.endswith("e") else 4) else self.chips // 4

  @property
  def devices(self) -> int:
    """Of JAX, all hosts together."""
    return self.chips * self.kind.devices

  @property
  def grid(self) -> str:
    """Its topology, as GKE has it: 4x4, its sides powers of two and as equal as can be."""
    bits, dimensions = self.chips.bit_length() - 1, self.kind.dimensions
    if self.chips == 4 and dimensions == 3:
      return "2x2x1"  # a host, which is flat
    return "x".join(str(side) for side in sorted(2 ** ((bits + i) // dimensions) for i in range(dimensions)))

  @property
  def accelerator(self) -> str:
    """GKE's name of it, cloud.google.com/gke-tpu-accelerator."""
    return self.kind.gke[self.hosts > 1]

  @property
  def name(self) -> str:
    """Ours, which is said everywhere but in commands of the cloud: v3-32, v5e-16."""
    return f"{self.generation}-{self.chips * self.kind.cores}"


def named(rented: str) -> str:
  """Our name of a slice that gcloud calls so; what nobody knows as it is."""
  return next((slice_.name for slice_ in slices().values() if slice_.rented == rented), rented)


def slices() -> dict:
  """All slices by their names."""
  every = (Slice(name, chips) for name, kind in GENERATIONS.items() for chips in kind.chips)
  return {s.name: s for s in every}


def find(text: str) -> Slice:
  """The slice of a name: v3-32, v5e-16 or v5litepod-16. LaunchError for any other."""
  names = slices()
  name = re.sub("^v5litepod", "v5e", text)
  if name in names:
    return names[name]
  near = difflib.get_close_matches(name, names, 1, 0.5)
  own = [each for each in names if each.partition("-")[0] == name.partition("-")[0]] or names
  raise LaunchError(
    f"--tpu: {text[:40]!r} is no TPU slice."
    + (f" Did you mean {near[0]!r}?" if near else "")
    + f" Allowed: {', '.join(own)}"
  )
