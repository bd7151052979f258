"""Labels of records: numbers or names, one or several, and the classes that they make."""

import random

import pytest

from vit_jax import schema
from vit_jax.data.readers import labels


def collected(values):
  found = labels.Collected()
  for value in values:
    found.add(value)
  return found.arrays()


def resolved(files, classes=None, most=1):
  with schema.at("config.data"):
    return labels.resolve([collected(f) for f in files], classes, most, lambda file, i: f"file {file}, record {i}")


def test_labels_of_many_forms_are_those_that_were_added():
  draw = random.Random(0)
  names = ["b", "a\nb", "a\\nb", "\\", "é", "x y", "\\\\n", "\ud800"]
  for pool in (names, [*range(9)]):
    for most in (1, 4):
      files = [[draw.choices(pool, k=draw.randrange(most + 1) if most > 1 else 1) for _ in range(50)] for _ in range(3)]
      classes, found = resolved(files, None, most)
      assert classes == tuple(sorted(names)) if pool is names else tuple(map(str, pool))
      for file, label in zip(files, found, strict=True):
        for i, several in enumerate(file):
          there = label[i] if most > 1 else (label[i],)
          assert [classes[number] for number in there] == [*map(str, several)]


@pytest.mark.parametrize(
  ("files", "most", "key", "message"),
  [
    ([["a", "b"], [1]], 1, "", "names at file 0, record 0 and numbers at file 1, record 0"),
    ([[0, 1], [1, [1, 2]]], 1, "labels", "file 1, record 1: 2 labels; set labels above 1"),
    ([[0, []]], 1, "labels", "file 0, record 1: 0 labels"),
    ([[0, 1], [1, [1, 2, 3]]], 2, "labels", "file 1, record 1: 3 labels; allowed: 2"),
    ([[[]]], 2, "", "there is no label"),
    ([[1], [0, 7, 2**20]], 1, "", r"file 1, record 2: label 1,048,576; allowed: below 1,048,576\. Is it an id\?"),
    ([[[0, 1], [2, 2**31 - 1]]], 2, "", "file 0, record 1: label 2,147,483,647; allowed: below 1,048,576"),
  ],
)
def test_labels_that_do_not_go_together_are_refused(files, most, key, message):
  with pytest.raises(schema.ConfigError, match=message) as caught:
    resolved(files, None, most)
  assert caught.value.place == f"config.data{f'.{key}' if key else ''}"


def test_a_label_that_is_no_class_is_refused_with_its_record():
  with pytest.raises(schema.ConfigError, match=r"file 1, record 2: label 'd' is none of the classes\. Did you mean"):
    resolved([["a"], ["b", "a", "d"]], ["a", "b", "do"])
  with pytest.raises(schema.ConfigError, match="file 0, record 2: label 5 is out of range; allowed: 0 to 2"):
    resolved([[[1], [2, 0, 1], [0, 5]]], "abc", 3)


def test_captions_are_no_classes(monkeypatch):
  monkeypatch.setattr(labels, "NAMES", 3)
  with pytest.raises(ValueError, match="are they captions"):
    collected("abcd")


def test_classes_are_a_number_or_a_file(tmp_path):
  file = tmp_path / "names.txt"
  file.write_text("cat\n dog \nänte\n\n")
  assert labels.class_names(str(file)) == ("cat", "dog", "änte")
  assert labels.class_names("3") == ("0", "1", "2") and labels.class_names(None) is None
  for text, message in (("a\n\nb", "line 2, has no name"), ("a\nb\na", "has 'a' twice"), ("\n", "line 1, has no name")):
    file.write_text(text)
    with pytest.raises(schema.ConfigError, match=message) as caught, schema.at("config.data"):
      labels.class_names(str(file))
    assert caught.value.place == "config.data.classes"
  for wrong in ("0", "99999999", str(tmp_path / "none.txt"), str(tmp_path)):
    with pytest.raises(schema.ConfigError, match=r"allowed: 1 to|or give their number"):
      labels.class_names(wrong)


@pytest.mark.parametrize("label", [0, 2**31 - 1, (), (4,), (1, 2, 3)])
def test_a_label_goes_with_the_bytes(label):
  assert labels.unpacked(labels.packed(label, b"\0bytes")) == (b"\0bytes", label)
