"""Tests of class names: numbers sorted by value, one Unicode form, and names that look alike."""

import random
import unicodedata

import pytest

from vit_jax.data import class_names

NFC, NFD = "caf\u00e9", "cafe\u0301"


def test_numbers_are_sorted_by_value_and_come_first():
  names = [str(i) for i in range(-3, 120)]
  shuffled = random.Random(0).sample(names, len(names))
  assert class_names.sort_names(shuffled) == tuple(names)
  mixed = ["b", "10", "2.5", "2", "-1", "n01440764", "1e3", "0x5", "007", ".5", "+4", "a"]
  assert class_names.sort_names(mixed) == (
    "-1",
    ".5",
    "2",
    "2.5",
    "+4",
    "007",
    "10",
    "0x5",
    "1e3",
    "a",
    "b",
    "n01440764",
  )
  assert class_names.sort_names(["2", "10", "1"], "text") == ("1", "10", "2")
  assert class_names.sort_names(["01", "1", "1.0", "0"]) == ("0", "01", "1", "1.0")


def test_names_without_numbers_are_sorted_as_text():
  names = ["n02", "n01", "Zebra", "ant", "class 10", "class 2", "\u00e9", "_x", "\u0661"]
  assert class_names.sort_names(names) == tuple(sorted(names))
  long = ["1" * 200, "2" * 100, "9"]
  assert class_names.sort_names(long) == ("9", "2" * 100, "1" * 200)


def test_two_unicode_forms_are_one_name():
  assert NFC != NFD and class_names.sort_names([NFC, NFD]) == (NFC,)
  assert class_names.find_differing([NFC, "a"], [NFD, "b"]) == ["a", "b"]
  assert class_names.normalise_name("no\udcffunicode") == "no\udcffunicode"


@pytest.mark.parametrize(
  ("one", "other"),
  [
    *(("cat", "Cat"), ("cat", "cat "), ("a  b", "a b"), ("cat", "c\u200bat"), ("cat", "\uff43\uff41\uff54")),
    *(("cat", "cat\ufeff"), ("a b", "a\u00a0b"), ("1", "01"), ("1", "1.0"), ("stra\u00dfe", "STRASSE")),
    *((NFC, NFD.upper()), ("x\ufe0f", "x"), ("\ufb01n", "fin"), ("soft", "so\u00adft"), ("10", "\uff11\uff10")),
  ],
)
def test_names_that_look_alike_are_noted(one, other):
  assert class_names.find_alike([one, "dog", other, one]) == [[one, other]]
  assert class_names.describe_alike([one, "dog", other]).endswith(
    f"look alike but are different classes: {one!a} and {other!a}"
  )


def test_groups_of_alike_names_are_counted():
  assert class_names.describe_alike(["a", "A"]).startswith(
    "1 group of classes has names that look alike but are different classes: "
  )
  assert class_names.describe_alike(["a", "A", "b", "B"]).startswith("2 groups of classes have names that look alike")


def test_names_that_look_different_are_not_noted():
  assert class_names.describe_alike([str(i) for i in range(1000)]) == ""
  assert class_names.describe_alike(["a", "b", "\u00e4", "\u00e9", "e", "1", "-1", "0.1", "", "\u0430\u0431"]) == ""


def test_names_at_other_positions_are_listed():
  assert class_names.describe_moved(["0", "1", "10", "2"], ["0", "1", "2", "10"]) == (
    "'10' is number 2 and 3, '2' is number 3 and 2"
  )
  assert class_names.describe_moved([NFC, "b"], [NFD, "b"]) == class_names.describe_moved(["a", "b"], ["x", "y"]) == ""
  assert class_names.describe_moved(["crane", "a", "crane"], ["crane", "a", "crane"]) == ""


def test_normalised_names_are_in_unicode_nfc():
  for name in ("\u1e9b\u0323", "\uac00", NFD, "\u212b"):
    assert unicodedata.is_normalized("NFC", class_names.normalise_name(name))
