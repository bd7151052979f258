"""Tests of the properties that all storage formats share: records, labels, errors and restarts."""

import pytest

from tests import forms, streams
from tests.image_files import labels, numbers
from vit_jax import schema
from vit_jax.data import images, sources
from vit_jax.schema.errors import AbsentError

COUNT = 50
FILES = [streams.file(i) for i in range(COUNT)]
CLASSES = ["ant", "bee", "cat"]
each_form = pytest.mark.parametrize("form", forms.FORMS)


def written(form, root, given, split="train", files=None):
  forms.FORMS[form][0](root, files or FILES[: len(given)], given, split)
  return root


def opened(form, root, split="train", **args):
  return forms.opened(forms.FORMS[form][1], root, split, **args)


@each_form
def test_every_form_contains_the_written_records(form, tmp_path):
  written(form, tmp_path, [i % 3 for i in range(COUNT)])
  written(form, tmp_path, [2, 0], "test")
  source, test = opened(form, tmp_path), opened(form, tmp_path, "test")
  assert numbers(source) == [(FILES[i], i % 3) for i in range(COUNT)]
  assert numbers(test) == [(FILES[0], 2), (FILES[1], 0)]
  assert source.classes == test.classes == ("0", "1", "2")
  assert labels(source) == [i % 3 for i in range(COUNT)]
  part = opened(form, tmp_path, "train[10:30]+test[1:]")
  assert numbers(part) == [*numbers(source)[10:30], numbers(test)[1]]
  assert len({source.identify(i) for i in range(COUNT)}) == COUNT
  assert str(tmp_path) in source.place(17) and "'train', record 17" in source.place(17)


@each_form
def test_adjacent_records_read_together_match_single_reads(form, tmp_path):
  source = opened(form, written(form, tmp_path, [i % 3 for i in range(COUNT)]), test="train")
  if source.runs:
    for first, stop in ((0, COUNT), (3, 40), (16, 18), (49, 50)):
      assert [*map(source.runs.parse, source.runs.read(first, stop))] == numbers(source)[first:stop]
  assert (source.runs is not None) == (form == "parquet") and not source.remote


@each_form
def test_class_names_are_sorted_or_in_the_order_of_a_file(form, tmp_path):
  given = [CLASSES[(i * 2) % 3] for i in range(COUNT)]
  written(form, tmp_path / "data", given)
  source = opened(form, tmp_path / "data", test="train")
  assert source.classes == ("ant", "bee", "cat") and labels(source) == [CLASSES.index(name) for name in given]
  (tmp_path / "classes.txt").write_text("cat\nbee\nant\ndog\n")
  source = opened(form, tmp_path / "data", test="train", classes=str(tmp_path / "classes.txt"))
  assert source.classes == ("cat", "bee", "ant", "dog")
  assert labels(source) == [2 - CLASSES.index(name) for name in given]
  (tmp_path / "classes.txt").write_text("bee\nant\n")
  with pytest.raises(schema.ConfigError, match=r"config\.data: .*label 'cat' is not one of the classes"):
    opened(form, tmp_path / "data", test="train", classes=str(tmp_path / "classes.txt"))


@each_form
def test_images_may_have_lists_of_labels(form, tmp_path):
  given = [[*range(i % 4)][::-1] for i in range(COUNT)]
  source = opened(form, written(form, tmp_path, given), test="train", labels=3)
  assert source.labels == 3 and numbers(source) == [(FILES[i], tuple(given[i])) for i in range(COUNT)]
  for most, message in ((2, "3 labels. Allowed: 2"), (1, "Set labels to 2 or more")):
    with pytest.raises(schema.ConfigError, match=message) as caught:
      opened(form, tmp_path, test="train", labels=most)
    assert caught.value.place == "config.data.labels"


@each_form
def test_label_out_of_range_is_refused_before_reading_images(form, tmp_path):
  written(form, tmp_path, [7 if i == 31 else i % 3 for i in range(COUNT)])
  assert len(opened(form, tmp_path, test="train").classes) == 8
  with pytest.raises(schema.ConfigError, match=r"label 7 is out of range. Allowed: 0 to 2") as caught:
    opened(form, tmp_path, test="train", classes="3")
  expected = {"tars": "0001.tar, member '000031.png'", "parquet": "train-00001-of-00003.parquet, row 15"}
  assert expected.get(form, "all.jsonl, line 32") in caught.value.message


@each_form
@pytest.mark.parametrize("label", [-1, None, 1.5, True, {"a": 1}, ""])
def test_invalid_label_is_refused(form, label, tmp_path):
  given = [label] * 3 if form == "parquet" else [0, 1, label, 1]  # a column has one type
  with pytest.raises(schema.ConfigError, match=r"config\.data\.path: .*label"):
    opened(form, written(form, tmp_path, given), test="train")


def list_class_names(source):
  return [source.classes[label] for label in labels(source)]


@each_form
@pytest.mark.parametrize("kind", [int, str])
def test_numeric_labels_are_the_same_classes_in_every_form(form, kind, tmp_path):
  values = [(i * 7) % 12 for i in range(COUNT)]
  written(form, tmp_path / "data", [kind(value) for value in values])
  source = opened(form, tmp_path / "data", test="train")
  assert source.classes == tuple(map(str, range(12))) and labels(source) == values
  names = tmp_path / "classes.txt"
  names.write_text("".join(f"animal {i}\n" for i in range(12)))
  source = opened(form, tmp_path / "data", test="train", classes=str(names))
  assert list_class_names(source) == [f"animal {value}" for value in values]
  names.write_text("".join(f"{i}\n" for i in sorted(map(str, range(12)))))
  if kind is str:  # in JSON and Parquet, a string is a name
    source = opened(form, tmp_path / "data", test="train", classes=str(names))
    assert list_class_names(source) == [str(value) for value in values]
  else:
    with pytest.raises(
      schema.ConfigError, match=r"config\.data\.classes: labels are numbers, as 0 at .*000\d|row|line"
    ):
      opened(form, tmp_path / "data", test="train", classes=str(names))


def test_digits_in_a_cls_file_mean_the_same_as_a_json_number(tmp_path):
  names = tmp_path / "classes.txt"
  for i, form in enumerate(("cls", "txt", "json")):
    members = []
    for number in range(4):
      text = f'{{"label": {number}}}' if form == "json" else f"{number}\n"
      members += [(f"{number}.png", FILES[number]), (f"{number}.{form}", text.encode())]
    forms.tar(tmp_path / f"{i}/train-0.tar", members)
    names.write_text("a\nb\nc\nd\n")
    source = forms.opened("tars", tmp_path / str(i), test="train", classes=str(names))
    assert list_class_names(source) == ["a", "b", "c", "d"]
    names.write_text("0\n2\n1\n3\n")
    with pytest.raises(
      schema.ConfigError, match="2 may mean '2', number 1 of the list, or the class at position 2, '1'"
    ):
      forms.opened("tars", tmp_path / str(i), test="train", classes=str(names))


def test_names_of_a_parquet_schema_are_numbered_by_position(tmp_path):
  forms.parquet(tmp_path, FILES[:4], [0, 1, 2, 1], names=["10", "0", "1"])
  assert list_class_names(opened("parquet", tmp_path, test="train")) == ["10", "0", "1", "0"]


@each_form
def test_resumed_runs_and_two_hosts_have_the_same_batches(form, tmp_path, monkeypatch):
  monkeypatch.setattr(images, "KEEP", 0)
  source = opened(form, written(form, tmp_path, [i % 3 for i in range(COUNT)]), test="train")
  whole = streams.train(source, 12, 12)
  for start in (1, 5):
    streams.same(streams.train(source, 12, 3, start=start), whole[start : start + 3])
  for rows in (range(6), range(6, 12)):
    for one, other in zip(streams.train(source, 12, 6, rows=rows), whole, strict=False):
      assert (one["image"] == other["image"][rows.start : rows.stop]).all()
  assert sorted(streams.records(whole)[:COUNT]) == [*range(COUNT)]


@each_form
def test_bad_image_stops_the_run_or_is_skipped(form, tmp_path):
  files = [b"no image" if i == 4 else FILES[i] for i in range(COUNT)]
  source = opened(form, written(form, tmp_path, [0] * COUNT, files=files), test="train")
  with pytest.raises(images.ImageError, match="record 4"):
    streams.train(source, 10, 5)
  assert 4 not in streams.records(streams.train(source, 10, 5, on_error="skip"))


@each_form
def test_other_data_have_another_fingerprint(form, tmp_path):
  one = opened(form, written(form, tmp_path / "a", [0] * 20), test="train").fingerprint()
  assert opened(form, tmp_path / "a", test="train").fingerprint() == one
  two = opened(form, written(form, tmp_path / "b", [0] * 20, files=[*FILES[:19], FILES[0] * 2]), test="train")
  assert two.fingerprint() != one  # tar files are padded to 10 kB, so only the modification time differs
  three = opened(form, written(form, tmp_path / "c", [1] * 20), test="train")
  assert three.fingerprint().names != one.names
  assert opened(form, tmp_path / "a", "train[1:]", test="train").fingerprint().names != one.names


@each_form
def test_missing_split_is_an_error_that_lists_the_splits(form, tmp_path):
  written(form, tmp_path, [0, 1, 0])
  with pytest.raises(sources.SplitError, match=r"config\.data\.test: no split 'test'.*Allowed: train"):
    opened(form, tmp_path, "test")
  with pytest.raises(AbsentError, match=r"config\.data\.path: .* does not exist"):
    opened(form, tmp_path / "nowhere")
