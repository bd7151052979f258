"""Comparison of recorded runs with published training curves: the band behind a curve, and a table of verdicts."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vit_jax import certificates, runtime
from vit_jax.evals import selection
from vit_jax.reports.page import Paragraph, Table
from vit_jax.reports.recorded import RecordedRun
from vit_jax.training import comparison


class PublishedBand(NamedTuple):
  """The expected range of a metric at N points of a run.

  Attributes:
    metric: name of the metric in metrics.jsonl.
    curve: name of the published curve.
    images: images seen (N,).
    low: lower ends of the range, as shares (N,).
    high: upper ends of the range, as shares (N,).
  """

  metric: str
  curve: str
  images: np.ndarray
  low: np.ndarray
  high: np.ndarray


def compare_recorded_run(run: RecordedRun) -> certificates.Certificate | None:
  """Returns the comparison of all recorded evaluations with the published curve, or None without such a curve.

  Args:
    run: a run, finished or not.
  """
  if not run.total:
    return None
  certificate = comparison.find_certificate(run.run, run.total, changed_length=run.changed_length)
  if certificate:
    for row in run.rows:
      certificate.add(int(row["step"]), {name.removeprefix(f"{selection.TEST}/"): each for name, each in row.items()})
  return certificate


def find_bands(runs: Sequence[RecordedRun]) -> list[PublishedBand]:
  """Returns the bands of the runs, each band once.

  Args:
    runs: the runs.
  """
  bands = {}
  for run in runs:
    certificate = compare_recorded_run(run)
    if certificate and not certificate.reason and run.total:
      match = certificate.match
      shares = match.curve.fractions
      each = [match.curve.compute_band(float(share), bool(match.widened)) for share in shares]
      ends = np.array([(band.low, band.high) for band in each if band])
      images = shares * run.total * run.run.batch
      name = selection.format_name(certificate.figure)
      bands[match.curve.name, run.total, name, bool(match.widened)] = PublishedBand(
        name, match.curve.name, images, *ends.T
      )
  return list(bands.values())


def summarise_verdicts(run: RecordedRun) -> Paragraph | None:
  """Returns the last verdict of a run with a link to the table of verdicts, or None without a verdict.

  Args:
    run: the run.
  """
  certificate = compare_recorded_run(run)
  if not certificate or not certificate.verdicts:
    return None
  name = certificate.match.curve.name
  text = f"Compared with the published curve of {name} at {certificate.format_verdict(certificate.verdicts[-1])}."
  if run.run.log.certificate == "stop" and certificate.is_off_track and not run.result:
    text += (
      f" The run stops with exit code {runtime.EXIT_OFF_TRACK}: {certificate.describe_off_track()}. The same command "
      "continues it with --config.log.certificate=report."
    )
  return Paragraph(text, _make_title(run, certificate))


def _make_title(run: RecordedRun, certificate: certificates.Certificate) -> str:
  return f"{run.name} and the published curve of {certificate.match.curve.name}"


def make_tables(runs: Sequence[RecordedRun]) -> list[Table]:
  """Returns a table of verdicts for each run that was compared with a published curve.

  Args:
    runs: the runs.
  """
  tables = []
  for run in runs:
    certificate = compare_recorded_run(run)
    if certificate and certificate.verdicts:
      rows = [
        [
          f"{certificates.format_percent(each.fraction)} %",
          f"{100 * each.value:.2f}",
          f"{100 * each.mean:.2f}",
          certificates.format_range(each),
          each.verdict,
        ]
        for each in certificate.verdicts
      ]
      tables.append(
        Table(
          _make_title(run, certificate),
          ["schedule", "top-1, %", "published mean, %", "expected, %", "verdict"],
          rows,
          certificate.format_start(),
        )
      )
  return tables
