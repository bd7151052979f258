"""Checks that weights and model outputs are finite. NaN and infinite values raise an error and are never reported.

`top_k` and `argmax` of NaN return class 0. Without these checks, the top-1 accuracy of a broken model would be the
share of class 0.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.schema.errors import NotFiniteError, show
from vit_jax.shapes import Array, Bool, Int, Shaped, Tensor

FLAG = "finite/"  # prefix of the flag of an output
ADVICE = "The weights may be damaged, or the computation overflows. Check the weights, or compute in dtype=float32"


def compute_flags(outputs: Mapping[str, Shaped[Tensor, "B ..."]]) -> dict[str, Bool[Array, " B"]]:
  """Returns one flag per image for each floating-point output.

  Args:
    outputs: {name: array}, with one row per image.

  Returns:
    {"finite/NAME": bool [B]}. The flag is False if any value of the image is NaN or infinite.
  """
  return {
    FLAG + name: jnp.isfinite(value).all(axis=tuple(range(1, value.ndim)))
    for name, value in outputs.items()
    if jnp.issubdtype(value.dtype, jnp.floating)
  }


def check_flags(
  rows: dict[str, Shaped[np.ndarray, "B ..."]], positions: Int[np.ndarray, " B"], name: Callable[[int], str]
) -> dict[str, Shaped[np.ndarray, "B ..."]]:
  """Checks and removes the flags that `flagged` added.

  Args:
    rows: {name: array} with one row per image, including the flags.
    positions: record numbers of the images, int [B].
    name: function that returns the name of a record, for the message.

  Returns:
    The rows without flags.

  Raises:
    NotFiniteError: if an output of an image is not finite. The message names the first image and the output.
  """
  flags = {key.removeprefix(FLAG): value for key, value in rows.items() if key.startswith(FLAG)}
  for output, finite in sorted(flags.items(), key=lambda item: item[0] != "logits"):
    if not np.all(finite):
      first = int(np.argmin(finite))
      raise NotFiniteError(f"image {show(name(int(positions[first])))}: output {output!r} is not finite. {ADVICE}")
  return {key: value for key, value in rows.items() if not key.startswith(FLAG)}


def check_weights(arrays: Mapping[str, Shaped[Tensor, "..."]]) -> None:
  """Checks that all weights are finite.

  Args:
    arrays: {name: array}, on the host or distributed over devices. The message uses the names: "parameter head/bias".

  Raises:
    NotFiniteError: if a weight is NaN or infinite. The message names the first one.
  """
  on_devices = {path: array for path, array in arrays.items() if isinstance(array, jax.Array)}
  finite = jax.device_get(_finite_on_devices(on_devices)) if on_devices else {}
  finite |= {path: np.isfinite(array).all() for path, array in arrays.items() if path not in on_devices}
  broken = [path for path in arrays if not finite[path]]
  if not broken:
    return
  array = arrays[broken[0]]
  first = ""
  if not isinstance(array, jax.Array) or array.is_fully_addressable:
    first = f" at {locate_value(np.asarray(array))}"
  more = f" (not finite: {len(broken):,} of {len(arrays):,} arrays)" if len(broken) > 1 else ""
  raise NotFiniteError(
    f"{broken[0]} is not finite{first}{more}. Use another copy of the weights, or another checkpoint"
  )


def locate_value(array: Shaped[np.ndarray, "..."]) -> str:
  """Returns the index and the value of the first value that is not finite: "[3, 0] (nan)"."""
  index = np.unravel_index(int(np.argmin(np.isfinite(array))), array.shape)
  return f"{[int(i) for i in index]} ({float(array[index])})"


@jax.jit
def _finite_on_devices(arrays: Mapping[str, Shaped[Tensor, "..."]]) -> dict[str, Array]:
  """Returns for each path whether all values are finite, compiled as one program."""
  return {path: jnp.isfinite(array).all() for path, array in arrays.items()}
