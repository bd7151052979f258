"""Tests of cached features.

Each feature is computed once and cached by its dependencies. A damaged file is rebuilt.
"""

import contextlib
import dataclasses
import os
import types

import numpy as np
import pytest

from tests import archive_files
from vit_jax.data import sources
from vit_jax.data.bound_data import EvalData
from vit_jax.evals import features
from vit_jax.schema import Choice

pytestmark = pytest.mark.heavy

SOURCE = sources.Source("made", "train", ("a", "b"), 50, lambda i: (bytes([i]), i % 2), str, fingerprint=lambda: "1")
DATA = EvalData("made", {"image_size": 8, "test_crop": Choice("resize"), "mean": (0.5,), "std": (0.5,), "threads": 4,
                       "exif": False})  # fmt: skip


class Model:
  """A model with features of a record: its number and its square.

  It records the computed images. Record 13 cannot be decoded.
  """

  def __init__(self):
    self.computed = []

  def subject(self):
    def open_batches(data, source, size):
      for start in range(0, len(source), size):
        numbers = [source.read(i)[0][0] for i in range(start, min(start + size, len(source)))]
        padded = np.array(numbers + [0] * (size - len(numbers)))
        mask = (np.arange(size) < len(numbers)) & (padded != 13)
        yield {"number": padded, "valid": mask.astype(np.float32)}

    def compute(params, batch):
      self.computed += batch["number"][batch["valid"] > 0].tolist()
      found = np.stack([batch["number"], batch["number"] ** 2], 1).astype(np.float32)
      return {"features": params["scale"] * found, "label": batch["number"] % 2, "valid": batch["valid"]}

    def show_progress(source, size, poll):
      return contextlib.nullcontext(poll)

    return types.SimpleNamespace(
      compile_features=lambda data, kind: compute, open_batches=open_batches, show_progress=show_progress
    )


def extracted(model, wanted, file, size=8):
  return features.extract(
    model.subject(), DATA, SOURCE, np.array(wanted), {"scale": np.float32(1)}, lambda: None, size, file
  )


@pytest.mark.parametrize("size", [3, 8, 64])
def test_each_image_is_computed_once_and_an_unreadable_one_is_omitted(size):
  model = Model()
  position, found = extracted(model, [2, 13, 14, 40], None, size)
  np.testing.assert_array_equal(position, [2, 14, 40])
  np.testing.assert_array_equal(found, [[2, 4], [14, 196], [40, 1600]])
  assert sorted(model.computed) == [2, 14, 40]


def test_only_missing_features_are_computed(tmp_path):
  file = tmp_path / "new" / "features.npz"
  model = Model()
  extracted(model, [5, 7, 30], file)
  position, found = extracted(model, [1, 5, 30, 44], file)
  assert sorted(model.computed) == [1, 5, 7, 30, 44]
  np.testing.assert_array_equal(position, [1, 5, 30, 44])
  np.testing.assert_array_equal(found[:, 1], [1, 25, 900, 44**2])
  again, _ = extracted(model, [5, 7], file)
  assert (again.tolist(), len(model.computed)) == ([5, 7], 5)
  assert [path.name for path in file.parent.iterdir()] == ["features.npz"]


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 no archive", None])
def test_damaged_file_is_reported_and_rebuilt(tmp_path, damage, caplog):
  file, model = tmp_path / "features.npz", Model()
  extracted(model, [5, 7], file)
  file.write_bytes(file.read_bytes()[:-40] if damage is None else damage)
  _, found = extracted(model, [5, 7], file)
  np.testing.assert_array_equal(found[:, 0], [5, 7])
  assert "cannot be read" in caplog.text
  assert len(model.computed) == 4
  extracted(model, [5, 7], file)
  assert len(model.computed) == 4


def test_file_with_a_repeated_name_is_rebuilt(tmp_path, caplog):
  file, model = tmp_path / "features.npz", Model()
  extracted(model, [5], file)
  archive_files.repeat(file, "features")
  extracted(model, [5], file)
  assert "two members are named 'features'" in caplog.text and model.computed == [5, 5]


def test_pickled_arrays_are_not_loaded(tmp_path, caplog):
  file, model = tmp_path / "features.npz", Model()
  np.savez(file, position=np.array([5]), features=np.array([{"a": 1}]))
  extracted(model, [5], file)
  assert "cannot be read" in caplog.text
  assert model.computed == [5]


def test_unwritable_folder_only_disables_the_cache(tmp_path, caplog):
  (tmp_path / "file").write_text("")
  _, found = extracted(Model(), [5], tmp_path / "file" / "features.npz")
  assert found.tolist() == [[5, 25]]
  assert "cannot be stored" in caplog.text


def test_features_of_a_replaced_image_are_computed_again(tmp_path):
  file = tmp_path / "1.jpg"
  file.write_bytes(b"one")
  source = dataclasses.replace(SOURCE, files=lambda: [str(file)])
  before, status = features.find_cache_file("a", DATA, source), file.stat()
  assert features.find_cache_file("a", DATA, source) == before
  file.write_bytes(b"two")
  os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
  assert features.find_cache_file("a", DATA, source) != before


def test_cache_name_depends_on_exactly_the_inputs_of_features(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

  def name(model="a", source=SOURCE, kind="head", **changes):
    return features.find_cache_file(model, DATA.replace(**changes), source, kind)

  assert name().is_relative_to(tmp_path)
  assert name() == name(threads=8)
  others = [
    name(),
    name("b"),
    name(kind="cls"),
    name(kind="cls_patches"),
    name(image_size=9),
    name(test_crop=Choice("resize", {"size": 3})),
    name(mean=(0.4,)),
    name(source=dataclasses.replace(SOURCE, split="train[:9]")),
    name(source=dataclasses.replace(SOURCE, fingerprint=lambda: "2")),
  ]
  assert len(set(others)) == len(others)
