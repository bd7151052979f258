"""Tests of a checkpoint's provenance: a restart with other data is an error that names the differences."""

import dataclasses
import importlib.metadata
import json
import os
import shutil
import types

import pytest

from tests import forms, photographs
from tests.image_files import image
from tests.photographs import described, source
from vit_jax import schema
from vit_jax.checkpoints import provenance
from vit_jax.data import catalog, permutation, sources, stream
from vit_jax.data.readers.folder import folder
from vit_jax.data.views import Fields
from vit_jax.runtime import numerics
from vit_jax.schema import Choice


@pytest.fixture
def photos(tmp_path):
  """Writes two classes of 20 images."""
  return photographs.write(tmp_path / "photos")


def remove(path):
  (path / "a" / "3.png").unlink()


def rename_a_class(path):
  (path / "a").rename(path / "c")


def add_a_class(path):
  (path / "c").mkdir()
  (path / "c" / "0.png").write_bytes(image(99))
  (path / "c" / "1.png").write_bytes(image(98))


RECORDS = {
  remove: ["the number of training images was 32 and is 31"],
  rename_a_class: ["class 'a' is now 'c'", "names, labels or the order of images differ: record 0 was"],
  add_a_class: ["1 class new: 'c'", "the number of training images was 32 and is 34"],
}


@pytest.mark.parametrize("change", RECORDS)
def test_changed_records_are_named_and_never_accepted(photos, change):
  before = described(source(photos))["data"]
  change(photos)
  now = described(source(photos))["data"]
  for accept in (False, True):
    objection = provenance.find_data_conflict(before, now, accept)
    assert all(line in objection for line in RECORDS[change]), objection
    assert "use another --workdir" in objection and "--accept-data" not in objection


def test_images_moved_to_another_split_are_reported(photos):
  before = described(source(photos))["data"]
  test = folder("folder", sources.DatasetRow(folder), "test", path=str(photos))
  trained, gone = {source(photos).identify(i) for i in range(32)}, [test.identify(i) for i in range(8)][:2]
  for name in gone:
    (photos / name).unlink()
  now = source(photos)
  test = folder("folder", sources.DatasetRow(folder), "test", path=str(photos))
  moved = {test.identify(i) for i in range(len(test))} & trained
  line = (
    f"split 'test': 8 images before, {len(test)} now, {len(moved)} of them from split 'train', which was trained on"
  )
  lines = provenance.compare_splits(before, now)
  assert moved and line in lines
  assert line in provenance.find_data_conflict(before, described(now)["data"], splits=lines)
  assert provenance.compare_splits({key: before[key] for key in before if key != "splits"}, now) == []


def test_changed_evaluation_data_is_a_warning_at_a_restart(photos):
  before = described(source(photos))
  lines = ["split 'test': 8 images before, 7 now"]
  assert provenance.find_data_conflict(before["data"], before["data"], splits=lines) is None
  assert provenance.list_notes(before, before, lines) == [f"warning: the data of evaluations have changed: {lines[0]}"]


def test_another_class_order_is_an_error_with_the_class_names(tmp_path):
  for name in (f"{label}/{i}.png" for label in range(12) for i in range(2)):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(image(1))
  orders = [
    folder("folder", sources.DatasetRow(folder), "train", path=str(tmp_path), class_order=o)
    for o in ("text", "numeric")
  ]
  before, now = (described(made)["data"] for made in orders)
  for accept in (False, True):
    objection = provenance.find_data_conflict(before, now, accept)
    assert "the classes are in another order: '10' is number 2 and 10" in objection
  assert provenance.find_data_conflict(now, now) is None


def test_two_unicode_forms_of_a_class_name_are_equal():
  data = {"classes": ["caf\u00e9"], "records": 0, "samples": [], "disks": []}
  data |= {"fingerprint": sources.Fingerprint()._asdict()}
  assert provenance.find_data_conflict(data, data | {"classes": ["cafe\u0301"]}) is None


@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "mixed"])
@pytest.mark.parametrize("form", forms.FORMS)
def test_every_reader_recognises_a_copy_and_rejects_other_labels(form, mixed, tmp_path):
  write, reader = forms.FORMS[form]
  pictures = [image(i) for i in range(12)]

  def open_data(path):
    args = {"path": str(path), "test": "train"}
    parts = [args | {"name": reader}, args | {"name": reader, "weight": 0.5}]
    choice = Choice("mixture", {"parts": parts}) if mixed else Choice(reader, args)
    with schema.enter_key("config.data"):
      return catalog.open_split(choice, "train")

  write(tmp_path / "data", pictures, [i % 3 for i in range(12)])
  before = described(open_data(tmp_path / "data"))
  shutil.copytree(tmp_path / "data", tmp_path / "copy")
  again = described(open_data(tmp_path / "copy"))
  assert (
    provenance.find_data_conflict(before["data"], again["data"]) is None and provenance.list_notes(before, again) == []
  )
  write(tmp_path / "other", pictures, [(i + (i == 5)) % 3 for i in range(12)])
  objection = provenance.find_data_conflict(before["data"], described(open_data(tmp_path / "other"))["data"])
  assert objection and "differ" in objection, objection


def test_reversed_records_are_reported_as_another_order(photos):
  made = source(photos)
  before = described(made)["data"]
  turned = sources.select_subset(made, range(len(made) - 1, -1, -1))
  turned = described(dataclasses.replace(turned, fingerprint=lambda: made.fingerprint()._replace(names="")))["data"]
  first, last = made.identify(0), made.identify(len(made) - 1)
  objection = provenance.find_data_conflict(before, turned, accept=True)
  assert f"the order of images differs: record 0 was {first!r} and is now {last!r}" in objection


def test_record_with_another_label_is_reported(photos):
  made = source(photos)
  before = described(made)["data"]
  other = dataclasses.replace(made, read=lambda i: (made.read(i)[0], 1 - made.read(i)[1]))
  label = made.label(0)
  assert f"record 0 had label {label} and now has label {1 - label}" in provenance.find_data_conflict(
    before, described(other)["data"]
  )


@pytest.mark.parametrize("step", [0, 1, 3, 100])
def test_only_another_order_of_blocks_is_reported(photos, step):
  made, plain = source(photos), {"image_size": 8, "crop": Choice("resize")}

  def examples(seed=3, **args):
    return stream.train_examples(
      made, seed, Fields(), 8, order=Choice("blocks", {"size": 3, "groups": 2} | args), **plain
    )

  positions = json.loads(json.dumps(provenance.sample_order(examples(), step * 8)))
  assert provenance.find_order_conflict(positions, examples()) is None
  for other in (examples(4), examples(size=2), examples(window=1), examples(groups=4)):
    assert "another order of images (position" in provenance.find_order_conflict(positions, other)


@pytest.mark.parametrize("step", [0, 1, 3, 100])
def test_only_another_permutation_is_reported(photos, monkeypatch, step):
  made, plain = source(photos), {"image_size": 8, "crop": Choice("resize")}
  positions = json.loads(json.dumps(provenance.sample_order(stream.train_examples(made, 3, **plain), step * 8)))
  assert provenance.find_order_conflict(positions, stream.train_examples(made, 3, **plain)) is None
  for epoch in (step * 8 // len(made), step * 8 // len(made) + 1):
    assert any(position // len(made) == epoch for position in positions["positions"])
  assert "another order of images (position" in provenance.find_order_conflict(
    positions, stream.train_examples(made, 4, **plain)
  )
  before = permutation.index_shuffle
  monkeypatch.setattr(permutation, "index_shuffle", lambda i, **rest: (before(i, **rest) + 1) % len(made))
  assert "another order of images" in provenance.find_order_conflict(positions, stream.train_examples(made, 3, **plain))


def test_changed_packages_settings_and_devices_are_one_warning_each(photos, monkeypatch):
  made = source(photos)
  before, version = described(made), importlib.metadata.version("grain")
  assert provenance.list_notes(before, before) == []
  known = importlib.metadata.version
  monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9" if name == "grain" else known(name))
  monkeypatch.setattr(numerics.jax, "process_count", lambda: 2)
  monkeypatch.setenv("XLA_FLAGS", f"{os.environ['XLA_FLAGS']} --fast=\x1b --xla_dump_to=there")
  assert provenance.list_notes(before, described(made, devices=4)) == [
    f"warning: package grain: {version} at the last checkpoint, 9.9 now. {numerics.BOTH}.",
    f"warning: XLA_FLAGS '--fast': 'not set' at the last checkpoint, '\\x1b' now. {numerics.BITS}.",
    "warning: devices: 8 x cpu in 1 process at the last checkpoint, 4 x cpu in 2 processes now. " + numerics.BITS + ".",
  ]
  assert provenance.find_data_conflict(before["data"], described(made)["data"]) is None


def test_shared_values_include_the_settings(photos, monkeypatch):
  before = provenance.select_shared_values(described(source(photos)))
  monkeypatch.setattr(numerics, "read_settings", lambda: {"jax_enable_x64": "True"})
  assert provenance.select_shared_values(described(source(photos)))["settings"] != before["settings"]


def test_checkpoint_without_provenance_is_noted_as_not_compared():
  assert "are not compared" in provenance.list_notes(None, {})[0]


def test_long_lists_and_names_are_truncated():
  data = {"records": 1, "fingerprint": sources.Fingerprint()._asdict(), "samples": []}
  before, now = ({**data, "classes": [f"{letter * 300}{i}" for i in range(1000)]} for letter in "xy")
  objection = provenance.find_data_conflict(before, now)
  assert "1,000 classes gone" in objection and "1,000 classes new" in objection
  assert len(objection) < 1500


def test_split_with_one_record_has_an_order():
  one = sources.Source("one", "train", ("a",), 1, lambda i: (b"", 0), str)
  images = types.SimpleNamespace(source=one, record=lambda position: 0)
  assert provenance.sample_order(images, 7) == {"positions": [7, 8], "records": [0, 0]}
