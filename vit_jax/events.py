"""TensorBoard's event files, written without TensorFlow, whose import takes longer than many a run's start."""

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

from vit_jax import appending

_STRING = 7  # DT_STRING of types.proto


class EventFile:
  """A new event file in a folder: a resource with a close. What goes wrong with it is one warning, and no error."""

  def __init__(self, folder: pathlib.Path, ending: str = ""):
    """TensorBoard reads the files of a folder in the order of their names, which begin with the time.

    `ending` is that of the name.
    """
    self._folder, self._file = folder, None
    with self._attempt():
      folder.mkdir(parents=True, exist_ok=True)
      name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}{ending}"
      self._file = appending.appended(folder / name)
      self._write(file_version="brain.Event:2")

  def write(self, step: int, scalars: Mapping[str, float]) -> None:
    """Adds one point to the curve of each scalar; a reader sees it at once, in a bucket a little later."""
    values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in scalars.items()]
    self.summary(step, Summary(value=values))

  def image(self, step: int, name: str, png: bytes) -> None:
    """Adds a picture, the bytes of a PNG."""
    width, height = struct.unpack(">II", png[16:24])  # of the first chunk, after the signature
    encoded = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=png)
    self.summary(step, Summary(value=[Summary.Value(tag=name, image=encoded)]))

  def text(self, step: int, name: str, markdown: str) -> None:
    """Adds a text."""
    about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    tensor = TensorProto(dtype=_STRING, string_val=[markdown.encode(errors="replace")])
    self.summary(step, Summary(value=[Summary.Value(tag=name, metadata=about, tensor=tensor)]))

  def summary(self, step: int, summary: Summary) -> None:
    """Adds what is made already."""
    if self._file:
      with self._attempt():
        self._write(step=step, summary=summary)

  def _write(self, **fields):
    record = io.BytesIO()
    RecordWriter(record).write(Event(wall_time=time.time(), **fields).SerializeToString())
    self._file.add(record.getvalue())

  def flush(self) -> None:
    """Brings all points into the bucket, if it is one."""
    if self._file:
      with self._attempt():
        self._file.flush()

  @contextlib.contextmanager
  def _attempt(self) -> Iterator[None]:
    """Warns of an OSError, after which nothing is written."""
    try:
      yield
    except OSError as error:
      reason = error.strerror or str(error)
      logging.warning("%s: %s; TensorBoard gets no more of this run, which goes on", self._folder, reason)
      self.close()

  def close(self) -> None:
    """Ends the file."""
    file, self._file = self._file, None
    if file:
      with contextlib.suppress(OSError):  # each point was flushed, or warned of
        file.close()
