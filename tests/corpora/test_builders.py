"""Tests that datasets of the catalog are prepared once and completely, on a disk or in a bucket."""

import dataclasses
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from sklearn import datasets

from vit_jax import schema
from vit_jax.corpora import builders
from vit_jax.data import catalog, digits, glyphs, scenes
from vit_jax.data.readers import tfds


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  root = tmp_path_factory.mktemp("data")
  assert builders.prepare_dataset("digits", str(root)) == f"digits is prepared at {root}/digits/1.0.0"
  return root


def all_records(source):
  return [source.read(i) for i in range(len(source))]


def test_each_digit_is_stored_once(data_dir):
  train, test = (
    catalog.open_split(schema.Choice("digits", {"path": str(data_dir)}), split) for split in ("train", "test")
  )
  assert (len(train), len(test), train.classes) == (1437, 360, test.classes)
  original = datasets.load_digits()
  expected = sorted(
    (digits.encode_png(ink), int(label)) for ink, label in zip(original.images, original.target, strict=True)
  )
  assert sorted(all_records(train) + all_records(test)) == expected
  # The order is a permutation instead of the order of writers, so each class has a fair share in both splits.
  counts = np.bincount([label for _, label in all_records(test)], minlength=10)
  assert counts.sum() == 360 and counts.min() > 20 and counts.max() < 55


def test_second_preparation_changes_no_file_and_reports_it(data_dir):
  before = {file: file.stat().st_mtime_ns for file in data_dir.rglob("*")}
  assert builders.prepare_dataset("digits", str(data_dir)) == f"digits is already prepared at {data_dir}/digits/1.0.0"
  assert {file: file.stat().st_mtime_ns for file in data_dir.rglob("*")} == before


def test_preparation_writes_the_same_bytes_every_time(data_dir, tmp_path):
  builders.prepare_dataset("digits", str(tmp_path))
  for file in (data_dir / "digits/1.0.0").glob("*array_record*"):
    assert (tmp_path / "digits/1.0.0" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.long
def test_killed_preparation_leaves_no_dataset_that_looks_complete(tmp_path):
  # The program stops in the middle of the second split and waits until the test kills it.
  code = f"""
import pathlib, time
from vit_jax.corpora import builders
from vit_jax.data import digits
whole = digits.examples()
def slow():
  yield from whole["test"][:100]
  pathlib.Path({str(tmp_path / "reached")!r}).touch()
  time.sleep(600)
digits.examples = lambda: {{"train": whole["train"], "test": slow()}}
builders.prepare_dataset("digits", {str(tmp_path / "data")!r})
"""
  process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
  try:
    for _ in range(600):
      if (tmp_path / "reached").exists():
        break
      assert process.poll() is None
      time.sleep(0.1)
  finally:
    process.send_signal(signal.SIGKILL)
    process.wait()
  assert (tmp_path / "data/digits").is_dir()
  assert not (tmp_path / "data/digits/1.0.0").exists()
  with pytest.raises(schema.ConfigError, match=r"python -m vit_jax\.prepare digits"):
    catalog.open_split(schema.Choice("digits", {"path": str(tmp_path / "data")}), "train")
  assert builders.prepare_dataset("digits", str(tmp_path / "data")).startswith("digits is prepared at")
  assert len(catalog.open_split(schema.Choice("digits", {"path": str(tmp_path / "data")}), "train")) == 1437


def test_generated_glyphs_are_stored_as_drawn(tmp_path, monkeypatch):
  monkeypatch.setattr(glyphs, "TRAIN", 400)
  monkeypatch.setattr(glyphs, "TEST", 200)
  row = dataclasses.replace(catalog.CATALOG["glyphs"], splits={"train": 400, "test": 200})
  monkeypatch.setitem(catalog.CATALOG, "glyphs", row)
  assert builders.prepare_dataset("glyphs", str(tmp_path)) == f"glyphs is prepared at {tmp_path}/glyphs/1.0.0"
  for split, records in glyphs.examples().items():
    source = tfds.open_catalogued("glyphs", row, split, path=str(tmp_path))
    assert all_records(source) == [(record["image"].getvalue(), record["label"]) for record in records]


def test_generated_scenes_are_stored_with_their_masks(tmp_path, monkeypatch):
  monkeypatch.setattr(scenes, "TRAIN", 30)
  monkeypatch.setattr(scenes, "TEST", 20)
  row = dataclasses.replace(catalog.CATALOG["scenes"], splits={"train": 30, "test": 20})
  monkeypatch.setitem(catalog.CATALOG, "scenes", row)
  assert builders.prepare_dataset("scenes", str(tmp_path)) == f"scenes is prepared at {tmp_path}/scenes/1.0.0"
  for split, records in scenes.examples().items():
    source = tfds.open_catalogued("scenes", row, split, path=str(tmp_path))
    assert source.masks.classes == ("ground", *source.classes)
    for i, record in enumerate(records):
      assert source.read(i) == (record["image"].getvalue(), record["label"])
      assert source.masks.read(i) == record["mask"].getvalue()


@pytest.mark.parametrize("name", ["folder", "tfds"])
def test_dataset_without_preparation_is_reported(name):
  with pytest.raises(schema.ConfigError, match="needs no preparation"):
    builders.prepare_dataset(name)


@pytest.mark.parametrize(
  ("name", "output"),
  [
    ("oxford-flowers", "unknown dataset 'oxford-flowers'. Did you mean 'oxford_flowers102'?"),
    ("../digits", "unknown dataset '../digits'"),
    ("mnist:abc", "unknown dataset 'mnist:abc'. Did you mean 'mnist'?"),
    ("mnist:9.9.9", "mnist:9.9.9 cannot be prepared in {}: Dataset mnist cannot be loaded at version 9.9.9, only:"),
    ("mnist/3", "mnist/3 cannot be prepared in {}: BuilderConfig 3 not found with version 3.0.1. See the catalog"),
    ("mnist/x=1", "mnist/x=1 cannot be prepared in {}: DatasetBuilder.__init__() got an unexpected keyword argument"),
  ],
)  # fmt: skip
def test_name_that_tfds_does_not_know_is_reported_in_one_line(name, output, tmp_path):
  with pytest.raises(schema.ConfigError) as caught:
    builders.prepare_dataset(name, str(tmp_path))
  assert str(caught.value).startswith(output.format(tmp_path)) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["imagenet21k", "jft300m", "jft3b"])
def test_dataset_without_public_builder_names_the_path_option(name, tmp_path):
  with pytest.raises(
    schema.ConfigError, match=f"{name} has no public builder. Give your own copy: .*--config.data.path=DIR"
  ):
    builders.prepare_dataset(name, str(tmp_path))


def test_manual_archives_are_named_with_their_folder_and_address(tmp_path):
  with pytest.raises(schema.ConfigError) as caught:
    builders.prepare_dataset("imagenet2012", str(tmp_path))
  for part in (f"{tmp_path}/downloads/manual", "ILSVRC2012_img_train.tar", "https://image-net.org/download-images"):
    assert part in str(caught.value)


@pytest.mark.parametrize("name", [name for name, row in catalog.CATALOG.items() if row.manual])
def test_missing_manual_files_are_reported_before_any_download(name, tmp_path):
  row, folder = catalog.CATALOG[name], tmp_path / "downloads" / "manual"
  with pytest.raises(schema.ConfigError) as caught:
    builders.prepare_dataset(name, str(tmp_path))
  assert row.steps in str(caught.value) and str(folder) in str(caught.value) and "https://" in row.steps
  assert all(part in str(caught.value) for part in row.manual)
  assert not (tmp_path / "downloads").exists()
  (folder / row.manual[0]).mkdir(parents=True)
  if len(row.manual) == 1:
    builders.check_manual(name, row, tmp_path)
  else:
    with pytest.raises(schema.ConfigError, match=rf"In [^,]*, (?!.*\b{row.manual[0]},).*{row.manual[1]}"):
      builders.check_manual(name, row, tmp_path)


@pytest.mark.parametrize("name", ["sun397", "eurosat"])
def test_former_host_is_reported_with_a_fix_before_the_download(name, tmp_path, monkeypatch, capsys):
  import tensorflow_datasets

  def offline(*_, **__):
    raise OSError("no network")

  monkeypatch.setattr(tensorflow_datasets, "builder", offline)
  with pytest.raises(schema.ConfigError, match="no network"):
    builders.prepare_dataset(name, str(tmp_path))
  output = capsys.readouterr().out
  assert "no longer answers" in output and f"{tmp_path}/downloads/manual" in output


@pytest.mark.heavy
def test_bucket_receives_a_local_copy_without_sending_files_again(bucket, bucket_server, tmp_path,
                                                                                    monkeypatch):  # fmt: skip
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  output = builders.prepare_dataset("digits", str(bucket))
  assert output == f"digits is prepared at {bucket}/digits/1.0.0, a copy of {tmp_path}/digits/1.0.0"
  there, here = (
    catalog.open_split(schema.Choice("digits", {"path": str(path)}), "test") for path in (bucket, tmp_path)
  )
  assert all_records(there) == all_records(here)
  assert builders.prepare_dataset("digits", str(bucket)) == f"digits is already prepared at {bucket}/digits/1.0.0"
  (bucket / "digits/1.0.0/dataset_info.json").unlink()  # as after a kill before the last file
  posts = bucket_server.counts["POST"]
  assert "a copy of" in builders.prepare_dataset("digits", str(bucket))
  assert bucket_server.counts["POST"] == posts + 1
