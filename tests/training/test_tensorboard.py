"""Event files as TensorBoard and TensorFlow read them."""

import pathlib
import subprocess
import sys

import cv2
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vit_jax.training.tensorboard import EventFile


def scalars(folder):
  """{name: [(step, value)]} of a folder."""
  events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
  events.Reload()
  return {name: [(point.step, point.value) for point in events.Scalars(name)] for name in events.Tags()["scalars"]}


@pytest.mark.heavy
def test_tensorboard_reads_every_point_before_the_file_is_closed(tmp_path):
  file = EventFile(tmp_path / "tensorboard")
  for step in (1, 2, 300_000):
    file.write(step, {"train/loss": 1 / step, "images_per_second": 1e9})
  expected = {
    "train/loss": [(1, 1.0), (2, 0.5), (300_000, pytest.approx(1 / 300_000))],
    "images_per_second": [(1, 1e9), (2, 1e9), (300_000, 1e9)],
  }
  assert scalars(tmp_path / "tensorboard") == expected
  file.close()
  assert scalars(tmp_path / "tensorboard") == expected


def test_tensorboard_reads_pictures_and_texts(tmp_path):
  _, png = cv2.imencode(".png", np.full((5, 7, 3), 9, np.uint8))
  file = EventFile(tmp_path)
  file.write_image(4, "first batch", png.tobytes())
  file.write_text(0, "config", "a\ud800 | *b*")
  file.close()
  events = EventAccumulator(str(tmp_path))
  events.Reload()
  (image,) = events.Images("first batch")
  assert (image.step, image.width, image.height, image.encoded_image_string) == (4, 7, 5, png.tobytes())
  (text,) = events.Tensors("config")
  assert text.tensor_proto.string_val == [b"a? | *b*"]
  assert events.SummaryMetadata("config").plugin_data.plugin_name == "text"


def test_a_continued_run_s_points_follow(tmp_path):
  for step in (1, 2):
    file = EventFile(tmp_path)
    file.write(step, {"loss": float(step)})
    file.close()
  assert len(list(tmp_path.iterdir())) == 2
  assert scalars(tmp_path) == {"loss": [(1, 1.0), (2, 2.0)]}


def test_tensorflow_reads_the_records_with_their_checksums(tmp_path):
  import tensorflow as tf

  file = EventFile(tmp_path)
  file.write(7, {"loss": 0.5})
  file.close()
  (path,) = tmp_path.iterdir()
  _, event = [tf.compat.v1.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(path))]
  assert (event.step, event.summary.value[0].tag, event.summary.value[0].simple_value) == (7, "loss", 0.5)


@pytest.mark.long
def test_tensorflow_is_not_imported():
  code = "import sys, vit_jax.training.tensorboard; sys.exit('tensorflow' in sys.modules)"
  assert subprocess.run([sys.executable, "-c", code], cwd=pathlib.Path(__file__).parents[2]).returncode == 0
