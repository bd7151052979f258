"""A study from its start to its end. One with real training is in test_sweep."""

import json
import os
import signal

import pytest

from tests.sweeps import studies
from vit_jax import runtime
from vit_jax.schema import ConfigError
from vit_jax.sweeps import pool, search


def finished(trial, top1):
  """Leaves what training leaves."""
  trial.workdir.mkdir(parents=True)
  (trial.workdir / "config.json").write_text(trial.config)
  result = {"val/top1": top1, "val/loss": 1 - top1, "train_seconds": 1.0}
  (trial.workdir / "result.json").write_text(json.dumps(result))


def test_the_best_setting_is_chosen_and_its_last_runs_are_taken_where_they_are_finished(tmp_path, capsys):
  rows = [{"optim.lr": rate, "seed": seed} for rate in (0.1, 0.2) for seed in (0, 1)]
  study = studies.study(tmp_path, rows, final=[{"data.train": "train[:160]"}])
  listed = study.trials()
  for trial, top1 in zip(listed, (0.1, 0.9, 0.6, 0.6), strict=True):
    finished(trial, top1)
  (last,) = study.last_runs(search.settings(listed)[1])
  last.workdir.mkdir(parents=True)
  (last.workdir / "config.json").write_text(last.config)
  (last.workdir / "result.json").write_text('{"top1": 0.7, "train_seconds": 1.0}')
  search.search(study, listed, [pool.Group()], retry=False)
  written = json.loads((tmp_path / "sweep.json").read_text())
  assert written["best"] == {"optim.lr": 0.2}
  assert [run["figures"]["top1"] for run in written["final"]] == [0.7]
  assert "70.00 (1)" in capsys.readouterr().out


def test_nothing_to_choose_from_is_an_error_and_the_table_is_there(tmp_path):
  study = studies.study(tmp_path, [{"batch": 100}])  # more than there are images, which its process says
  listed = study.trials()
  listed[0].fail("too large", "diverged")
  with pytest.raises(ConfigError, match="nothing was chosen"):
    search.search(study, listed, [pool.Group()], retry=False)
  assert "diverged" in (tmp_path / "sweep.md").read_text()


def test_a_workdir_in_use_is_refused(tmp_path):
  study = studies.study(tmp_path)
  with runtime.locked(tmp_path), pytest.raises(ConfigError, match=f"{tmp_path} is in use by process {os.getpid()}"):
    search.search(study, study.trials(), [pool.Group()], retry=False)


def test_a_sigterm_ends_a_search_as_an_interrupt_does():
  before = signal.getsignal(signal.SIGTERM)
  with pytest.raises(runtime.Stop) as stop, search.stoppable():
    signal.raise_signal(signal.SIGTERM)
  assert stop.value.code == runtime.EXIT_PREEMPTED
  assert signal.getsignal(signal.SIGTERM) is before
