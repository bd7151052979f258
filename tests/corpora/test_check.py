"""Tests of the check of folders: every bad image is named with its reason and can be moved without loss."""

import errno
import logging
import os
import shlex
import shutil

import pytest
from etils import epath

from tests import hostile_images
from tests.image_files import encode, picture
from tests.image_files import names as image_names
from vit_jax import schema
from vit_jax.corpora import check
from vit_jax.data import catalog, images, local_files

GOOD = encode(picture())
BAD = {
  "cat/torn.jpg": encode(picture(), "JPEG")[:500],
  "cat/text.png": b"hello",
  "dog/empty.webp": b"",
  "dog/torn.tif": encode(picture(), "TIFF")[:-9],
  "dog/long.png": hostile_images.black(1, 1000),
}


@pytest.fixture
def photos(tmp_path):
  """24 images of two classes, five of them bad, and files that are not images."""
  root = tmp_path / "photos"
  for name in [f"{label}/{i}.png" for label, count in (("cat", 11), ("dog", 8)) for i in range(count)]:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(GOOD)
  for name, data in BAD.items():
    (root / name).write_bytes(data)
  for name in ("cat/a.heic", "dog/b.txt", "cat/.DS_Store"):
    (root / name).write_bytes(b"x")
  return root


def open_folder(root, split=None, **args):
  choice = schema.bind(schema.Choice("folder", {"path": str(root)} | args), catalog.DATA["folder"], catalog.DATA)
  if split:
    return catalog.open_split(choice, split)
  return choice, [catalog.open_split(choice, split) for split in ("train", "test")]


def names(root):
  return {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file() or file.is_symlink()}


def test_check_names_bad_images_and_summarises_the_folder(photos):
  lines, count, problem = check.check_images(photos)
  assert count == 5
  bad = dict(line.removeprefix("bad: ").split(": ", 1) for line in lines if line.startswith("bad: "))
  assert bad.keys() == BAD.keys()
  assert bad["dog/empty.webp"] == "the file is empty" and "pixels that end at" in bad["dog/torn.tif"]
  assert "data.max_aspect=100" in bad["dog/long.png"]
  text = "\n".join(lines)
  assert "24 images, 21 .png, 1 .jpg, 1 .webp, 1 .tif; ignored: 1 .heic, 1 .txt" in text
  assert "1 of 2 folders with fewer than 10 images: 'dog' 8" in text
  command = f"python -m vit_jax.prepare --check={photos} --move-bad=DIR"
  assert lines[-2:] == ["5 bad images", f"next: fix the bad images, or move them: {command}"]
  assert problem is None


def on_one_disk(monkeypatch):
  pass


def across_disks(monkeypatch):
  def link(*_, **__):
    raise OSError(errno.EXDEV, "Invalid cross-device link")

  monkeypatch.setattr(os, "link", link)


@pytest.mark.parametrize("disks", [on_one_disk, across_disks])
def test_bad_images_are_moved_and_a_second_check_finds_no_more(photos, tmp_path, monkeypatch, disks):
  disks(monkeypatch)
  before = names(photos)
  (photos / "dog/link.jpg").symlink_to("nowhere.jpg")
  stamp = (photos / "cat/torn.jpg").stat().st_mtime_ns
  lines, remaining, _ = check.check_images(photos, tmp_path / "aside")
  assert (remaining, lines[-2]) == (0, f"6 bad images, 6 moved to '{tmp_path}/aside'")
  assert names(photos) == before - BAD.keys()
  assert names(tmp_path / "aside") == {*BAD, "dog/link.jpg"}
  assert {name: (tmp_path / "aside" / name).read_bytes() for name in BAD} == BAD
  assert (tmp_path / "aside/cat/torn.jpg").stat().st_mtime_ns == stamp
  assert os.readlink(tmp_path / "aside/dog/link.jpg") == "nowhere.jpg"
  assert check.check_images(photos, tmp_path / "aside")[1] == 0


@pytest.mark.parametrize("disks", [on_one_disk, across_disks])
def test_existing_file_is_never_replaced(photos, tmp_path, monkeypatch, disks):
  disks(monkeypatch)
  there = tmp_path / "aside/cat/torn.jpg"
  there.parent.mkdir(parents=True)
  there.write_bytes(b"mine")
  lines, remaining, _ = check.check_images(photos, tmp_path / "aside")
  assert remaining == 1
  assert "not moved: cat/torn.jpg: a file of this name already exists" in lines
  assert lines[-2].startswith("5 bad images, 4 moved")
  assert lines[-1] == "next: fix or remove the bad images that were not moved"
  assert there.read_bytes() == b"mine" and (photos / "cat/torn.jpg").exists()


def test_file_that_cannot_be_copied_stays_in_place(photos, tmp_path, monkeypatch):
  across_disks(monkeypatch)
  os.mkfifo(photos / "cat/pipe.jpg")
  lines, _, _ = check.check_images(photos, tmp_path / "aside")
  assert any(line.startswith("not moved: cat/pipe.jpg: ") for line in lines)
  assert not (tmp_path / "aside/cat/pipe.jpg").exists() and (photos / "cat/pipe.jpg").exists()


def test_images_that_change_their_split_after_a_move_are_counted(photos, tmp_path):
  def members():
    return {
      split: set(image_names(open_folder(photos, validation=0.1, split=split))) for split in ("train", "val", "test")
    }

  for name in BAD:
    (photos / name).unlink()
  before = members()
  for name in sorted(before["test"]):
    (photos / name).write_bytes(b"torn")
  lines, count, _ = check.check_images(photos)
  assert count == len(before["test"]) and not any("have changed" in line for line in lines)
  lines, _, _ = check.check_images(photos, tmp_path / "aside")
  (line,) = [line for line in lines if line.startswith("the default splits of this folder have changed: ")]
  now = members()
  moved = {other: len(now["test"] & before[other]) for other in ("train", "val")}
  assert moved["train"] + moved["val"] == len(now["test"])
  assert moved["train"] > 0 and moved["val"] > 0
  assert (
    f"split 'test': {count} images before, {len(now['test'])} now, {moved['train']} of them from split 'train', which "
    f"was trained on, {moved['val']} of them from split 'val'"
  ) in line
  assert line.endswith("If runs were trained on this folder, restart each of them in a new --workdir")


@pytest.mark.parametrize("aside", ["", "bad", "cat/bad", "link"])
def test_bad_images_do_not_become_a_class_of_the_folder(photos, aside):
  (photos.parent / "else").symlink_to(photos)
  target = photos.parent / "else/x" if aside == "link" else photos / aside
  with pytest.raises(schema.ConfigError, match=r"--move-bad: .* would become one of its classes"):
    check.check_images(photos, target)


def test_cyclic_links_are_named_and_not_followed(photos):
  (photos / "cat/up").symlink_to("..")
  (photos / "same").symlink_to("cat")
  lines, count, problem = check.check_images(photos)
  assert count == 5
  assert "not followed: 'cat/up' is a link to a folder that contains it" in lines
  assert "not followed: 'same' is the folder 'cat' under another name" in lines
  assert "Remove the link" in problem


def test_files_outside_of_the_folder_are_not_moved(photos, tmp_path):
  outside = tmp_path / "outside" / "precious.png"
  outside.parent.mkdir()
  outside.write_bytes(b"hello")
  (photos / "fox").symlink_to(outside.parent)
  lines, remaining, _ = check.check_images(photos, tmp_path / "aside")
  assert remaining == 1 and outside.exists()
  assert "not moved: fox/precious.png: a link leads to it, and it is outside of the folder" in lines
  assert names(tmp_path / "aside") == {*BAD}


def test_link_to_itself_hides_no_other_image(photos):
  (photos / "cat" / "loop").symlink_to("loop")
  _, count, problem = check.check_images(photos)
  assert count == 5 and problem is None


def test_folder_that_cannot_be_searched_is_a_problem(photos, monkeypatch):
  scan = os.scandir

  def refuse(path):
    if str(path).endswith("dog"):
      raise PermissionError(errno.EACCES, "Permission denied", str(path))
    return scan(path)

  monkeypatch.setattr(os, "scandir", refuse)
  lines, _, problem = check.check_images(photos)
  assert problem == "not searched: 'dog': Permission denied" and problem in lines
  assert not any(line.startswith("next:") for line in lines)


def test_bad_images_of_an_unreadable_folder_are_not_moved(tmp_path):
  root = tmp_path / "photos"
  for name in ("a/x/1.png", "b/y/2.png"):
    (root / name).parent.mkdir(parents=True)
    (root / name).write_bytes(b"hello")
  with pytest.raises(
    schema.ConfigError,
    match=r"--move-bad: a run with the default settings cannot read .* No image was moved. Fix this first",
  ):
    check.check_images(root, tmp_path / "aside")
  assert names(root) == {"a/x/1.png", "b/y/2.png"} and not (tmp_path / "aside").exists()


def test_flat_folder_is_checked(tmp_path):
  (tmp_path / "1.png").write_bytes(GOOD)
  (tmp_path / "2.png").write_bytes(b"x")
  lines, count, problem = check.check_images(tmp_path)
  assert count == 1 and problem.startswith("no images") and lines[-1] == "1 bad image"


@pytest.mark.parametrize("empty", [False, True])
def test_parent_of_a_dataset_folder_is_reported_as_unreadable(tmp_path, empty):
  for file in ("photos/a/1.png", "photos/b/1.png"):
    (tmp_path / file).parent.mkdir(parents=True)
    for number in range(5):
      (tmp_path / file).with_stem(str(number)).write_bytes(GOOD)
  if empty:
    (tmp_path / "empty").mkdir()
  lines, count, problem = check.check_images(tmp_path)
  assert (count, lines[-1]) == (0, "no bad image")
  assert problem.startswith("no split 'train'.") and f"name '{tmp_path}/photos' as config.data.path" in problem
  assert check.check_images(tmp_path / "photos").problem is None


def test_next_step_of_a_small_folder_has_a_batch_that_fits(tmp_path):
  for number in range(30):
    for name in ("a", "b"):
      (tmp_path / name).mkdir(exist_ok=True)
      (tmp_path / name / f"{number}.png").write_bytes(GOOD)
  lines, _, problem = check.check_images(tmp_path)  # 42 of the 60 images are for training
  assert problem is None and lines[-1].endswith(f"--config.data.path={tmp_path} --config.batch=32")
  assert not any("of one class" in line for line in lines)
  shutil.rmtree(tmp_path / "b")
  lines, _, problem = check.check_images(tmp_path)
  assert problem is None and "warning: all images are of one class, 'a': a classifier learns nothing" in lines


def test_folder_with_files_of_another_format_is_an_error_that_names_them(tmp_path):
  (tmp_path / "a").mkdir()
  (tmp_path / "a/1.HEIC").write_bytes(b"x")
  with pytest.raises(schema.ConfigError, match=r"--check: no image .*, but 1 \.heic\. Convert photographs in other"):
    check.check_images(tmp_path)


def test_missing_or_empty_folder_is_an_error(tmp_path):
  for path, message in ((tmp_path, "no image"), (tmp_path / "x", "no folder")):
    with pytest.raises(schema.ConfigError, match=f"--check: {message}"):
      check.check_images(path)
  (tmp_path / "a.jpg").touch()
  with pytest.raises(schema.ConfigError, match=r"--check: '.*a\.jpg' is a file"):
    check.check_images(tmp_path / "a.jpg")


def test_disk_error_does_not_mark_an_image_as_bad(monkeypatch, photos):
  def fails(file):
    raise OSError(errno.EIO, "Input/output error")

  monkeypatch.setattr(local_files, "read_file", fails)
  with pytest.raises(images.ImageError, match="Check that its disk"):
    check.check_images(photos)
  choice, splits = open_folder(photos)
  assert "Check that its disk" in check.check_folder_images(choice, splits, photos)


def test_bucket_is_refused(photos):
  with pytest.raises(schema.ConfigError, match="--check: only folders on a disk"):
    check.check_images(epath.Path("gs://bucket/photos"))
  with pytest.raises(schema.ConfigError, match="--check: only folders on a disk"):
    check.check_images(photos, epath.Path("gs://bucket/aside"))


# At the start of a run.


def test_run_is_refused_with_the_bad_images_of_all_splits(photos):
  choice, splits = open_folder(photos)
  message = check.check_folder_images(choice, splits, photos)
  assert message.startswith(f"5 of 24 images in '{photos}' are bad") and "--config.data.on_error=skip" in message
  assert f"prepare --check={photos} --move-bad=DIR" in message
  assert {line.split(": ")[0].strip() for line in message.splitlines()[1:]} == BAD.keys()


def test_skipped_images_are_warnings_up_to_a_limit(photos, caplog):
  choice, splits = open_folder(photos, on_error="skip")
  with caplog.at_level(logging.WARNING):
    assert check.check_folder_images(choice, splits, photos) is None
  (line,) = [record.getMessage() for record in caplog.records]
  assert line == f"5 of 24 images in '{photos}' will be skipped: {', '.join(sorted(BAD))}"
  for i in range(12):
    (photos / f"cat/more{i}.png").write_bytes(b"x")
  choice, splits = open_folder(photos, on_error="skip")
  assert "raise --config.data.max_bad" in check.check_folder_images(choice, splits, photos)
  choice, splits = open_folder(photos, on_error="skip", max_bad=0.9)
  assert check.check_folder_images(choice, splits, photos) is None


def test_names_of_bad_images_have_no_control_characters(photos, caplog):
  (photos / "cat/a\x1b\nö.jpg").write_bytes(b"x")
  shown = "cat/a\\x1b\\nö.jpg"
  with caplog.at_level(logging.WARNING):
    assert check.check_folder_images(*open_folder(photos, on_error="skip"), photos) is None
  assert shown in caplog.records[0].getMessage()
  assert f"\n  {shown}: " in check.check_folder_images(*open_folder(photos), photos)
  assert any(line.startswith(f"bad: {shown}: ") for line in check.check_images(photos)[0])


def test_good_folder_is_accepted_and_a_large_one_is_not_checked(photos, monkeypatch):
  choice, splits = open_folder(photos)
  assert all(check.is_quick(source, photos) for source in splits)
  monkeypatch.setattr(check, "RATE", 1)
  assert not any(check.is_quick(source, photos) for source in splits)
  assert check.check_folder_images(choice, splits, photos) is None
  monkeypatch.undo()
  monkeypatch.setattr(check, "EACH", 1)
  assert not any(check.is_quick(source, photos) for source in splits)
  monkeypatch.undo()
  for name in BAD:
    (photos / name).unlink()
  choice, splits = open_folder(photos)
  assert check.check_folder_images(choice, splits, photos) is None


@pytest.mark.parametrize(
  ("other", "path", "test"),
  [
    ("test", "", "test"),
    ("val", "", "val"),
    ("valid", "", "valid"),
    ("extra", "/train", "test"),
    ("", "/train", "test"),
  ],
)
def test_next_command_names_a_split_for_testing_that_exists(tmp_path, other, path, test):
  for name in (f"{split}/{label}/{i}.png" for split in {"train", other} - {""} for label in "ab" for i in range(10)):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(GOOD)
  (tmp_path / "dev").write_text("not a folder")
  words = shlex.split(check.check_images(tmp_path).lines[-1])
  flags = dict(word.removeprefix("--config.data.").split("=") for word in words if word.startswith("--config.data."))
  assert flags["path"] == f"{tmp_path}{path}" and flags.get("test", "test") == test
  assert len(open_folder(flags["path"], "train", test=test)) in (16, 20)
  assert len(open_folder(flags["path"], "test", test=test)) in (4, 20)
