"""Classes of weights and of data in two orders: outputs of a head are moved to the positions of the data's classes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.data import class_names
from vit_jax.models import Description
from vit_jax.schema import ConfigError


def stored(about: Mapping[str, Any]) -> tuple[str, ...]:
  """Returns the names of the classes that a run was trained on; () if a checkpoint does not contain them.

  Args:
    about: what the checkpoint contains beside the weights.
  """
  identity, use = about.get("identity"), about.get("use")
  data = identity.get("data") if isinstance(identity, Mapping) else use
  names = data.get("classes") if isinstance(data, Mapping) else None
  return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def arranged(
  arrays: Mapping[str, np.ndarray],
  description: Description,
  names: Sequence[str],
  classes: Sequence[str],
  strict: bool = True,
) -> tuple[dict[str, np.ndarray], list[str]]:
  """Moves the outputs of all heads to the positions of the data's classes.

  Args:
    arrays: parameters by path.
    description: of their model.
    names: of the classes of the weights, in the order of the outputs; () if they are unknown.
    classes: of the data; () if they are unknown.
    strict: whether names that are only in part the same, at other positions, are an error or a note.

  Returns:
    The parameters, and notes for the user. The parameters stay as they are if both lists are equal or have no name in
    common.

  Raises:
    ConfigError: `strict`, and a name is in both lists at two positions, but not every name is in both lists once.
  """
  names, classes = (list(map(class_names.normal, each)) for each in (names, classes))
  if len(names) != len(classes) or description.classes != len(classes) or names == classes:
    return dict(arrays), []
  moved = class_names.moved(names, classes)
  if set(names) == set(classes) and len(set(names)) == len(names):
    order = [names.index(name) for name in classes]
    of_head = re.compile(description.published.order.head).fullmatch
    result = {path: array[..., order] if of_head(path) else array for path, array in arrays.items()}
    return result, [f"head: outputs moved to the positions of the data's classes ({moved}, counted from 0)"]
  numbered = names == [str(i) for i in range(len(names))]  # as weights without names have
  if not moved or numbered:
    return dict(arrays), []
  problem = f"classes of the weights are at other positions in the data ({moved}, counted from 0); other names differ"
  if strict:
    raise ConfigError(f"{problem}. Give both the same names of classes; to train, init.head=new starts a new head")
  return dict(arrays), [f"head: {problem}; init.head=new starts it anew"]
