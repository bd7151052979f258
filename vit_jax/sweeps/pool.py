"""A pool of commands that run at the same time on disjoint groups of this machine's devices.

The process of the pool itself uses no device.
"""

import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TypeVar

from vit_jax.runtime.children import tie_to_parent
from vit_jax.runtime.watch import PARENT
from vit_jax.schema import ConfigError, format_amount

PATIENCE = 120.0  # seconds between a SIGTERM and a SIGKILL; saving a large state takes time
# Numbers of chips of a TPU host that can form a machine, with the shape. The driver accepts no other shapes.
_TPU_BOXES = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
Item = TypeVar("Item")
_ASK = "import jax; d = jax.local_devices(); print(d[0].platform, len({getattr(x, 'coords', x.id) for x in d}))"


@dataclasses.dataclass(frozen=True)
class DeviceGroup:
  """Devices for one command.

  Attributes:
    environment: environment variables that select the devices.
    cores: CPU cores that the command may use. Empty means all.
  """

  environment: dict[str, str] = dataclasses.field(default_factory=dict)
  cores: tuple[int, ...] = ()


def divide_devices(count: int) -> list[DeviceGroup]:
  """Divides the local devices into disjoint groups of equal size: TPU chips, GPUs, or else CPU cores.

  Args:
    count: number of groups. One group is the whole machine.

  Raises:
    ConfigError: the devices cannot be divided into this number of groups.
  """
  if count == 1:
    return [DeviceGroup()]
  platform, devices = _count_devices()
  if platform == "cpu":
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return [DeviceGroup(cores=tuple(part)) for part in _divide_items(list(cores), count, "CPU cores")]
  if platform == "tpu":
    parts = _divide_items(list(range(devices)), count, "TPU chips", _TPU_BOXES)
    return [DeviceGroup(_make_tpu_environment(part)) for part in parts]
  name = "ROCR_VISIBLE_DEVICES" if platform == "rocm" else "CUDA_VISIBLE_DEVICES"
  visible = os.environ.get(name)
  gpus = visible.split(",") if visible else list(map(str, range(devices)))
  return [DeviceGroup({name: ",".join(part)}) for part in _divide_items(gpus, count, "GPUs")]


def _count_devices() -> tuple[str, int]:
  """Returns the platform and the number of local devices.

  A separate process queries them, because a query acquires the devices.
  """
  if os.environ.get("JAX_PLATFORMS") == "cpu":
    return "cpu", 0
  answer = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True)
  if answer.returncode:
    raise ConfigError(f"--parallel: JAX finds no devices: {answer.stderr.strip().splitlines()[-1:]}")
  platform, devices = answer.stdout.split()
  return platform, int(devices)


def _divide_items(
  items: Sequence[Item], count: int, what: str, sizes: dict[int, str] | None = None
) -> list[Sequence[Item]]:
  """Divides items into equal parts and drops the remainder. `sizes` contains the allowed sizes of a part."""
  size = len(items) // max(count, 1)
  if not 0 < count <= len(items) or (sizes and size not in sizes):
    fits = [n for n in range(1, len(items) + 1) if not sizes or len(items) // n in sizes]
    raise ConfigError(
      f"--parallel: {format_amount(count, 'group')} of this machine's {len(items)} {what}. Allowed: {fits}"
    )
  return [items[i * size : (i + 1) * size] for i in range(count)]


def _make_tpu_environment(chips: Sequence[int]) -> dict[str, str]:
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  return {
    "TPU_VISIBLE_CHIPS": ",".join(map(str, chips)),
    "TPU_CHIPS_PER_PROCESS_BOUNDS": _TPU_BOXES[len(chips)],
    "TPU_PROCESS_BOUNDS": "1,1,1",
    # Without these variables each process would consider itself the host's only process, and all would use one
    # coordinator.
    "VITJAX_COORDINATOR": f"127.0.0.1:{port}",
    "VITJAX_PROCESSES": "1",
    "VITJAX_PROCESS": "0",
  }


class Pool:
  """A pool that runs one command per group. `close` ends all running commands.

  Args:
    groups: the device groups.
  """

  def __init__(self, groups: Sequence[DeviceGroup]) -> None:
    self._free = list(groups)
    self._running = {}  # name -> (process, group)

  @property
  def has_room(self) -> bool:
    """Returns true if a group is free."""
    return bool(self._free)

  @property
  def names(self) -> list[str]:
    """Returns the names of the running commands."""
    return list(self._running)

  def start(self, name: str, command: Sequence[str], log: pathlib.Path) -> None:
    """Starts a command on a free group. Requires that a group is free.

    Args:
      name: name of the command in this pool.
      command: program and arguments.
      log: file to which the output is appended.
    """
    group = self._free.pop(0)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
      # If this process is killed, the command receives SIGTERM, saves and exits, so a rented machine becomes free. On
      # systems other than Linux, the watchdog of the run detects this case (`watch.PARENT`). The command has its own
      # session, so only this process receives Ctrl-C and asks the commands to stop.
      process = subprocess.Popen(
        tie_to_parent(command, group.cores),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=os.environ | group.environment | {PARENT: str(os.getpid())},
        start_new_session=True,
      )
    self._running[name] = process, group

  def collect_finished(self) -> dict[str, int]:
    """Returns {name: exit code} of the commands that ended since the last call."""
    codes = {name: process.poll() for name, (process, _) in self._running.items()}
    ended = {name: code for name, code in codes.items() if code is not None}
    for name in ended:
      self._free.append(self._running.pop(name)[1])
    return ended

  def close(self) -> dict[str, int]:
    """Sends SIGTERM to all commands, and kills those that run after `PATIENCE` seconds.

    Returns:
      {name: exit code} of the commands.
    """
    for process, _ in self._running.values():
      process.send_signal(signal.SIGTERM)
    deadline, codes = time.monotonic() + PATIENCE, {}
    while self._running and time.monotonic() < deadline:
      codes |= self.collect_finished()
      time.sleep(0.05)
    for process, _ in self._running.values():
      process.kill()
      process.wait()
    return codes | self.collect_finished()
