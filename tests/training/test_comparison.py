"""vit_jax/training/comparison.py and the loop: verdicts during a run, the stop, restarts, and broken runs."""

import dataclasses
import json
import time

import numpy as np
import pytest

from tests import runs
from vit_jax import certificates, runtime, train
from vit_jax.certificates import curves
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.data import digits
from vit_jax.reports import published, recorded, report
from vit_jax.schema import to_plain
from vit_jax.training import comparison, loop

STEPS = 4


def publish(run, level, monkeypatch):
  """Adds a published curve with three seeds, whose accuracy is about `level` at each fraction."""
  fractions = np.array([0.0, 1.0])
  seeds = np.clip(level + np.array([[-0.01], [0.0], [0.01]]) * np.ones(2), 0, 1)
  spread = curves.Spread(fractions, seeds.var(0, ddof=1)[None], np.array([2]))
  groups = {key: to_plain(run)[key] for key in ("model", "data", "optim", "task", "total", "batch")}
  curve = certificates.Curve("recipe", "address", "three seeds", groups, "test", False, fractions, seeds, spread, 0)
  monkeypatch.setattr(certificates, "list_curves", lambda: (curve,))


def records(workdir):
  return list(map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines()))


@pytest.fixture(scope="module")
def parts():
  return runs.parts(1, evals__test__every="1", total=STEPS)


def with_certificate(parts, mode):
  return dataclasses.replace(
    parts, run=dataclasses.replace(parts.run, log=dataclasses.replace(parts.run.log, certificate=mode))
  )


@pytest.mark.heavy
def test_run_below_the_curve_stops_with_46_and_continues_with_report(parts, tmp_path, monkeypatch, capsys):
  publish(parts.run, 0.9, monkeypatch)
  whole = loop.train(with_certificate(parts, "report"), tmp_path / "whole")
  capsys.readouterr()
  with pytest.raises(runtime.Stop) as stopped:
    loop.train(with_certificate(parts, "stop"), tmp_path / "stopped")
  assert stopped.value.code == runtime.EXIT_OFF_TRACK == 46
  message = str(stopped.value)
  assert "below the expected range of recipe at two consecutive verdicts, after 25 and 50 % of the schedule" in message
  assert "the same command with --config.log.certificate=report continues from it" in message
  assert message.endswith(f". Show the curve: python -m vit_jax.report {tmp_path}/stopped")
  text = capsys.readouterr().out
  assert "compared with recipe: three seeds (address)" in text
  assert text.count("%: below") == 2 and "25 %: top-1 " in text and "has no effect" not in text
  before = records(tmp_path / "stopped")
  with pytest.raises(runtime.Stop) as again:  # the same command, also after a kill between the save and the exit
    loop.train(with_certificate(parts, "stop"), tmp_path / "stopped")
  assert (again.value.code, str(again.value)) == (46, message)
  assert records(tmp_path / "stopped") == before and "compiled" not in capsys.readouterr().out
  report.make_report([tmp_path / "stopped"], tmp_path / "stopped.html", limit=0)
  assert "below. The run stops with exit code 46: top-1 was" in (tmp_path / "stopped.html").read_text()
  continued = loop.train(with_certificate(parts, "report"), tmp_path / "stopped")
  assert continued["certificate"] == whole["certificate"]
  assert continued["weights_sha256"] == whole["weights_sha256"]
  verdicts = whole["certificate"]["verdicts"]
  assert [each["step"] for each in verdicts] == [1, 2, 3, 4]
  figures = {line["step"]: line["test/top1"] for line in records(tmp_path / "whole") if "test/top1" in line}
  assert all(each["value"] == figures[each["step"]] for each in verdicts)
  assert {each["verdict"] for each in verdicts} == {"below"}


@pytest.mark.long
def test_runs_on_track_or_with_another_config_do_not_stop(parts, tmp_path, monkeypatch, capsys):
  publish(parts.run, 0.1, monkeypatch)
  result = loop.train(with_certificate(parts, "stop"), tmp_path / "a")
  assert result["certificate"]["verdicts"] and "on track" in result["certificate"]["summary"]
  publish(runs.run(optim__lr=1e-3, evals__test__every="1", total=STEPS), 0.9, monkeypatch)
  capsys.readouterr()
  result = loop.train(with_certificate(parts, "stop"), tmp_path / "b")
  assert result["certificate"]["verdicts"] == [] and "optim.lr: 0.001 -> 0.003" in result["certificate"]["refused"]
  text = capsys.readouterr().out
  assert "not compared with the published curve of recipe: the config differs in optim.lr" in text
  assert "certificate=stop has no effect: the run is not compared with the published curve\n" in text
  assert "certificate" not in loop.train(with_certificate(parts, "off"), tmp_path / "c")


@pytest.mark.parametrize(
  ("every", "change", "problem"),
  [
    (1, {}, None),
    (2, {}, "no two consecutive verdicts before the end of the run can be below the range"),
    (4, {}, "Evaluate more often, for example with --config.evals.test.every=5%"),
    (1, {"refused": ["optim.lr: 1 -> 2"]}, "the run is not compared with the published curve"),
    (1, None, "no curve is published for this model, dataset and task"),
  ],
)
def test_stop_without_effect_is_a_warning(parts, monkeypatch, every, change, problem):
  publish(parts.run, 0.9, monkeypatch)
  experiment = dataclasses.replace(
    with_certificate(parts, "stop"), evals={"test": parts.evals["test"]._replace(every=every)}
  )
  certificate = comparison.find_certificate(experiment.run, STEPS) if change is not None else None
  if change:
    certificate = dataclasses.replace(certificate, match=certificate.match._replace(**change))
  warnings = [line for line in comparison.describe_start(certificate, experiment) if "warning" in line]
  assert len(warnings) == (problem is not None) and all(problem in line for line in warnings)
  assert "warning" not in str(comparison.describe_start(certificate, with_certificate(experiment, "report")))


@pytest.mark.long
def test_run_whose_length_was_changed_is_not_compared(tmp_path, monkeypatch):
  short, long = (runs.parts(1, evals__test__every="1", total=total) for total in ("2", "4"))
  publish(long.run, 0.1, monkeypatch)
  loop.train(short, tmp_path)
  result = loop.train(long, tmp_path)
  assert result["certificate"]["refused"] == ["total: the run had another length before a restart"]
  assert result["certificate"]["verdicts"] == []
  assert published.compare_recorded_run(recorded.read_run(tmp_path, "a")).verdicts == []


@pytest.mark.parametrize(
  "edit",
  [{"certificate": None}, {"certificate": [1]}, {"selection": [1]}, {"selection": {"metric": 5}}, {"goodput": None}],
)
def test_edited_result_is_measured_again(tmp_path, edit):
  result = {"steps": STEPS, "train_seconds": 1.0, "images_per_second": 1.0}
  (tmp_path / "result.json").write_text(json.dumps(result))
  assert loop.load_result(tmp_path, STEPS) == result
  (tmp_path / "result.json").write_text(json.dumps(result | edit))
  assert loop.load_result(tmp_path, STEPS) is None


@pytest.mark.heavy
def test_summary_is_printed_at_the_end(tmp_path, monkeypatch, capsys):
  prepare_dataset("digits")
  words = [f"--config.{key}={value}" for key, value in (runs.SMALL | {"total": "3"}).items()]
  publish(runs.run(total="3"), 0.1, monkeypatch)
  train.main(["--config=configs/digits.py", f"--workdir={tmp_path}", "--no-report", *words])
  assert (
    "  Compared with the published curve of recipe: on track at 100 % of the schedule.\n" in capsys.readouterr().out
  )


BROKEN = {
  "ten times the learning rate": {"optim.lr": "3e-2"},
  "a tenth of the learning rate": {"optim.lr": "3e-4"},
  "labels shifted by one": {},
}


@pytest.mark.full
@pytest.mark.parametrize("name", BROKEN)
def test_broken_run_of_digits_is_found_by_10_percent(tmp_path, monkeypatch, name):
  """The config is that of the recipe, so the verdicts are not refused. The fault is in the code or in the data."""
  data = tmp_path / "data"
  if "labels" in name:
    shift_labels(monkeypatch)
  prepare_dataset("digits", str(data))
  flags = {"evals.test.every": "1ep", "total": "30ep"} | BROKEN[name]
  words = [f"--config.{key}={value}" for key, value in flags.items()]
  # The model has its full size, so optimised programs save more time than their compilation takes.
  optimised = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
  started = runs.command(
    "train", "--config=configs/digits.py", f"--workdir={tmp_path / 'run'}", *words, TFDS_DATA_DIR=str(data), **optimised
  )
  curve = next(curve for curve in certificates.list_curves() if curve.name == "configs/digits.py")
  try:
    values = wait_for_accuracies(started, tmp_path / "run" / "metrics.jsonl", 0.07 * 674)
  finally:
    started.kill()
    started.communicate()
  verdicts = {step: certificates.judge(value, curve.compute_band(step / 674)) for step, value in values.items()}
  assert set(verdicts.values()) != {"on track"}, values


def shift_labels(monkeypatch):
  """Adds one to the labels of the training images of `digits`."""
  examples = digits.examples()
  shifted = [example | {"label": (example["label"] + 1) % 10} for example in examples["train"]]
  monkeypatch.setattr(digits, "examples", lambda: examples | {"train": shifted})


def wait_for_accuracies(started, file, last):
  """Returns {step: top-1} of the evaluations up to a step, as soon as a later step is recorded."""
  deadline = time.monotonic() + 240
  while time.monotonic() < deadline:
    assert started.poll() is None, started.communicate()
    rows = records(file.parent) if file.exists() else []
    if any(row["step"] > last for row in rows):
      return {row["step"]: row["test/top1"] for row in rows if "test/top1" in row and row["step"] <= last}
    time.sleep(0.5)
  raise AssertionError(f"no step after {last} was recorded in {file}")
