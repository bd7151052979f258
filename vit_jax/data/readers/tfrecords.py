"""Records of TFRecord files by number: where each begins is known from the lengths in front of them.

A record is its length (8 bytes, little-endian), 4 bytes of checksum, the bytes, and 4 bytes of checksum
(https://www.tensorflow.org/tutorials/load_data/tfrecord). The checksums are not compared: lengths must lead to the end
of the file, in as many steps as the dataset has records there, and what is damaged inside of a record shows when it is
parsed or decoded.
"""

import array
import functools
import pathlib
import struct
from collections.abc import Sequence

import numpy as np

from vit_jax.data.readers import index, listing
from vit_jax.schema import ConfigError, amount

BLOCK = 2**12  # bytes that are read at a time while a file of a disk is looked through: records are left out
HEAD, TAIL = 12, 4  # bytes around a record


def opened(folder: pathlib.Path, files: Sequence[str], lengths: Sequence[int]) -> index.Extents:
  """The records of files of a folder, `lengths` in number, on a disk or in a bucket; ConfigError for damaged files.

  The first time all files are looked through, those of a bucket from end to end; what is found is kept in this
  machine's cache, 16 bytes a record.
  """
  names = tuple(pathlib.PurePosixPath(file).name for file in files)
  listed = listing.named(folder, names)
  arrays = index.made("TFRecord", listed, functools.partial(_scan, listed))
  for name, each, length in zip(names, arrays, lengths, strict=True):
    if len(each["starts"]) != length:
      raise ConfigError(
        f"{folder}/{name} has {amount(len(each['starts']), 'record')}, not the {length} of dataset_info.json"
      )
  return index.Extents(listed, arrays)


def _scan(files, file):
  """Where the records of a file are."""
  starts, sizes, at = array.array("q"), array.array("q"), 0
  with files.stream(file, BLOCK) as stream:
    while at < files.size(file):
      stream.seek(at)
      head = stream.read(HEAD)
      size = struct.unpack_from("<Q", head)[0] if len(head) == HEAD else 2**63
      if at + HEAD + size + TAIL > files.size(file):
        raise ConfigError(f"{files.path(file)} is damaged or cut off at byte {at:,}: no whole record is there")
      starts.append(at + HEAD)
      sizes.append(size)
      at += HEAD + size + TAIL
  return {"starts": np.array(starts, np.int64), "sizes": np.array(sizes, np.int64)}
