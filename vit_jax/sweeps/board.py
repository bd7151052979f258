"""Data of a sweep for TensorBoard's HParams page: the changes of each trial and the figures to compare."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2

from vit_jax.evals.selection import Criterion, format_name
from vit_jax.schema import to_plain
from vit_jax.sweeps.trials import Trial
from vit_jax.training import tensorboard

ENDING = ".hparams"  # end of the names of these files


def write_board(
  workdir: pathlib.Path,
  trials: Sequence[Trial],
  keys: Sequence[str],
  metrics: Sequence[str],
  ranked_by: Criterion | None = None,
) -> None:
  """Adds a file to the sweep's `tensorboard` directory, and one to that of each completed trial.

  A directory that already contains the file is left unchanged.

  Args:
    workdir: workdir of the sweep.
    trials: trials of the sweep. Each trial stores its scalars in the directory `tensorboard` of its workdir.
    keys: keys of the config that the trials change.
    metrics: names of figures as in results: "val/top1", or "top1" for the evaluation called test.
    ranked_by: the figure that ranks the settings. It is listed first and described as such.
  """
  changed = [summary_v2.HParam(key) for key in keys]
  first = [ranked_by.metric] if ranked_by else []
  tags = [
    summary_v2.Metric(
      format_name(name),
      display_name=format_name(name),
      description=f"ranks the settings, by {ranked_by}" if name in first else None,
    )
    for name in dict.fromkeys([*first, *metrics])
  ]
  _write_summaries(workdir / "tensorboard", [summary_v2.hparams_config_pb(changed, tags)])
  for trial in trials:
    if trial.status == "done" and (trial.workdir / "tensorboard").is_dir():
      start_summary = summary_v2.hparams_pb(format_hparams(trial.changes, keys), trial_id=trial.name)
      _write_summaries(trial.workdir / "tensorboard", [start_summary, _make_end_summary()])


def format_hparams(changes: Mapping[str, object], keys: Sequence[str]) -> dict[str, bool | int | float | str]:
  """Returns the changes of a trial for HParams, with each choice as text.

  Args:
    changes: changes of the trial.
    keys: keys to include.
  """
  changed = {key: to_plain(changes[key]) for key in keys if key in changes}
  return {key: value if isinstance(value, bool | int | float | str) else str(value) for key, value in changed.items()}


def _make_end_summary() -> Any:
  """Returns the summary that marks the end of a trial."""
  content = plugin_data_pb2.HParamsPluginData(
    session_end_info=plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS)
  )
  about = metadata.create_summary_metadata(content)
  return Summary(value=[Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=about, tensor=metadata.NULL_TENSOR)])


def _write_summaries(folder: pathlib.Path, summaries: Iterable[object]) -> None:
  if folder.is_dir() and any(folder.glob(f"*{ENDING}")):
    return
  file = tensorboard.EventFile(folder, ENDING)
  for summary in summaries:
    file.write_summary(0, summary)
  file.close()
