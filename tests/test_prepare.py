"""Writing datasets to disk, once and whole or not at all."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from sklearn import datasets

from tests import runs
from tests.corpora import folders
from vit_jax import prepare, schema
from vit_jax.data import catalog, digits


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  root = tmp_path_factory.mktemp("data")
  assert prepare.prepare("digits", str(root)) == f"digits is prepared at {root}/digits/1.0.0"
  return root


def all_records(source):
  return [source.read(i) for i in range(len(source))]


def test_the_digits_are_all_there_once(data_dir):
  train, test = (
    catalog.open_split(schema.Choice("digits", {"path": str(data_dir)}), split) for split in ("train", "test")
  )
  assert (len(train), len(test), train.classes) == (1437, 360, test.classes)
  original = datasets.load_digits()
  expected = sorted((digits.png(ink), int(label)) for ink, label in zip(original.images, original.target, strict=True))
  assert sorted(all_records(train) + all_records(test)) == expected
  # A permutation, not the order of writers: each class in both splits, as often as a fair draw gives.
  counts = np.bincount([label for _, label in all_records(test)], minlength=10)
  assert counts.sum() == 360 and counts.min() > 20 and counts.max() < 55


def test_preparing_again_does_nothing_and_says_so(data_dir):
  before = {file: file.stat().st_mtime_ns for file in data_dir.rglob("*")}
  assert prepare.prepare("digits", str(data_dir)) == f"digits is already prepared at {data_dir}/digits/1.0.0"
  assert {file: file.stat().st_mtime_ns for file in data_dir.rglob("*")} == before


def test_the_same_bytes_are_written_every_time(data_dir, tmp_path):
  prepare.prepare("digits", str(tmp_path))
  for file in (data_dir / "digits/1.0.0").glob("*array_record*"):
    assert (tmp_path / "digits/1.0.0" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.heavy
def test_killed_halfway_it_leaves_nothing_that_looks_complete(tmp_path):
  # Stops between the first and the second split, in the middle of the writing, and waits to be killed.
  code = f"""
import pathlib, time
from vit_jax import prepare
from vit_jax.data import digits
whole = digits.examples()
def slow():
  yield from whole["test"][:100]
  pathlib.Path({str(tmp_path / "reached")!r}).touch()
  time.sleep(600)
digits.examples = lambda: {{"train": whole["train"], "test": slow()}}
prepare.prepare("digits", {str(tmp_path / "data")!r})
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
  assert prepare.prepare("digits", str(tmp_path / "data")).startswith("digits is prepared at")
  assert len(catalog.open_split(schema.Choice("digits", {"path": str(tmp_path / "data")}), "train")) == 1437


@pytest.mark.heavy
def test_an_unknown_name_ends_with_code_two_and_one_line(tmp_path):
  command = [sys.executable, "-m", "vit_jax.prepare", "digitz", f"--data_dir={tmp_path}"]
  result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
  assert result.returncode == 2
  assert result.stderr.startswith("error: unknown dataset 'digitz'. Did you mean 'digits'?")
  assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["folder", "tfds"])
def test_what_needs_no_preparing_says_so(name):
  with pytest.raises(schema.ConfigError, match="nothing to prepare"):
    prepare.prepare(name)


@pytest.mark.parametrize("name", ["imagenet21k", "jft300m", "jft3b"])
def test_what_tfds_cannot_make_says_how_to_give_it(name, tmp_path):
  with pytest.raises(schema.ConfigError, match=f"your own copy of {name}, .*--config.data.path=DIR"):
    prepare.prepare(name, str(tmp_path))


def test_archives_to_be_fetched_by_hand_are_named_with_their_place(tmp_path):
  with pytest.raises(schema.ConfigError) as caught:
    prepare.prepare("imagenet2012", str(tmp_path))
  for part in (f"{tmp_path}/downloads/manual", "ILSVRC2012_img_train.tar", "https://image-net.org/download-images"):
    assert part in str(caught.value)


@pytest.mark.parametrize("name", [name for name, row in catalog.CATALOG.items() if row.manual])
def test_what_is_fetched_by_hand_is_asked_for_before_anything_is_downloaded(name, tmp_path):
  row, folder = catalog.CATALOG[name], tmp_path / "downloads" / "manual"
  with pytest.raises(schema.ConfigError) as caught:
    prepare.prepare(name, str(tmp_path))
  assert row.steps in str(caught.value) and str(folder) in str(caught.value) and "https://" in row.steps
  assert all(part in str(caught.value) for part in row.manual)
  assert not (tmp_path / "downloads").exists()
  (folder / row.manual[0]).mkdir(parents=True)
  if len(row.manual) == 1:
    prepare.fetched(name, row, tmp_path)
  else:
    with pytest.raises(schema.ConfigError, match=rf"where (?!.*\b{row.manual[0]},).*{row.manual[1]}"):
      prepare.fetched(name, row, tmp_path)


@pytest.mark.parametrize("name", ["sun397", "eurosat"])
def test_a_host_that_is_gone_is_named_with_what_to_do_before_it_is_asked(name, tmp_path, monkeypatch, capsys):
  import tensorflow_datasets

  def offline(*_, **__):
    raise OSError("no network")

  monkeypatch.setattr(tensorflow_datasets, "builder", offline)
  with pytest.raises(schema.ConfigError, match="no network"):
    prepare.prepare(name, str(tmp_path))
  said = capsys.readouterr().out
  assert "no longer answers" in said and f"{tmp_path}/downloads/manual" in said


@pytest.mark.heavy
def test_two_at_once_are_both_served(tmp_path):
  processes = [runs.command("prepare", "digits", f"--data_dir={tmp_path}") for _ in range(2)]
  printed = [runs.finish(process) for process in processes]
  assert sorted("digits is already prepared" in text for text in printed) == [False, True]
  assert sum("digits is prepared" in text for text in printed) == 1


@pytest.mark.heavy
def test_into_a_bucket_it_comes_by_way_of_a_disk_and_what_is_there_is_not_sent_again(bucket, bucket_server, tmp_path,
                                                                                    monkeypatch):  # fmt: skip
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  said = prepare.prepare("digits", str(bucket))
  assert said == f"digits is prepared at {bucket}/digits/1.0.0, a copy of {tmp_path}/digits/1.0.0"
  there, here = (
    catalog.open_split(schema.Choice("digits", {"path": str(path)}), "test") for path in (bucket, tmp_path)
  )
  assert all_records(there) == all_records(here)
  assert prepare.prepare("digits", str(bucket)) == f"digits is already prepared at {bucket}/digits/1.0.0"
  (bucket / "digits/1.0.0/dataset_info.json").unlink()  # as if it had been killed before the last file
  posts = bucket_server.counts["POST"]
  assert "a copy of" in prepare.prepare("digits", str(bucket))
  assert bucket_server.counts["POST"] == posts + 1


@pytest.mark.parametrize(
  ("words", "said"),
  [
    ("--data.name=foldr", r"data\.name: unknown name 'foldr'\. Did you mean 'folder'"),
    ("--data.path=/x", r"data\.name: missing; --data\.name=READER .*: .*folder"),
    ("--data.name=folder", r"data\.path: missing; .*--data\.path="),
    ("--data.name=folder --data.pth=/x", r"data\.pth: unknown key for 'folder'.*Did you mean 'path'"),
    ("--data.name=folder --data.path=/x --data.holdout=2", r"data\.holdout: 2.* out of range"),
    ("--data.name=folder --data.path=/nowhere", r"data\.path: no folder '/nowhere'"),
    ("--data.name=folder --data.path=/x --size=0", "--size: 0 is out of range"),
    ("--data.name=folder --data.path=/x --max-rejected=2", "--max-rejected: 2.* out of range"),
    ("--data_name=folder", "unknown flag '--data_name'"),
    ("--size=3", "--size: it is for a corpus, whose input --data.name"),
  ],
)
def test_mistakes_of_a_corpus_are_at_the_flag(tmp_path, monkeypatch, words, said):
  monkeypatch.setattr(sys, "argv", ["prepare", "photos", f"--data_dir={tmp_path}", *words.split()])
  with pytest.raises(schema.ConfigError, match=said):
    prepare.main()
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
  ("words", "said"),
  [
    ("", "^name: missing"),
    ("--show=configs/digitz.py", r"--config: no file 'configs/digitz\.py'.*Did you mean"),
    ("--show=configs/digits.py --config.data.crp.name=resize", r"config\.data\.crp: unknown key"),
    ("--show=configs/digits.py digits", "^NAME: --show takes all"),
    ("--show=configs/digits.py --data.name=folder", r"^--data\.name: --show takes all of its config"),
    ("--show=configs/digits.py --dedup-against=x", "^--dedup-against: --show takes all"),
    ("--show=configs/digits.py --sample=0", "--sample: 0 is out of range"),
    ("--show=configs/digits.py --out=a.pdf", r"a\.pdf: \.pdf is not a format; end the name in \.png"),
    ("--show=configs/folder.py", r"config\.data\.path: missing"),
    ("--show=configs/folder.py --config.data.path=/nowhere", r"config\.data\.path: no folder '/nowhere'"),
    ("digits --config.seed=1", r"^--config\.seed: it is for --show=CONFIG"),
    ("digits --out=a.png", "^--out: it is for --show=CONFIG"),
  ],
)
def test_mistakes_of_a_sheet_are_at_the_flag(monkeypatch, words, said):
  monkeypatch.chdir(runs.ROOT)
  monkeypatch.setattr(sys, "argv", ["prepare", *words.split()])
  with pytest.raises(schema.ConfigError, match=said):
    prepare.main()


def test_a_corpus_of_the_command_line_is_read_by_path(tmp_path, monkeypatch, capsys):
  photos = folders.folder(tmp_path / "photos", 5)
  words = (
    f"photos --data.name=folder --data.path={photos} --data.holdout 0.4 --size=30 --shards=2 --seed=3 --processes=1"
  )
  monkeypatch.setattr(sys, "argv", ["prepare", *words.split(), f"--data_dir={tmp_path}/data"])
  prepare.main()
  assert capsys.readouterr().out.startswith(
    f"photos is prepared at {tmp_path}/data/photos/1.0.0\ntrain: 10 images in 2"
  )
  assert len(folders.source(tmp_path / "data", name="photos")) == 10
  prepare.main()
  assert capsys.readouterr().out == f"photos is already prepared at {tmp_path}/data/photos/1.0.0\n"


def test_a_corpus_takes_the_keys_of_every_reader():
  for name, reader in catalog.READERS.items():
    keys = schema.keywords(reader)
    needed = {"path": "/x"} if "path" in keys else {}
    needed |= {"parts": "({'name': 'folder', 'path': '/x'},)"} if name == "mixture" else {}
    chosen = prepare.input_choice({"name": name, **needed})
    assert chosen.keys() == {"name", *keys}
