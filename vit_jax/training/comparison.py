"""Comparison of a run with the published curve of its recipe."""

from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax import certificates, config
from vit_jax.schema import to_plain
from vit_jax.training import build
from vit_jax.training.bound_run import BoundRun
from vit_jax.training.experiment import Experiment


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


def describe_start(certificate: certificates.Certificate | None, experiment: Experiment) -> list[str]:
  """Returns lines that name the curve, and warn if `log.certificate=stop` has no effect.

  Args:
    certificate: the comparison, or None if there is no curve for the run.
    experiment: the components of the run.
  """
  lines = [certificate.format_start()] if certificate else []
  if experiment.run.log.certificate == "stop" and (problem := _explain_no_stop(certificate, experiment)):
    lines.append(f"warning: --config.log.certificate=stop has no effect: {problem}")
  return lines


def find_stop_reason(certificate: certificates.Certificate | None, experiment: Experiment, step: int) -> str | None:
  """Returns why a run with `log.certificate=stop` must stop at a step, or None if it may continue.

  Args:
    certificate: the comparison, or None if there is no curve for the run.
    experiment: the components of the run.
    step: number of completed steps.
  """
  stops = certificate and experiment.run.log.certificate == "stop" and step < experiment.total
  return certificate.describe_off_track() if certificate and stops and certificate.is_off_track else None


def _explain_no_stop(certificate: certificates.Certificate | None, experiment: Experiment) -> str | None:
  """Returns why a run cannot stop before its end, or None if it can."""
  if certificate is None:
    return "no curve is published for this model, dataset and task"
  if certificate.reason:
    return "the run is not compared with the published curve"
  name, total = certificate.match.evaluation, experiment.total
  assert name is not None, "a run without such an evaluation has a reason"
  planned = certificates.Certificate(certificate.match, total)
  for step in range(every := experiment.evals[name].every, total, every):
    planned.add(step, {certificate.figure: 0.0})
    if planned.is_off_track:
      return None
  advice = f"Evaluate more often, for example with --config.evals.{name}.every=5%"
  return f"no two consecutive verdicts before the end of the run can be below the range. {advice}"


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
