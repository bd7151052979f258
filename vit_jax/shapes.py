"""Array types for signatures: `Float[Tensor, "B N D"]` is a floating-point array of shape [B, N, D].

Equal letters in a signature are equal sizes. The tests check every call of models, losses, self-distillation, tasks,
augmentation and probes (see `tests/conftest.py`). A run checks no shapes.

The letters are:

- B: batch.
- H, W, C: height, width and channels of an image or of a feature map.
- P: side of a patch.
- N, M, T: tokens.
- D: width.
- F: hidden width.
- K: size of a head.
- V: classes.

`*B` represents any number of axes. `...` represents axes that are not compared.
"""

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int8, Integer, Key, Num, Shaped, UInt8, UInt32

Tensor = jax.Array | np.ndarray  # on a device or on the host
PRNGKey = Key[Array, ""]
Scalar = float | np.floating | Float[Tensor, ""]  # a constant of the compiled program, or a traced value
Count = int | Integer[Tensor, ""]

__all__ = [
  "Array",
  "Bool",
  "Count",
  "Float",
  "Int",
  "Int8",
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
