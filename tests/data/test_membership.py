"""Tests of split membership, against sets of names before and after files are removed or added."""

import json
import random

import pytest

from tests.data.readers.test_folder import write
from tests.data.readers.test_segmentation import write as write_pairs
from tests.image_files import image, names
from vit_jax import schema
from vit_jax.data import catalog, membership

ROLES = ("train", "val", "test")
FLAT = [f"{label}/{i}.png" for label, count in (("a", 40), ("b", 23), ("c", 9), ("d", 2)) for i in range(count)]
CASES = {
  "classes": (FLAT, {"validation": 0.1}),
  "classes without validation": (FLAT, {}),
  "splits": ([f"{split}/{name}" for split in ("train", "test") for name in FLAT], {"validation": 0.2}),
  "slices": ([f"{split}/{name}" for split in ("train", "test") for name in FLAT],
             {"train": "train[:30%]+train[60%:]", "val": "train[30%:60%]"}),
}  # fmt: skip


def opened(path, split="train", name="folder", **args):
  with schema.enter_key("config.data"):
    return catalog.open_split(schema.Choice(name, {"path": str(path), **args}), split)


def members(path, **args):
  """Returns {role: names} of the files of each existing split."""
  result = {}
  for role in ROLES:
    try:
      result[role] = names(opened(path, role, **args))
    except schema.ConfigError:
      continue
  return result


def expected(before, now):
  """Returns the lines on splits from sets of names. `now` must not contain new files."""
  lines = []
  for role in now:
    moved = {other: len({*now[role]} & {*before[other]}) for other in ROLES if other != role and other in before}
    words = [
      f", {count} of them from split {other!r}" + ", which was trained on" * (other == "train")
      for other, count in moved.items()
      if count
    ]
    if words or len(now[role]) != len(before[role]):
      count = len(before[role])
      lines.append(f"split {role!r}: {count} image{'s' * (count != 1)} before, {len(now[role])} now{''.join(words)}")
  return lines


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES)
def test_files_that_moved_to_another_split_are_counted(tmp_path, case, seed):
  files, args = CASES[case]
  path, draw = write(tmp_path, *files), random.Random(f"{case} {seed}")
  before, recorded = members(path, **args), json.loads(json.dumps(opened(path, **args).membership.record()))
  assert membership.is_membership_record(recorded) and {role: each["images"] for role, each in recorded.items()} == {
    role: len(each) for role, each in before.items()
  }
  assert opened(path, **args).membership.changes(recorded) == []
  for file in draw.sample(sorted(set(files) - {f"{top}d/{i}.png" for top in ("", "train/", "test/") for i in "01"}), 9):
    (tmp_path / file).unlink()
  now = members(path, **args)
  lines = expected(before, now)
  assert lines and opened(path, **args).membership.changes(recorded) == lines
  assert opened(path, "test", **args).membership.changes(recorded) == lines


def test_new_files_make_the_count_of_moved_files_an_upper_bound(tmp_path):
  path = write(tmp_path, *FLAT)
  before, recorded = members(path), opened(path).membership.record()
  for i in range(140, 150):
    (tmp_path / "a" / f"{i}.png").write_bytes(image(1))
  now, (train, test) = members(path), opened(path).membership.changes(recorded)
  moved = len({*now["test"]} & {*before["train"]})
  assert train.startswith(f"split 'train': {len(before['train'])} images before, {len(now['train'])} now")
  assert moved and ", up to " in test and int(test.split("up to ")[1].split()[0]) >= moved


def test_membership_of_mixtures_and_segmentation_is_compared(tmp_path):
  write(tmp_path / "a", *FLAT)
  write_pairs(tmp_path / "b", *(f"{i:02}" for i in range(20)))
  parts = [{"name": "folder", "path": str(tmp_path / "a")}]
  mixed = lambda: catalog.open_split(schema.Choice("mixture", {"parts": parts}), "train")  # noqa: E731
  masks = {"name": "segmentation", "classes": 20}
  recorded = [json.loads(json.dumps(each.membership.record())) for each in (mixed(), opened(tmp_path / "b", **masks))]
  before = [members(tmp_path / "a"), members(tmp_path / "b", **masks)]
  assert all(map(membership.is_membership_record, recorded))
  for file in sorted(before[0]["test"])[:3]:
    (tmp_path / "a" / file).unlink()
  for file in sorted(before[1]["test"])[:2]:
    (tmp_path / "b" / file).unlink()
  lines = expected(before[0], members(tmp_path / "a"))
  assert lines and mixed().membership.changes(recorded[0]) == [f"folder: {line}" for line in lines]
  lines = expected(before[1], members(tmp_path / "b", **masks))
  assert len(lines) == 2 and opened(tmp_path / "b", **masks).membership.changes(recorded[1]) == lines


def test_record_of_split_folders_is_small(tmp_path):
  recorded = opened(write(tmp_path, *(f"{split}/{name}" for split in ROLES for name in FLAT))).membership.record()
  assert recorded == {"train": {"images": 74, "folders": {}}, "test": {"images": 74, "folders": {}}} | (
    {"val": {"images": 74, "folders": {}}} if "val" in recorded else {}
  )


@pytest.mark.parametrize("value", [None, [], {"train": 3}, {"train": {"images": "3", "folders": {}}},
                                   {"train": {"images": 3, "folders": {"a": [[1, 2, 3]]}}},
                                   {"a": {"train": {"images": 3}}}])  # fmt: skip
def test_invalid_value_is_not_a_membership_record(value):
  assert not membership.is_membership_record(value)
