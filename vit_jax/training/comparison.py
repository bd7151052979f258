"""Comparison of a run with the published curve of its recipe."""

from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax import certificates, config
from vit_jax.schema import to_plain
from vit_jax.training import build
from vit_jax.training.bound_run import BoundRun


def find_certificate(
  run: BoundRun, total: int, verdicts: Sequence[Mapping[str, Any]] = (), changed_length: bool = False
) -> certificates.Certificate | None:
  """Returns the comparison of a run with the published curve of its recipe.

  Args:
    run: a run whose config contains all defaults.
    total: number of steps of the run.
    verdicts: verdicts so far, from a checkpoint of the run. They are dropped if the run is no longer comparable.
    changed_length: whether the run had another length before a restart. Such a run is not compared.

  Returns:
    The comparison, or None if no curve was published for this model and dataset, or if `log.certificate` is "off".
  """
  if run.log.certificate == "off":
    return None
  match = certificates.find_match(to_plain(run), certificates.list_curves(), _complete)
  if match and changed_length:
    match = match._replace(refused=[*match.refused, "total: the run had another length before a restart"])
  comparable = match and not match.explain_refusal()
  return match and certificates.Certificate(match, total, certificates.parse_verdicts(verdicts if comparable else ()))


def has_other_length(run: BoundRun, about: Mapping[str, Any]) -> bool:
  """Returns whether the part of a run up to a checkpoint was trained with another `total`.

  Args:
    run: a run whose config contains all defaults.
    about: description in the checkpoint, or an empty mapping at the start of a run.
  """
  stored = about.get("identity", {}).get("config", {}).get("total")
  return about.get("changed_length", False) or stored not in (None, to_plain(run)["total"])


def _complete(groups: Mapping[str, Any]) -> Mapping[str, Any]:
  return to_plain(build.complete(config.resolve(config.recipe(**groups)), adopt=False))
