"""Reordering of head outputs from the class order of the weights to the class order of the data."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from vit_jax.data import class_names
from vit_jax.models import Description
from vit_jax.schema import ConfigError


def read_class_names(about: Mapping[str, object]) -> tuple[str, ...]:
  """Returns the names of the classes that a run was trained on, or () if a checkpoint does not contain them.

  Args:
    about: metadata of the checkpoint.
  """
  identity, use = about.get("identity"), about.get("use")
  data = identity.get("data") if isinstance(identity, Mapping) else use
  names = data.get("classes") if isinstance(data, Mapping) else None
  return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def arrange_outputs(
  arrays: Mapping[str, np.ndarray],
  description: Description,
  names: Sequence[str],
  classes: Sequence[str],
  strict: bool = True,
) -> tuple[dict[str, np.ndarray], list[str]]:
  """Moves the outputs of all heads to the positions of the data's classes.

  Args:
    arrays: parameters by path.
    description: the model of the parameters.
    names: class names of the weights, in the order of the outputs, or () if they are unknown.
    classes: class names of the data, or () if they are unknown.
    strict: if only some of the names match and their positions differ, raise an error instead of returning a note.

  Returns:
    The parameters, and notes for the user. The parameters are unchanged if both lists are equal or have no name in
    common.

  Raises:
    ConfigError: if `strict` is true, a common name has different positions, and the lists are not permutations.
  """
  names, classes = (list(map(class_names.normalise_name, each)) for each in (names, classes))
  if len(names) != len(classes) or description.classes != len(classes) or names == classes:
    return dict(arrays), []
  moved = class_names.describe_moved(names, classes)
  if set(names) == set(classes) and len(set(names)) == len(names):
    order = [names.index(name) for name in classes]
    of_head = re.compile(description.published.order.head).fullmatch
    result = {path: array[..., order] if of_head(path) else array for path, array in arrays.items()}
    return result, [f"head: outputs moved to the positions of the data's classes ({moved}, counted from 0)"]
  numbered = names == [str(i) for i in range(len(names))]  # the form for weights without class names
  if not moved or numbered:
    return dict(arrays), []
  problem = f"classes of the weights are at other positions in the data ({moved}, counted from 0); other names differ"
  if strict:
    raise ConfigError(f"{problem}. Use the same class names for both, or train a new head with init.head=new")
  return dict(arrays), [f"head: {problem}. To train a new head, set init.head=new"]
