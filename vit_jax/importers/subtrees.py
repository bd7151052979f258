"""Selection of one model's tensors in a file that contains several models, other states, or prefixed names.

Training programs save a model under prefixes such as `module._orig_mod.` and `student.backbone.`. The same file may
contain averaged weights, optimizer states, losses and decoders. A *tree* is a set of tensors that match a known layout
after a common prefix is removed. Exactly one tree is read. Every other tensor is read as a part of the same model,
listed in a note, or rejected.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax.importers import averages, options, row_names, task_parameters
from vit_jax.importers.formats.lazy_tensors import Tensor
from vit_jax.importers.layout import Layout, Tensors
from vit_jax.schema import ConfigError, format_amount, show
from vit_jax.schema.errors import format_names

FindLayouts = Callable[[Tensors], Sequence[Layout]]  # function from tensors to the layouts that recognise them

# Names that PyTorch wrappers add in front of the names of the wrapped module, at any depth.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "_fpw_module")
# Keys in the order in which timm's `load_state_dict` looks for weights.
_TIMM = ("state_dict_ema", "model_ema", "state_dict", "model")
_OPTIMIZER = re.compile(r"optim.*|opt_state.*|mu|nu|exp_avg.*|.*momentum.*buffer.*|grads?")
# First words of names outside of the model. These modules do not change the output of the image model.
_SEPARATE = re.compile(
  r"optim.*|opt_states?|.*loss.*|n_averaged|num_updates|decay|global_step|epoch|decoder.*|predictor.*|projector.*"
  r"|text|text_model|txt|logit_scale|logit_bias"
)
# Tensors that change the output of the layers they belong to.
_ADAPTER = re.compile(r"(^|[._/])(lora|loha|lokr|dora|ia3|hada|boft|adapters?|adaptmlp|prompts?|vpt)([._/A-Z]|$)")
# Usual names of a linear classifier, in addition to the name in the layout.
_HEADS = ("head", "classifier", "fc", "linear", "head.fc", "cls_head", "cls_head.fc", "linear_head", "heads.head")
_LEVELS = 100  # largest number of levels in a name, because the time to find models grows with it
_END = {".": ("weight", "bias"), "/": ("kernel", "bias")}


class ChosenTensors(NamedTuple):
  """The tensors of one model.

  Attributes:
    tensors: tensors by name without prefix.
    notes: notes for the user about the choice.
    task: parameters of self-distillation next to the model, by path. See `task_parameters`.
  """

  tensors: Tensors
  notes: list[str]
  task: dict[str, Tensor]


class _File(NamedTuple):
  """The tensors of a file by name, with the words of wrappers removed, and their original names."""

  tensors: Tensors
  names: Mapping[str, str]
  words: set[str]


def choose_tensors(
  tensors: Tensors, known: FindLayouts, ema: bool | None = None, prefix: str | None = None
) -> ChosenTensors:
  """Selects the tensors of one model.

  If several trees match, averaged weights are preferred, as in timm. `teacher` counts as the average of `student`. An
  average must have the parameters of its raw weights. Only the head may be missing.

  Args:
    tensors: all tensors of a file by name. Levels of nested dictionaries are joined with ".".
    known: function that returns the layouts that recognise a set of tensors.
    ema: True requires averaged weights, False requires weights that are not averaged.
    prefix: common prefix of the names to read, for a file that contains several models.

  Returns:
    The tensors of the model, and notes that name the prefix, other models, and all ignored tensors. If no layout
    matches, all tensors are returned unchanged.

  Raises:
    ConfigError: if the choice is ambiguous, or no tree matches the request. Also if the file contains LoRA or other
      adapters, because they would change the output of the model.
  """
  if deep := next((name for name in tensors if len(re.findall("[./]", name)) > _LEVELS), None):
    raise ConfigError(f"the tensor name {show(deep)} has more than {_LEVELS} levels. Rename or remove the tensor")
  file, trees = _find_trees(tensors, known)
  chosen = _select_tree(file, trees, known, ema, prefix) if trees else ""
  others = {name for root, names in trees.items() if root != chosen for name in names}
  _check_adapters(file.names[name] for name in file.tensors if name not in others)
  if not trees:
    return ChosenTensors(tensors, [], {})
  own = set(trees[chosen])
  tree = _select_tensors(file, trees, chosen)
  outside = [name for name in file.tensors if name not in others | own]
  more = _find_outside_tensors(tree, outside, chosen, known(tree)[0])
  task, repeated = task_parameters.find_task_tensors(file.tensors, chosen)
  of_task = {found.name for found in task.values()}
  original = _find_original(file, chosen, trees[chosen])
  left_out = [file.names[name] for name in outside if name not in more and name not in of_task]
  notes = [*_describe_removed(file, chosen, trees[chosen]), *_describe_others(file, trees, chosen, known)]
  if more:
    notes.append(f"read from outside of the prefix: {format_names(sorted(file.names[name] for name in more), 6)}")
  if left_out:
    notes.append(f"left out, not part of this model: {_format_names(left_out, original)}")
  if task:
    names = [file.names[name] for name in file.tensors if name in of_task]
    parent = original[: original.rstrip(".").rfind(".") + 1]
    notes.append(f"used only by self-distillation: {_format_names(names, parent)}")
  for role, *names in repeated:
    used, unused = (show(file.names[name].partition(".last_layer")[0]) for name in names)
    notes.append(f"the head for {role} is read from {used}, and {unused} is ignored")
  whole = tree | {ours: file.tensors[name] for name, ours in more.items()}
  return ChosenTensors(whole, notes, {path: found.value for path, found in task.items()})


# Trees.


def _find_trees(tensors: Tensors, known: FindLayouts) -> tuple[_File, dict[str, list[str]]]:
  """Returns the file without wrapper words, and the tensor names by tree.

  Several sets of wrapper words are tried. The set that gives the most trees is removed from the names.
  """
  best = _File(tensors, {name: name for name in tensors}, set()), {}
  everywhere, parallel = frozenset(_WRAPPERS), frozenset({"module"})
  for words, inside in ((everywhere, parallel), ((), everywhere | parallel), (everywhere, ()), ((), ())):
    names = {_remove_words(name, words, inside): name for name in tensors}
    if len(names) < len(tensors):  # The file contains a model and a wrapped copy, so the wrapper is a prefix.
      continue
    file = _File({name: tensors[original] for name, original in names.items()}, names, {*words, *inside})
    trees = _group_trees(file.tensors, known)
    if len(trees) > len(best[1]):
      best = file, trees
  return best


def _remove_words(name: str, words: Any, inside: frozenset[str] | tuple[object, ...]) -> str:
  """Returns a name without `words`. The words in `inside` are kept at the beginning of the name."""
  parts = [part for part in name.split(".") if part not in words]
  start = next((i for i, part in enumerate(parts) if part not in inside), 0)
  return ".".join([*parts[:start], *(part for part in parts[start:] if part not in inside)])


def _group_trees(tensors: Tensors, known: FindLayouts) -> dict[str, list[str]]:
  """Returns {prefix: tensor names of a tree}.

  A tree inside another tree belongs to the outer tree only if the outer tree does not match a layout without it.
  """
  below: dict[str, list[str]] = {"": list(tensors)}
  for name in tensors:
    for match in re.finditer(r"[./]", name):
      below.setdefault(name[: match.end()], []).append(name)

  def matches(root: str, names: Sequence[str]) -> bool:
    return bool(known({name[len(root) :]: tensors[name] for name in names}))

  roots = [root for root, names in below.items() if not _is_optimizer(root) and matches(root, names)]
  result, absorbed = {}, set()
  for root in sorted(roots, key=len):
    if root in absorbed:
      continue
    inner = [other for other in roots if other != root and other.startswith(root) and other not in absorbed]
    separate = []
    for other in inner:
      without = [name for name in below[root] if not name.startswith(other)]
      if matches(root, without):
        separate.append(other)
      else:
        absorbed.add(other)
    apart = tuple(separate)
    result[root] = [name for name in below[root] if not name.startswith(apart) and not _is_separate(name, root)]
  return result


def _is_optimizer(root: str) -> bool:
  words = re.split(r"[./]", root)
  return any(map(_OPTIMIZER.fullmatch, words)) or (words[0] == "opt" and words[1:2] != ["target"])


def _is_separate(name: str, root: str) -> bool:
  return _SEPARATE.fullmatch(re.split(r"[./]", name[len(root) :])[0]) is not None


# Selection of the tree to read.


def _select_tree(
  file: _File, trees: Mapping[str, Sequence[str]], known: FindLayouts, ema: bool | None, prefix: str | None
) -> str:
  """Returns the prefix of the tree to read, or raises ConfigError if the rules do not determine it."""
  roots = list(trees)
  if prefix is not None:
    beginning = prefix.rstrip("./")
    roots = [
      root
      for root in trees
      if beginning in _list_beginnings(root) | _list_beginnings(_find_original(file, root, trees[root]))
    ]
    if not roots:
      raise ConfigError(f"no model under the prefix {show(prefix)}; {_format_trees(file, trees, trees)}")
  averaged = [root for root in roots if averages.is_averaged(root, trees)]
  raw = [root for root in roots if root not in averaged]
  differences = [] if ema is False else _describe_differences(file, trees, averaged, raw, known)
  if ema is not None:
    roots = averaged if ema else raw
    if not roots:
      lacking = "averaged" if ema else "raw"
      raise ConfigError(
        f"the file has no {lacking} weights; {_format_trees(file, trees, trees)}. Remove {options.ema_option(ema)}"
      )
  elif averaged and not differences:
    roots = averaged
  ranked = sorted(roots, key=_sort_key)
  if differences or (len(ranked) > 1 and _sort_key(ranked[0]) == _sort_key(ranked[1])):
    several = [root for root in trees if root in averaged or root in raw] if differences else ranked
    text = ". ".join([f"several models are in one file; {_format_trees(file, trees, several)}", *differences])
    advice = f"{options.ema_option(False)} for the raw weights, or " if differences else ""
    raise ConfigError(f"{text}. Choose one: {advice}{options.prefix_option()}")
  return ranked[0]


def _describe_differences(
  file: _File, trees: Mapping[str, Sequence[str]], averaged: Sequence[str], raw: Sequence[str], known: FindLayouts
) -> list[str]:
  """Returns a sentence for each averaged tree that is not the average of any raw tree.

  Returns [] if there are no raw trees.
  """
  result = []
  for one in averaged:
    found = [
      (other, averages.find_difference(_select_tensors(file, trees, one), _select_tensors(file, trees, other), known))
      for other in raw
    ]
    if found and all(difference for _, difference in found):
      other, difference = found[0]
      names = (_format_prefix(file, root, trees[root]) for root in (one, other))
      result.append("{} cannot be the average of {}: {}".format(*names, difference))
  return result


def _select_tensors(file: _File, trees: Mapping[str, Sequence[str]], root: str) -> dict[str, Any]:
  return {name.removeprefix(root): file.tensors[name] for name in trees[root]}


def _sort_key(root: str) -> Any:
  first = re.split(r"[./]", root)[0]
  return _TIMM.index(first) if first in _TIMM else len(_TIMM)


def _list_beginnings(root: str) -> set[str]:
  """Returns all beginnings of a prefix that end at a separator, without the separator."""
  return {root[: match.start()] for match in re.finditer(r"[./]", root)} or {""}


def _find_original(file: _File, root: str, names: Sequence[str]) -> str:
  """Returns the prefix of a tree as it is in the file, including the words of wrappers."""
  prefixes = [_find_original_beginning(file, root, file.names[name]) for name in names]
  first, last = min(prefixes), max(prefixes)
  length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
  return first[: 1 + max(first.rfind(".", 0, length), first.rfind("/", 0, length))]


def _find_original_beginning(file: _File, root: str, original: str) -> str:
  """Returns the beginning of an original name that became the prefix of a tree, with any wrapper words after it."""
  result, kept = "", ""
  for token in re.split(r"(?<=[./])", original)[:-1]:  # a pattern for whole words would be quadratic in their length
    if kept != root and root.startswith(kept + token):
      kept += token
    elif token[:-1] not in file.words:
      break
    result += token
  return result


# Other contents of the file.


def _check_adapters(names: Iterable[str]) -> None:
  """Raises ConfigError for LoRA and other adapters."""
  if found := list(filter(_ADAPTER.search, names)):
    raise ConfigError(
      f"the file contains {format_amount(len(found), 'tensor')} of LoRA or other adapters, such as "
      f"{format_names(found, 2)}. They "
      "change the output of the model, and are not supported. Merge them into the weights, in peft with "
      "model.merge_and_unload(), and save the file again"
    )


def _find_outside_tensors(tree: Tensors, outside: Iterable[str], root: str, layout: Layout) -> dict[str, str]:
  """Returns {name: name in the layout} of tensors outside of the prefix that belong to the model."""
  result = {}
  named = row_names.compile_pattern(layout)
  own = next((row.theirs for row in layout.rows if row.ours == "head/kernel"), None)
  for enclosing in sorted({"", *(f"{root[: m.end()]}" for m in re.finditer(r"[./]", root))} - {root}, key=len)[::-1]:
    near = {name[len(enclosing) :]: name for name in outside if name.startswith(enclosing) and name not in result}
    result |= {name: ours for ours, name in near.items() if named.fullmatch(ours) and ours not in tree}
    if own is None or own in {*tree, *result.values()} or any(f"head.{end}" in tree for end in _END["."]):
      continue
    parts = re.fullmatch(r"(.*)([./])\w+", own)
    assert parts is not None, own
    stem, separator = parts.groups()
    weight, bias = _END[separator]
    for head in _HEADS:
      if {f"{head}{separator}{weight}", f"{head}{separator}{bias}"} <= near.keys():
        result |= {near[f"{head}{separator}{end}"]: f"{stem}{separator}{end}" for end in (weight, bias)}
        break
  return result


def _describe_removed(file: _File, root: str, names: Sequence[str]) -> list[str]:
  """Returns notes on the words that are removed from the names of a tree."""
  prefix = _find_original(file, root, names)
  notes = [f"read without the prefix {show(prefix)}"] if prefix else []
  inside = [name for name in names if file.names[name] != prefix + name.removeprefix(root)]
  found = {word for name in inside for word in file.names[name][len(prefix) :].split(".")} & file.words
  return notes + ([f"read without {', '.join(sorted(found))} inside of names"] if found else [])


def _describe_others(file: _File, trees: Mapping[str, Sequence[str]], chosen: str, known: FindLayouts) -> list[str]:
  """Returns a note on averaged weights, and notes on models in the file that are not read."""
  others = [root for root in trees if root != chosen]
  averaged, kinds = averages.is_averaged(chosen, trees), [averages.is_averaged(root, trees) for root in others]
  raw = [root for root, kind in zip(others, kinds, strict=True) if not kind]
  choice = options.ema_option(not averaged) if kinds == [not averaged] else options.prefix_option()
  also = f"{_format_trees(file, trees, others, 'also in the file')}; to read another model: {choice}"
  differences = _describe_differences(file, trees, [chosen], raw, known) if averaged else []
  return ["these are averaged weights"] * averaged + [also] * bool(others) + differences


def _format_trees(
  file: _File, trees: Mapping[str, Sequence[str]], roots: Iterable[str], title: str = "the file has"
) -> str:
  """Returns the prefixes of trees and their numbers of tensors."""
  words = (f"{_format_prefix(file, root, trees[root])} ({format_amount(len(trees[root]), 'tensor')})" for root in roots)
  return f"{title} {format_names(words, 8)}"


def _format_prefix(file: _File, root: str, names: Sequence[str]) -> str:
  """Returns the prefix of a tree as users read it."""
  prefix = _find_original(file, root, names)
  return show(prefix) if prefix else "names without prefix"


def _format_names(names: Sequence[str], prefix: str) -> str:
  """Returns a list of tensor names. Names that share their first word after the prefix are counted together."""
  words = re.compile(rf"({re.escape(prefix)})?[^./]*[./]?")  # matches any text
  starts = {name: match[0] for name in names if (match := words.match(name))}
  count = Counter(starts.values())
  shown = (name if count[start] < 3 else f"{start}* ({count[start]} tensors)" for name, start in starts.items())
  return format_names(dict.fromkeys(shown), 12)
