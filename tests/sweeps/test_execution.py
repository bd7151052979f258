"""Tests of trials as processes: commands, exit codes and result files. Small commands replace training here."""

import json
import shlex

import pytest

from tests.sweeps import studies
from vit_jax import config, runtime
from vit_jax.config import flags
from vit_jax.schema import ConfigError
from vit_jax.sweeps import execution, pool
from vit_jax.sweeps.record import SweepRecord
from vit_jax.sweeps.screen import TrialScreen
from vit_jax.training import build


def run(folder, listed, command_of=studies.stand_in, groups=1):
  """Runs trials to their end and returns the record."""
  record = SweepRecord(studies.study(folder, decide=None), listed)
  record.restore(listed, retry=False)
  execution.run_trials(record, listed, [pool.DeviceGroup()] * groups, command_of, lambda: None)
  return record


def never(trial):
  pytest.fail(f"{trial.name} was started")


def test_printed_command_reproduces_the_config_of_its_trial(tmp_path):
  changes = {"optim.lr": 0.5, "data.warp": {"name": "affine", "degrees": 3.0}, "data.mean": (0.1, 0.2, 0.3)}
  made = studies.study(tmp_path, [changes], {"data.threads": "3"})
  (trial,) = made.make_trials()
  words = shlex.split(shlex.join(execution.build_train_command(made.file, trial)))
  assert words[:5] == ["python", "-m", "vit_jax.train", f"--config={made.file}", f"--workdir={trial.workdir}"]
  overrides, rest = flags.split_overrides(words[5:])
  assert rest == ["--no-report"]  # the sweep has its own report
  edited = flags.load_config(made.file, overrides)
  assert config.dumps(build.complete(config.resolve(edited))) == trial.config
  assert json.loads(trial.config)["data"]["threads"] == 3


def test_finished_trial_is_evaluated_on_test_in_a_separate_workdir(tmp_path):
  (trial,) = studies.waiting(tmp_path, 1)
  trial.workdir = tmp_path / "final" / trial.name
  words = execution.build_evaluate_command(trial)
  assert words[2] == "vit_jax.evaluate"
  assert {f"--workdir={tmp_path / 'trials' / trial.name}", "--split=test", f"--report={trial.workdir}"} <= set(words)


@pytest.mark.heavy
def test_each_trial_runs_once_and_its_metrics_are_recorded(tmp_path):
  listed = studies.waiting(tmp_path)
  record = run(tmp_path, listed, groups=2)
  assert [(t.status, t.figures["top1"], t.seconds, t.attempts) for t in listed] == [("done", 0.5, 2.0, 1)] * 3
  record.close()
  assert "| setting" in (tmp_path / "sweep.md").read_text()
  written = json.loads((tmp_path / "sweep.json").read_text())
  assert written["settings"][0]["figures"]["top1"] == [0.5] * 3
  assert (tmp_path / "sweep.png").exists()
  # Another session starts no trial.
  again = studies.waiting(tmp_path)
  run(tmp_path, again, never)
  assert again == listed


@pytest.mark.heavy
@pytest.mark.parametrize(
  ("code", "status", "starts", "reason"),
  [
    (2, "failed", 1, "the reason"),
    (runtime.EXIT_NOT_FINITE, "diverged", 1, "the reason"),
    (1, "failed", 1, "the reason"),
    (runtime.EXIT_PREEMPTED, "failed", execution.ATTEMPTS, "the reason"),
    (runtime.EXIT_HANG, "failed", execution.ATTEMPTS, "the reason"),
    (runtime.EXIT_PEER, "failed", execution.ATTEMPTS, "the reason"),
    (-9, "failed", execution.ATTEMPTS, "SIGKILL"),
  ],
)
def test_failed_trial_is_recorded_and_does_not_stop_other_trials(tmp_path, code, status, starts, reason):
  listed = studies.waiting(tmp_path, 2)
  run(tmp_path, listed, lambda trial: studies.stand_in(trial, code if trial.name == "t0" else 0))
  assert [t.status for t in listed] == [status, "done"]
  assert reason in listed[0].error
  assert len((listed[0].workdir / "starts").read_text()) == starts
  # Another session does not try it again.
  run(tmp_path, studies.waiting(tmp_path, 2), never)


def test_existing_result_is_used_only_if_its_config_matches(tmp_path):
  listed = studies.waiting(tmp_path, 2)
  for trial, text in zip(listed, ("{}\n", '{"seed": 9}\n'), strict=True):
    trial.workdir.mkdir(parents=True)
    (trial.workdir / "config.json").write_text(text)
    (trial.workdir / "result.json").write_text('{"top1": 0.25, "train_seconds": 1.0}')
  run(tmp_path, listed, never)
  assert (listed[0].status, listed[0].figures) == ("done", {"top1": 0.25, "train_seconds": 1.0})
  assert listed[1].status == "failed"
  assert str(listed[1].workdir) in listed[1].error and "another config" in listed[1].error


def test_trial_held_by_another_process_is_waited_for(tmp_path, capsys):
  (trial,) = studies.waiting(tmp_path, 1)
  with TrialScreen([trial], None, lambda trial: tmp_path / "log") as screen:
    with runtime.lock_workdir(trial.workdir):
      assert execution.is_held(trial, screen)
      assert execution.is_held(trial, screen)
      assert capsys.readouterr().out.count("held by process") == 1
    assert not execution.is_held(trial, screen)
    assert trial.error == ""


def test_trial_is_tried_again_if_its_workdir_was_in_use(tmp_path):
  (trial,) = studies.waiting(tmp_path, 1)
  with runtime.lock_workdir(trial.workdir), pytest.raises(ConfigError) as error, runtime.lock_workdir(trial.workdir):
    pass
  (tmp_path / "log").write_text(f"error: {error.value}\n")
  trial.attempts = 1
  execution.set_status(
    trial, runtime.EXIT_CONFIG, tmp_path / "log"
  )  # the other process has released the workdir by now
  assert trial.status == "waiting"
  trial.attempts = execution.ATTEMPTS
  execution.set_status(trial, runtime.EXIT_CONFIG, tmp_path / "log")
  assert trial.status == "failed" and str(trial.workdir) in trial.error


def test_reason_is_the_last_error_in_the_log(tmp_path):
  log = tmp_path / "log"
  for text, reason in (
    ("", ""),
    ("a\nb\n\n", "b"),
    ("error: first\nerror: last\nsome more\n", "last"),
    ("error: far away\n" + "x\n" * 50, "x"),
  ):
    log.write_text(text)
    assert execution.find_last_error(log) == reason


def test_invalid_result_files_are_reported(tmp_path):
  (trial,) = studies.waiting(tmp_path, 1)
  trial.workdir.mkdir(parents=True)
  (trial.workdir / "figures.json").write_text('{"figures": 3}')
  with pytest.raises(ConfigError, match=r"figures\.json contains no figures"):
    execution.read_result(trial)
  (trial.workdir / "result.json").write_text('{"top1": "much", "train_seconds": "1"}')
  assert (
    execution.read_result(trial) and trial.status == "failed"
  )  # without config.json, the result may belong to another trial
  (trial.workdir / "config.json").write_text(trial.config)
  assert execution.read_result(trial) and (trial.status, trial.figures, trial.seconds) == ("done", {}, 0.0)


def test_trial_with_a_non_finite_result_has_diverged(tmp_path):
  (trial,) = studies.waiting(tmp_path, 1)
  trial.workdir.mkdir(parents=True)
  (trial.workdir / "config.json").write_text(trial.config)
  (trial.workdir / "result.json").write_text('{"top1": 0.5, "val/loss": NaN}')
  assert execution.read_result(trial)
  assert (trial.status, trial.error) == ("diverged", "its result is not finite: val/loss is nan")
