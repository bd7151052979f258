"""Checks of JAX_PLATFORMS. It is a user error to name a platform that is unknown to JAX or missing on this machine."""

import difflib
import os

import jax
from jax._src import hardware_utils, xla_bridge  # no public function lists platforms or looks for GPUs

from vit_jax.schema import ConfigError

VARIABLE = "JAX_PLATFORMS"
OTHERS = ("JAX_PLATFORM_NAME", "JAX_XLA_BACKEND")  # deprecated variables that select a platform too
ADVICE = f"Set {VARIABLE}=cpu, or unset {VARIABLE} to use what this machine has."


def check_names() -> None:
  """Checks the names in JAX_PLATFORMS, and that an NVIDIA GPU is visible if only `cuda` is named. Opens no device.

  Raises:
    ConfigError: JAX does not know a name, or no NVIDIA GPU is visible.
  """
  text = os.environ.get(VARIABLE, "")
  names = [name for name in text.split(",") if name]
  if not xla_bridge.known_platforms().issuperset(names):
    xla_bridge._discover_and_register_pjrt_plugins()  # an installed plugin may define the name
  known = xla_bridge.known_platforms()
  for name in names:
    if name not in known:
      near = difflib.get_close_matches(name.lower(), known, n=1)
      advice = f"Did you mean '{near[0]}'?" if near else f"Known platforms: {', '.join(sorted(known))}."
      raise ConfigError(f"{VARIABLE}={text!r}: unknown platform {name!r}. {advice} {ADVICE}")
  if names == ["cuda"] and not hardware_utils.has_visible_nvidia_gpu():
    raise ConfigError(f"{VARIABLE}={text!r}: no NVIDIA GPU is visible. {ADVICE}")


def open_devices() -> None:
  """Starts JAX's platform, which takes the devices of this process.

  Raises:
    ConfigError: none of the platforms in JAX_PLATFORMS can start.
  """
  try:
    jax.local_devices()
  except (RuntimeError, AssertionError) as error:  # JAX asserts that one of the platforms has started
    reason = str(error).splitlines()[0] if str(error) else "no device of the requested platforms is visible"
    names = [name for name in OTHERS if os.environ.get(name)] or [VARIABLE]
    values = ", ".join(f"{name}={os.environ.get(name, '')!r}" for name in names)
    advice = ADVICE if names == [VARIABLE] else f"Unset {' and '.join(names)}."
    raise ConfigError(f"{values}: JAX cannot start ({reason}). {advice}") from error
