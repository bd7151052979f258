"""Tests of corpora that one machine writes: complete or absent, with the same bytes every time."""

import json
import multiprocessing
import os

import pytest

from tests.corpora import folders
from tests.image_files import decoded, encode, picture
from vit_jax import runtime, schema
from vit_jax.corpora import plan, writer
from vit_jax.data import catalog
from vit_jax.schema import ConfigError


def test_each_image_is_stored_once_with_its_class(photos, corpus):
  for split, count in (("train", 60), ("test", 12)):
    source = folders.source(corpus, split)
    assert (len(source), source.classes) == (count, ("cat", "dog"))
    there = sorted(source.read(i) for i in range(count))
    expected = [(file.read_bytes(), label) for label, name in enumerate(("cat", "dog"))
                for file in (photos / split / name).iterdir()]  # fmt: skip
    assert there == sorted(expected)


def test_tfds_reads_the_corpus(photos, corpus):
  import tensorflow_datasets as tfds

  builder = tfds.builder_from_directory(corpus / "corpus/1.0.0")
  assert {name: split.num_examples for name, split in builder.info.splits.items()} == {"train": 60, "test": 12}
  for example in list(builder.as_data_source("train"))[:5]:
    file = photos / example["id"].decode()
    assert (example["image"] == decoded(file.read_bytes())).all()
    assert builder.info.features["label"].int2str(int(example["label"])) == file.parent.name


def test_record_has_the_name_of_its_file(photos, corpus):
  source = folders.source(corpus)
  for i in range(5):
    assert (photos / source.display_name(i)).read_bytes() == source.read(i)[0]
    assert source.identify(i) == f"train/{i}"


def test_each_shard_contains_all_classes(corpus):
  source, first = folders.source(corpus), 0
  for stop in (20, 40, 60):
    assert len({source.label(i) for i in range(first, stop)}) == 2
    first = stop


def test_another_seed_gives_another_order(photos, corpus, tmp_path):
  folders.made(photos, tmp_path, shards=3, seed=1)
  other, one = folders.shards(tmp_path), folders.shards(corpus)
  assert other.keys() == one.keys() and other != one


def test_counts_and_options_are_written_with_the_corpus(corpus):
  root = corpus / "corpus/1.0.0"
  assert json.loads((root / "counts.json").read_text()) == {
    "train": {"cat": 30, "dog": 30},
    "test": {"cat": 6, "dog": 6},
  }
  about = json.loads((root / "prepare.json").read_text())
  assert (about["records"], about["rejected"], about["options"]["shards"]) == ({"test": 12, "train": 60}, 0, 3)
  assert not (corpus / "corpus/.1.0.0.work").exists()


def test_finished_corpus_is_kept_and_other_options_are_refused(photos, corpus, tmp_path):
  before = {file: file.stat().st_mtime_ns for file in corpus.rglob("*")}
  assert folders.made(photos, corpus, shards=3) == [f"corpus is already prepared at {corpus}/corpus/1.0.0"]
  with pytest.raises(ConfigError, match=r"started with other input or options.*size: None, now 30"):
    folders.made(photos, corpus, shards=3, size=30)
  other = folders.folder(folders.folder(tmp_path, 6, split="test"), 31)
  with pytest.raises(ConfigError, match="the input's files: names, members"):
    folders.made(other, corpus, shards=3)
  assert {file: file.stat().st_mtime_ns for file in corpus.rglob("*")} == before


def test_concurrent_preparation_is_refused(photos, tmp_path):
  output = pytest.raises(ConfigError, match=f"in use by process {os.getpid()}.*use another name")
  with runtime.lock_workdir(tmp_path / "corpus/.1.0.0.work"), output:
    folders.made(photos, tmp_path)


def test_bad_images_are_rejected_up_to_a_limit_and_named(photos, tmp_path):
  root = folders.folder(tmp_path / "photos", 20)
  for i in range(6):
    (root / f"train/cat/bad{i}.jpg").write_bytes(b"garbage")
  with pytest.raises(ConfigError, match=r"rejected: 6 of 46 images. Allowed: 5\..*train/cat/bad\d.jpg: not a compl"):
    folders.made(root, tmp_path / "data")
  output = folders.made(root, tmp_path / "data", max_rejected=0.2)  # resumes the refused preparation
  assert any(line.startswith("6 rejected") for line in output)
  rows = [json.loads(line) for line in (tmp_path / "data/corpus/1.0.0/rejected.jsonl").read_text().splitlines()]
  assert sorted(row["file"] for row in rows) == [f"train/cat/bad{i}.jpg" for i in range(6)]
  assert len(folders.source(tmp_path / "data")) == 40


def test_duplicates_of_test_images_are_removed_and_shown(photos, tmp_path):
  root = folders.folder(tmp_path / "photos", 10)
  for i in range(3):  # encoded again
    (root / f"train/dog/copy{i}.jpg").write_bytes(encode(decoded((photos / f"test/cat/{i}.jpg").read_bytes()), "JPEG"))
  (root / "train/dog/new.jpg").write_bytes(encode(picture(40, 50, seed=7777)))
  output = folders.made(root, tmp_path / "data", against=(f"{photos / 'test'}",), distance=2)
  assert any(line.startswith("3 duplicates") for line in output)
  there = tmp_path / "data/corpus/1.0.0"
  rows = [json.loads(line) for line in (there / "duplicates.jsonl").read_text().splitlines()]
  assert {row["file"]: row["image"] for row in rows} == {f"train/dog/copy{i}.jpg": f"cat/{i}.jpg" for i in range(3)}
  assert (there / "duplicates.html").read_text().count("<img") == 6
  assert len(folders.source(tmp_path / "data")) == 21


def test_existing_dataset_of_the_same_name_is_kept(photos, tmp_path):
  (tmp_path / "corpus/1.0.0").mkdir(parents=True)
  (tmp_path / "corpus/1.0.0/dataset_info.json").write_text("{}")
  with pytest.raises(ConfigError, match=r"not made by this command. Use another name"):
    folders.made(photos, tmp_path)


@pytest.mark.parametrize("name", ["Photos", "my-photos", "", "../x", "1x"])
def test_invalid_tfds_name_is_an_error(photos, tmp_path, name):
  with pytest.raises(ConfigError, match="not a valid dataset name"):
    folders.made(photos, tmp_path, name)


def test_name_of_the_catalog_is_refused(photos, tmp_path):
  with pytest.raises(ConfigError, match="'cifar10' is a dataset of the catalog"):
    folders.made(photos, tmp_path, "cifar10")


@pytest.mark.heavy
def test_number_of_processes_does_not_change_the_bytes(photos, corpus, tmp_path):
  folders.made(photos, tmp_path, count=2, shards=3)
  assert folders.shards(tmp_path) == folders.shards(corpus)
  assert not multiprocessing.active_children()


def test_plan_sets_the_number_of_files(photos):
  source = plan.open_input(folders.choice(photos))
  assert [split.shards for split in plan.plan_splits(source, plan.CorpusOptions(shards=50))] == [
    6,
    30,
  ]  # two images each
  assert [split.shards for split in plan.plan_splits(source, plan.CorpusOptions())] == [1, 1]


@pytest.mark.heavy
def test_corpus_is_written_to_a_bucket_and_read_from_it(photos, corpus, bucket, tmp_path):
  data, there = folders.choice(photos), bucket / "data"
  output = writer.write("corpus", data, plan.CorpusOptions(shards=3), there, 1)
  assert output[0] == f"corpus is prepared at {there}/corpus/1.0.0"
  assert {f.name: f.read_bytes() for f in (there / "corpus/1.0.0").iterdir() if "array_record" in f.name} == (
    folders.shards(corpus)
  )
  assert sorted(folders.source(there).read(i) for i in range(60)) == sorted(
    folders.source(corpus).read(i) for i in range(60)
  )
  assert writer.write("corpus", data, plan.CorpusOptions(shards=3), there, 1)[0].startswith(
    "corpus is already prepared"
  )
  bound = schema.bind(schema.Choice("tfds", {"path": f"{there}/corpus/1.0.0"}), (catalog.READERS["tfds"],))
  writer.write("corpus", schema.to_plain(bound), plan.CorpusOptions(), tmp_path, 1)
  assert len(folders.source(tmp_path)) == 60  # read in spans
