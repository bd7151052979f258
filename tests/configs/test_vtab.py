"""The VTAB recipe: the paper's protocol on every task, its argument, and what its sweep leads to."""

import json

import pytest

from tests import recipes
from vit_jax import config, schema
from vit_jax.data import catalog, sources
from vit_jax.data.catalog import vtab
from vit_jax.sweeps import study, trials

TASKS = list(vtab.TASKS)


@pytest.fixture(autouse=True)
def nothing_prepared(monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", "/nowhere")


def made(argument, tmp_path, **flags):
  path = recipes.path(f"vtab:{argument}")
  return study.Study(path, {"init.from": "weights.npz", **flags}, study.load_sweep(path), tmp_path)


def splits(trial):
  """Images that a trial trains on and is tested on."""
  data = config.resolve(json.loads(trial.config)).data
  return [catalog.open_known_split(data, split) for split in ("train", "test")]


def test_the_tasks_are_those_of_the_catalog():
  assert list(recipes.module("vtab").TASKS) == TASKS


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_trained_by_the_papers_setting(name):
  run = recipes.run(f"vtab:ViT-L/16,{name}", init__from="weights.npz")
  data, optim = run.data.args, run.optim.args
  assert (run.data.name, data["image_size"], run.model.name) == (name, 384, "ViT-L/16")
  assert (data["crop"].name, data["test_crop"].name, data["flip"]) == ("resize", "resize", False)
  assert (str(run.total), run.batch, optim["lr"], optim["momentum"], optim["weight_decay"]) == (
    "2500",
    512,
    0.01,
    0.9,
    0,
  )
  assert [len(catalog.open_known_split(run.data, split)) for split in ("train", "val")] == [800, 200]


def test_a_task_is_flipped_only_if_its_labels_allow():
  def changes(name):
    flags = {"data__crop": "default", "data__flip": "default", "init__from": "weights.npz"}
    data = recipes.run(f"vtab:ViT-B/16,{name}", **flags).data.args
    return data["crop"].name, data["flip"]

  assert [changes(name) for name in ("dtd", "clevr_count", "smallnorb_azimuth", "dsprites_location")] == [
    ("inception", True), ("resize", True), ("inception", False), ("resize", False)
  ]  # fmt: skip


@pytest.mark.long
def test_a_sweep_selects_for_all_tasks_and_trains_on_1000_images(tmp_path):
  sweep = made("ViT-B/16,all", tmp_path)
  listed = sweep.make_trials()
  assert (len(listed), {trial.error for trial in listed}) == (19 * 4, {""})
  settings = trials.group_settings(listed, "data.name")
  assert [len(setting.trials) for setting in settings] == [19] * 4
  some = trials.Setting(settings[0].changes, settings[0].trials[:2])  # as if the other data were not there
  last = sweep.make_last_runs(some)
  assert [(trial.changes["data.name"], trial.changes["seed"]) for trial in last] == [
    (name, seed) for name in TASKS[:2] for seed in range(3)
  ]
  for trial in last:
    train, test = splits(trial)
    assert len(train) == 1000 and not sources.share_records(train, test)
    assert list(config.resolve(json.loads(trial.config)).evals) == ["test"]


def test_the_published_setting_is_not_searched_for(tmp_path):
  listed = made("ViT-B/16,dtd,published", tmp_path).make_trials()
  assert len(listed) == 3 and len(recipes.module("vtab").sweep("ViT-B/16,all,published").trials) == 19 * 3
  assert {len(splits(trial)[0]) for trial in listed} == {1000}
  runs = [config.resolve(json.loads(trial.config)) for trial in listed]
  assert {(run.optim.args["lr"], str(run.total), *run.evals) for run in runs} == {(0.01, "2500", "test")}


@pytest.mark.parametrize(
  ("argument", "message"),
  [
    ("ViT-B/16,dtt", "unknown task 'dtt'"),
    ("ViT-B/16,dtd,best", "expected MODEL,TASK or"),
    ("a,dtd,,b", "expected MODEL,TASK or"),
  ],
)
def test_another_argument_is_a_mistake(argument, message):
  with pytest.raises(schema.ConfigError, match=message):
    recipes.load(f"vtab:{argument}")
