"""Versions of sources: they change with the content of a file, even if its size and time of modification do not."""

import os
import pathlib

import pytest

from tests import forms
from tests.image_files import encode, picture
from vit_jax.data import catalog, sources, versions
from vit_jax.schema import Choice

IMAGES = [encode(picture(8, 8, seed=i), "BMP") for i in range(6)]  # of one size


def folder(root):
  for i, image in enumerate(IMAGES):
    file = root / "train" / "ab"[i % 2] / f"{i}.bmp"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(image)
  return {"name": "folder", "path": str(root), "test": "train"}, file


def segmentation(root):
  for kind in ("images/train", "masks/train"):
    (root / kind).mkdir(parents=True)
    for i, image in enumerate(IMAGES):
      (root / kind / f"{i}.bmp").write_bytes(image)
  return {"name": "segmentation", "path": str(root), "classes": "3", "test": "train"}, root / "masks/train/5.bmp"


def stored(form):
  def written(root):
    write, name = forms.FORMS[form]
    write(root, IMAGES, ["a", "b"] * 3)
    files = {"paths": "*.png", "inline": "*.jsonl", "tars": "*.tar", "parquet": "data/*"}
    return {"name": name, "path": str(root), "test": "train"}, sorted(root.glob(files[form]))[0]

  return written


def manifest(root):
  """The manifest, and not an image that it names."""
  choice, _ = stored("paths")(root)
  return choice, root / "all.jsonl"


def mixture(root):
  (one, file), (other, _) = folder(root / "a"), stored("tars")(root / "b")
  return {"name": "mixture", "parts": [one, other], "test": "train"}, file


SOURCES = {each.__name__: each for each in (folder, segmentation, manifest, mixture)}
SOURCES |= {form: stored(form) for form in forms.FORMS}


def opened(choice):
  return catalog.open_split(Choice(choice["name"], {k: v for k, v in choice.items() if k != "name"}), "train")


def changed(file: pathlib.Path):
  """Turns one bit of a file and gives it the time of modification that it had."""
  status, data = file.stat(), bytearray(file.read_bytes())
  at = data.find(b'"a"') + 1 if file.suffix == ".jsonl" else len(data) // 2
  data[at] ^= 1
  file.write_bytes(data)
  os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
  assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)


@pytest.mark.parametrize("kind", SOURCES)
def test_g7_a_file_with_other_content_of_equal_size_and_time_is_another_version(kind, tmp_path):
  choice, file = SOURCES[kind](tmp_path)
  source = opened(choice)
  before, known = versions.of(source), source.fingerprint()
  assert versions.of(opened(choice)) == before
  changed(file)
  assert source.fingerprint() == known  # so that a run goes on with copies of its data
  assert versions.of(source) != before and versions.of(sources.subset(source, [0, 1])) != before


def test_g7_a_renamed_folder_keeps_its_version_and_a_copy_does_not(tmp_path):
  choice, _ = folder(tmp_path / "a")
  before = versions.of(opened(choice))
  (tmp_path / "a").rename(tmp_path / "b")
  assert versions.of(opened(choice | {"path": str(tmp_path / "b")})) == before
  (tmp_path / "b/train/a/0.bmp").rename(tmp_path / "0.bmp")
  (tmp_path / "b/train/a/0.bmp").write_bytes((tmp_path / "0.bmp").read_bytes())
  assert versions.of(opened(choice | {"path": str(tmp_path / "b")})) != before
