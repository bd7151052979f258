"""Comparison of the images that the processes of a run read, which may be copies on different hosts."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax import runtime, schema
from vit_jax.data import loader, samples, sources
from vit_jax.schema import Choice, ConfigError, format_amount, get_current_key, show
from vit_jax.storage import paths

# Number of images of a split whose contents are compared. If the images of two of ten classes were swapped and have
# equal sizes, the sample contains neither class with probability 0.8^32 = 0.001.
COUNT = 32
SHOWN = 3  # maximum number of images to list


class OpenedSplit(NamedTuple):
  """A split that a process reads.

  Attributes:
    key: key of the config that defines the data.
    location: directory of the images, or "" if the data have no single directory.
    name: "train", "val", "test" or a split string.
    source: the images.
  """

  key: str
  location: str
  name: str
  source: sources.Source


class SplitRecorder:
  """A function that opens splits, opens each of them once, and records them for `check_same_images`.

  Args:
    open_split: function (data choice, split) -> images.

  Attributes:
    opened: the opened splits, in the order of the first calls.

  Example:
    from vit_jax import schema
    from vit_jax.data import catalog, shared_data

    choice = schema.bind(schema.Choice("digits"), catalog.DATA["digits"], catalog.DATA)
    recorder = shared_data.SplitRecorder(catalog.open_split)
    assert recorder(choice, "test") is recorder(choice, "test")
    assert [each.name for each in recorder.opened] == ["test"]
  """

  def __init__(self, open_split: Callable[[Choice, str], sources.Source]) -> None:
    self._open_split = open_split
    self._opened: dict[tuple[str, str], OpenedSplit] = {}

  def __call__(self, data: Choice, split: str) -> sources.Source:
    """Returns the images of a split.

    Args:
      data: the data choice.
      split: "train", "val", "test" or a split string.
    """
    key = json.dumps(schema.to_plain(data)), split
    if key not in self._opened:
      source = loader.cache_fingerprint(self._open_split(data, split))
      self._opened[key] = OpenedSplit(get_current_key(), _find_location(data), split, source)
    return self._opened[key].source

  @property
  def opened(self) -> tuple[OpenedSplit, ...]:
    """The opened splits, in the order of the first calls."""
    return tuple(self._opened.values())


def check_same_images(opened: Iterable[OpenedSplit]) -> None:
  """Checks that all processes read the same images. Does nothing if the run has one process.

  The comparison covers classes, number, names, labels and order of the images, sizes of files, and the contents of
  `COUNT` images of each split. Modification times may differ, because the files may be copies.

  Args:
    opened: the splits that this process reads. All processes must pass splits of the same config.

  Raises:
    ConfigError: raised on every process if the splits or images differ. The message names the splits, processes and
      directories.
  """
  if runtime.is_alone():
    return
  opened = tuple(opened)
  runtime.check_equal_facts({"splits": [f"{each.name!r} of {each.key}" for each in opened]})
  texts = runtime.gather_texts(json.dumps([describe_split(each) for each in opened]), "data")
  if lines := compare_splits([json.loads(text) for text in texts]):
    listed = "\n  ".join(lines)
    raise ConfigError(
      "the processes of this run read different images. Copy the same files to all hosts, or use a directory that all "
      f"hosts share:\n  {listed}"
    )


def describe_split(opened: OpenedSplit) -> dict[str, Any]:
  """Returns a description of a split as JSON values, for `compare_splits`.

  Args:
    opened: the split.
  """
  source = opened.source
  fingerprint = source.fingerprint()
  return {
    "key": opened.key,
    "location": opened.location,
    "split": opened.name,
    "images": len(source),
    "classes": sources.digest(source.classes),
    "names": fingerprint.names,
    "sizes": fingerprint.sizes,
    "samples": samples.describe_samples(source, COUNT),
  }


def compare_splits(processes: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
  """Returns a line for each split of a process that differs from the split of process 0.

  Args:
    processes: results of `describe_split` for the splits of each process.
  """
  return [
    f"split {first['split']!r} of {first['key']}: {line}"
    for number, splits in enumerate(processes)
    for first, other in zip(processes[0], splits, strict=True)
    if (line := _compare(number, first, other))
  ]


def _compare(number: int, first: Mapping[str, Any], other: Mapping[str, Any]) -> str:
  """Returns the difference between the same split of process 0 and of another process, or ""."""
  here, there = (f" from {show(each['location'])}" if each["location"] else "" for each in (first, other))
  if first["images"] != other["images"]:
    return (
      f"process 0 reads {format_amount(first['images'], 'image')}{here}, and process {number} reads "
      f"{other['images']:,}{there}"
    )
  words = {"classes": "names of classes", "names": "names, labels or order of images", "sizes": "sizes of files"}
  differences = [text for key, text in words.items() if first[key] != other[key]]
  compared = list(zip(first["samples"], other["samples"], strict=True))
  # An image that one of the processes cannot read has neither a hash nor a label.
  pairs = [(a, b) for a, b in compared if None not in (a["sha256"], b["sha256"])]
  unread = [a["name"] for a, b in compared if (a["sha256"] is None) != (b["sha256"] is None)]
  changed = [a["name"] for a, b in pairs if a["name"] == b["name"] and a["sha256"] != b["sha256"]]
  if changed:
    names = ", ".join(show(name) for name in changed[:SHOWN])
    differences.append(f"contents of {len(changed)} of {format_amount(len(pairs), 'compared image')}, such as {names}")
  if unread:
    differences.append(f"images that only one of them can read, such as {show(unread[0])}")
  if first["names"] == other["names"] and any(a["label"] != b["label"] for a, b in pairs):
    differences.append("labels")
  if not differences:
    return ""
  places = f" (process 0 reads{here}, process {number} reads{there})" if here or there else ""
  return f"process {number} reads other files than process 0{places}. Different: {'; '.join(differences)}"


def _find_location(data: Choice) -> str:
  """Returns the directory of data, or ""."""
  path = data.args.get("path")
  return str(paths.expand_home(paths.parse_path(path, bare=True))) if isinstance(path, str) and path else ""
