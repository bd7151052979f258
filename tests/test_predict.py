"""Tests of the predict verb and related verbs on a short run that is trained on a folder of photographs."""

import csv
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from tests import runs, small_weights
from tests.corpora import folders
from tests.image_files import encode, picture
from vit_jax import config, convert, fewshot, predict
from vit_jax.config import flags
from vit_jax.schema import ConfigError
from vit_jax.training import build, loop

CLASSES = ("=cat", "dog", "owl")
KEYS = {
  **{f"model.{key}": value for key, value in (("depth", "1"), ("width", "16"), ("heads", "1"), ("hidden", "16"))},
  "batch": "8",
  "total": "4",
  "data.image_size": "32",
  "optim.ema": "0.5",
  "data.mean": "(0.4,0.5,0.6)",
  "data.test_crop.name": "centre",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """The workdir of a run, and its folder of photographs."""
  import jax

  root = tmp_path_factory.mktemp("run")
  photos = folders.folder(root / "photos", 12, CLASSES)
  folders.folder(root / "photos", 7, CLASSES, "test")
  keys = KEYS | {"data.path": str(photos)}
  run = build.complete(config.resolve(flags.load_config(str(runs.ROOT / "configs/folder.py") + ":cct_2_3x2_32", keys)))
  loop.train(build.build(run, jax.devices()[:1]), root / "run")
  return root / "run", photos


def table(path):
  with open(path, newline="", encoding="utf-8") as file:
    return list(csv.DictReader(file))


@pytest.mark.long
@pytest.mark.heavy
def test_predictions_match_the_evaluation_of_the_run(trained, tmp_path):
  workdir, photos = trained
  bad = photos.parent / "bad.jpg"
  bad.write_bytes(b"\xff\xd8\xff no image")
  files = [str(tmp_path / name) for name in ("e.csv", "e.npz", "p.csv", "p.npz")]
  commands = [
    ["evaluate", f"--workdir={workdir}", f"--write-predictions={files[0]}"],
    ["evaluate", f"--workdir={workdir}", f"--write-predictions={files[1]}"],
    ["predict", f"--weights={workdir}", f"--out={files[2]}", f"{photos}/test", str(bad)],
    ["predict", f"--weights={workdir}", f"--out={files[3]}", "--features", "--ema", f"{photos}/test"],
    ["predict", f"--weights={workdir}", "--batch=3", f"{photos}/test", str(bad)],
  ]
  output = runs.finish(runs.several(*commands, devices=2), 1)
  codes = [line for line in output.splitlines() if line.startswith("exit ")]
  assert codes == ["exit 0", "exit 0", "exit 1", "exit 0", "exit 1"]
  measured = {row["id"]: row for row in table(tmp_path / "e.csv")}
  rows = table(files[2])
  assert [row["file"] for row in rows[:-1]] == sorted(f"{photos}/{name}" for name in measured)
  assert rows[-1]["file"] == str(bad) and "not a complete image" in rows[-1]["reason"]
  for row in rows[:-1]:
    same = measured[row["file"].removeprefix(f"{photos}/")]
    assert [row[f"name{i}"] for i in (1, 2, 3)] == [same[f"name{i}"] for i in (1, 2, 3)]
    shares = [[float(each[f"probability{i}"]) for i in (1, 2, 3)] for each in (row, same)]
    np.testing.assert_allclose(*shares, rtol=1e-4)
    assert same["label_name"].removeprefix("'") == row["file"].split("/")[-2]
    assert float(same["confidence"]) == shares[1][0]
  with np.load(tmp_path / "e-ema.npz") as average, np.load(files[3]) as predicted:
    assert tuple(predicted["classes"]) == tuple(average["classes"]) == CLASSES
    order = [list(predicted["id"]).index(f"{photos}/{name}") for name in average["id"]]
    np.testing.assert_array_equal(predicted["best"][order], average["best"])
    np.testing.assert_allclose(predicted["probability"][order], average["probability"], rtol=1e-4)
    assert predicted["features"].shape[0] == 21
  shown = output.rpartition("exit 0")[2]
  assert "and 2 more" in shown and "1 of 22 files is bad" in shown and "=cat" in shown


@pytest.mark.long
def test_example_script_uses_the_run(trained):
  workdir, photos = trained
  words = [sys.executable, "examples/use_a_model.py", str(workdir), f"{photos}/test/dog/0.jpg"]
  ended = subprocess.run(words, cwd=runs.ROOT, env=os.environ | {"PYTHONPATH": str(runs.ROOT)}, capture_output=True)
  output = ended.stdout.decode()
  assert ended.returncode == 0, ended.stderr.decode()[-2000:]
  assert all(
    word in output for word in (*CLASSES, "features (2, 16)", "blocks/0/attention/weights", "gradient of", "inside: ")
  )


@pytest.mark.long
def test_paths_are_read_from_a_pipe_and_a_manifest(trained, tmp_path):
  workdir, photos = trained
  manifest, out = tmp_path / "all.jsonl", tmp_path / "p.jsonl"
  manifest.write_text(json.dumps({"path": f"{photos}/test/owl/3.jpg"}) + "\n")
  words = [sys.executable, "-m", "vit_jax.predict", f"--weights={workdir}", f"--out={out}"]
  stdin = f"{photos}/test/dog/1.jpg\n{manifest}\n".encode()
  ended = subprocess.run(words, cwd=runs.ROOT, input=stdin, capture_output=True)
  assert ended.returncode == 0, ended.stderr.decode()[-2000:]
  rows = [json.loads(line) for line in out.read_text().splitlines()]
  assert [row["file"].removeprefix(f"{photos}/test/") for row in rows] == ["dog/1.jpg", "owl/3.jpg"]
  assert all(set(row["names"]) == set(CLASSES) for row in rows)


class Terminal:
  """A stdin of a terminal without input."""

  buffer = None

  def isatty(self):
    return True


@pytest.mark.parametrize(
  ("words", "message"),
  [
    ([], "no PATH. Name files, folders or a manifest"),
    (["none.jpg"], "'none.jpg' does not exist"),
    (["a.jpg", "--features"], "--features: no output file"),
    (["a.jpg", "--out=p.txt"], ".txt is not a format"),
    (["a.jpg", "--batch=0"], "--batch: 0 is out of range"),
    (["a.jpg", "--weigths=a"], "Did you mean --weights=a?"),
  ],
)
def test_invalid_command_is_an_error_before_weights_are_read(words, message, monkeypatch):
  monkeypatch.setattr("sys.stdin", Terminal())
  with pytest.raises(ConfigError) as caught:
    predict.main(["--weights=none.npz", *words])
  assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_an_error_in_every_verb(tmp_path, value):
  file = small_weights.file(tmp_path)
  tensors = safetensors.numpy.load_file(file)
  tensors["blocks.1.mlp.fc1.bias"][3] = value
  safetensors.numpy.save_file(tensors, file)
  place = f"tensor blocks.1.mlp.fc1.bias is not finite at [3] ({value})"
  (tmp_path / "photo.png").write_bytes(encode(picture(40, 50)))
  for module, words in (
    (predict, [f"--weights={file}", f"--out={tmp_path / 'a.csv'}", str(tmp_path / "photo.png")]),
    (convert, [str(file), str(tmp_path / "a.onnx")]),
    (fewshot, [f"--weights={file}", f"--config={runs.ROOT / 'configs/fewshot.py'}"]),
  ):
    with pytest.raises(ConfigError) as error:
      module.main(words)
    assert place in str(error.value), module
  assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "photo.png"]
