"""Tests of other user paths in a bucket: converted weights, predictions, features and outputs of evaluations."""

import filecmp
import importlib

import numpy as np
import pytest

from tests import runs
from tests.evals.test_features import Model, extracted
from tests.predictions import drawn
from tests.test_convert import VIT, written
from vit_jax import checkpoints, cli, convert, importers
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.evals import metrics
from vit_jax.importers.formats import containers
from vit_jax.schema import ConfigError
from vit_jax.storage import files, paths
from vit_jax.training import loop

pytestmark = pytest.mark.heavy


def verb(capsys, name, *words):
  """Runs a verb in this process, and returns (exit code, printed text)."""
  code = 0
  try:
    cli.run_verb(lambda: importlib.import_module(f"vit_jax.{name}").main(words))
  except SystemExit as end:
    code = end.code
  out, err = capsys.readouterr()
  return code, out + err


def test_weights_are_unchanged_by_conversions_in_a_bucket(tmp_path, bucket, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  written(tmp_path / "a.npz")
  convert.convert(tmp_path / "a.npz", bucket / "b.safetensors", "timm", {})
  convert.convert(bucket / "b.safetensors", bucket / "hub/model.safetensors", "hf", {"heads": 2})
  convert.convert(bucket / "hub", bucket / "workdir", None, {})  # includes its config.json
  convert.convert(bucket / "workdir", bucket / "c.npz", "vit_jax", {})
  (tmp_path / "c.npz").write_bytes((bucket / "c.npz").read_bytes())
  first, end = np.load(tmp_path / "a.npz"), np.load(tmp_path / "c.npz")
  assert sorted(first) == sorted(end)
  assert all(np.array_equal(first[name], end[name]) for name in first)
  assert importers.is_workdir(bucket / "workdir")
  with pytest.raises(ConfigError, match="already exists"):
    convert.convert(tmp_path / "a.npz", bucket / "workdir", None, {})


def test_weights_and_caches_may_both_be_in_a_bucket(tmp_path, bucket, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(bucket / "cache"))
  monkeypatch.setenv("HOME", str(tmp_path))
  (bucket / "a.npz").write_bytes(b"some bytes")
  copy = files.get_local_path(bucket / "a.npz")
  assert copy.read_bytes() == b"some bytes" and copy.is_relative_to(tmp_path / ".cache/vit_jax/objects")


def test_error_of_weights_in_a_bucket_names_the_object(tmp_path, bucket, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  (bucket / "a.npz").write_bytes(b"no archive")
  with pytest.raises(ConfigError, match=f"^{bucket}/a.npz: cannot be read: "):
    containers.read(bucket / "a.npz")
  with pytest.raises(ConfigError, match=f"no object '{bucket}/b.npz' in the bucket"):
    importers.load(f"{bucket}/b.npz")


@pytest.mark.long
def test_workdir_of_a_teacher_may_be_in_a_bucket(bucket):
  arrays = {path: np.zeros(shape, np.float32) for path, shape in importers.layout.compute_shapes(VIT).items()}
  checkpoints.write_weights(bucket, arrays, {"model": VIT.to_json()})
  found = importers.open_weights(str(bucket), 32, "float32")
  assert found.description.model.name == VIT.model.name
  assert sorted(found.load()) == sorted(arrays)
  assert checkpoints.describe_damage(str(bucket)) == ""


@pytest.mark.long
@pytest.mark.parametrize("name", ["p.csv", "p.npz"])
def test_predictions_in_a_bucket_and_on_a_disk_are_equal(tmp_path, bucket, name):
  predictions = drawn(0, 20, 5, 5, None)
  ids = [f"image {i}" for i in range(20)]
  for folder in (tmp_path, bucket):
    metrics.write_predictions(predictions, ids, folder / name)
  (tmp_path / "copy").write_bytes((bucket / name).read_bytes())
  if name.endswith(".csv"):
    assert filecmp.cmp(tmp_path / "copy", tmp_path / name, shallow=False)
  else:  # archives contain times
    first, second = np.load(tmp_path / name), np.load(tmp_path / "copy")
    assert all(np.array_equal(first[key], second[key]) for key in first)


def test_features_are_cached_in_a_bucket(bucket):
  model = Model()
  extracted(model, [5, 7, 30], bucket / "features.npz")
  position, _ = extracted(model, [1, 5, 30, 44], bucket / "features.npz")
  assert position.tolist() == [1, 5, 30, 44]
  assert sorted(model.computed) == [1, 5, 7, 30, 44]


@pytest.mark.long
def test_evaluate_reads_a_run_in_a_bucket_and_writes_there(bucket, capsys):
  prepare_dataset("digits")
  parts = runs.parts(8, total="2", evals__test__every="100%")
  result = loop.train(parts, bucket / "run")
  words = [f"--workdir={bucket}/run", f"--write-predictions={bucket}/p.csv", f"--report={bucket}/report"]
  code, output = verb(capsys, "evaluate", *words)
  assert code == 0, output
  assert f"{result['top1']:.2%}" in output
  assert len((bucket / "p.csv").read_text().splitlines()) == 361
  assert {path.name for path in (bucket / "report").iterdir()} == {"figures.json", "confusion.csv", "confusion.png"}
  code, output = verb(capsys, "convert", "--inspect", f"{bucket}/run")
  assert (code, "cct_2_3x2_32" in output) == (0, True), output
  code, output = verb(capsys, "evaluate", f"--workdir={bucket}/none")
  assert code == 2
  assert output.splitlines()[-1].startswith(f"error: --workdir: {bucket}/none contains no run (no config.json)")


def test_unwritable_path_is_refused_before_the_evaluation(bucket, capsys):
  for word, problem in (("p.csv2", "is not a format"), ("", "is empty")):
    words = [f"--workdir={bucket}", f"--write-predictions={bucket}/{word}" if word else "--report="]
    code, output = verb(capsys, "evaluate", *words)
    assert (code, problem in output) == (2, True), output
  assert not paths.resolve_path(str(bucket)).exists()
