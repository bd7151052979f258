"""Writing of TensorBoard event files without TensorFlow.

The import of TensorFlow takes longer than the start of many runs.
"""

import contextlib
import io
import logging
import os
import pathlib
import socket
import struct
import time
from collections.abc import Iterator, Mapping

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.summary.writer.record_writer import RecordWriter

from vit_jax.storage import append

_STRING = 7  # DT_STRING of types.proto


class EventFile:
  """A new event file in a directory. An error causes one warning, and further records are dropped.

  TensorBoard reads the files of a directory in the order of their names, which start with the time.

  Args:
    folder: directory of the file. It is created if it does not exist.
    ending: suffix of the file name.
  """

  def __init__(self, folder: pathlib.Path, ending: str = "") -> None:
    self._folder = folder
    self._file: append.AppendFile | append.BucketAppender | None = None
    with self._attempt():
      folder.mkdir(parents=True, exist_ok=True)
      name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}{ending}"
      self._file = append.open_append(folder / name)
      self._write(self._file, file_version="brain.Event:2")

  def write(self, step: int, scalars: Mapping[str, float]) -> None:
    """Appends one point to the curve of each scalar. Readers see the point at once on a disk, and after a delay in a
    bucket.

    Args:
      step: step of the points.
      scalars: maps names of curves to values.
    """
    values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in scalars.items()]
    self.write_summary(step, Summary(value=values))

  def write_image(self, step: int, name: str, png: bytes) -> None:
    """Appends an image.

    Args:
      step: step of the image.
      name: tag of the image.
      png: bytes of a PNG file.
    """
    width, height = struct.unpack(">II", png[16:24])  # in the first chunk, after the signature
    encoded = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=png)
    self.write_summary(step, Summary(value=[Summary.Value(tag=name, image=encoded)]))

  def write_text(self, step: int, name: str, markdown: str) -> None:
    """Appends a Markdown text.

    Args:
      step: step of the text.
      name: tag of the text.
      markdown: the text.
    """
    about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    tensor = TensorProto(dtype=_STRING, string_val=[markdown.encode(errors="replace")])
    self.write_summary(step, Summary(value=[Summary.Value(tag=name, metadata=about, tensor=tensor)]))

  def write_summary(self, step: int, summary: Summary) -> None:
    """Appends a summary.

    Args:
      step: step of the summary.
      summary: the protocol buffer.
    """
    if self._file:
      with self._attempt():
        self._write(self._file, step=step, summary=summary)

  def _write(self, file: append.AppendFile | append.BucketAppender, **fields: object) -> None:
    record = io.BytesIO()
    RecordWriter(record).write(Event(wall_time=time.time(), **fields).SerializeToString())
    file.add(record.getvalue())

  def flush(self) -> None:
    """Uploads all records if the file is in a bucket."""
    if self._file:
      with self._attempt():
        self._file.flush()

  @contextlib.contextmanager
  def _attempt(self) -> Iterator[None]:
    """Warns of an OSError and closes the file."""
    try:
      yield
    except OSError as error:
      reason = error.strerror or str(error)
      logging.warning("%s: %s. The run continues without further TensorBoard output", self._folder, reason)
      self.close()

  def close(self) -> None:
    """Closes the file. Later records are dropped."""
    file, self._file = self._file, None
    if file:
      with contextlib.suppress(OSError):  # each record was flushed, or its loss was reported
        file.close()
