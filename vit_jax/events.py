"""TensorBoard's event files: scalars, written without TensorFlow, whose import takes longer than many a run's start."""

import os
import pathlib
import socket
import time
from collections.abc import Mapping

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


class EventFile:
  """A new event file in a folder: a resource with a close."""

  def __init__(self, folder: pathlib.Path):
    """TensorBoard reads the files of a folder in the order of their names, which begin with the time."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
    self._file = open(folder / name, "wb")
    self._records = RecordWriter(self._file)
    self._write(file_version="brain.Event:2")

  def write(self, step: int, scalars: Mapping[str, float]) -> None:
    """Adds one point to the curve of each scalar; a reader sees it at once."""
    values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in scalars.items()]
    self._write(step=step, summary=Summary(value=values))

  def _write(self, **fields):
    self._records.write(Event(wall_time=time.time(), **fields).SerializeToString())
    self._file.flush()

  def close(self) -> None:
    """Ends the file."""
    self._file.close()
