"""Start of the processes of a run: placement, joining, and checks of the devices."""

import ctypes
import functools
import os
import pathlib
import re
import socket
import threading
from collections.abc import Callable

import jax
from jax._src import distributed

from vit_jax import rng
from vit_jax.runtime import clusters, devices, exchange, numerics, peers
from vit_jax.runtime.exits import EXIT_HANG, EXIT_PEER, Stop, print_last_message
from vit_jax.schema import ConfigError, format_amount
from vit_jax.storage import files

PORT = "8476"  # JAX uses 8482 since 0.8.1, but the firewall rule of Cloud TPU slices does not open that port
NAMES = ("VITJAX_COORDINATOR", "VITJAX_PROCESSES", "VITJAX_PROCESS")
# libtpu's current and older variable for the chips of this process.
CHIPS = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")
_PORT = (
  "no coordinator can be started at {} ({}): another program may use the port. Stop it, or set VITJAX_COORDINATOR or "
  "JAX_COORDINATOR_PORT to a free one, the same on all processes"
)
_started = False


def start(patience: float = 900.0, heartbeat: int = 100) -> None:
  """Joins the other processes of a run, if there are any. Must be called before any use of a device.

  VITJAX_COORDINATOR (host:port), VITJAX_PROCESSES and VITJAX_PROCESS place a process manually. VITJAX_PROCESSES=1 alone
  runs one process. Without these variables, JAX queries the cluster that it finds (Cloud TPU, Slurm, Open MPI,
  Kubernetes). If it finds no cluster, the process runs alone. VITJAX_DEVICES is the number of devices that all
  processes must have together.

  Args:
    patience: seconds to wait for the other processes. After that time the program reports the missing processes and
      ends with EXIT_HANG.
    heartbeat: seconds of silence after which JAX's coordinator considers a process dead.

  Raises:
    ConfigError: a variable is invalid, or the coordinator cannot start.
    Stop: another program holds a TPU of this host.
  """
  global _started
  if _started:
    return
  rng.fix_settings()
  _set_cpu_devices()
  enable_compilation_cache()
  placed = read_placement()
  check_slices()
  check_devices_free()
  os.environ.setdefault("JAX_COORDINATOR_PORT", PORT)
  cluster = None if placed and placed[1] == 1 else clusters.detect_cluster()
  count = placed[1] if placed else cluster.count if cluster else None
  if count != 1:
    join = functools.partial(jax.distributed.initialize, *placed or ())
    if placed and placed[2] == 0:
      check_port_free(placed[0])
    _install_abort_message(
      "the processes cannot connect: a process ended, or two processes have the same number (VITJAX_PROCESS). Start "
      "all processes again\n"
    )
    with _JoinTimeout(patience, None if placed else cluster):
      _join_processes(
        functools.partial(join, initialization_timeout=int(patience) + 60, heartbeat_timeout_seconds=heartbeat)
      )
    clusters.use_all_local_devices(cluster)
  if not exchange.is_alone():
    _install_abort_message(
      "this process was aborted: if the lines above do not show an error of this process, another process of this run "
      "died, or process 0 cannot be reached. Check how it ended, and start all processes again: the same command "
      "continues a run from its last checkpoint\n"
    )
  _started = True


def check_devices() -> None:
  """Opens the devices and checks their number.

  Raises:
    ConfigError: JAX cannot start a platform, the number of all devices is not VITJAX_DEVICES, or two processes have
      different numbers of devices.
  """
  devices.open_devices()
  expected, counts = os.environ.get("VITJAX_DEVICES"), exchange.gather_texts(str(jax.local_device_count()), "devices")
  per_process = ", ".join(f"process {number}: {count}" for number, count in enumerate(counts))
  if expected and expected != str(jax.device_count()):
    raise ConfigError(
      f"VITJAX_DEVICES: expected {expected}, found {format_amount(jax.device_count(), 'device')} ({per_process})"
    )
  if len(set(counts)) > 1:
    raise ConfigError(
      f"the processes have different numbers of devices: {per_process}. Start the same number of processes per host"
    )


def read_placement() -> tuple[str, int, int] | None:
  """Returns the coordinator, the number of processes and the index of this process, if the environment defines them.

  Raises:
    ConfigError: the variables are incomplete or invalid.
  """
  address, count, number = values = [os.environ.get(name) for name in NAMES]
  if values == [None, "1", None]:  # one process, independent of a cluster manager
    return "", 1, 0
  if not any(values):
    return None
  if not address or not count or not number:
    raise ConfigError(
      f"set all or none of {', '.join(NAMES)} (host:port, number of processes, index of this process). The values are "
      f"{values}"
    )
  if not count.isdigit() or not int(count):
    raise ConfigError(f"VITJAX_PROCESSES: expected a number of processes, got {count!r}")
  if not number.isdigit() or not int(number) < int(count):
    raise ConfigError(f"VITJAX_PROCESS: {number!r} is not one of 0 to {int(count) - 1}, as VITJAX_PROCESSES is {count}")
  if not re.fullmatch(r".+:\d{1,5}", address):
    raise ConfigError(f"VITJAX_COORDINATOR: {address!r} is not host:port. Use a value such as 10.0.0.2:{PORT}")
  return address, int(count), int(number)


def check_slices() -> None:
  """Removes MEGASCALE_* variables that an earlier job on several slices left in the environment.

  With an old coordinator among these variables, libtpu would wait for slices that do not exist.

  Raises:
    ConfigError: only some of the required variables are set.
  """
  values = {name: value for name, value in os.environ.items() if name.startswith("MEGASCALE_")}
  needed = ("MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID")
  if values.get("MEGASCALE_NUM_SLICES", "1") == "1":
    for name in values:
      del os.environ[name]
  elif absent := [name for name in needed if not values.get(name)]:
    raise ConfigError(f"{absent[0]}: missing, while MEGASCALE_NUM_SLICES is {values['MEGASCALE_NUM_SLICES']}. Set all "
                      f"of {', '.join(needed)}, or unset them for a single slice")  # fmt: skip


def check_devices_free(root: str = "/") -> None:
  """Checks that no other program holds a TPU of this host, because this program would wait for the device.

  If the environment assigns some of the chips to this process (TPU_VISIBLE_CHIPS), other processes may use the rest.
  The check is then skipped, because files below /dev/vfio are numbered by IOMMU group and not by chip.

  Args:
    root: directory that contains `dev` and `proc`.

  Raises:
    Stop: another program holds a device. The exit code is EXIT_HANG.
  """
  devices = {str(path) for pattern in ("dev/accel*", "dev/vfio/[0-9]*") for path in pathlib.Path(root).glob(pattern)}
  if not devices or any(map(os.environ.get, CHIPS)) or os.environ.get("JAX_PLATFORMS") == "cpu":
    return
  for entry in pathlib.Path(root, "proc").glob("[0-9]*/fd/*"):
    process = entry.parts[-3]
    try:
      device = os.readlink(entry)
      if device not in devices or process == str(os.getpid()):
        continue
      command = pathlib.Path(root, "proc", process, "cmdline").read_text(errors="replace").replace("\0", " ")[:100]
    except OSError:  # the process has ended, or belongs to another user
      continue
    raise Stop(EXIT_HANG, f"{device} is held by process {process} ({command.strip()}). Stop it: kill {process}")


def check_port_free(address: str) -> None:
  """Checks that process 0 can listen at the port of its coordinator. JAX may crash if another program has the port.

  Args:
    address: host:port of the coordinator. Only the port is used.

  Raises:
    ConfigError: another program listens at the port, or the system does not permit it.
  """
  dual = socket.has_dualstack_ipv6()
  family = socket.AF_INET6 if dual else socket.AF_INET
  try:
    socket.create_server(("", int(address.rpartition(":")[2])), family=family, dualstack_ipv6=dual).close()
  except (OSError, OverflowError) as error:
    raise ConfigError(_PORT.format(address, getattr(error, "strerror", None) or error)) from error


def _join_processes(initialize: Callable[[], None]) -> None:
  """Joins the other processes, or runs alone if JAX finds no cluster."""
  try:
    initialize()
  except ValueError as error:
    if "coordinator_address" not in str(error):  # no cluster was found, so the process is alone
      raise
  except jax.errors.JaxRuntimeError as error:
    address = distributed.global_state.coordinator_address
    raise ConfigError(_PORT.format(address, str(error).splitlines()[0])) from error


class _JoinTimeout:
  """A context that ends the program if its body takes too long.

  Without it, JAX would abort without naming a process.
  """

  def __init__(self, seconds: float, cluster: clusters.Cluster | None) -> None:
    self._seconds = seconds
    self._advice = f". {cluster.advice()}" if cluster else ""
    self._timers = [threading.Timer(min(10, seconds / 2), self._print_note), threading.Timer(seconds, self._end)]

  def __enter__(self) -> None:
    for timer in self._timers:
      timer.daemon = True
      timer.start()

  def __exit__(self, *_: object) -> None:
    for timer in self._timers:
      timer.cancel()

  def _print_note(self) -> None:
    print_last_message(f"{self._describe_peers()}{self._advice}; waiting up to {self._seconds:.0f} s\n")

  def _end(self) -> None:
    print_last_message(
      f"{self._describe_peers()}, for {self._seconds:.0f} s{self._advice}. Start the missing process, or see why it "
      "ended; open the port between the hosts; config.limits.start is the limit\n"
    )
    os._exit(EXIT_HANG)

  def _describe_peers(self) -> str:
    state = distributed.global_state
    host, _, port = (state.coordinator_address or "nowhere:0").rpartition(":")
    if state.process_id == 0:
      clients = list_clients(int(port))
      names = f" ({', '.join(clients)})" if clients else ""
      waiting = (
        f"process 0 waits at port {port} for {state.num_processes} processes, each with a VITJAX_PROCESS of its own"
      )
      return f"{waiting}; {len(clients)} have connected{names}"
    try:
      socket.create_connection((host, int(port)), 3).close()
    except OSError as error:
      return f"process {state.process_id}: process 0 does not respond at {host}:{port} ({error})"
    return f"process {state.process_id}: process 0 answers at {host}:{port}, but another process is missing"


def list_clients(port: int) -> list[str]:
  """Returns the addresses (host:port) of the clients of a local TCP port. Supports Linux only.

  Args:
    port: number of the port.
  """
  result = set()
  for table in ("/proc/net/tcp", "/proc/net/tcp6"):
    if os.path.exists(table):
      with open(table) as lines:
        rows = [line.split() for line in lines][1:]
      for _, here, there, status, *_ in rows:
        if int(here.rpartition(":")[2], 16) == port and status == "01":  # established
          # The last four bytes are the IPv4 address in reverse order, also within an IPv6 address.
          host = there.rpartition(":")[0][-8:]
          number = int(there.rpartition(":")[2], 16)
          result.add(f"{socket.inet_ntoa(bytes.fromhex(host)[::-1])}:{number}")
  return sorted(result)


_handlers: list[object] = []  # that C code calls. C holds no reference to them, so Python must


def _install_abort_message(text: str) -> None:
  """Installs a handler that writes a last line after C++ messages when this process is aborted.

  JAX's coordinator aborts the process if another one died. A failed check inside XLA or another library raises the same
  signal, and only the C++ messages show the cause. Python's own handlers do not run, because the signal comes from C
  code that never returns.
  """
  kind = ctypes.CFUNCTYPE(None, ctypes.c_int)

  @kind
  def end(_: int) -> None:
    if (code := peers.get_failure_code()) is not None:  # it is ending already, but process 0 ended first
      os._exit(code)
    os.write(2, text.encode())
    os._exit(EXIT_PEER)

  _handlers.append(end)
  handle = ctypes.CDLL(None).signal
  handle.argtypes = (ctypes.c_int, kind)
  handle(6, end)


def _set_cpu_devices() -> None:
  """Sets one CPU device per core, up to 8, unless the user has set a number.

  XLA runs small operations on one core. A batch is therefore faster if it is divided among several devices. The number
  is a power of two, because it must divide batch sizes. Measured on two cores with CCT-2/3x2, batch 64: 533 images/s on
  two devices, 407 on one.
  """
  chosen = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
  if not chosen and "JAX_NUM_CPU_DEVICES" not in os.environ:
    jax.config.update("jax_num_cpu_devices", 2 ** min(3, numerics.count_cores().bit_length() - 1))


def enable_compilation_cache() -> None:
  """Caches compiled programs for the next start, in JAX_COMPILATION_CACHE_DIR or in ~/.cache/vit_jax.

  A restart of a large model then takes seconds instead of minutes. Machines may share the directory, and it may be in a
  bucket.
  """
  if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]  # JAX declares few of its options
    jax.config.update("jax_compilation_cache_dir", str(files.get_cache_directory("programs")))
