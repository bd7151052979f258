"""Tests of the record of a sweep: the stored and restored trials, and the table and picture at the end."""

import json
import shlex
import statistics

import pytest

from vit_jax.config import Sweep
from vit_jax.schema import ConfigError
from vit_jax.sweeps import results
from vit_jax.sweeps.record import SweepRecord, read_pins
from vit_jax.sweeps.study import Study
from vit_jax.sweeps.trials import Trial, group_settings


def trials(folder):
  """Returns the trials of two settings with two seeds each, and a trial that has failed."""
  values = {(0.1, 0): 0.5, (0.1, 1): 0.7, (0.2, 0): 0.8, (0.2, 1): 0.9}
  done = [
    trial(folder, "done", {"val/top1": value, "val/loss": 1 - value}, lr=lr, seed=seed)
    for (lr, seed), value in values.items()
  ]
  failed = trial(folder, "failed", {}, lr=9.0, seed=0)
  failed.error, failed.attempts = "too | large", 1
  return [*done, failed]


def trial(folder, status, figures, lr, seed):
  name = f"{lr}-{seed}"
  return Trial(name, {"optim.lr": lr, "seed": seed}, {}, folder / name, "{}", status, figures=figures)


def copy_as_waiting(listed):
  """Returns the same trials as another session creates them."""
  return [Trial(t.name, t.changes, {}, t.workdir, "{}") for t in listed]


def make_record(workdir, listed, file="it.py", overrides=(), **sweep):
  return SweepRecord(Study(file, dict(overrides), Sweep([{}], **sweep), workdir), listed)


def restore_trials(workdir, listed, retry=False):
  """Restores the trials in another session and returns them."""
  again = copy_as_waiting(listed)
  make_record(workdir, again).restore(again, retry)
  return again


def test_table_has_means_of_settings_and_metrics_of_final_runs(tmp_path, capsys):
  listed = trials(tmp_path / "trials")
  record = make_record(tmp_path, listed, final=[{"seed": 0}, {"seed": 1}])
  record.best = results.rank_settings(group_settings(listed), "val/top1")[0]
  record.last_runs = [
    trial(tmp_path / "final", "done", {"top1": top1, "loss": loss}, lr=0.2, seed=seed)
    for seed, (top1, loss) in enumerate([(0.91, 0.2), (0.93, 0.4)])
  ]
  record.close()
  text = (tmp_path / "sweep.md").read_text()
  assert text.strip() in capsys.readouterr().out
  assert f"85.00 ± {100 * statistics.stdev([0.8, 0.9]):.2f} (2)" in text
  assert f"92.00 ± {100 * statistics.stdev([0.91, 0.93]):.2f} (2)" in text
  assert "- failed: optim.lr=9.0 seed=0: too | large" in text
  written = json.loads((tmp_path / "sweep.json").read_text())
  assert written["best"] == {"optim.lr": 0.2}
  assert [setting["figures"]["val/top1"] for setting in written["settings"]] == [[0.5, 0.7], [0.8, 0.9], []]
  assert [run["figures"]["top1"] for run in written["final"]] == [0.91, 0.93]
  assert (tmp_path / "sweep.png").stat().st_size > 1000


def test_printed_tensorboard_command_is_quoted_for_a_shell(tmp_path, capsys):
  workdir = tmp_path / "my sweeps [é]"
  workdir.mkdir()
  make_record(workdir, trials(workdir / "trials")).close()
  [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  settings  ")]
  assert shlex.split(line.partition("   (")[0]) == ["settings", "tensorboard", f"--logdir={workdir}"]


def test_finished_and_failed_trials_are_restored_but_not_running_ones(tmp_path):
  listed = trials(tmp_path)
  listed[1].status = "running"
  make_record(tmp_path, listed).write()
  again = restore_trials(tmp_path, listed)
  assert [t.status for t in again] == ["done", "waiting", "done", "done", "failed"]
  assert again[0].figures == listed[0].figures
  assert again[4].error == "too | large"
  # The next session restores the same statuses.
  assert [t.status for t in restore_trials(tmp_path, listed)] == [t.status for t in again]


def test_failure_is_reset_on_retry_or_if_the_trial_never_started(tmp_path):
  listed = trials(tmp_path)
  listed[4].attempts = 0  # its data were absent
  make_record(tmp_path, listed).write()
  assert restore_trials(tmp_path, listed)[4].status == "waiting"
  listed[4].attempts = 1
  make_record(tmp_path, listed).write()
  assert [t.status for t in restore_trials(tmp_path, listed, retry=True)] == ["done"] * 4 + ["waiting"]


def test_workdir_of_another_sweep_is_refused(tmp_path):
  make_record(tmp_path, []).write()
  for change in ({"file": "other.py"}, {"overrides": {"batch": "9"}}):
    with pytest.raises(ConfigError, match=r"--workdir: .*it.py") as error:
      make_record(tmp_path, [], **change)
    assert str(tmp_path) in str(error.value)
  make_record(tmp_path, [])


def test_record_that_is_not_json_is_reported(tmp_path):
  (tmp_path / "sweep.json").write_text("{")
  with pytest.raises(ConfigError, match=r"sweep.json .* JSON .* remove it"):
    make_record(tmp_path, [])


@pytest.mark.parametrize(
  "odd", [3, [3], [{"name": 3}], [{"attempts": "1"}], [{"figures": {"a": "1"}}], [{"figures": []}], [{"status": None}]]
)
@pytest.mark.parametrize("kind", ["trials", "final"])
def test_record_with_wrong_types_is_reported(tmp_path, kind, odd):
  (tmp_path / "sweep.json").write_text(json.dumps({kind: odd}))
  with pytest.raises(ConfigError, match=rf"sweep\.json: '{kind}' is not a list of trials"):
    make_record(tmp_path, [])


@pytest.mark.parametrize("odd", [3, [3], ["hf:a/b"], ["B_16.npz"], {"hf:a/b": "main"}])
def test_record_with_invalid_pins_is_reported(tmp_path, odd):
  (tmp_path / "sweep.json").write_text(json.dumps({"pins": odd}))
  with pytest.raises(ConfigError, match=r"sweep\.json: 'pins' is not a list of addresses hf:"):
    read_pins(tmp_path)


def test_writing_pins_keeps_the_other_values_of_a_record(tmp_path):
  make_record(tmp_path, trials(tmp_path)).write()
  before = json.loads((tmp_path / "sweep.json").read_text())
  record = make_record(tmp_path, [])
  record.study.pins.append(pin := f"hf:a/b@main:{'a' * 40}")
  record.write_pins()
  assert json.loads((tmp_path / "sweep.json").read_text()) == before | {"pins": [pin]}
  assert read_pins(tmp_path) == [pin]


@pytest.mark.heavy
def test_record_in_a_bucket_is_restored_and_receives_trial_logs(bucket):
  listed = trials(bucket / "trials")
  record = make_record(bucket, listed)
  log = record.log(listed[0])
  log.parent.mkdir(parents=True, exist_ok=True)
  log.write_text("said")
  record.keep_log(listed[0])
  record.close()
  assert (bucket / f"logs/{log.name}").read_text() == "said"
  assert {path.name for path in bucket.iterdir()} == {"logs", "sweep.json", "sweep.md", "sweep.png", "tensorboard"}
  assert [trial.status for trial in restore_trials(bucket, listed)] == [trial.status for trial in listed]
