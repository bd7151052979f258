"""A record of the packages, settings and hardware that affect the random draws and the low-order bits of a run."""

import importlib.metadata
import os
import pathlib
import platform
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from vit_jax.schema import format_amount

DRAWS = "Random draws differ from those of an uninterrupted run"
BITS = "Low-order bits may differ from those of an uninterrupted run"
BOTH = "Random draws and low-order bits may differ from those of an uninterrupted run"
# {setting of `jax.config`: consequence of another value}. Values are compared regardless of how they were set: by an
# environment variable (JAX_ENABLE_X64), a flag or the program.
SETTINGS = {
  "jax_enable_x64": DRAWS,
  "jax_random_seed_offset": DRAWS,
  "jax_threefry_partitionable": DRAWS,  # `runtime.start` sets it, but other programs may not
  "jax_high_dynamic_range_gumbel": DRAWS,
} | dict.fromkeys(
  (
    "eager_constant_folding",
    "jax_allow_f16_reductions",
    "jax_compiler_enable_remat_pass",
    "jax_cpu_collectives_implementation",
    "jax_default_matmul_precision",
    "jax_disable_jit",
    "jax_disable_most_optimizations",
    "jax_enable_pgle",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort",
    "jax_memory_fitting_level",
    "jax_numpy_dtype_promotion",
    "jax_optimization_level",
    "jax_softmax_custom_jvp",
    "jax_use_direct_linearize",
    "jax_use_shardy_partitioner",
  ),
  BITS,
)
# Environment variables that libraries read themselves: XLA, libtpu, CUDA, the thread pool of XLA's CPU backend, OpenCV,
# NumPy and oneDNN.
VARIABLES = (
  "XLA_FLAGS",
  "LIBTPU_INIT_ARGS",
  "NVIDIA_TF32_OVERRIDE",
  "CUBLAS_WORKSPACE_CONFIG",
  "NPROC",
  "PJRT_NPROC",
  "OPENCV_CPU_DISABLE",
  "OPENCV_IPP",
  "NPY_DISABLE_CPU_FEATURES",
  "DNNL_MAX_CPU_ISA",
  "ONEDNN_MAX_CPU_ISA",
)
# XLA flags that do not affect results: dump directories, and the number of devices, which is compared separately.
_INERT = ("--xla_dump", "--xla_force_host_platform_device_count")
# {package that affects results: consequence of another version}.
PACKAGES = {"jax": BOTH, "jaxlib": BOTH, "flax": BOTH, "grain": BOTH, "numpy": BOTH} | dict.fromkeys(
  (
    "libtpu",
    "optax",
    "ml_dtypes",
    "opencv-python-headless",
    "pillow",
    "simplejpeg",
    "scipy",
    "nvidia-nvimgcodec-cu12",
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
    "nvidia-cublas-cu12",
    "nvidia-cublas",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
  ),
  BITS,
)
_OLDER = ("jax", "jaxlib", "libtpu", "flax", "optax", "grain", "numpy", "opencv-python-headless")  # in older records
_VECTORS = ("avx", "sse", "ssse", "fma", "f16c", "amx", "asimd", "fp", "sve", "sme", "bf16", "i8mm")


def record_environment(grid: jax.sharding.Mesh, code: str) -> dict[str, Any]:
  """Returns the packages, settings and hardware of this process as JSON values.

  Args:
    grid: the mesh of the run.
    code: the version of this package's code.
  """
  device = grid.devices.flat[0]
  host: dict[str, Any] = {
    "cpu": read_cpu_model(),
    "features": read_cpu_features(),
    "backend": " ".join(device.client.platform_version.split()),
  }
  if device.platform == "cpu":  # XLA uses one thread per core
    host["cores"] = count_cores()
  return {
    "packages": {"vit_jax": code} | {name: version for name in PACKAGES if (version := _get_version(name))},
    "settings": read_settings(),
    "flags": {name: os.environ.get(name, "") for name in VARIABLES},
    "devices": {"kind": device.device_kind, "count": grid.devices.size, "processes": jax.process_count()},
    "host": host,
  }


def read_settings() -> dict[str, str]:
  """Returns the values of the JAX settings in `SETTINGS` that this version of JAX has."""
  values = jax.config.values
  return {name: str(getattr(values[name], "value", values[name])) for name in SETTINGS if name in values}


def count_cores() -> int:
  """Returns the number of CPU cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_cpu_model(file: str = "/proc/cpuinfo") -> str:
  """Returns the name of the CPU.

  Args:
    file: file with the format of /proc/cpuinfo.
  """
  found = _read_cpu_fields(file)
  return found.get("model name") or found.get("CPU part") or platform.processor() or platform.machine()


def read_cpu_features(file: str = "/proc/cpuinfo") -> list[str]:
  """Returns the vector instructions that the CPU supports. XLA and OpenCV use them to select code. Empty if unknown.

  Args:
    file: file with the format of /proc/cpuinfo.
  """
  found = _read_cpu_fields(file)
  return sorted(
    name for name in (found.get("flags") or found.get("Features") or "").split() if name.startswith(_VECTORS)
  )


def compare_environments(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
  """Returns one line for each difference between two records: the item, its two values and the consequence.

  Args:
    before: the record in a checkpoint. Entries that an older record lacks are not compared.
    now: the record of this process.
  """
  return [
    f"{what}: {old} at the last checkpoint, {new} now. {result}."
    for what, old, new, result in _find_changes(before, now)
  ]


def _find_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
  """Yields (item, value before, value now, consequence) for each difference."""
  old, new = before["packages"], now["packages"]
  known = {**old, **new} if "settings" in before else dict.fromkeys(("vit_jax", *_OLDER))
  for name in known:
    if old.get(name) != new.get(name):
      what = "the code of vit_jax" if name == "vit_jax" else f"package {name}"
      yield what, old.get(name, "not installed"), new.get(name, "not installed"), PACKAGES.get(name, BOTH)
  old, new = _get_recorded_settings(before), now["settings"]
  for name in old.keys() & new.keys():
    if old[name] != new[name]:
      yield name.upper(), old[name], new[name], SETTINGS.get(name, BITS)
  yield from _compare_variables(before.get("flags", {}), now["flags"])
  old, new = before["devices"], now["devices"]
  if old != new:
    yield "devices", _format_devices(old), _format_devices(new), BITS
  old, new = before.get("host", {}), now["host"]
  for name, what in (("backend", "the version of the backend"), ("cpu", "CPU"), ("cores", "CPU cores")):
    if name in old and name in new and old[name] != new[name]:
      yield what, str(old[name]), str(new[name]), BITS
  if gone_or_new := set(old.get("features", new["features"])) ^ set(new["features"]):
    gone, added = (" ".join(sorted(gone_or_new & set(side["features"]))) or "none" for side in (old, new))
    yield "vector instructions of the CPU", gone, added, BITS


def _get_recorded_settings(before: Mapping[str, Any]) -> Mapping[str, str]:
  """Returns the settings in a record. An older record contains one setting, under its environment variable."""
  if "settings" in before:
    return before["settings"]
  if "JAX_DEFAULT_MATMUL_PRECISION" not in before.get("flags", {}):
    return {}
  return {"jax_default_matmul_precision": before["flags"]["JAX_DEFAULT_MATMUL_PRECISION"] or "None"}


def _compare_variables(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, str, str, str]]:
  """Yields the differences of environment variables. XLA_FLAGS and LIBTPU_INIT_ARGS are compared flag by flag."""
  for name in VARIABLES:
    if name not in before or before[name] == now[name]:
      continue
    if name not in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
      yield name, repr(before[name]), repr(now[name]), BITS
      continue
    old, new = _parse_flags(before[name]), _parse_flags(now[name])
    for flag in {**old, **new}:
      if old.get(flag) != new.get(flag):
        yield f"{name} {flag!r}", repr(old.get(flag, "not set")), repr(new.get(flag, "not set")), BITS


def _parse_flags(text: str) -> dict[str, str]:
  """Returns {flag: value} of a variable that contains flags. The last value of a repeated flag counts, as in XLA."""
  try:
    words = shlex.split(text)
  except ValueError:  # an unclosed quote
    words = text.split()
  pairs = (word.partition("=") for word in words if not word.startswith(_INERT))
  return {flag: value if equals else "set" for flag, equals, value in pairs}


def _format_devices(devices: Mapping[str, Any]) -> str:
  processes = devices["processes"]
  return f"{devices['count']} x {devices['kind']} in {format_amount(processes, 'process', 'processes')}"


def _read_cpu_fields(file: str) -> dict[str, str]:
  """Returns the fields of the first CPU in a file such as /proc/cpuinfo. Empty on systems without the file."""
  try:
    first = pathlib.Path(file).read_text(errors="replace").partition("\n\n")[0]
  except OSError:
    return {}
  pairs = (line.partition(":") for line in first.splitlines())
  return {name.strip(): value.strip() for name, _, value in pairs}


def _get_version(name: str) -> str | None:
  """Returns the version of a package, or None if it is not installed."""
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return None
