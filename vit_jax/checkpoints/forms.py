"""Form of a checkpoint's metadata, which are JSON values that another program may have changed."""

import inspect
from collections.abc import Mapping
from typing import Any

from vit_jax import certificates
from vit_jax.config import extensions
from vit_jax.data import membership, sources

LARGEST = 1e30  # larger numbers in metadata are not valid, and may overflow in calculations


def _is_count(value: object) -> bool:
  return isinstance(value, int | float) and 0 <= value < LARGEST


def is_number(value: object) -> bool:
  """Returns whether a value is a number with an absolute value below `LARGEST`."""
  return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _is_share(value: object) -> bool:
  return isinstance(value, int | float) and 0 <= value <= 1


def _is_position(value: object) -> bool:
  return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST


def _are_sums(values: object) -> bool:
  return isinstance(values, dict) and all(isinstance(value, int | float) for value in values.values())


def _are_measurements(values: object) -> bool:
  return isinstance(values, dict) and all(
    isinstance(each, list) and len(each) == 2 and all(map(_is_position, each)) for each in values.values()
  )


_REACHED = {"step": _is_position, "hours": _is_count}


def is_target_record(value: object) -> bool:
  """Returns whether a value is a time to target, see `training.time_to_target`. A run writes it to its files."""
  return (
    isinstance(value, dict)
    and isinstance(value.get("metric"), str)
    and isinstance(value.get("value"), int | float)
    and not isinstance(value["value"], bool)
    and abs(value["value"]) < LARGEST
    and all(key in value and (value[key] is None or form(value[key])) for key, form in _REACHED.items())
  )


def is_result_record(value: Mapping[str, Any]) -> bool:
  """Returns whether the values of a run's result.json have the form that a run writes, as far as a run prints them."""
  selection, times, target = (value.get(key, {}) for key in ("selection", "goodput", "target"))
  rate = value.get("images_per_second")
  return (
    all(isinstance(each, dict) for each in (selection, times, value.get("certificate", {})))
    and is_number(value.get("train_seconds"))
    and (rate is None or is_number(rate))
    and (not selection or _has_form(selection, {"test_measurements": int, "metric": object, "split": object}))
    and ("goodput" not in value or {"attempts", "goodput"} <= times.keys())
    and all(map(is_number, times.values()))
    and (target in ({}, None) or is_target_record(target))
  )


def _are_words(values: object) -> bool:
  return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _are_texts(values: object) -> bool:
  return isinstance(values, dict) and all(isinstance(value, str) for value in values.values())


# Verdicts of the comparison with a published curve.
_VERDICTS = [
  {"step": _is_position, "verdict": lambda value: value in certificates.VERDICTS, "half_width": _is_count}
  | dict.fromkeys(("fraction", "value", "mean"), _is_share)
]
# Parts that a checkpoint has only in newer versions, or for some runs.
_OPTIONAL = {"measured": _are_measurements, "target": is_target_record, "verdicts": _VERDICTS, "changed_length": bool}
# The schema of a checkpoint's metadata. Older checkpoints contain only the progress of the run.
_COUNTS = dict.fromkeys(("images", "seconds", "train_seconds"), _is_count)
_FORM = {
  "identity": {
    "config": dict,
    "data": {
      "classes": [str],
      "records": int,
      "fingerprint": dict.fromkeys(sources.Fingerprint._fields, str),
      "samples": [{"record": int, "name": str, "label": object, "sha256": str | None}],
    },
    "packages": _are_texts,
    "devices": {"kind": str, "count": int, "processes": int},
  },
  "order": {"positions": [_is_position], "records": [int]},
  "frozen": dict,
  "evaluated": bool,
  "step_seconds": _is_count,
  "pending": {"steps": int, "sums": _are_sums},
}
# Parts of the data that older checkpoints lack.
_LATER_DATA = {
  "disks": [{"files": int, "times": str, "some": [int], "last": str}],
  "splits": membership.is_membership_record,
}
# The schema of metadata that older checkpoints lack.
_LATER = {
  "settings": _are_texts,
  "flags": _are_texts,
  "host": lambda host: isinstance(host, dict) and _are_words(host.get("features", [])),
}


def check_metadata(about: Mapping[str, Any]) -> None:
  """Raises ValueError if the metadata of a checkpoint do not have the form that a run writes."""
  form = _COUNTS | (_FORM if "identity" in about else {})
  form |= {name: kind for name, kind in _OPTIONAL.items() if name in about}
  wrong = [name for name in form if not _has_form(about.get(name), form[name])]
  later = about["identity"] if "identity" in about and not wrong else {}
  wrong += [name for name in _LATER if name in later and not _has_form(later[name], _LATER[name])]
  data = later.get("data", {})
  wrong += ["data"] if any(key in data and not _has_form(data[key], form) for key, form in _LATER_DATA.items()) else []
  if wrong:
    raise ValueError(f"its values of {', '.join(wrong)} are not valid: {str(about.get(wrong[0]))[:80]}")
  extensions.check(about.get("identity", {}).get("extensions", []))


def _has_form(value: object, form: Any) -> bool:
  if isinstance(form, dict):
    return isinstance(value, dict) and all(key in value and _has_form(value[key], form[key]) for key in form)
  if isinstance(form, list):
    return isinstance(value, list) and all(_has_form(each, form[0]) for each in value)
  return form(value) if inspect.isfunction(form) else isinstance(value, form)
