"""Tests of the form of a checkpoint's metadata: values that a run does not write are refused."""

import pytest

from tests import photographs
from tests.photographs import described, source
from vit_jax.checkpoints import forms

ORDER = {"positions": [0, 1], "records": [3, 5]}
COUNTS = {"images": 64, "seconds": 1.5, "train_seconds": 2.5}
VERDICT = {"step": 3, "fraction": 0.25, "value": 0.5, "mean": 0.6, "half_width": 0.2, "verdict": "on track"}


@pytest.fixture
def photos(tmp_path):
  """Writes two classes of 20 images."""
  return photographs.write(tmp_path / "photos")


def test_checkpoint_without_provenance_is_accepted():
  forms.check_metadata(COUNTS)


WRONG = [
  {"identity": None}, {"identity": 3}, {"identity": []}, {"identity": {}}, {"data": {}}, {"data": {"classes": 3}},
  {"data": {"classes": ["a"], "records": "x", "fingerprint": {}, "samples": [{}]}}, {"config": 3}, {"packages": None},
  {"packages": {"jax": 3}}, {"order": {"positions": [-1], "records": [0]}},
  {"devices": {"kind": 3}}, {"order": None}, {"order": [3]}, {"order": {"positions": [0]}},
  {"order": {**ORDER, "records": ["a"]}}, {"frozen": [1]}, {"evaluated": 3},
  {"pending": {"steps": 1, "sums": {"loss": "x"}}}, {"seconds": None}, {"images": "64"},
  {"train_seconds": -1.0}, {"seconds": float("nan")}, {"settings": {"jax_enable_x64": True}}, {"flags": []},
  {"host": {"features": "avx"}}, {"host": 3}, {"disks": 3}, {"disks": [{"files": "3"}]},
  {"splits": {"train": 3}}, {"splits": []}, {"measured": {"test": 3}}, {"measured": {"test": [1, -1]}},
  {"verdicts": {}}, {"verdicts": [VERDICT | {"verdict": "good"}]}, {"verdicts": [VERDICT | {"fraction": 1e300}]},
  {"verdicts": [{"step": 1}]}, {"verdicts": [VERDICT | {"step": -1}]}, {"changed_length": "no"},
]  # fmt: skip


@pytest.mark.parametrize("change", WRONG, ids=str)
def test_invalid_metadata_is_a_value_error(photos, change):
  good = {"identity": described(source(photos)), "order": ORDER, "frozen": {}, "evaluated": True, **COUNTS}
  good |= {"step_seconds": 1.0, "pending": {"steps": 1, "sums": {"loss": 0.5}}}
  forms.check_metadata(good)
  forms.check_metadata(good | {"measured": {"test": [1, 12]}, "verdicts": [VERDICT], "changed_length": True})
  older = {key: value for key, value in good["identity"].items() if key not in ("settings", "flags", "host")}
  data = {key: value for key, value in older["data"].items() if key not in ("disks", "splits")}
  forms.check_metadata(good | {"identity": older | {"data": data}})
  inner = change.keys() <= good["identity"].keys()
  if change.keys() & {"disks", "splits"}:
    inner, change = True, {"data": good["identity"]["data"] | change}
  with pytest.raises(ValueError, match="are not valid"):
    forms.check_metadata(good | ({"identity": good["identity"] | change} if inner else change))


@pytest.mark.parametrize("change", [{}, {"seconds": None}, {"images": [1]}], ids=str)
def test_counts_are_required_in_checkpoints_of_older_versions(change):
  with pytest.raises(ValueError, match="are not valid"):
    forms.check_metadata(COUNTS | change if change else {})
