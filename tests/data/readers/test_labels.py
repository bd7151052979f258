"""Tests of the labels of records: numbers or names, one or several per record, and their classes."""

import random

import pytest

from vit_jax import schema
from vit_jax.data.readers import labels


def collected(values):
  found = labels.LabelCollector()
  for value in values:
    found.add(value)
  return found.arrays()


def resolved(files, classes=None, most=1, **options):
  def where(file, i):
    return f"file {file}, record {i}"

  with schema.enter_key("config.data"):
    return labels.resolve([collected(f) for f in files], classes, most, where, **options)


def meant(values, classes, **options):
  """Returns the names of the classes that labels refer to."""
  names, (found,) = resolved([values], classes, **options)
  return [names[found[i]] for i in range(len(values))]


SHUFFLED = ["0", "1", "10", "11", "2"]


@pytest.mark.parametrize(
  ("values", "classes", "names"),
  [
    ([2, 0], ["cat", "dog", "owl"], ["owl", "cat"]),
    (["2", "0", "dog"], ["cat", "dog", "owl"], ["owl", "cat", "dog"]),
    (["2", "0"], ["0", "1", "2"], ["2", "0"]),
    ([2, 0], ["0", "1", "2", "else"], ["2", "0"]),
    ([3], ["0", "1", "2", "else"], ["else"]),
    (["2", "10"], SHUFFLED, ["2", "10"]),
    ([2020, 2019, 0], ["2019", "2020", "2021"], ["2020", "2019", "2019"]),
    (["2020"], ["2019", "2020"], ["2020"]),
    ([2, 1], ["00", "01", "02"], ["02", "01"]),
  ],
)
def test_list_of_classes_determines_the_meaning_of_a_number(values, classes, names):
  assert meant(values, classes) == names


@pytest.mark.parametrize("classes", [SHUFFLED, ["1", "2", "3"], ["cat", "0"], ["b", "2", "a"], ["00", "02", "01"]])
def test_ambiguous_number_is_refused_with_the_fix(classes):
  with pytest.raises(schema.ConfigError, match=r"the class at position .*other names, such as 'class ") as caught:
    resolved([[0, 1]], classes)
  assert caught.value.place == "config.data.classes"
  assert "file 0, record 0" in caught.value.message
  assert meant([0, 1], classes, positions=True) == classes[:2]  # ClassLabel defines numbers as positions


@pytest.mark.parametrize(
  ("values", "classes"),
  [(["3"], ["a", "b", "c"]), (["2"], ["0", "1"]), ([3], ["0", "1", "2"]), ([5], ["2019", "2020"])],
)
def test_number_without_a_class_is_refused(values, classes):
  with pytest.raises(
    schema.ConfigError, match=r"file 0, record 0: label '?.'? is (not one of the classes|out of range)"
  ):
    resolved([values], classes)


def test_names_are_sorted_by_value_and_numbers_are_positions():
  texts = [str(i) for i in (11, 10, 2, 1, 0, 3, 4, 5, 6, 7, 8, 9)]
  expected = tuple(map(str, range(12)))
  assert resolved([texts])[0] == resolved([[int(text) for text in texts]])[0] == expected
  assert meant(texts, None) == texts
  assert resolved([texts], order="text")[0] == tuple(sorted(expected))


def test_names_in_two_unicode_forms_are_one_class():
  nfc, nfd = "caf\u00e9", "cafe\u0301"
  names, (one, two) = resolved([[nfc, "a"], [nfd, "a"]])
  assert names == ("a", nfc) and (one[0], two[0]) == (1, 1)
  assert meant([nfd, nfc], [nfc]) == meant([nfd, nfc], [nfd]) == [nfc, nfc]
  assert labels.describe_forms([collected([nfc]), collected([nfd])]).endswith(
    "as one class: 'cafe\\u0301' and 'caf\\xe9'"
  )
  assert labels.describe_forms([collected([nfc]), collected([nfc, "a"])]) == ""


def test_collected_labels_match_the_added_labels():
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
    ([[0, 1], [1, [1, 2]]], 1, "labels", "file 1, record 1: 2 labels. Set labels to 2 or more"),
    ([[0, []]], 1, "labels", "file 0, record 1: 0 labels"),
    ([[0, 1], [1, [1, 2, 3]]], 2, "labels", "file 1, record 1: 3 labels. Allowed: 2"),
    ([[[]]], 2, "", "the data have no label"),
    ([[1], [0, 7, 2**20]], 1, "", r"file 1, record 2: label 1,048,576. Allowed: below 1,048,576\. Is it an id\?"),
    ([[[0, 1], [2, 2**31 - 1]]], 2, "", "file 0, record 1: label 2,147,483,647. Allowed: below 1,048,576"),
  ],
)
def test_inconsistent_labels_are_refused(files, most, key, message):
  with pytest.raises(schema.ConfigError, match=message) as caught:
    resolved(files, None, most)
  assert caught.value.place == f"config.data{f'.{key}' if key else ''}"


def test_label_without_a_class_is_refused_with_its_record():
  with pytest.raises(schema.ConfigError, match=r"file 1, record 2: label 'd' is not one of the classes. Did you mean"):
    resolved([["a"], ["b", "a", "d"]], ["a", "b", "do"])
  with pytest.raises(schema.ConfigError, match=r"file 0, record 2: label 5 is out of range. Allowed: 0 to 2"):
    resolved([[[1], [2, 0, 1], [0, 5]]], "abc", 3)


def test_captions_are_refused_as_classes(monkeypatch):
  monkeypatch.setattr(labels, "NAMES", 3)
  with pytest.raises(ValueError, match="Check whether the labels are captions"):
    collected("abcd")


def test_classes_are_a_number_or_a_file(tmp_path):
  file = tmp_path / "names.txt"
  file.write_text("cat\n dog \nänte\n\n")
  assert labels.parse_class_names(str(file)) == ("cat", "dog", "änte")
  assert labels.parse_class_names("3") == ("0", "1", "2") and labels.parse_class_names(None) is None
  for text, message in (("a\n\nb", "line 2, has no name"), ("a\nb\na", "has 'a' twice"), ("\n", "line 1, has no name")):
    file.write_text(text)
    with pytest.raises(schema.ConfigError, match=message) as caught, schema.enter_key("config.data"):
      labels.parse_class_names(str(file))
    assert caught.value.place == "config.data.classes"
  for wrong in ("0", "99999999", str(tmp_path / "none.txt"), str(tmp_path)):
    with pytest.raises(schema.ConfigError, match=r"Allowed: 1 to|set the number of classes"):
      labels.parse_class_names(wrong)


@pytest.mark.parametrize("char", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"])
def test_lines_of_a_class_file_end_only_at_line_feeds(tmp_path, char):
  file = tmp_path / "names.txt"
  file.write_bytes(f"cat{char}s\r\ndog\n{char}\n".encode())
  assert labels.parse_class_names(str(file)) == (f"cat{char}s", "dog", char)


def test_lone_carriage_return_in_a_class_file_is_an_error(tmp_path):
  file = tmp_path / "names.txt"
  file.write_bytes(b"cat\rdog\r")
  with pytest.raises(schema.ConfigError, match=r"inside a line. End lines with"):
    labels.parse_class_names(str(file))


def test_class_file_treats_unicode_forms_as_one_name(tmp_path):
  file = tmp_path / "names.txt"
  file.write_text("caf\u00e9\ncafe\u0301\n", "utf-8")
  with pytest.raises(schema.ConfigError, match="twice"):
    labels.parse_class_names(str(file))
  file.write_text("cafe\u0301\n", "utf-8")
  assert labels.parse_class_names(str(file)) == ("caf\u00e9",)


@pytest.mark.parametrize("label", [0, 2**31 - 1, (), (4,), (1, 2, 3)])
def test_label_and_bytes_are_packed_and_unpacked(label):
  assert labels.unpack_label(labels.pack_label(label, b"\0bytes")) == (b"\0bytes", label)
