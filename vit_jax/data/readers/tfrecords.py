"""Records of TFRecord files by number, with an index that is made from the lengths of the records.

A record consists of its length (8 bytes, little-endian), 4 bytes of checksum, the data, and 4 bytes of checksum
(https://www.tensorflow.org/tutorials/load_data/tfrecord). Checksums are not compared. Instead, the lengths must lead
to the end of the file, and the number of records must match the dataset. Damaged data are detected when a record is
parsed or decoded.
"""

import array
import functools
import pathlib
import struct
from collections.abc import Sequence

import numpy as np

from vit_jax.data.readers import index, listing
from vit_jax.data.readers.index import Arrays
from vit_jax.data.readers.listing import Files
from vit_jax.schema import ConfigError, format_amount

BLOCK = 2**12  # bytes per read during a scan of a local file; the data of records are skipped
HEAD, TAIL = 12, 4  # bytes before and after the data of a record


def open_records(folder: pathlib.Path, files: Sequence[str], lengths: Sequence[int]) -> index.Extents:
  """Returns the records of files on a disk or in a bucket.

  All files are scanned when they are opened for the first time. Files in a bucket are read completely. The result is
  stored in this machine's cache, with 16 bytes per record.

  Args:
    folder: directory of the files.
    files: paths of the files. Only their names are used.
    lengths: number of records of each file.

  Raises:
    ConfigError: if a file is damaged or has another number of records.
  """
  names = tuple(pathlib.PurePosixPath(file).name for file in files)
  listed = listing.select_files(folder, names)
  arrays = index.load_or_scan("TFRecord", listed, functools.partial(_scan, listed))
  for name, each, length in zip(names, arrays, lengths, strict=True):
    if len(each["starts"]) != length:
      raise ConfigError(
        f"{folder}/{name} has {format_amount(len(each['starts']), 'record')}, not the {length} of dataset_info.json"
      )
  return index.Extents(listed, arrays)


def _scan(files: Files, file: int) -> Arrays:
  """Returns the positions of the records of a file."""
  starts, sizes, at = array.array("q"), array.array("q"), 0
  with files.open_stream(file, BLOCK) as stream:
    while at < files.size(file):
      stream.seek(at)
      head = stream.read(HEAD)
      size = struct.unpack_from("<Q", head)[0] if len(head) == HEAD else 2**63
      if at + HEAD + size + TAIL > files.size(file):
        raise ConfigError(
          f"{files.path(file)} is damaged or truncated at byte {at:,}: the record there is not complete"
        )
      starts.append(at + HEAD)
      sizes.append(size)
      at += HEAD + size + TAIL
  return {"starts": np.array(starts, np.int64), "sizes": np.array(sizes, np.int64)}
