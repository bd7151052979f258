"""Tests of the layouts of image folders, and of paths that are one folder too high or too low."""

import pytest

from tests.data.readers.test_folder import folder, write
from vit_jax import schema


@pytest.mark.parametrize(
  ("files", "inside", "advice"),
  [
    (("b/train/x/1.png", "b/test/x/1.png", "c/d/e/1.png"), "", r"'{0}/b' has 'test', 'train': name that folder as"),
    (
      ("b/x/1.png", "b/y/1.png"),
      "",
      r"If 'b/x/1.png' is an image of the class 'x', name '{0}/b' as config\.data\.path",
    ),
    (
      ("b/x/1.png", "b/y/1.png", "empty/", "other/empty/"),
      "",
      r"no split 'train'.* If 'b/x/1.png' is an image of the class 'x', name '{0}/b' as config\.data\.path",
    ),
    (("a/b/x/1.png", "a/b/y/1.png", "c/"), "", r"If 'a/b/x/1.png' is an image .* 'x', name '{0}/a/b' as config"),
    (("a/b/train/x/1.png", "a/c/x/1.png"), "", r" '{0}/a/b' has 'train': name that folder as config\.data\.path"),
    (
      ("x/1.png", "x/sub/1.png", "y/1.png"),
      "x",
      r"'{0}/x' holds 1 image itself, as '1.png', and its only class would be 'sub'\. If '.*' is a class",
    ),
    (
      ("x/1.png",),
      "x",
      r"'{0}/x'/<class> or /<split>/<class>\. The folder itself contains images\. If it is a class,",
    ),
  ],
)
def test_error_of_a_path_too_high_or_too_low_names_the_right_folder(tmp_path, files, inside, advice):
  write(tmp_path, *(file for file in files if not file.endswith("/")))
  for empty in (file for file in files if file.endswith("/")):
    (tmp_path / empty).mkdir(parents=True)
  for validation in (0.0, 0.1):  # 0.1 is the default of a run
    with pytest.raises(schema.ConfigError, match=advice.format(tmp_path)):
      folder(tmp_path / inside, validation=validation)


def test_no_folder_is_suggested_if_several_match_equally(tmp_path):
  write(tmp_path, "a/x/1.png", "b/x/1.png")
  with pytest.raises(schema.ConfigError, match=r"no split 'train'. Allowed: a, b\.$"):
    folder(tmp_path, validation=0.1)


def test_a_folder_whose_splits_are_deeper_has_no_list_of_splits_in_its_error(tmp_path):
  write(tmp_path, "b/train/x/1.png", "b/test/x/1.png")
  with pytest.raises(schema.ConfigError, match=rf"no split 'train'\. '{tmp_path}/b' has 'test', 'train': name that"):
    folder(tmp_path, validation=0.1)


def test_files_of_another_format_are_named_if_a_folder_has_no_images(tmp_path):
  write(tmp_path, "x/1.HEIC", "y/1.heic", "y/2.HEIC")
  with pytest.raises(schema.ConfigError, match=r"<class>, but 3 \.heic\. Convert photographs in other formats to"):
    folder(tmp_path, validation=0.1)


def test_missing_folder_has_a_suggestion(tmp_path):
  write(tmp_path, "photos/x/1.png")
  with pytest.raises(schema.ConfigError, match=rf"no folder '{tmp_path}/fotos'\. Did you mean '{tmp_path}/photos'\?"):
    folder(tmp_path / "fotos")


def test_empty_class_folder_is_named_with_the_fix(tmp_path):
  write(tmp_path, *(f"a/{i}.png" for i in range(5)))
  (tmp_path / "b").mkdir()
  with pytest.raises(
    schema.ConfigError, match=rf"'{tmp_path}/b' contains no image .*\. Remove the empty folder, or move"
  ):
    folder(tmp_path, validation=0.1)


def test_folder_with_only_test_images_needs_no_validation(tmp_path):
  write(tmp_path, *(f"test/a/{i}.png" for i in range(5)))
  assert len(folder(tmp_path, "test", validation=0.1)) == 5


@pytest.mark.parametrize(
  ("files", "message"),
  [
    ((), "no images"),
    (("readme.txt",), "no images"),
    (("train/a/1.png", "train/b/1.png", "test/a/1.png"), r"differ in classes \['b'\]"),
    (("train/a/1.png", "train/b/1.txt", "test/a/1.png", "test/b/1.png"), "train/b' contains no image"),
    (("a/1.png", "b/1.txt"), "b' contains no image"),
    (("a/1.png", "b/1.heic", "b/2.HEIC"), "b' contains no image .*, but 2 .heic"),
    (
      ("a/1.png", "b/c/1.png"),
      "mixes layouts: 'a' contains images, such as 'a/1.png', and 'b' .* as 'b/c/1.png'. Move",
    ),
    (
      ("a/1.png", "b/c/d/1.txt"),
      "mixes layouts: 'a' contains images, such as 'a/1.png', and 'b' contains folders, such as 'b/c'",
    ),
    (
      ("train/a/1.png", "train/b/c/1.png"),
      "train/b' contains no image .* deeper folders, such as 'train/b/c/1.png'. Move them up",
    ),
    (("1.png", "2.png"), "no images"),
    (("a/1.png", "b/1.png"), "contains no record"),
  ],
)
def test_folder_with_another_layout_is_one_error(tmp_path, files, message):
  write(tmp_path, *files)
  with pytest.raises(schema.ConfigError, match=message) as caught:
    folder(tmp_path, "test")
  assert "config.data" in str(caught.value)
