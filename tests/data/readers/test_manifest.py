"""Tests of manifests: lines that name an image or contain one, and invalid lines."""

import base64
import json
import tracemalloc

import pytest

from tests import forms
from tests.forms import opened
from tests.image_files import image, names, numbers
from vit_jax import schema


def write(root, *lines):
  file = root / "all.jsonl"
  file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
  return file


def manifest(path, split="train", **args):
  return opened("manifest", path, split, **{"test": "train"} | args)


def test_line_names_an_image_or_contains_it(tmp_path):
  for i, name in enumerate(("a.png", "sub/b c.png", "ü.png")):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(image(i))
  inline = base64.b64encode(image(4)).decode()
  file = write(
    tmp_path,
    {"path": "a.png", "label": "cat", "width": 5},
    "",
    {"path": str(tmp_path / "sub/b c.png"), "label": "dog", "id": 17},
    {"bytes": inline, "label": "cat"},
    {"path": "ü.png", "label": "ant"},
  )
  source = manifest(file)
  assert numbers(source) == [(image(0), 1), (image(1), 2), (image(4), 1), (image(2), 0)]
  assert names(source) == ["a.png", "17", "train/2", "ü.png"] and source.classes == ("ant", "cat", "dog")
  assert source.place(2).endswith(f"({file}, line 4)")


def test_splits_are_in_the_lines_or_in_the_file_names(tmp_path):
  lines = [{"path": f"{i}.png", "label": [i % 3, 3][: i % 4], "split": ["train", "val"][i % 2]} for i in range(20)]
  file = write(tmp_path, *lines)
  train, val = (manifest(file, split, labels=2) for split in ("train", "val"))
  assert names(train) == [f"{i}.png" for i in range(0, 20, 2)] and names(val) == [f"{i}.png" for i in range(1, 20, 2)]
  for source, first in ((train, 0), (val, 1)):
    assert [source.label(i) for i in range(10)] == [tuple(lines[i]["label"]) for i in range(first, 20, 2)]
  assert train.classes == val.classes
  assert val.place(3).endswith("line 8)")
  (tmp_path / "m").mkdir()
  (tmp_path / "m/train.jsonl").write_text('{"path": "a", "label": 1}\n')
  (tmp_path / "m/val.jsonl").write_text('{"path": "b", "label": 0}\n{"path": "c", "label": 0, "split": "train"}')
  assert names(manifest(tmp_path / "m")) == ["a", "c"] and names(manifest(tmp_path / "m", "val")) == ["b"]


@pytest.mark.parametrize(
  ("line", "message"),
  [
    ("{'path': 1}", "line 2: Expecting property name"),
    ('{"path": "a", "label": 1', "line 2: "),
    ("[" * 5000, "line 2: it is nested deeper"),
    ("[1]", r"line 2: \[1\] is not a JSON object"),
    ({"label": 1}, "line 2: it has neither of 'path' and 'bytes'"),
    ({"path": "a", "bytes": "b", "label": 1}, "line 2: it has both"),
    ({"path": 5, "label": 1}, "line 2: 'path' is 5. Allowed: a text"),
    ({"path": "", "label": 1}, "line 2: 'path' is ''"),
    ({"path": "a"}, "line 2: it has no 'label'"),
    ({"path": "a", "label": -1}, "line 2: label -1 is out of range"),
    ({"path": "a", "label": 2**40}, "line 2: label 1099511627776 is out of range"),
    ({"path": "a", "label": "x"}, "line 2: label 'x' is not a number, like other labels"),
    ({"path": "a", "label": 1, "split": 2}, "line 2: 'split' is 2"),
    *(
      (
        {"path": "a", "label": 1, "split": split},
        "line 2: split '.*. Allowed: up to 1,000 names of letters.*as 'train'",
      )
      for split in ("a\nb", "train[:1]", " train", "all", "train+test", "../x", "\ud800")
    ),
    ("\ufeff\udcff", None),
  ],
)
def test_invalid_line_is_refused_with_file_and_line(tmp_path, line, message):
  file = write(tmp_path, {"path": "a", "label": 0})
  text = line if isinstance(line, str) else json.dumps(line)
  with file.open("ab") as lines:
    lines.write(text.encode("utf-8", "surrogateescape") + b"\n")
  with pytest.raises(schema.ConfigError, match=message or "line 2: 'utf-8' codec can't decode") as caught:
    manifest(file)
  assert caught.value.place == "config.data.path" and str(file) in caught.value.message


@pytest.mark.parametrize(
  ("line", "message"),
  [
    ({"path": "none.png"}, "No such file"),
    ({"path": "."}, "it is a folder"),
    ({"path": "a\0b"}, "contains a null character"),
    ({"path": "\ud800.png"}, r"its path '.*\\ud800\.png' is not valid Unicode"),
    ({"path": "~nobody/a.png"}, "No such file"),
    ({"path": "../all.jsonl/x"}, "Not a directory|No such file"),
    ({"bytes": "not base64!"}, "not base64"),
  ],
)
def test_missing_image_is_an_error_of_that_image(tmp_path, line, message):
  source = manifest(write(tmp_path, line | {"label": 0}))
  with pytest.raises(OSError, match=message):
    source.read(0)


def test_fingerprint_includes_the_images_named_by_lines(tmp_path):
  for name in ("a.png", "b.png"):
    (tmp_path / name).write_bytes(image(0))
  lines = [{"path": name, "label": 0} for name in ("a.png", str(tmp_path / "b.png"), "none.png", "x\0y", "~nobody/x")]
  file = write(tmp_path, *lines, {"bytes": base64.b64encode(image(4)).decode(), "label": 0})
  part, before = manifest(file, "train[2:]").fingerprint(), manifest(file).fingerprint()
  assert before == manifest(file).fingerprint()
  (tmp_path / "b.png").write_bytes(image(0) + b"more")
  now = manifest(file).fingerprint()
  assert before.changes(now) == ["sizes of files", "modification times of files"]
  (tmp_path / "a.png").write_bytes(image(1))
  assert now.changes(manifest(file).fingerprint())[-1] == "modification times of files"
  assert part == manifest(file, "train[2:]").fingerprint()
  with pytest.raises(OSError, match="No such file"):
    manifest(file).read(4)


def test_memory_does_not_grow_with_the_length_of_lines(tmp_path):
  count, line = 3_000, json.dumps({"path": "p" * 200, "label": 3, "note": "x" * 300})
  file = write(tmp_path, *[line] * count)
  tracemalloc.start()
  try:
    source = manifest(file)
    now, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert len(source) == count
  assert now < 40 * count + 2**20 and peak < 80 * count + 2**22


CAT, DOG = {"path": "a/1.png", "label": "cat"}, {"path": "a/1.png", "label": "dog"}
SPELLINGS = ["a/1.png", "./a/1.png", "a//1.png", "a/../a/1.png", "{root}/a/1.png", "link/1.png"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_image_with_two_labels_is_refused_with_both_lines(tmp_path, spelling):
  (tmp_path / "a").mkdir()
  (tmp_path / "link").symlink_to("a")
  file = write(tmp_path, {"path": "b.png", "label": "cat"}, CAT, DOG | {"path": spelling.format(root=tmp_path)})
  with pytest.raises(schema.ConfigError) as caught:
    manifest(file)
  assert caught.value.place == "config.data.path"
  assert (
    f"{file}, line 2 ('cat') and {file}, line 3 ('dog') give the same image two labels. Rem" in caught.value.message
  )
  (tmp_path / "link").unlink()
  (tmp_path / "link").mkdir()  # now a different folder, although the manifest was scanned before
  if spelling == "link/1.png":
    assert manifest(file).note == ""


def test_two_labels_of_an_image_are_refused_within_a_split(tmp_path):
  for name, line in (("train-0", CAT), ("train-1", DOG), ("test-0", DOG)):
    (tmp_path / f"{name}.jsonl").write_text(json.dumps(line) + "\n")
  with pytest.raises(schema.ConfigError) as caught:
    manifest(tmp_path, test="test")
  assert f"{tmp_path}/train-0.jsonl, line 1 ('cat') and {tmp_path}/train-1.jsonl, line 1 ('dog')" in str(caught.value)
  assert manifest(tmp_path, "test", test="test").label(0) == 1
  (tmp_path / "train-1.jsonl").write_text(json.dumps(CAT) + "\n")
  assert manifest(tmp_path, test="test").classes == ("cat", "dog")


def test_equal_label_sets_in_another_order_are_one_label(tmp_path):
  lines = [{"path": "1.png", "label": label} for label in (["a", "b"], ["b", "a", "a"], ["a"])]
  assert "1 line of 'train' repeats" in manifest(write(tmp_path, *lines[:2]), labels=3).note
  with pytest.raises(
    schema.ConfigError, match=r"line 1 \('a', 'b'\) and .*line 3 \('a'\) give the same image two labels"
  ):
    manifest(write(tmp_path, *lines), labels=3)


@pytest.mark.parametrize("key", ["path", "bytes"])
def test_lines_that_repeat_an_image_are_counted_in_a_note(tmp_path, key):
  values = [base64.b64encode(image(i)).decode() if key == "bytes" else f"{i}.png" for i in (0, 1, 0, 1, 1, 2)]
  file = write(tmp_path, *({key: value, "label": 3} for value in values))
  example = f"{file}, line 3, which repeats {file}, line 1"
  assert manifest(file).note == f"3 lines of 'train' repeat an image with the same label, such as {example}"
  file = write(tmp_path, *({key: value, "label": i} for i, value in enumerate(values)))
  with pytest.raises(
    schema.ConfigError, match=r"line 1 \('0'\) and .*line 3 \('2'\) .*\. There are 3 such lines in 'train'\."
  ):
    manifest(file)


def test_images_in_training_and_test_data_are_counted_in_a_note(tmp_path):
  lines = [{"path": f"{i % 7}.png", "label": 0, "split": "train" if i < 5 else "test"} for i in range(10)]
  file = write(tmp_path, *lines, {"path": "8.png", "label": 0, "split": "val"})
  source = manifest(file, test="test", val="val")
  assert source.note == (
    f"data overlap: 3 images of test are also in the training data, for example {file}, line 1 and {file}, line 8. "
    "Results on these images do not show how well a model generalises"
  )
  assert manifest(file, "test", test="test").note == ""  # a run prints the note of its training data
  assert manifest(file, train="train[:2]", test="train[2:]").note == ""
  # other code reports records shared by overlapping slices
  assert manifest(file, train="test[:2]", test="test[1:]").note == ""
  repeated = write(tmp_path, *({"path": f"{i % 3}.png", "label": 0} for i in range(6)))
  source = manifest(repeated, train="train[:3]", test="train[4:]")
  assert "data overlap: 2 images of test are" in source.note and "line 2 and" in source.note


@pytest.mark.heavy
def test_manifest_and_images_may_be_in_a_bucket(bucket, bucket_server, tmp_path):
  forms.inline(tmp_path, [image(i) for i in range(40)], [i % 3 for i in range(40)])
  (bucket / "in/all.jsonl").write_bytes((tmp_path / "all.jsonl").read_bytes())
  here, there = manifest(tmp_path), manifest(bucket / "in")
  assert numbers(there) == numbers(here) and there.remote
  asked = bucket_server.counts["GET"]
  assert [there.runs.parse(data) for data in there.runs.read(3, 35)] == numbers(here)[3:35]
  assert bucket_server.counts["GET"] == asked + 1
  (bucket / "paths/b/1.png").write_bytes(image(1))
  (bucket / "paths/b/2.png").write_bytes(image(2))
  (bucket / "paths/m.jsonl").write_text(
    f'{{"path": "b/1.png", "label": 0}}\n{{"path": "{bucket}/paths/b/2.png", "label": 1}}\n'
  )
  assert numbers(manifest(bucket / "paths/m.jsonl")) == [(image(1), 0), (image(2), 1)]
  file = write(tmp_path, {"path": f"{bucket}/paths/b/1.png", "label": 0})
  assert numbers(manifest(file)) == [(image(1), 0)] and manifest(file).remote
