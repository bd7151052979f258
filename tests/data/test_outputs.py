"""Tests that outputs inside an image folder that a command reads are refused before anything is written."""

import pathlib

import pytest
from etils import epath

from tests import runs
from tests.data.readers.test_folder import write
from tests.data.readers.test_segmentation import write as write_pairs
from vit_jax import config, evaluate, prepare, schema, sweep, train
from vit_jax.config import flags
from vit_jax.data import outputs
from vit_jax.schema import Choice, ConfigError
from vit_jax.training.build import complete


def photos(root):
  return write(root, *(f"{label}/{i}.png" for label in "ab" for i in range(9)))


def run(path, **words):
  file = str(runs.ROOT / "configs/folder.py:cct_2_3x2_32")
  return complete(config.resolve(flags.load_config(file, {"data.path": str(path), **words})))


def inside(target, value):
  try:
    outputs.check_output_location(pathlib.Path(target), value, "--workdir")
  except ConfigError as error:
    assert str(error).startswith("--workdir: ") and "is inside the image folder" in str(error)
    return True
  return False


def test_path_is_inside_also_through_links_and_the_home_directory(tmp_path, monkeypatch):
  path = photos(tmp_path / "photos")
  (tmp_path / "link").symlink_to(path)
  monkeypatch.chdir(tmp_path)
  for place in ("photos", "photos/", "photos/a", "photos/new/run", "link/a/run", f"{path}/a", "x/../photos/a"):
    assert inside(place, run(path)) and inside(place, run("photos")) and inside(place, schema.to_plain(run("link")))
  for place in ("run", "photos2", ".", "photos/../run"):
    assert not inside(place, run(path))
  monkeypatch.setenv("HOME", str(tmp_path))
  assert inside("photos/a", Choice("folder", {"path": "~/photos"}))


def test_parts_evaluations_and_masks_are_checked_but_not_other_readers(tmp_path):
  path = photos(tmp_path / "photos")
  part, target = {"name": "folder", "path": str(path)}, tmp_path / "photos/a"
  assert inside(target, {"data": {"name": "mixture", "parts": [{"name": "digits"}, part]}})
  assert inside(target, {"evals": {"test": {"name": "accuracy", "data": part}}})
  for name in ("tars", "parquet", "manifest", "tfds"):
    assert not inside(target, {"data": part | {"name": name}})
  assert not inside(target, {"data": {"name": "digits"}})
  masks = {"name": "segmentation", "path": write_pairs(tmp_path / "pairs", "0", "1"), "classes": 2}
  assert inside(tmp_path / "pairs/images/run", masks) and inside(tmp_path / "pairs/masks", masks)
  assert not inside(tmp_path / "pairs/run", masks)


def test_folders_of_a_bucket_are_compared_by_name():
  data = Choice("folder", {"path": "gs://bucket/photos"})
  assert outputs.find_image_folders(data) == [epath.Path("gs://bucket/photos")]
  for name, expected in (("gs://bucket/photos/a", True), ("gs://bucket/photos2", False), ("photos/a", False)):
    try:
      outputs.check_output_location(
        epath.Path(name) if name.startswith("gs") else pathlib.Path(name), data, "--workdir"
      )
      found = False
    except ConfigError:
      found = True
    assert found == expected


FOLDER, WEIGHTS = "--config=configs/folder.py:cct_2_3x2_32", "--weights=absent.npz"
COMMANDS = {
  "train": (train, ["--workdir={}", FOLDER], "--workdir"),
  "sweep": (sweep, ["--workdir={}", "--config=configs/finetune.py:folder,ViT-Ti/16,32"], "--workdir"),
  "figures": (evaluate, ["--report={}", FOLDER, WEIGHTS], "--report"),
  "labels": (evaluate, ["--write-labels={}", "--split=train", FOLDER, WEIGHTS], "--write-labels"),
  "corpus": (prepare, ["new", "--data_dir={}", "--data.name=folder"], "--data_dir"),
  "sheet": (prepare, ["--show=configs/folder.py:cct_2_3x2_32", "--out={}"], "--out"),
}


@pytest.mark.parametrize("place", ["a/new", "new", "a"])
@pytest.mark.parametrize("command", COMMANDS)
def test_output_inside_the_images_is_refused_before_anything_is_written(tmp_path, monkeypatch, command, place):
  root = pathlib.Path(photos(tmp_path / "photos"))
  before = sorted(root.rglob("*"))
  verb, words, flag = COMMANDS[command]
  group = "data" if command == "corpus" else "config.data"
  words = [word.format(root / place) for word in words] + [f"--{group}.path={root}"]
  monkeypatch.chdir(runs.ROOT)
  with pytest.raises(ConfigError, match=rf"^{flag}: .*is inside the image folder"):
    verb.main([*words, *["--config.init.from=none"] * (command == "sweep")])
  assert sorted(root.rglob("*")) == before


def test_labels_are_not_written_into_the_labelled_folder(tmp_path, monkeypatch):
  root, other = photos(tmp_path / "photos"), photos(tmp_path / "other")
  words = [FOLDER, WEIGHTS, f"--config.data.path={root}", "--split=train", "--data.name=folder"]
  monkeypatch.chdir(runs.ROOT)
  with pytest.raises(ConfigError, match=r"^--write-labels: .*is inside the image folder"):
    evaluate.main([*words, f"--data.path={other}", f"--write-labels={other}/a"])
