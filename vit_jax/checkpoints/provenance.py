"""Provenance of a checkpoint: config, data, order of images, packages and devices. It is compared with the current
ones.

A run is continued only if config, data and order are the same. Different packages or devices are allowed, but may
change low-order bits. The comparison covers names, labels, sizes and times of the data, and the contents of a few
records. Reading the contents of all files would take too long.
"""

import functools
import hashlib
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from vit_jax import config, schema
from vit_jax.config import extensions
from vit_jax.data import class_names, samples, sources, stream, versions
from vit_jax.runtime import numerics
from vit_jax.schema.errors import make_printable
from vit_jax.storage import files

RECIPE = "recipe.json"  # file in a workdir: its config file, and the description of the config
SHOWN = 5  # maximum number of differences to list


def describe_provenance(run: config.Run, source: sources.Source, grid: jax.sharding.Mesh) -> dict[str, Any]:
  """Returns the provenance of a run as JSON values.

  The function requests the status of each file of an image folder twice and reads `samples.COUNT` records. For 200,000
  files this takes 3 s on one core, about as long as listing the files. Up to 16 requests are sent to a file server at
  the same time.

  Args:
    run: a completed run.
    source: the training images.
    grid: device mesh of the run.
  """
  return {
    "config": schema.to_plain(run),
    "data": {
      "classes": list(source.classes),
      "records": len(source),
      "fingerprint": source.fingerprint()._asdict(),
      "samples": samples.describe_samples(source),
      "disks": versions.record_changes(source.files()),
      **({"splits": source.membership.record()} if source.membership else {}),
    },
    "extensions": extensions.record(schema.list_choices(run)),
  } | numerics.record_environment(grid, compute_code_version())


@functools.cache
def compute_code_version() -> str:
  """Returns a version of this package that changes with every change of its code.

  The version is the first 12 digits of the SHA-256 of the package's files on the disk.
  """
  folder = pathlib.Path(__file__).parent
  hashed = hashlib.sha256()
  for file in sorted(folder.rglob("*.py")):
    hashed.update(str(file.relative_to(folder)).encode() + file.read_bytes())
  return hashed.hexdigest()[:12]


def read_stored_config(workdir: pathlib.Path, about: Mapping[str, Any]) -> dict[str, Any] | None:
  """Returns the config of the run in a workdir, or None without a config.

  The config in the checkpoint takes precedence, because users may edit config.json. The file config.json is used if
  a checkpoint does not exist, and for older checkpoints without a config.

  Args:
    workdir: the workdir.
    about: metadata of the newest checkpoint.
  """
  return about["identity"]["config"] if "identity" in about else files.read_json(workdir / "config.json")


def sample_order(images: stream.Examples, position: int) -> dict[str, list[int]]:
  """Returns the records at a few positions of the current and the next epoch.

  Args:
    images: the training images.
    position: number of images trained on so far.
  """
  length = len(images.source)
  first = position // length * length
  positions = [start + i for start in (first, first + length) for i in samples.compute_spaced_numbers(length)]
  return {"positions": positions, "records": [int(images.record(i)) for i in positions]}


def select_shared_values(now: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the values that must be equal on all processes of a run: extensions, packages and settings.

  `data.shared_data` compares the images.

  Args:
    now: result of `describe_provenance`.
  """
  return {
    "extensions": {pathlib.Path(row["file"]).name: row["sha256"][:12] for row in now["extensions"]},
    "packages": now["packages"],
    "settings": now["settings"],
  }


def compare_data(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
  """Describes differences of two datasets, one line for each.

  Args:
    before: the field `data` of an earlier result of `describe_provenance`.
    now: the same field of the current result.
  """
  return _compare_records(before, now) or _compare_files(before, now)


def compare_splits(before: Mapping[str, Any], source: sources.Source) -> list[str]:
  """Returns a line for each split of the run's data that contains different images than before, see `data.membership`.

  Args:
    before: the field `data` of `describe_provenance` in the checkpoint.
    source: the current training images.
  """
  if source.membership is None or "splits" not in before:
    return []
  return source.membership.changes(before["splits"])


def find_data_conflict(
  before: Mapping[str, object], now: Mapping[str, object], accept: bool = False, splits: Sequence[str] = ()
) -> str | None:
  """Returns the reason why a state cannot be continued on the current data, or None if it can.

  Args:
    before: the field `data` of `describe_provenance` in the checkpoint.
    now: the same field of the current result.
    accept: whether to accept changed sizes, times or contents of files, provided the records are the same.
    splits: result of `compare_splits`, which is added to the reason if the training images have changed.
  """
  lines = _compare_records(before, now)
  lines += splits if lines else []
  advice = "Restore them, or use another --workdir"
  if not lines and not accept:
    lines = _compare_files(before, now)
    advice = (
      "If the images are the same, accept the changed files with --accept-data. Otherwise restore them, or use another "
      "--workdir"
    )
  return "\n  ".join([f"other data. {advice}:", *lines]) if lines else None


def find_order_conflict(before: Mapping[str, Any], images: stream.Examples) -> str | None:
  """Returns the reason why a state cannot be continued because the order of images changed, or None if it can.

  Args:
    before: result of `sample_order` in the checkpoint.
    images: the training images.
  """
  pairs = zip(before["positions"], before["records"], strict=False)
  moved = [(i, record, now) for i, record in pairs if (now := int(images.record(i))) != record]
  if not moved:
    return None
  shown = ", ".join(f"position {i} was record {record} and is now record {now}" for i, record, now in moved[:3])
  return f"another order of images ({shown}). Restore the previous code and packages, or use another --workdir"


def list_notes(before: Mapping[str, Any] | None, now: Mapping[str, Any], splits: Sequence[str] = ()) -> list[str]:
  """Returns a line for each difference that does not prevent a run from being continued.

  Args:
    before: result of `describe_provenance` in the checkpoint, or None for an older checkpoint without it.
    now: result of `describe_provenance` for this process.
    splits: result of `compare_splits`.
  """
  if before is None:
    return ["warning: the checkpoint does not record its data, order, packages and devices. They are not compared."]
  lines = [f"changed data accepted: {line}" for line in _compare_files(before["data"], now["data"])]
  lines += [f"warning: the data of evaluations have changed: {line}" for line in splits]
  lines += [f"warning: {line}" for line in numerics.compare_environments(before, now)]
  changes = extensions.list_changes(before.get("extensions", []), now["extensions"])
  lines += [f"warning: {line}. Results may differ from those of the uninterrupted run." for line in changes]
  return [make_printable(line) for line in lines]


def _compare_records(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
  """Returns lines on differences in classes, number, names, labels and order of records."""
  lines = _compare_classes(before["classes"], now["classes"])
  if before["records"] != now["records"]:
    return [*lines, f"the number of training images was {before['records']:,} and is {now['records']:,}"]
  old, new = before["fingerprint"], now["fingerprint"]
  pairs = list(zip(before["samples"], now["samples"], strict=False))
  moved = [
    f"record {a['record']} was {_shorten(a['name'])} and is now {_shorten(b['name'])}"
    for a, b in pairs
    if a["name"] != b["name"]
  ]
  moved += [
    f"record {a['record']} had label {a['label']} and now has label {b['label']}"
    for a, b in pairs
    if a["name"] == b["name"] and None not in (a["label"], b["label"]) and a["label"] != b["label"]
  ]
  if moved or old["names"] != new["names"]:
    same = old["members"] and old["members"] == new["members"]
    what = "the order of images differs" if same else "names, labels or the order of images differ"
    lines.append(": ".join([what, ", ".join(moved[:SHOWN])] if moved else [what]))
  return lines


def _compare_classes(before: Sequence[str], now: Sequence[str]) -> list[str]:
  """Returns lines on removed, new, renamed or reordered classes. Names are compared in Unicode normal form."""
  before, now = (list(map(class_names.normalise_name, each)) for each in (before, now))
  gone, new = [name for name in before if name not in set(now)], [name for name in now if name not in set(before)]
  if len(gone) == len(new) == 1:
    return [f"class {_shorten(gone[0])} is now {_shorten(new[0])}"]
  lines = [
    f"{schema.format_amount(len(names), 'class', 'classes')} {what}: {_join_some(names)}"
    for names, what in ((gone, "gone"), (new, "new"))
    if names
  ]
  return lines or (
    [f"the classes are in another order: {class_names.describe_moved(before, now)}"] if before != now else []
  )


def _compare_files(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
  """Returns lines on changed files of the same records: sizes, modification times, contents and replaced files."""
  old, new = before["fingerprint"], now["fingerprint"]
  lines = [
    f"{what} of files differ"
    for key, what in (("sizes", "sizes"), ("times", "modification times"))
    if old[key] != new[key]
  ]
  pairs = zip(before["samples"], now["samples"], strict=False)
  changed = [a["name"] for a, b in pairs if a["sha256"] and b["sha256"] and a["sha256"] != b["sha256"]]
  lines += [f"contents of files differ, such as {_join_some(changed)}"] if changed else []
  if not lines and (replaced := versions.find_replaced(before.get("disks", []), now["disks"])):
    names = ["/".join(pathlib.PurePath(file).parts[-2:]) for file in replaced]
    lines.append(
      "some files were modified or replaced although their sizes and modification times are the same, or "
      f"their permissions, owner or links changed. The last one is {_join_some(names)}"
    )
  return lines


def _join_some(names: Iterable[str]) -> str:
  names = list(names)
  return ", ".join(map(_shorten, names[:SHOWN])) + (", ..." if len(names) > SHOWN else "")


def _shorten(name: str) -> str:
  return repr(name if len(name) <= 80 else f"{name[:77]}...")
