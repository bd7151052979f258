"""Checks of settings of JAX and XLA under which no program can be compiled or run.

`numerics.SETTINGS` contains settings that change results. The module `devices` checks the platforms.
"""

import os
import re
import signal

import jax
from jax._src import xla_bridge  # no public function returns this state
from jax._src.lib import xla_client

from vit_jax.schema import ConfigError

FLAGS, NUMBER = "XLA_FLAGS", "JAX_NUM_CPU_DEVICES"
PARSING = 10  # seconds after which flags that are still being parsed are accepted unchecked
# A line of absl's log that reports an error or a fatal error.
_LINE = re.compile(r"[EF]\d{4} .*?\] (?!Check failed)(.*)")
# Settings of JAX with the values under which programs can be compiled and run, and the effect of any other value.
_OFF = (False,)
_CHECKS = ("ignore",), "checks of values cannot be compiled into the programs"
_COPIES = (None, "allow", "log", "log_explicit"), "arrays cannot be copied between the host and the devices"
REFUSED = {
  "jax_compilation_cache_check_contents": (
    _OFF,
    "two compilations of one program may differ, which this setting forbids",
  ),
  "jax_default_device": ((None,), "devices are selected by JAX_PLATFORMS alone"),
  "jax_disable_jit": (_OFF, "programs cannot be compiled ahead of time"),
  "jax_error_checking_behavior_divide": _CHECKS,
  "jax_error_checking_behavior_nan": _CHECKS,
  "jax_error_checking_behavior_oob": _CHECKS,
  "jax_no_execution": (_OFF, "programs cannot be run"),
  "jax_no_tracing": (_OFF, "programs cannot be traced"),
  "jax_numpy_dtype_promotion": (("standard",), "the programs need implicit promotion of types"),
  "jax_numpy_rank_promotion": (("allow", "warn"), "the programs need implicit promotion of ranks"),
  "jax_transfer_guard": _COPIES,
  "jax_transfer_guard_device_to_device": _COPIES,
  "jax_transfer_guard_device_to_host": _COPIES,
  "jax_transfer_guard_host_to_device": _COPIES,
}


def check_settings() -> None:
  """Checks the settings of JAX and, unless JAX has started, the flags of XLA.

  Raises:
    ConfigError: programs cannot be compiled or run with one of the values.
  """
  for name, (allowed, reason) in REFUSED.items():
    value = jax.config.values.get(name, allowed[0])
    value = getattr(value, "value", value)
    if value not in allowed:
      raise ConfigError(f"{name.upper()}={value}: {reason}. Unset {name.upper()}.")
  _check_pattern()
  _check_cpu_devices()
  if os.environ.get(FLAGS) and not xla_bridge.backends_are_initialized():
    _check_flags()


def _check_pattern() -> None:
  """Checks the regular expression that JAX applies to names of source files when it compiles."""
  name = "jax_hlo_source_file_canonicalization_regex"
  pattern = getattr(jax.config, name, None)
  try:
    re.compile(pattern or "")
  except re.error as error:
    raise ConfigError(
      f"{name.upper()}={pattern!r}: not a regular expression ({error}). Correct or unset it."
    ) from error


def _check_cpu_devices() -> None:
  """Checks the variables that define a number of CPU devices. JAX reports wrong numbers as failures of the platform."""
  for variable, pattern in ((NUMBER, r"(?!-1$)(.*)"), (FLAGS, r".*--xla_force_host_platform_device_count=(\S*)")):
    match = re.match(pattern, os.environ.get(variable, ""), re.DOTALL)
    if match and re.fullmatch(r"0+|-\d+", match[1]):
      raise ConfigError(
        f"{variable}={os.environ[variable]!r}: {match[1]} is not a number of devices. Set it to 1 or more."
      )


def _check_flags() -> None:
  """Parses XLA_FLAGS in a copy of this process, because XLA ends the process if a flag is unknown."""
  ends = os.pipe()
  child = os.fork()
  if not child:
    try:
      signal.alarm(PARSING)
      os.dup2(ends[1], 2)
      xla_client.CompileOptions()
    finally:
      os.kill(os.getpid(), signal.SIGKILL)  # the rest of this process must not run twice
  os.close(ends[1])
  with open(ends[0], encoding="utf-8", errors="replace") as pipe:
    log = pipe.read()
  status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
  if status not in (-signal.SIGKILL, -signal.SIGALRM):
    reason = next((match[1] for line in log.splitlines() if (match := _LINE.match(line))), "XLA cannot parse it")
    raise ConfigError(f"{FLAGS}={os.environ[FLAGS]!r}: {reason.rstrip('.')}. Correct {FLAGS}, or unset it.")
