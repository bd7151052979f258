"""Tests of the selection of input files: by name, below folders, from manifests and from a pipe."""

import io
import json
import os

import pytest

from tests.image_files import image
from vit_jax.inference import inputs
from vit_jax.schema import ConfigError


def listed(*words, stdin=b""):
  return inputs.collect_files([str(word) for word in words], io.BytesIO(stdin))


@pytest.fixture
def photos(tmp_path):
  """Returns images at three depths, and other files."""
  for name in ("b.JPG", "a/2.png", "a/10.webp", "a/deep/er/x.gif", "a-b/1.bmp", "a/note.txt", "z/README", "z/n.txt"):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(image())
  for name in (".hidden.png", ".cache/x.png"):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(image())
  return tmp_path


def test_images_below_a_folder_are_sorted_and_other_files_counted(photos):
  found = listed(photos)
  names = ["a/10.webp", "a/2.png", "a/deep/er/x.gif", "a-b/1.bmp", "b.JPG"]
  assert found.files == [f"{photos}/{name}" for name in names]
  assert found.ignored == {".txt": 2, "": 1}


def test_files_are_in_the_order_of_the_arguments(photos):
  assert listed(photos / "b.JPG", photos / "a-b", photos / "b.JPG").files == [
    f"{photos}/{name}" for name in ("b.JPG", "a-b/1.bmp", "b.JPG")
  ]


def test_named_file_is_accepted_with_any_suffix(photos):
  assert listed(photos / "z/README").files == [f"{photos}/z/README"]


def test_cyclic_links_terminate_and_are_named(photos, caplog):
  (photos / "a/deep/up").symlink_to(photos)
  (photos / "again").symlink_to(photos / "a-b")
  (photos / "self.png").symlink_to(photos / "self.png")
  found = listed(photos).files
  assert [file.removeprefix(f"{photos}/") for file in found] == [
    *("a/10.webp", "a/2.png", "a/deep/er/x.gif", "a-b/1.bmp", "b.JPG", "self.png"),
  ]
  assert "deep/up" in caplog.text and "again" in caplog.text


def test_paths_of_a_manifest_are_relative_to_its_folder(photos):
  lines = [{"path": "a/2.png", "label": 3}, {"path": str(photos / "b.JPG")}, {"path": "none.jpg"}]
  (photos / "all.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
  assert listed(photos / "all.jsonl").files == [f"{photos}/a/2.png", f"{photos}/b.JPG", f"{photos}/none.jpg"]


@pytest.mark.parametrize("line", ['{"bytes": "aaaa"}', "[1]", '{"path": 3}', '{"path": ""}', "{", "[" * 100])
def test_line_without_a_path_is_named(tmp_path, line):
  (tmp_path / "all.jsonl").write_text('{"path": "a.png"}\n' + line)
  with pytest.raises(ConfigError, match=r"all\.jsonl, line 2: "):
    listed(tmp_path / "all.jsonl")


def test_paths_are_one_per_line_and_may_be_invalid_unicode(photos):
  odd = os.fsencode(photos) + b"/caf\xe9 1.png"
  with open(odd, "wb") as file:
    file.write(image())
  stdin = b"\n".join([odd, b"", os.fsencode(photos / "a-b") + b"\r", b"/nowhere/x.jpg"])
  assert listed("-", stdin=stdin).files == [os.fsdecode(odd), f"{photos}/a-b/1.bmp", "/nowhere/x.jpg"]


def test_standard_input_without_a_path_is_an_error(tmp_path):
  for stdin in (b"", b"\n\r\n\n"):
    with pytest.raises(ConfigError, match=r"^PATH: standard input contains no path\. Specify files, folders or"):
      listed("-", stdin=stdin)
  with pytest.raises(ConfigError, match=r"^no image in \['-'\]"):
    listed("-", stdin=os.fsencode(tmp_path))
  with pytest.raises(ConfigError, match=r"^no image in \["):
    listed(tmp_path, "-")


def test_missing_path_is_an_error_that_suggests_the_nearest(photos):
  (photos / "b.xml").touch()  # labels of the image
  with pytest.raises(ConfigError, match=r"'.*/b\.jgp' does not exist\. Did you mean '.*/b\.JPG'\?"):
    listed(photos / "b.jgp")
  with pytest.raises(ConfigError) as caught:
    listed("/no/x.jpg", photos / "b.JPG", photos / "b.jgp", "y.jpg")
  advice = "Specify files, folders, a manifest, or - for paths on stdin"
  also = f"Also missing: '{photos}/b.jgp', 'y.jpg'"
  assert str(caught.value) == f"'/no/x.jpg' does not exist. {advice}. {also}"
  (photos / "x.jpg").touch()
  with pytest.raises(ConfigError, match=r"'.*/nope\.jpg' does not exist\. Specify"):
    listed(photos / "nope.jpg")
  with pytest.raises(ConfigError, match=r"the manifest '.*/none\.jsonl' does not exist"):
    listed(photos / "none.jsonl")


def test_error_without_an_image_lists_the_other_files(photos):
  with pytest.raises(ConfigError, match=r"no image in .*only other files \(1 without extension, 1 \.txt\).*\.jpg"):
    listed(photos / "z")


@pytest.mark.heavy
def test_folder_in_a_bucket_is_listed_like_a_folder_on_a_disk(bucket):
  for name in ("b/2.jpg", "b/.x.jpg", "a.png", "c.txt"):
    (bucket / name).write_bytes(image())
  assert listed(bucket).files == [f"{bucket}/a.png", f"{bucket}/b/2.jpg"]
  assert listed(bucket).ignored == {".txt": 1}
  assert listed(bucket / "a.png").files == [f"{bucket}/a.png"]
  with pytest.raises(ConfigError, match="in the bucket"):
    listed(bucket / "none")
