"""Tests of the runs of a sweep: changes as flags and configs, deciding metrics, and evaluations on test."""

import itertools
import json

import PIL.Image
import pytest

from tests import runs
from tests.sweeps import studies
from vit_jax import config, schema
from vit_jax.config import Sweep, flags
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.schema import ConfigError
from vit_jax.sweeps import study, trials
from vit_jax.training import build


def make_study(tmp_path, rows, decide="val/top1", final=(), **overrides):
  """Returns the study of a small config in `tmp_path`."""
  return studies.study(tmp_path, rows, overrides, decide=decide, final=final)


# Trials.


def test_trials_exclude_test_and_equal_runs_are_listed_once(tmp_path):
  rates = [{"optim.lr": rate} for rate in (0.001, 0.1, 1e38, 0.1)]
  listed = make_study(tmp_path, [*rates, {"sead": 1}]).make_trials()
  assert [str(trial) for trial in listed] == ["optim.lr=0.001", "optim.lr=0.1", "optim.lr=1e+38", "sead=1"]
  assert [trial.status for trial in listed] == ["waiting"] * 3 + ["failed"]
  for trial in listed[:3]:
    assert list(json.loads(trial.config)["evals"]) == ["val"]
    assert trial.workdir == tmp_path / "trials" / trial.name


def test_trial_name_depends_only_on_the_resulting_config(tmp_path):
  (first,) = make_study(tmp_path, [{"seed": 1, "optim.lr": 0.5}]).make_trials()
  (second,) = make_study(tmp_path, [{"optim.lr": 5e-1}], seed="1").make_trials()
  (third,) = make_study(tmp_path, [{"seed": 2, "optim.lr": 0.5}]).make_trials()
  assert first.name == second.name != third.name


def test_every_evaluation_runs_without_a_decision(tmp_path):
  (trial,) = make_study(tmp_path, [{"seed": 1}], None).make_trials()
  assert set(json.loads(trial.config)["evals"]) == {"val", "test"}


@pytest.mark.parametrize(
  ("decide", "names"),
  [
    ("test/top1", "test images config.data.val"),
    ("top1", "<evaluation>/<figure> test, val"),
    ("vla/top1", "test, val"),
    ("val/top_1", "'val' 'top1'"),
    ("val/ema_top1", "'val'"),
  ],
)
def test_invalid_deciding_metric_is_refused(tmp_path, decide, names):
  (trial,) = make_study(tmp_path, [{}], decide).make_trials()
  assert trial.status == "failed" and decide.partition("/")[2] in trial.error
  assert all(name in trial.error for name in names.split(" ")), trial.error


def test_metric_of_the_weight_average_may_decide(tmp_path):
  (trial,) = make_study(tmp_path, [{"optim.ema": 0.9}], "val/ema_top1").make_trials()
  assert trial.status == "waiting"


@pytest.mark.parametrize(
  ("changes", "place", "suggestion"),
  [
    ({"init.from": "/nope"}, "config.init.from", "'/nope'"),
    ({"data.val": "test"}, "'val/top1'", "config.data.val"),
    ({"evals.val.split": "test[:50%]"}, "'val/top1'", "test split"),
    ({"data.val": "train[90:120]"}, "'val/top1'", "train split"),
    ({"data.train": "train[9000:]"}, "config.data", "train[9000:]"),
  ],
)
def test_absent_data_and_shared_images_are_found_before_the_start(tmp_path, changes, place, suggestion):
  prepare_dataset("digits")
  made = make_study(tmp_path, [{"seed": 5}, changes])
  listed = made.make_trials()
  if listed[1].config is not None:
    study.check_data(listed, "val/top1")
  assert [trial.status for trial in listed] == ["waiting", "failed"]
  assert place in listed[1].error and suggestion in listed[1].error
  with pytest.raises(ConfigError):
    study.check_data(listed[1:], "val/top1")


# Final runs.


def test_final_runs_evaluate_only_test(tmp_path):
  final = [{"data.train": "train[:160]", "seed": 4}]
  made = make_study(tmp_path, [{"optim.lr": 0.1, "seed": 3}], final=final)
  best = trials.group_settings(made.make_trials())[0]
  (last,) = made.make_last_runs(best)
  run = json.loads(last.config)
  assert list(run["evals"]) == ["test"] and run["evals"]["test"]["every"] == "100%"
  assert (run["data"]["train"], run["seed"], run["optim"]["lr"]) == ("train[:160]", 4, 0.1)
  assert last.workdir == tmp_path / "final" / last.name


def test_trials_of_the_best_setting_are_evaluated_without_final(tmp_path):
  made = make_study(tmp_path, [{"optim.lr": 0.1, "seed": 3}])
  (trial,) = made.make_trials()
  (last,) = made.make_last_runs(trials.group_settings([trial])[0])
  assert (last.name, last.config, last.figures) == (trial.name, trial.config, {})
  assert last.workdir == tmp_path / "final" / trial.name


@pytest.mark.parametrize(
  ("rows", "final", "overrides", "place", "word"),
  [
    ([{"sead": 1}], (), {}, "config.sead", "seed"),
    ([{"sead": 1}, {"tead": 1}], (), {}, "config.sead", "no trial can be started"),
    ([{}], [{"sead": 1}], {}, "sweep: final: sead=1", "config.sead"),
    ([{"seed": 1}], (), {"seed": "3"}, "--config.seed", "Change sweep()"),
    ([{}], [{"optim.lr": 1.0}], {"optim.lr": "3"}, "--config.optim.lr", "Change sweep()"),
    ([{"model": {"name": "vit_2_4_32"}}], (), {"model.depth": "3"}, "--config.model.depth", "Change sweep()"),
  ],
)
def test_invalid_study_is_an_error(tmp_path, rows, final, overrides, place, word):
  made = make_study(tmp_path, rows, final=final, **overrides)
  with pytest.raises(ConfigError) as error:
    made.check(made.make_trials())
  assert place in str(error.value) and word in str(error.value)


# The sweep of a config file.


@pytest.mark.parametrize(
  ("body", "word"),
  [
    ("", "defines no sweep()"),
    ("def sweep():\n  return 3", "returned 3. Allowed: a Sweep"),
    ("def sweep():\n  return 1 / 0", "ZeroDivisionError"),
    ("def sweep(a):\n  return [{}]", "TypeError"),
  ],
)
def test_file_without_a_valid_sweep_is_named(tmp_path, body, word):
  file = studies.sweep_file(tmp_path, body)
  with pytest.raises(ConfigError) as error:
    study.load_sweep(file)
  assert file in str(error.value) and word in str(error.value)


def test_sweep_receives_the_argument_of_its_file(tmp_path):
  file = studies.sweep_file(tmp_path, "def sweep(lr):\n  return [{'seed': int(lr)}]")
  assert study.load_sweep(f"{file}:7").trials == [{"seed": 7}]


def test_list_of_changes_becomes_a_sweep_without_a_decision(tmp_path):
  file = studies.sweep_file(tmp_path, "def sweep():\n  return [{'seed': 1}]")
  assert study.load_sweep(file) == Sweep([{"seed": 1}], decide=None)


@pytest.mark.parametrize(
  ("changes", "expected"),
  [
    ({"optim.lr": 0.5, "seed": 7}, {"optim.lr": 0.5, "seed": 7}),
    ({"optim.schedule": {"name": "linear"}}, {"optim.schedule.name": "linear", "optim.schedule.end": 0.0}),
    ({"data.warp": {"name": "none"}}, {"data.warp.name": "none"}),
    ({"optim.clip": None, "data.flip": True}, {"optim.clip": None, "data.flip": True}),
    ({"data.mean": [0.1, 0.2, 0.3]}, {"data.mean": (0.1, 0.2, 0.3)}),
    ({"total": "7ep"}, {"total": "7ep"}),
    ({"model": {"name": "cct_4_3x2_32", "depth": 3}}, {"model.name": "cct_4_3x2_32", "model.depth": 3}),
  ],
)
def test_flags_of_changes_reproduce_the_config(changes, expected):
  edited = flags.load_config(str(runs.ROOT / "configs/digits.py"))
  for key, text in study.format_flags(changes, schema.to_plain(edited)).items():
    flags.set_value(edited, key, text)
  run = schema.to_plain(build.complete(config.resolve(edited)))
  for key, value in expected.items():
    made = run
    for name in key.split("."):
      made = made[name]
    assert schema.to_plain(value) == made, key


def test_too_many_trials_are_refused():
  for values in ({"seed": itertools.count()}, dict.fromkeys("abc", range(10_000)), {"a": range(10**12)}):
    with pytest.raises(ConfigError, match="more than 100,000 trials"):
      config.product(values)
  for values in ({"seed": itertools.count()}, {"seed": range(200_000)}, {"a": (1, 2), "seed": itertools.count()}):
    with pytest.raises(ConfigError, match="more than 100,000 trials"):
      config.zipped(values)
  half = config.product({"seed": range(60_000)})
  for sweep in ({"trials": half + half}, {"trials": half, "final": half + half}):
    with pytest.raises(ConfigError, match="more than 100,000 trials"):
      config.Sweep(**sweep)
  assert len(config.Sweep(config.zipped({"seed": range(100_000)})).trials) == 100_000
  with pytest.raises(ConfigError, match="more than 100,000 trials"):
    config.sample(10**12, {"seed": (0, 1)})
  with pytest.raises(ConfigError, match="trials is <generator"):
    config.Sweep({} for _ in itertools.count())


def test_tasks_of_a_suite_with_absent_data_have_not_failed(tmp_path, monkeypatch):
  prepare_dataset("digits")
  rows = [{"data.name": name, "data.train": "train[:96]"} for name in ("digits", "cifar10")]
  final = [{**changes, "seed": seed} for changes in rows for seed in (1, 2)]
  made = studies.study(tmp_path, rows, {"data.test": "test"}, final=final, over="data.name")
  listed = made.make_trials()
  made.check(listed)
  study.check_data(listed, "val/top1", "data.name")
  assert [trial.status for trial in listed] == ["waiting", "absent"]
  assert "python -m vit_jax.prepare cifar10" in listed[1].error
  listed[0].status = "done"
  (setting,) = trials.group_settings(trials.select_measured(listed, "data.name"), "data.name")
  assert [trial.changes for trial in made.make_last_runs(setting)] == final[:2]
  with pytest.raises(ConfigError, match=r"python -m vit_jax\.prepare cifar10"):
    study.check_data(listed[1:], "val/top1", "data.name")


def test_suite_names_its_task_in_every_row(tmp_path):
  with pytest.raises(ConfigError, match=r"over is 'data\.name'.*all of `trials` and `final` change"):
    studies.study(tmp_path, [{"data.name": "digits"}, {"seed": 1}], over="data.name")


FOLDER = """
from vit_jax.config import Sweep, product, recipe


def get_config():
  return recipe(
    model=dict(name="vit_2_4_32", depth=1, width=16, heads=2, hidden=16),
    data=dict(name="folder", path={path!r}, image_size=32),
    optim=dict(name="sgd", lr=0.1),
    total=2,
    batch=4,
  )


def sweep():
  return Sweep(product({{"optim.lr": (1e-3, 3e-3)}}), final={final})
"""


@pytest.mark.parametrize("overrides", [{}, {"evals.val.every": "1"}, {"evals.test.every": "50%"}])
@pytest.mark.parametrize("final", [[], [{"data.validation": 0}]])
def test_default_validation_split_of_a_folder_decides(tmp_path, overrides, final):
  for label in "ab":
    (tmp_path / "photos" / label).mkdir(parents=True)
    for index in range(20):
      PIL.Image.new("L", (32, 32), index * 10 + (label == "b")).save(tmp_path / "photos" / label / f"{index}.png")
  file = tmp_path / "it.py"
  file.write_text(FOLDER.format(path=str(tmp_path / "photos"), final=final))
  made = study.Study(str(file), overrides, study.load_sweep(str(file)), tmp_path)
  listed = made.make_trials()
  made.check(listed)
  study.check_data(listed, "val/top1")
  assert [trial.status for trial in listed] == ["waiting"] * 2
  for trial in listed:
    run = build.complete(config.resolve(flags.load_config(str(file), trial.flags)))
    assert config.dumps(run) == trial.config
    assert {name: choice.args["split"] for name, choice in run.evals.items()} == {"val": "val"}
    every = overrides.get("evals.val.every", overrides.get("evals.test.every", "20%"))
    assert str(run.evals["val"].args["every"]) == every and run.data.args["validation"] == 0.1
  for trial in made.make_last_runs(trials.group_settings(listed, None)[0]) if final else ():
    assert trial.config is not None and list(json.loads(trial.config)["evals"]) == ["test"]
