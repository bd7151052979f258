"""Tests of the used and ignored files of an image folder, and of folders that contain themselves."""

import pytest

from tests.data.readers.test_folder import folder, write
from tests.image_files import names
from vit_jax import schema
from vit_jax.data.readers import locations, tree

FILES = [f"a/{i}{extension}" for i, extension in enumerate(tree.EXTENSIONS)]


def test_every_image_extension_is_read_and_all_files_are_counted(tmp_path):
  path = write(tmp_path, *FILES, "a/x.JPG", "a/y.heic", "a/z.HEIC", "a/readme", "a/.DS_Store", "b/1.webp", "labels.csv",
               ".hidden.png")  # fmt: skip
  source = folder(path, "all")
  assert sorted(names(source)) == sorted([*FILES, "a/x.JPG", "b/1.webp"])
  assert source.note == (
    f"{path!r}: 10 images, 2 .jpg, 2 .webp, 1 .jpeg, 1 .png, 1 .bmp, 1 .gif, 1 .tif, 1 .tiff; "
    "ignored: 2 .heic, 1 without an extension, 1 .csv"
  )


def test_images_outside_classes_and_inner_folders_are_reported_as_ignored(tmp_path):
  path = write(tmp_path, "1.png", "2.jpg", "train/a/3.png", "train/a/deep/4.png", "train/b/5.png", "other/c/6.png")
  assert folder(path, "train", test="train").note == (
    f"{path!r}: 2 images, 2 .png; ignored: 2 images outside of classes, as '1.png', 1 folder inside of classes, as "
    "'train/a/deep'"
  )


def test_note_reports_that_no_file_is_ignored(tmp_path):
  path = write(tmp_path, "a/1.png", "b/1.png")
  assert folder(path, "all").note == f"{path!r}: 2 images, 2 .png; ignored: nothing"


def test_unusual_and_many_extensions_are_on_one_line(tmp_path):
  write(tmp_path, "a/1.png", "a/x.\udcff", "a/y.new\nline", *(f"a/{i}.e{i}" for i in range(20)))
  note = folder(tmp_path, "all").note
  assert "\n" not in note and note.encode() and note.endswith(", 12 others")


@pytest.mark.parametrize(
  ("files", "link", "target", "output"),
  [
    (("a/1.png", "b/1.png"), "c", ".", "c"),
    (("train/a/1.png", "train/b/1.png"), "train/c", "..", "train/c"),
    (("train/a/1.png", "train/b/1.png"), "train/c", ".", "train/c"),
    (("a/1.png", "b/1.png"), "b/c", "..", "b/c"),
  ],
)
def test_folder_that_contains_itself_is_named(tmp_path, files, link, target, output):
  write(tmp_path, *files)
  (tmp_path / link).symlink_to(target)
  with pytest.raises(
    schema.ConfigError, match=rf"config\.data\.path: '{tmp_path}/{output}' is a link to a folder that"
  ):
    folder(tmp_path, "train")


def test_link_to_a_directory_is_a_class_and_a_loop_is_ignored(tmp_path):
  write(tmp_path / "photos", "train/a/1.png")
  write(tmp_path / "else", "1.png")
  (tmp_path / "photos/train/b").symlink_to(tmp_path / "else")
  (tmp_path / "photos/train/a/back").symlink_to("..")
  source = folder(tmp_path / "photos", "train", test="train")
  assert source.classes == ("a", "b")
  assert source.note.endswith("ignored: 1 folder inside of classes, as 'train/a/back'")


def test_first_image_is_searched_down_to_a_given_depth(tmp_path):
  write(tmp_path, "a/x.txt", "a/b/c/1.png")
  (tmp_path / "a/b/back").symlink_to("..")
  made = tree.FolderTree(locations.DiskFolder(tmp_path))
  assert [made.example("a", deep) for deep in range(4)] == [None, None, "a/b/c/1.png", "a/b/c/1.png"]


def test_error_of_classes_that_are_too_deep_suggests_another_path(tmp_path):
  path = write(tmp_path, "x/train/a/1.png", "x/train/b/1.png")
  with pytest.raises(
    schema.ConfigError, match=r"deeper folders, such as 'x/train/a/1.png'. Move them up, or set the path to '.*/x'"
  ):
    folder(path, "train", train="x", test="x")
