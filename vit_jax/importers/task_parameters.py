"""Parameters of a task in files of weights: projection heads, centres and the mask token of self-distillation.

The authors of DINO, iBOT and DINOv2 save a whole training state. It contains heads next to each backbone, as in
`teacher.backbone.norm.weight` and `teacher.head.mlp.0.weight`. The names are those of the classes DINOHead (DINO,
DINOv2), iBOTHead, DINOLoss and iBOTLoss. Files of a backbone alone have no heads.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.importers import layout
from vit_jax.importers.formats.lazy_tensors import Tensor, Tensors
from vit_jax.selfsup.paths import CENTER, HEAD, PATCH_CENTER, PATCH_HEAD, TOKEN

Shapes = Mapping[str, tuple[int, ...]]

_HEADS = {"head": HEAD, "dino_head": HEAD, "ibot_head": PATCH_HEAD}  # names of modules next to the backbone
_CENTERS = {
  "dino_loss.center": CENTER,
  "ibot_loss.center": CENTER,
  "ibot_loss.center2": PATCH_CENTER,
  "ibot_patch_loss.center": PATCH_CENTER,
}
_TOKENS = ("mask_token", "masked_embed")
_MLP = re.compile(r"mlp\.(?:([0-9]{1,3})\.)?(weight|bias)")
_LAST = re.compile(r"last_layer(2?)\.(weight|weight_v|weight_g|parametrizations\.weight\.original[01])")


class TaskTensor(NamedTuple):
  """A tensor of a file that is a parameter of a task.

  Attributes:
    name: name in the file.
    value: the parameter in the form of this project. It is read when its values are used.
  """

  name: str
  value: Tensor


class RepeatedHead(NamedTuple):
  """Two heads of a file with the same role. Only one of them is used.

  Attributes:
    role: "images" or "patches".
    used: name of a tensor of the last layer of the head that is read.
    unused: name of a tensor of the last layer of the other head.
  """

  role: str
  used: str
  unused: str


def find_task_tensors(tensors: Tensors, root: str) -> tuple[dict[str, TaskTensor], list[RepeatedHead]]:
  """Returns the parameters of self-distillation that belong to a backbone.

  Args:
    tensors: all tensors of a file by name, without the words of wrappers.
    root: prefix of the backbone, such as "teacher.backbone.".

  Returns:
    {path: tensor} with the heads next to the backbone, their centres, and the mask token. The mask token of another
    backbone is used if this backbone has none, because iBOT stores it only in the student. The dictionary is empty
    without heads. The second result is the heads that occur twice.
  """
  result, repeated = _find_heads(tensors, root)
  if not result:
    return {}, []
  # Centres of longer prefixes are found later and replace the others, because they belong to this backbone.
  for start in ["", *(root[: match.end()] for match in re.finditer(r"\.", root))]:
    for word, path in _CENTERS.items():
      name = start + word
      if name in tensors and len(tensors[name].shape) in (1, 2, 3):
        result[path] = TaskTensor(name, _convert(name, tensors[name], _flatten))
  ending = tuple(f".{token}" for token in _TOKENS)
  own, others = [root + token for token in _TOKENS], [name for name in tensors if name.endswith(ending)]
  for name in [name for name in (*own, *others) if name in tensors and len(tensors[name].shape) in (1, 2, 3)][:1]:
    result[TOKEN] = TaskTensor(name, _convert(name, tensors[name], _flatten))
  return result, repeated


def _find_heads(tensors: Tensors, root: str) -> tuple[dict[str, TaskTensor], list[RepeatedHead]]:
  """Returns the parameters of the heads next to a backbone, and the heads that occur twice.

  If two heads have the same role, the head with the more specific name of DINOv2 is read.
  """
  parent = root[: root.rstrip(".").rfind(".") + 1]
  result: dict[str, TaskTensor] = {}
  repeated = []
  for module, path in _HEADS.items() if root else ():
    prefix = f"{parent}{module}."
    found = _find_head({n.removeprefix(prefix): (n, t) for n, t in tensors.items() if n.startswith(prefix)}, path)
    last = f"{path}/last/kernel"
    if found and last in result:
      repeated.append(RepeatedHead("images" if path == HEAD else "patches", found[last].name, result[last].name))
      # A last layer for patches cannot be used without the MLP of its own head.
      result = {ours: tensor for ours, tensor in result.items() if path == PATCH_HEAD and not _is_in(ours, PATCH_HEAD)}
    result |= found
  return result, repeated


def _find_head(tensors: Mapping[str, tuple[str, np.ndarray | Tensor]], path: str) -> dict[str, TaskTensor]:
  """Returns the parameters of a head by path, or {} if names or dimensions are not those of a known head.

  Args:
    tensors: {name below the prefix of the head: (name in the file, tensor)}.
    path: path of the head.
  """
  result = {}
  for rest, (name, tensor) in tensors.items():
    if match := _MLP.fullmatch(rest):
      number = int(match[1] or 0)
      if number % 2:  # a batch norm, because GELU has no parameters
        return {}
      kind = "kernel" if match[2] == "weight" else "bias"
      ours = f"{path}/layer{number // 2}/{kind}"
    elif match := _LAST.fullmatch(rest):
      kind = "scale" if match[2] in ("weight_g", "parametrizations.weight.original0") else "kernel"
      ours = f"{PATCH_HEAD if match[1] else path}/last/{kind}"
    else:
      return {}
    if ours in result or len(tensor.shape) not in ((2,) if kind == "kernel" else (1, 2)):
      return {}
    result[ours] = TaskTensor(name, _convert(name, tensor, np.transpose if kind == "kernel" else _flatten))
  return result if f"{path}/last/kernel" in result else {}


def _flatten(array: np.ndarray) -> np.ndarray:
  return array.reshape(-1)


def _convert(name: str, tensor: np.ndarray | Tensor, change: Callable[[np.ndarray], np.ndarray]) -> Tensor:
  """Returns a tensor that is converted to float32 and changed when its values are used."""
  shape = change(np.broadcast_to(np.float32(0), tensor.shape)).shape
  return Tensor(shape, np.dtype(np.float32), lambda: change(layout.convert_to_float32(name, tensor)))


def select_parameters(tensors: Tensors, patterns: Sequence[str]) -> Tensors:
  """Returns the task parameters that a frozen model needs. A head that is stored twice is returned once.

  Args:
    tensors: parameters of a task by path, from weights.
    patterns: regular expressions. A parameter is selected if its whole path matches one of them.
  """
  selected = {
    path: tensor for path, tensor in tensors.items() if any(re.fullmatch(pattern, path) for pattern in patterns)
  }
  return _remove_repeated_head(selected)


def _remove_repeated_head(tensors: Tensors) -> Tensors:
  """Removes a head for patches that only repeats the last layer of the head for images.

  iBOT stores a shared head under both names.
  """
  last, patch_last = (tensors.get(f"{head}/last/kernel") for head in (HEAD, PATCH_HEAD))
  if last is None or patch_last is None or f"{PATCH_HEAD}/layer0/kernel" in tensors:
    return tensors
  if last.shape != patch_last.shape or not np.array_equal(np.asarray(last), np.asarray(patch_last)):
    return tensors
  return {path: tensor for path, tensor in tensors.items() if not _is_in(path, PATCH_HEAD)}


def find_workdir_parameters(
  arrays: Mapping[str, np.ndarray], config: Mapping[str, Any] | None
) -> dict[str, np.ndarray]:
  """Returns the parameters of the task of a workdir.

  Prototypes of length one get a scale of ones, as in the files of the authors. A kernel without a scale is therefore
  always the kernel of a last layer without normalisation.

  Args:
    arrays: parameters of a run by path.
    config: the plain config of the run, or None if it is unknown.
  """
  result = {path: array for path, array in arrays.items() if path.startswith("task/")}
  if ((config or {}).get("task") or {}).get("last_layer") == "fixed_norm":
    for head in (HEAD, PATCH_HEAD):
      if (kernel := result.get(f"{head}/last/kernel")) is not None:
        result[f"{head}/last/scale"] = np.ones(kernel.shape[1], np.float32)
  return result


def fit_task(
  tensors: Tensors, shapes: Shapes, constants: Mapping[str, float] | None = None
) -> tuple[dict[str, np.ndarray], list[str]]:
  """Selects and reads the parameters that a task can use.

  A head is used if all of its parameters have the shapes of the task. Otherwise the whole head is new, because layers
  of different heads cannot be combined. A separate last layer or a centre is new if the head that it depends on is new.
  Any other parameter is used if it has the shape of the task.

  Args:
    tensors: parameters of a task by path, from weights.
    shapes: shapes of the parameters of the task. If empty, no tensor is read.
    constants: values by path that are parameters in other weights, but constants of this task. A head is used only if
      its values are equal.

  Returns:
    The parameters to use, and a note for each head and centre that is new.

  Raises:
    ConfigError: if a value to use is not finite, or its type is not floating-point.
  """
  if not shapes:
    return {}, []
  tensors = _remove_repeated_head(tensors)
  result = {path: tensor for path, tensor in tensors.items() if shapes.get(path) == tensor.shape}
  notes = []
  for group, needed in _list_groups(shapes):
    wanted = {path: shape for path, shape in shapes.items() if _is_in(path, group)}
    found = {path: tensor for path, tensor in tensors.items() if _is_in(path, group)}
    lacking = None
    for path, value in (constants or {}).items():
      layer = path.rpartition("/")[0]
      if not any(_is_in(each, layer) for each in wanted):
        continue
      if path in found and np.all(np.asarray(found[path]) == value):
        del found[path]
      elif path not in found and any(_is_in(each, layer) for each in found):
        lacking = path
    reason = None
    if lacking:
      reason = f"the last layer of the weights has no normalisation ({lacking} is missing)"
    elif not found:
      reason = "the weights have none"
    elif missing := [new for new in needed if not any(_is_in(path, new) for path in result)]:
      reason = f"{missing[0]} is new"
    elif found.keys() != wanted.keys():
      reason = f"only {'the task' if wanted.keys() - found.keys() else 'the file'} has " + min(
        wanted.keys() ^ found.keys(), key=lambda path: (path in found, path)
      )
    else:
      other = [path for path in wanted if found[path].shape != wanted[path]]
      if other:
        reason = f"{other[0]} is {found[other[0]].shape} in the weights, {wanted[other[0]]} in the task"
    if reason:
      result = {path: tensor for path, tensor in result.items() if not _is_in(path, group)}
      notes.append(f"{group}: new values, because {reason}")
  return {path: np.asarray(tensor) for path, tensor in result.items()}, notes


def _list_groups(shapes: Shapes) -> list[tuple[str, Sequence[str]]]:
  """Returns the heads and centres of a task, each with the groups that it depends on."""
  patch = any(_is_in(path, PATCH_HEAD) for path in shapes)
  groups = {
    HEAD: (),
    PATCH_HEAD: () if f"{PATCH_HEAD}/layer0/kernel" in shapes else (HEAD,),
    CENTER: (HEAD,),
    PATCH_CENTER: (PATCH_HEAD if patch else HEAD,),
  }
  return [(group, needed) for group, needed in groups.items() if any(_is_in(path, group) for path in shapes)]


def _is_in(path: str, group: str) -> bool:
  return path == group or path.startswith(f"{group}/")
