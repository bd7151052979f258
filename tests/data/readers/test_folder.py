"""Tests of image folders as sources: layouts, classes, splits and the order of records."""

import collections
import fractions
import hashlib
import os

import numpy as np
import pytest

from tests.image_files import image, labels, names, numbers
from vit_jax import schema
from vit_jax.data import catalog, sources


def write(root, *files):
  for i, name in enumerate(files):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(image(i))
  return str(root)


def folder(path, split="train", **args):
  with schema.enter_key("config.data"):
    return catalog.open_split(schema.Choice("folder", {"path": str(path)} | args), split)


def test_symbolic_link_to_itself_is_an_unreadable_image(tmp_path):
  path = write(tmp_path, "train/a/1.png", "train/b/1.png")
  (tmp_path / "train/a/x.jpg").symlink_to("x.jpg")
  (tmp_path / "train/loop").symlink_to("loop")
  source = folder(path, test="train")
  assert (len(source), source.classes) == (3, ("a", "b"))
  bad = next(i for i in range(3) if source.identify(i).endswith("x.jpg"))
  with pytest.raises(OSError, match="symbolic links"):
    source.read(bad)


def test_classes_of_split_folders_are_numbered_by_name(tmp_path):
  path = write(tmp_path, "train/b/2.png", "train/b/10.JPG", "train/a/x.jpeg", "test/a/1.png", "test/b/1.png")
  train, test = folder(path), folder(path, "test")
  assert train.classes == test.classes == ("a", "b")
  found = dict(zip(names(train), numbers(train), strict=True))
  assert found == {"train/a/x.jpeg": (image(2), 0), "train/b/10.JPG": (image(1), 1), "train/b/2.png": (image(0), 1)}
  assert sorted(names(test)) == ["test/a/1.png", "test/b/1.png"]
  i = names(train).index("train/b/10.JPG")
  assert train.place(i) == f"folder, split 'train', record {i} (file '{tmp_path}/train/b/10.JPG')"


def test_path_of_the_training_split_has_a_note_about_unused_splits(tmp_path, monkeypatch):
  files = [f"train/{label}/{i}.png" for label in "ab" for i in range(5)]
  path = write(tmp_path, *files)
  write(tmp_path, "dev/project/1.png")  # an unrelated folder
  assert "not used" not in folder(f"{path}/train", holdout=0.2).note
  write(tmp_path, "val/a/1.png", "val/b/1.png", "valid/a/1.png")
  advice = f"set --config.data.path={path} --config.data.test=val and a new --workdir"
  assert f"; not used: 'val' in {path!r}. To use all splits, {advice}" in folder(f"{path}/train", holdout=0.2).note
  write(tmp_path, "test/a/1.png", "test/b/1.png")
  note = f"; not used: 'val', 'test' in {path!r}. To use all splits, set --config.data.path={path} and a new --workdir"
  assert note in folder(f"{path}/train", holdout=0.2).note
  monkeypatch.chdir(f"{path}/train")
  assert note in folder(".", holdout=0.2).note
  (tmp_path / "valid/a/1.png").unlink()
  (tmp_path / "valid/a").rmdir()
  (tmp_path / "valid").rmdir()
  assert "not used" not in folder(path).note


def test_splits_may_have_other_names_and_slices(tmp_path):
  path = write(
    tmp_path, *(f"{split}/{label}/{i}.png" for split in ("train", "val") for label in "ab" for i in range(5))
  )
  assert len(folder(path, "test", test="val")) == 10
  part = folder(path, train="train[3:6]+val[:20%]", test="val")
  train, val = (names(folder(path, split, test="val")) for split in ("train", "val"))
  assert names(part) == train[3:6] + val[:2]
  assert part.place(2) == f"folder, split 'train', record 5 (file '{tmp_path}/{train[5]}')"
  assert part.place(3) == f"folder, split 'val', record 0 (file '{tmp_path}/{val[0]}')"
  assert len(folder(path, "val[50%:]", test="val")) == 5
  with pytest.raises(schema.ConfigError, match=r"config.data.test: no split 'test'.*Allowed: train, val"):
    folder(path, "test")


def test_class_folders_are_split_by_seed_in_any_order_of_listing(tmp_path, monkeypatch):
  path = write(tmp_path, *(f"{label}/{i}.png" for label in ("cat", "dog") for i in range(10)))
  train, test = folder(path), folder(path, "test")
  assert (len(train), len(test)) == (16, 4)
  files = {data for data, _ in numbers(train)} | {data for data, _ in numbers(test)}
  assert len(files) == 20
  assert sorted(label for _, label in numbers(test)) == [0, 0, 1, 1]
  scandir = os.scandir

  class Backwards:
    def __init__(self, path):
      self.entries = sorted(scandir(path), key=lambda e: e.name, reverse=True)

    def __enter__(self):
      return iter(self.entries)

    def __exit__(self, *_):
      pass

  monkeypatch.setattr(os, "scandir", Backwards)
  assert numbers(folder(path, "test")) == numbers(test)
  assert numbers(folder(path, "test", split_seed=1)) != numbers(test)
  assert len(folder(path, "test", holdout=0.5)) == 10


def held_out(seed, label, files, share):
  """Returns the test images of a class and the other images, each in the order of their hashes."""
  by_hash = {hashlib.blake2b(f"{seed}/{label}/{file}".encode()).hexdigest(): file for file in files}
  ordered = [by_hash[key] for key in sorted(by_hash)]
  count = int(np.rint(share * len(files)))
  return ordered[:count], ordered[count:]


COUNTS = {"ant": 40, "bee": 100, "cat": 7, "dog": 1, "eel": 100, "fox": 33}


@pytest.mark.parametrize("layout", ["", "train/"])
def test_any_slice_of_a_folder_is_a_stratified_sample(tmp_path, layout):
  files = {label: [f"{i}.png" for i in range(count)] for label, count in COUNTS.items()}
  write(tmp_path, *(f"{layout}{label}/{file}" for label in files for file in files[label]))
  share, test = (0.0, "train[:1]") if layout else (0.2, "test")
  whole = names(folder(tmp_path, "train", test=test))

  # Second formulation: the position of a record is computed by counting smaller hashes instead of sorting.
  expected = []
  for label in files:
    kept = held_out(0, label, files[label], share)[1]
    keys = {file: hashlib.blake2b(f"0/{label}/{file}".encode()).digest() for file in kept}
    for file, key in keys.items():
      before = sum(other < key for other in keys.values())
      expected.append((fractions.Fraction(2 * before + 1, 2 * len(kept)), key, f"{layout}{label}/{file}"))
  assert whole == [name for _, _, name in sorted(expected)]

  counts = collections.Counter(name.split("/")[-2] for name in whole)
  for low, high in ((0, 90), (90, 100), (0, 50), (20, 45), (98, 100)):
    part = names(folder(tmp_path, "train", train=f"train[{low}%:{high}%]", test=test))
    found = collections.Counter(name.split("/")[-2] for name in part)
    for label, count in counts.items():
      # A class may be off by 1/2 at each end, and by the deviations of the other classes there.
      assert abs(found[label] - count * (high - low) / 100) <= 1 + 6 * count / len(whole), (label, low, high)
  parts = [names(folder(tmp_path, f"train[{i}0%:{i + 1}0%]", test=test)) for i in range(10)]
  assert [name for part in parts for name in part] == whole


def test_images_with_the_smallest_hashes_are_held_out(tmp_path):
  write(tmp_path, *(f"{label}/{i}.png" for label, count in COUNTS.items() for i in range(count)))
  expected = {
    f"{label}/{file}"
    for label, count in COUNTS.items()
    for file in held_out(3, label, [f"{i}.png" for i in range(count)], 0.3)[0]
  }
  assert set(names(folder(tmp_path, "test", holdout=0.3, split_seed=3))) == expected
  assert not expected & set(names(folder(tmp_path, "train", holdout=0.3, split_seed=3)))


@pytest.mark.parametrize("layout", ["", "train/"])
def test_fingerprint_of_a_folder_depends_on_its_files(tmp_path, layout):
  path = write(tmp_path, *(f"{layout}{label}/{i}.png" for label in ("cat", "dog") for i in range(5)))

  def fingerprint(split="train", **args):
    return folder(path, split, test="train[:1]" if layout else "test", **args).fingerprint()

  seen = {fingerprint(), fingerprint("train[:50%]"), fingerprint("train[50%:]")}
  assert len(seen) == 3
  file = tmp_path / names(folder(path, test="train[:1]"))[0]

  def changed():
    found = fingerprint()
    assert found == fingerprint()
    assert found not in seen
    seen.add(found)

  os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
  changed()
  stamp = file.stat().st_mtime_ns
  file.write_bytes(file.read_bytes() + b"x")
  os.utime(file, ns=(0, stamp))
  changed()
  (tmp_path / f"{layout}dog/link.png").symlink_to(tmp_path / "nothing.png")
  (tmp_path / f"{layout}dog/link2.png").symlink_to(tmp_path / "nothing.png")
  changed()
  file.rename(file.with_name("other.png"))
  changed()
  write(tmp_path, f"{layout}ant/0.png", f"{layout}ant/1.png")
  changed()


def test_val_is_opened_by_its_own_name(tmp_path):
  path = write(
    tmp_path, *(f"{split}/{label}/{i}.png" for split in ("train", "val") for label in "ab" for i in range(5))
  )
  args = {"train": "train[:60%]", "test": "val"}
  assert names(folder(path, "val", val="train[60%:]", **args)) == names(folder(path, "train[60%:]", **args))
  assert names(folder(path, "val", **args)) == names(folder(path, "test", **args))
  with pytest.raises(schema.ConfigError, match=r"config\.data\.val: no split 'dev'.*Allowed: train, val\.$"):
    folder(path, "val", val="dev", **args)
  write(tmp_path, "dev/c/1.png")
  with pytest.raises(schema.ConfigError, match=r"'dev' and 'train' .* differ in classes"):
    folder(path, "train", val="dev", **args)


def test_error_without_a_val_split_explains_how_to_define_one(tmp_path):
  path = write(tmp_path, *(f"{label}/{i}.png" for label in "ab" for i in range(5)))
  advice = r"^config\.data\.val: no split 'val'.* Set config\.data\.val, as 'train\[90%:\]' with config\.data\.train="
  with pytest.raises(schema.ConfigError, match=advice):
    folder(path, "val")
  assert len(folder(path, "val", train="train[:50%]", val="train[50%:]")) == 4


def test_same_images_are_held_out_after_a_class_is_added(tmp_path):
  path = write(tmp_path, *(f"dog/{i}.png" for i in range(10)))
  # these images belong to one class, so they are in the order of its hashes
  before = [data for data, _ in numbers(folder(path, "test"))]
  (tmp_path / "cat").mkdir()
  (tmp_path / "cat/0.png").write_bytes(image(99))
  assert [data for data, label in numbers(folder(path, "test")) if label == 1] == before


def test_unusual_names_links_and_other_files_are_handled(tmp_path):
  files = ["train/a b/ü ñ.png", "train/a b/new\nline.png", "train/ç/1.JPEG", "train/ç/[x]*?.png", "train/ç/.hidden.png"]
  write(tmp_path / "real", *files, "train/ç/notes.txt", "train/.git/x.png", "elsewhere/1.png")
  (tmp_path / "real/train/ç/link.png").symlink_to(tmp_path / "real/elsewhere/1.png")
  (tmp_path / "link").mkdir()
  (tmp_path / "link/train").symlink_to(tmp_path / "real/train")
  source = folder(tmp_path / "link", test="train")
  assert source.classes == ("a b", "ç")
  assert sorted(label for _, label in numbers(source)) == [0, 0, 1, 1, 1]
  assert "new\\nline.png" in source.place(names(source).index("train/a b/new\nline.png"))


def test_prepared_dataset_is_not_an_image_folder(tmp_path):
  (tmp_path / "dataset_info.json").write_text("{}")
  with pytest.raises(
    schema.ConfigError, match=r"config\.data\.path: .* is a prepared dataset\. .*config\.data\.name=tfds"
  ):
    folder(tmp_path)


def test_missing_folder_is_an_error(tmp_path):
  with pytest.raises(schema.ConfigError, match=r"config\.data\.path: no folder .*nowhere"):
    folder(tmp_path / "nowhere")


def test_missing_folder_below_home_is_shown_with_its_full_path(monkeypatch, tmp_path):
  monkeypatch.setenv("HOME", str(tmp_path))
  with pytest.raises(
    schema.ConfigError, match=rf"no folder '~/photos' \('{tmp_path}/photos'\)\. Name an existing folder"
  ):
    folder("~/photos")


@pytest.mark.parametrize("layout", ["", "train/"])
def test_labels_are_known_without_the_files(tmp_path, layout):
  path = write(tmp_path, *(f"{layout}{label}/{i}.png" for label in ("ant", "bee", "cat") for i in range(5)))
  args = {"train": "train[:50%]+train[-3:]", "test": "train[:1]" if layout else "test"}
  source = folder(path, **args)
  expected = [label for _, label in numbers(source)]
  assert [source.classes[label] for label in expected] == [name.split("/")[-2] for name in names(source)]
  for name in set(names(source)):
    (tmp_path / name).unlink()
  assert labels(source) == expected
  with pytest.raises(FileNotFoundError):
    source.read(0)
  part = sources.select_subset(source, [4, 0])
  assert labels(part) == [expected[4], expected[0]]


def test_subset_of_a_folder_names_its_own_files(tmp_path):
  source = folder(write(tmp_path, *(f"train/{label}/{i}.png" for label in "ab" for i in range(5))), test="train")
  chosen = [7, 2, 9]
  part = sources.select_subset(source, chosen)
  assert names(part) == [names(source)[i] for i in chosen]
  assert [data for data, _ in numbers(part)] == [(tmp_path / name).read_bytes() for name in names(part)]
  for i, (number, name) in enumerate(zip(chosen, names(part), strict=True)):
    assert part.place(i) == f"folder, split 'train', record {number} (file '{tmp_path}/{name}')"
