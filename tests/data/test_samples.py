"""Tests of samples of a source: spread over all records, and described with their contents."""

import hashlib

import pytest

from tests import forms
from tests.streams import file
from vit_jax.data import samples


@pytest.mark.parametrize("length", [1, 5, 8, 9, 1000])
def test_records_are_distinct_and_evenly_spaced_with_both_ends(length):
  numbers = samples.compute_spaced_numbers(length)
  assert numbers == sorted(set(numbers)) and len(numbers) == min(length, samples.COUNT)
  assert (numbers[0], numbers[-1]) == (0, length - 1)


def test_sample_describes_a_record_and_its_content(tmp_path):
  forms.manifest(tmp_path / "m", [file(i) for i in range(3)], ["cat", "dog", "cat"])
  source = forms.opened("manifest", str(tmp_path / "m/all.jsonl"), test="train")
  assert samples.describe_samples(source)[1] == {
    "record": 1, "name": source.identify(1), "label": 1, "sha256": hashlib.sha256(file(1)).hexdigest()
  }  # fmt: skip


def test_unreadable_record_has_no_hash(tmp_path):
  forms.manifest(tmp_path / "m", [file(i) for i in range(3)], ["cat", "dog", "cat"])
  source = forms.opened("manifest", str(tmp_path / "m/all.jsonl"), test="train")
  for image in (tmp_path / "m").rglob("*.png"):
    image.unlink()
  assert {each["sha256"] for each in samples.describe_samples(source)} == {None}
