"""The fewshot verb: what it prints and writes, mistakes, the recipe."""

import csv
import json

import numpy as np
import pytest

from tests import runs
from vit_jax import config, flags, loop

pytestmark = pytest.mark.heavy


def test_the_command_prints_writes_and_keeps_features(tmp_path):
  loop.train(runs.parts(1, total=2), tmp_path / "run")
  told = [
    "--config=configs/fewshot.py:digits", f"--weights={tmp_path / 'run'}", "--config.evals.digits.shots=(1,2)",
    "--config.evals.digits.data.train=train[:200]", f"--json={tmp_path / 'f.json'}",
    f"--write-predictions={tmp_path / 'p.csv'}",
  ]  # fmt: skip
  said = runs.finish(runs.command("fewshot", *told, devices=2, XDG_CACHE_HOME=str(tmp_path / "cache")))
  assert "1-shot" in said and "±" in said
  found = json.loads((tmp_path / "f.json").read_text())["evals"]["digits"]
  rows = list(csv.DictReader((tmp_path / "p.csv").open()))
  assert len(rows) == found["figures"]["images"] == 360
  assert len({row["id"] for row in rows}) == 360
  for k in (1, 2):
    top1 = [np.mean([row[f"ridge_{k}shot_seed{seed}"] == row["label"] for row in rows]) for seed in range(3)]
    assert found["figures"][f"ridge_{k}shot"] == pytest.approx(np.mean(top1))
    assert found["figures"][f"ridge_{k}shot_std"] == pytest.approx(np.std(top1, ddof=1))
  assert [len(found["drawn"][str(seed)]) for seed in range(3)] == [20] * 3
  assert len(list((tmp_path / "cache" / "vit_jax" / "features").iterdir())) == 2


@pytest.mark.parametrize(
  ("told", "says"),
  [
    (["--weights=/nowhere.npz"], "/nowhere.npz"),
    (["--weights=x.npz", "--json=/nowhere/f.json"], "there is no folder /nowhere"),
    (["--weights=x.npz", "--config.evals.digits.shot=3"], "Did you mean 'shots'"),
  ],
)
def test_a_mistake_is_one_line(told, says):
  message = runs.finish(runs.command("fewshot", "--config=configs/fewshot.py", *told), 2)
  assert says in message
  assert "Traceback" not in message


def test_a_measurement_that_takes_too_long_ends_by_the_limit_that_it_names(tmp_path):
  loop.train(runs.parts(1, total=2), tmp_path)
  told = ["--config=configs/fewshot.py:digits", f"--weights={tmp_path}", "--config.limits.evaluation=0.1"]
  said = runs.finish(runs.command("fewshot", *told, XDG_CACHE_HOME=str(tmp_path)), 43)
  assert "nothing happened for 0.1 s in evaluation (config.limits.evaluation)" in said


def test_every_dataset_of_the_recipe_resolves():
  module, _ = flags.module(str(runs.ROOT / "configs/fewshot.py"))
  for name in (*module.SETS, "suite"):
    found = config.resolve(module.get_config(name), config.Measurement)
    assert all(choice.name == "fewshot" for choice in found.evals.values())
  with pytest.raises(ValueError, match=r"unknown dataset \['pet'\]"):
    module.get_config("pet")
