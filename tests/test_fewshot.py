"""Tests of the fewshot verb: its output and files, errors, and the recipes."""

import csv
import json
import re

import numpy as np
import pytest

from tests import runs
from vit_jax import config, fewshot
from vit_jax.config import flags
from vit_jax.training import loop

pytestmark = pytest.mark.heavy


@pytest.mark.long
def test_command_prints_figures_writes_files_and_caches_features(tmp_path):
  loop.train(runs.parts(1, total=2), tmp_path / "run")
  words = [
    "--config=configs/fewshot.py:digits", f"--weights={tmp_path / 'run'}", "--config.evals.digits.shots=(1,2)",
    "--config.evals.digits.data.train=train[:200]", f"--json={tmp_path / 'f.json'}",
    f"--write-predictions={tmp_path / 'p.csv'}",
  ]  # fmt: skip
  output = runs.finish(runs.command("fewshot", *words, devices=2, XDG_CACHE_HOME=str(tmp_path / "cache")))
  assert "1-shot" in output and "±" in output
  assert "images of 32 px, which is the weights' own size. To change it: --config.image_size=" in output
  assert re.search(r"digits train\[:200\]: \d+ images to compute", output)
  assert "digits test: 360 images to compute" in output
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
  ("words", "problem"),
  [
    (["--weights=/nowhere.npz"], "/nowhere.npz"),
    (["--weights=x.npz", "--json=/nowhere/f.json"], "the folder /nowhere does not exist"),
    (["--weights=x.npz", "--config.evals.digits.shot=3"], "Did you mean 'shots'"),
    (
      ["--weights=x", "--config.evals.d.name=dense", "--config.evals.d.data.name=scenes", "--write-predictions=p.csv"],
      "--write-predictions: d does not predict a class for each image. Remove this flag",
    ),
  ],
)
def test_invalid_command_is_an_error_of_one_line(words, problem):
  message = runs.finish(runs.command("fewshot", "--config=configs/fewshot.py", *words), 2)
  assert problem in message
  assert "Traceback" not in message


@pytest.mark.long
def test_measurement_over_its_time_limit_ends_and_names_the_limit(tmp_path):
  loop.train(runs.parts(1, total=2), tmp_path)
  words = ["--config=configs/fewshot.py:digits", f"--weights={tmp_path}", "--config.limits.evaluation=0.1"]
  output = runs.finish(runs.command("fewshot", *words, XDG_CACHE_HOME=str(tmp_path)), 43)
  assert "no progress for 0.1 s in evaluation (config.limits.evaluation)" in output


@pytest.mark.parametrize("kind", ["knn", "linear", "dense"])
def test_every_dataset_of_every_probe_resolves(kind):
  module, _ = flags.load_module(str(runs.ROOT / "configs/probes.py"))
  for name in module.DENSE if kind == "dense" else module.SETS:
    found = config.resolve(module.get_config(f"{kind},{name}"), config.Measurement)
    assert [choice.name for choice in found.evals.values()] == ["dense" if kind == "dense" else "fewshot"]
  for wrong in (kind, f"{kind},pet", "pets"):
    with pytest.raises(ValueError, match=r"PROBE is knn, linear or dense, DATASET one of .*pets"):
      module.get_config(wrong)


@pytest.mark.long
def test_probes_on_a_whole_split_print_their_image_counts(tmp_path):
  loop.train(runs.parts(1, total=2), tmp_path / "run")
  words = [
    f"--weights={tmp_path / 'run'}", "--config.evals.digits.data.train=train[:200]",
    "--config.evals.digits.features=patches",
  ]  # fmt: skip
  files = {kind: tmp_path / f"{kind}.json" for kind in ("knn", "linear")}
  several = [
    ["fewshot", f"--config=configs/probes.py:{kind},digits", *words, f"--json={files[kind]}"] for kind in files
  ]
  output = runs.finish(runs.several(*several, XDG_CACHE_HOME=str(tmp_path)))
  assert "10 classes, all images of 'train[:200]', 360 images of 'test'" in output
  assert re.findall(r"^  (knn\d+) .*% \[[\d.]+, [\d.]+\]$", output, re.MULTILINE) == [
    "knn10",
    "knn20",
    "knn100",
    "knn200",
  ]
  assert "95 % interval (Wilson) of one draw" in output  # E1
  assert "which are all used" not in output  # 200 of 200 images
  found = {kind: json.loads(file.read_text())["evals"]["digits"] for kind, file in files.items()}
  few = found["linear"]["episodes"][0]["images"]
  assert (
    100 <= few < 120 and "200 images" in output and f"{few} images" in output
  )  # ten of a class, or half, are held out
  figures = {kind: row["figures"] for kind, row in found.items()}
  assert figures["knn"].keys() == {*(f"knn{count}_all" for count in (10, 20, 100, 200)), "images"}
  assert list(figures["linear"]) == ["linear_all", "images"] and figures["linear"]["linear_all"] > 0.3
  assert len(list((tmp_path / "vit_jax" / "features").iterdir())) == 2  # both probes share these files


def test_probe_names_are_sorted_by_their_numbers():
  names = ["knn10", "knn100", "knn2", "knn", "a10b2", "a10b10", "10"]
  assert sorted(names, key=fewshot.numeric_sort_key) == ["10", "a10b2", "a10b10", "knn", "knn2", "knn10", "knn100"]


def test_every_dataset_of_the_fewshot_recipe_resolves():
  module, _ = flags.load_module(str(runs.ROOT / "configs/fewshot.py"))
  for name in (*module.SETS, "suite"):
    found = config.resolve(module.get_config(name), config.Measurement)
    assert all(choice.name == "fewshot" for choice in found.evals.values())
  with pytest.raises(ValueError, match=r"unknown dataset \['pet'\]"):
    module.get_config("pet")
