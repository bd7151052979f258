"""Arrays in signatures: `Float[Tensor, "B N D"]` has that type and shape, and equal letters are equal sizes.

The tests check every call of models, losses, tasks, augmentation and probes (see `tests/conftest.py`); a run checks
nothing. Letters: B batch; H, W, C an image or a map; P side of a patch; N, M, T tokens; D width, F hidden width, K size
of a head; V classes. `*B` stands for any number of axes, `...` for any that are not compared.
"""

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Integer, Key, Num, Shaped, UInt8, UInt32

Tensor = jax.Array | np.ndarray  # of the device or of the host
PRNGKey = Key[Array, ""]
Scalar = float | np.floating | Float[Tensor, ""]  # known before the program is compiled, or traced
Count = int | Integer[Tensor, ""]

__all__ = [
  "Array",
  "Bool",
  "Count",
  "Float",
  "Int",
  "Integer",
  "Key",
  "Num",
  "PRNGKey",
  "Scalar",
  "Shaped",
  "Tensor",
  "UInt8",
  "UInt32",
]
