"""Detection of equal records: images that are repeated in a split, or are both in training and evaluation data."""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.data import sources
from vit_jax.schema import format_amount

UNKNOWN = 0  # key of a record that does not equal any other


class Pair(NamedTuple):
  """Two records with equal keys.

  Attributes:
    one: (split, record number) of the first record.
    other: (split, record number) of the second record.
  """

  one: tuple[str, int]
  other: tuple[str, int]


def compute_key(text: str) -> int:
  """Returns the key of a text: a number of 63 bits, which is never `UNKNOWN`."""
  digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
  return int.from_bytes(digest, "little") % (2**63 - 1) + 1


def find_repeats(keys: np.ndarray) -> np.ndarray:
  """Finds keys that occur more than once.

  Args:
    keys: key of each record, int64 (N,).

  Returns:
    int64 (M, 2), with one row for each record that repeats an earlier key. The first column is the first record with
    the key. The second column is the repeating record. Rows are ordered by the second column.
  """
  order = np.argsort(keys, kind="stable")
  ordered = keys[order]
  again = np.flatnonzero((ordered[1:] == ordered[:-1]) & (ordered[1:] != UNKNOWN)) + 1
  pairs = np.stack([order[np.searchsorted(ordered, ordered[again])], order[again]], 1)
  return pairs[np.argsort(pairs[:, 1])]


def find_overlaps(splits: sources.Splits, keys: Mapping[str, np.ndarray]) -> dict[str, list[Pair]]:
  """Finds images that are used both for training and for evaluation.

  Records that the config itself uses for both, such as those of `train="train"` and `test="train[:10]"`, are omitted.

  Args:
    splits: split strings of the config.
    keys: {split of the data: key of each record, int64 (N,)}.

  Returns:
    {"val" or "test": pairs}. A pair is an evaluation record and the first training record with the same key.
  """
  starts = dict(zip(keys, np.cumsum([0, *map(len, keys.values())]).tolist(), strict=False))
  names, firsts = list(starts), np.array([*starts.values()])
  flat = np.concatenate([np.zeros(0, np.int64), *keys.values()])

  def locate(i: int) -> tuple[str, Any]:
    split = int(np.searchsorted(firsts, i, "right")) - 1
    while not len(keys[names[split]]):  # splits without records start where the next one starts
      split -= 1
    return names[split], i - starts[names[split]]

  used = {}
  for role in splits.specs():
    with contextlib.suppress(sources.SplitError):  # reported when this split is opened
      parts = sources.select_parts(splits.spec(role), {name: len(each) for name, each in keys.items()})
      used[role] = np.concatenate([starts[part] + np.arange(each.start, each.stop) for part, each in parts])
  trained, found = used.pop("train", np.zeros(0, np.int64)), {}
  values, first = np.unique(flat[trained], return_index=True)
  for role, records in used.items():
    records = records[(flat[records] != UNKNOWN) & ~np.isin(records, trained) & np.isin(flat[records], values)]
    ones = trained[first[np.searchsorted(values, flat[records])]]
    found[role] = [Pair(locate(i), locate(j)) for i, j in zip(ones.tolist(), records.tolist(), strict=True)]
  return found


def sample_pairs(pairs: Sequence[Pair], most: int) -> Sequence[Pair]:
  """Returns a selection of evenly spaced pairs.

  Args:
    pairs: the pairs.
    most: largest number of pairs.
  """
  return [pairs[i * len(pairs) // most] for i in range(most)] if len(pairs) > most else pairs


def describe_overlap(role: str, count: int, example: str, compared: int | None = None, alike: int = 0) -> str:
  """Returns a line about images that are used both for training and for evaluation.

  Args:
    role: use of the evaluation images, "val" or "test".
    count: number of these images that are also in the training data.
    example: description of two records.
    compared: number of images that were read and compared. None if equal keys prove that images are equal.
    alike: number of images with the name and size of a training image. Only some of them were compared.
  """
  are = "is" if count == 1 else "are"
  if compared is None:
    what, more = f"{format_amount(count, 'image')} of {role}", ""
  else:
    what = f"{count:,} of {format_amount(compared, 'compared image')} of {role}"
    more = (
      f" {format_amount(alike, 'image')} of {role} {'has' if alike == 1 else 'have'} the name and the size of a "
      f"training image."
    )
  return (
    f"data overlap: {what} {are} also in the training data, for example {example}.{more} Results on these images do "
    "not "
    "show how well a model generalises"
  )
