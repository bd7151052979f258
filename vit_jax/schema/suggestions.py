"""Suggestions for keys and flags of other frameworks: flags to paste, with the value that the user gave."""

import math
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from vit_jax.schema import aliases
from vit_jax.schema.aliases import FLAGS, GROUPS, KEYS, NUMBERS, REMARKS, VALUES, get_last_word
from vit_jax.schema.errors import ConfigError
from vit_jax.schema.texts import format_flag, quote_word
from vit_jax.schema.types import Duration

WEIGHTS = ("model", "checkpoint", "model_path", "resume")  # flags in other frameworks' commands that read weights
NAMED = ("model", "data", "optim", "task")  # groups that are a choice with a name
SWITCHED_OFF = ("data.mixing.name", "data.erasing.name")  # choices that the number 0 switches off
_CHANGES = re.compile(r"--config\.([\w.]+)")
_SWITCH = ("true", "false", "yes", "no", "on", "off", "none")
_DURATIONS = ("total", "optim.warmup", "checkpoint.every", "evals.test.every")
_TRIPLE = re.compile(r"[(\[]?\s*([-+.\de]+)[\s,]+([-+.\de]+)[\s,]+([-+.\de]+)\s*[)\]]?")


class Suggestion(NamedTuple):
  """A correction for a message. It is empty if there are neither flags nor a remark.

  Attributes:
    flags: flags for a shell.
    remark: a sentence without its full stop.
  """

  flags: tuple[str, ...] = ()
  remark: str = ""

  def __str__(self) -> str:
    """Returns the suggestion as the end of a message, with a leading space."""
    return join_suggestions([self])


def join_suggestions(suggestions: Collection[Suggestion]) -> str:
  """Returns several suggestions as the end of one message: all flags on one line to paste, then the remarks."""
  flags = [flag for each in suggestions for flag in each.flags]
  remarks = "".join(f" {each.remark}." for each in suggestions if each.remark)
  return (f" Did you mean {' '.join(flags)}?" if flags else "") + remarks


def format_typed(value: object) -> str:
  """Returns a value of a config as a user would type it in a flag, or "" for a group or a list."""
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, int) and abs(value) >= 2**63:  # Python does not print thousands of digits
    return ""
  return str(value) if isinstance(value, str | int | float) else ""


def translate_key(key: str, value: str, allowed: Collection[str]) -> str | None:
  """Returns KEY=VALUE for a name of another framework if the equivalent key is allowed, or None.

  Args:
    key: a key or flag of another framework.
    value: the value that the user gave.
    allowed: the keys that are allowed at this place, see `aliases.find_equivalent`.
  """
  name = aliases.find_equivalent(key, allowed)
  return name and f"{name}={_translate(get_last_word(key), value)[0][1]}"


def suggest_for_key(key: str, value: str = "") -> Suggestion:
  """Returns the suggestion for a dotted key that has another name in this package.

  Args:
    key: the key as the user wrote it.
    value: the value as the user wrote it, or "" without a value or for a group.
  """
  name = get_last_word(key)
  if name in KEYS and KEYS[name][0] != key.removeprefix("config."):
    return Suggestion(tuple(format_flag(f"config.{target}", text) for target, text in _translate(name, value)))
  if name in FLAGS:
    return Suggestion((_insert_value(FLAGS[name], value),))
  return Suggestion(remark=REMARKS.get(name, ""))


def suggest_for_group(key: str, value: str = "") -> Suggestion:
  """Returns the suggestion for a dotted key in a group that has another name in this package.

  Args:
    key: the key as the user wrote it.
    value: the value as the user wrote it, or "" without a value or for a group.
  """
  first, _, rest = key.partition(".")
  if (group := GROUPS.get(first.lower())) is None:
    return suggest_for_key(key, value)
  last = KEYS.get(get_last_word(rest), ("",))[0]
  if last.partition(".")[0] == group.partition(".")[0]:
    pairs = _translate(get_last_word(rest), value) if value else [(last, "")]
  else:
    pairs = [(f"{group}.{'name' if rest in ('type', 'kind', 'class', '_target_') else rest}", value)]
  return Suggestion(
    tuple(format_flag(f"config.{target}", text) if text else f"--config.{target}" for target, text in pairs)
  )


def suggest_for_flag(flag: str, value: str, known: Mapping[str, bool], groups: Collection[str]) -> Suggestion:
  """Returns the suggestion for a flag that a command does not have.

  Args:
    flag: the flag as the user wrote it, without its value.
    value: the value of the flag, the word after the flag, or "".
    known: {flag of the command: true if it takes a value}.
    groups: keys of the command's config, which may be groups. Empty for a command without a config.
  """
  name, key = get_last_word(flag), flag.lstrip("-")
  first, dot, _ = key.partition(".")
  if not dot and (spelt := next((each for each in known if get_last_word(each) == name), None)):
    return Suggestion((spelt + (f"={quote_word(value)}" if value and known[spelt] else ""),))
  if name in FLAGS and FLAGS[name].partition("=")[0] in known:
    return Suggestion((_insert_value(FLAGS[name], value),))
  if "--weights" in known and (name in WEIGHTS or KEYS.get(name, ("",))[0] == "init.from"):
    return Suggestion((_insert_value("--weights=PATH", value),))
  if not dot and (own := translate_key(name, value, {get_last_word(each) for each, takes in known.items() if takes})):
    return Suggestion((format_flag(own.partition("=")[0].replace("_", "-"), own.partition("=")[2]),))
  if not groups or name in FLAGS:
    return Suggestion()
  if (key in ("ema", "no-ema") and not value) and (selected := _find_selection_flag(key, known, groups)):
    return Suggestion((selected,))
  if first in groups:
    if not dot and first in NAMED:
      return Suggestion((_insert_value(f"--config.{key}.name=NAME", value),))
    return Suggestion((format_flag(f"config.{key}", value) if value else f"--config.{key}",))
  found = suggest_for_group(key, value) if dot else suggest_for_key(key, value)
  if all(_has_key(target, groups) for target in _CHANGES.findall(str(found))):
    return found
  own = None if dot else translate_key(name, value, groups)
  return Suggestion((format_flag(f"config.{own.partition('=')[0]}", own.partition("=")[2]),) if own else ())


def _find_selection_flag(key: str, known: Collection[str], groups: Collection[str]) -> str:
  """Returns the flag that selects averaged or raw weights, or "" if the config of the command has no key for this
  choice.
  """
  if "ema" in groups:
    return "--config.ema=true" if key == "ema" else "--config.ema=false"
  if "init" not in groups or (key == "ema" and "--weights" not in known):  # elsewhere, `--ema` starts an average
    return ""
  return "--config.init.ema=true" if key == "ema" else "--config.init.ema=false"


def is_known(flag: str) -> bool:
  """Returns true if a flag, key or remark of another framework has this name."""
  return any(get_last_word(flag) in table for table in (KEYS, FLAGS, REMARKS))


def _has_key(key: str, groups: Collection[str]) -> bool:
  """Returns true if a config with these groups has a key. Keys of evaluations are only known for a run's config."""
  first = key.partition(".")[0]
  return first in groups and (first != "evals" or "task" in groups)


def _insert_value(flag: str, value: str) -> str:
  """Returns `--flag=EXAMPLE` with the user's value instead of the example, unless the value is only a switch."""
  if not value or value.lower() in _SWITCH:
    return flag
  return f"{flag.partition('=')[0]}={quote_word(value)}"


def _translate(name: str, value: str) -> list[tuple[str, str]]:
  """Returns (key, value) pairs for a name of another framework. A value that does not fit is replaced by an example."""
  key, example = KEYS[name]
  number = _parse_number(value)
  if name in NUMBERS and number is not None:
    choice, argument = NUMBERS[name]
    if number == 0 and key in SWITCHED_OFF:
      return [(key, "none")]
    return [(key, choice), (argument, value)]
  if key in _DURATIONS:
    text = _parse_duration(name, value)
  elif key in ("data.mean", "data.std"):
    match = _TRIPLE.fullmatch(value)
    text = f"({','.join(match.groups())})" if match else ""
  elif key == "data.flip":
    text = value.lower() if value.lower() in ("true", "false") else {None: "", 0.0: "false"}.get(number, "true")
  elif key in VALUES:
    text = VALUES[key].get(value.lower(), "" if key == "model.dtype" or not _is_word(value) else value)
  elif key == "optim.frozen":
    text = value if value.startswith("[") else ""
  elif _parse_number(example) is not None:
    text = value if number is not None else ""
  elif example in ("DIR", "PATH"):
    text = "" if value.lower() in _SWITCH else value
  else:
    text = value if _is_word(value) else ""
    if key.endswith(".name") and key not in ("data.name", "model.name"):  # the other names are lower-case words
      text = text.lower() if text.isidentifier() else ""
  return [(key, text or example)]


def _parse_number(text: str) -> float | None:
  """Returns the finite number that a text represents, or None."""
  try:
    number = float(text)
  except ValueError:
    return None
  return number if math.isfinite(number) else None


def _is_word(text: str) -> bool:
  """Returns true if a text may be a name: it starts with a letter and is not a switch."""
  return text[:1].isalpha() and text.lower() not in _SWITCH


def _parse_duration(name: str, value: str) -> str:
  """Returns a length of training with the unit of this package, such as "90ep" or "5%", or "" for other texts."""
  number = _parse_number(value)
  if number is not None:
    if number < 0:
      return ""
    if name.endswith("ratio"):
      return f"{100 * number:g}%"
    return (f"{number:.0f}" if number.is_integer() else value) + ("ep" if "epoch" in name else "")
  try:
    return str(Duration(value))
  except ConfigError:
    return ""
