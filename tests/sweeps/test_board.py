"""Tests of the HParams of a sweep, read with TensorBoard's own plugin."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from vit_jax.evals.selection import Criterion
from vit_jax.sweeps import board
from vit_jax.sweeps.trials import Trial
from vit_jax.training import tensorboard


def content(folder, tag):
  """Returns the plugin's data under a tag of a folder."""
  loaded = EventAccumulator(str(folder))
  loaded.Reload()
  return loaded.SummaryMetadata(tag).plugin_data.content


@pytest.fixture
def trials(tmp_path):
  made = []
  for i, status in enumerate(("done", "failed", "done")):
    changes = {"optim.lr": 0.1 * i, "data.flip": bool(i), "optim.schedule": {"name": "cosine", "end": 0.0}, "seed": i}
    trial = Trial(f"t{i}", changes, {}, tmp_path / "trials" / f"t{i}", "{}", status, figures={"val/top1": 0.5})
    file = tensorboard.EventFile(trial.workdir / "tensorboard")
    file.write(3, {"val/top1": 0.5})
    file.close()
    made.append(trial)
  return made


def test_finished_trial_records_its_changes_and_metrics(tmp_path, trials):
  keys = ["optim.lr", "data.flip", "optim.schedule"]
  for _ in range(2):
    board.write_board(tmp_path, trials, keys, ["loss", "val/top1"], Criterion("val/top1", "val"))
  started = metadata.parse_session_start_info_plugin_data(
    content(trials[2].workdir / "tensorboard", metadata.SESSION_START_INFO_TAG)
  )
  told = {key: getattr(value, value.WhichOneof("kind")) for key, value in started.hparams.items()}
  assert told == {"optim.lr": 0.2, "data.flip": True, "optim.schedule": "{'name': 'cosine', 'end': 0.0}"}
  ended = metadata.parse_session_end_info_plugin_data(
    content(trials[2].workdir / "tensorboard", metadata.SESSION_END_INFO_TAG)
  )
  assert ended.status == 1  # success
  assert [len(list((each.workdir / "tensorboard").iterdir())) for each in trials] == [2, 1, 2]
  experiment = metadata.parse_experiment_plugin_data(content(tmp_path / "tensorboard", metadata.EXPERIMENT_TAG))
  assert [each.name for each in experiment.hparam_infos] == keys
  # The metric that ranks the settings is first, and its description names it.
  assert [(each.name.tag, each.display_name, each.description) for each in experiment.metric_infos] == [
    ("val/top1", "val/top1", "ranks the settings, by val/top1 (split 'val')"),
    ("test/loss", "test/loss", ""),
  ]
  assert len(list((tmp_path / "tensorboard").iterdir())) == 1


def test_trial_without_a_workdir_has_no_board(tmp_path):
  trial = Trial("t", {"seed": 1}, {}, tmp_path / "t", "{}", "done")
  board.write_board(tmp_path, [trial], ["seed"], [])
  assert not trial.workdir.exists()
