"""Streams of small images with pixels that encode the record number."""

import cv2
import numpy as np

from vit_jax import schema
from vit_jax.data import loader, sources, stream
from vit_jax.data.views import Fields

PLAIN = {"image_size": 2, "crop": schema.Choice("resize"), "flip": False}
RANDOM = {"image_size": 4, "crop": schema.Choice("inception"), "flip": True}


def file(i):
  """Returns a 6x6 PNG with the record number in every pixel."""
  return cv2.imencode(".png", np.full((6, 6, 3), (i % 256, i // 256, 7), np.uint8))[1].tobytes()


def source(count, bad=(), gradient=False, labels=1, label=lambda i: i % 3):
  files = [b"not an image" if i in bad else file(i) for i in range(count)]
  if gradient:
    grid = np.stack([*np.meshgrid(np.arange(0, 240, 12), np.arange(0, 240, 12)), np.zeros((20, 20))], -1).astype(
      np.uint8
    )
    files = [cv2.imencode(".png", grid + i)[1].tobytes() for i in range(count)]
  return sources.Source(
    "made", "train", ("a", "b", "c"), count, lambda i: (files[i], label(i)), lambda i: f"made, record {i}", labels
  )


def take(batches, count):
  result = [next(batches) for _ in range(count)]
  batches.close()
  return result


def train(source, batch, steps, seed=0, start=0, rows=None, patch=None, **args):
  rows = range(batch) if rows is None else rows
  return take(training(source, batch, rows, seed, start, patch, **{"threads": 3} | args), steps)


def opened(count, bad=()):
  """Returns examples that another process can open."""
  return stream.train_examples(source(count, bad), 0, **PLAIN | RANDOM)


def training(source, batch, rows, seed=0, start=0, patch=None, on_error="raise", threads=8, prefetch=None, **args):
  examples = stream.train_examples(source, seed, Fields(patch), batch, **PLAIN | args)
  return loader.batches(examples, batch, rows, start, on_error=on_error, threads=threads, prefetch=prefetch)


def evaluation(source, batch, rows, **options):
  return loader.batches(stream.eval_examples(source, image_size=2), batch, rows, **options)


def records(batches):
  """Returns the record numbers, decoded from the pixels."""
  pixels = np.concatenate([b["image"][:, 0, 0] for b in batches]).astype(int)
  return pixels[:, 2] + 256 * pixels[:, 1]


def same(one, other):
  for a, b in zip(one, other, strict=True):
    assert a.keys() == b.keys()
    for key in a:
      np.testing.assert_array_equal(a[key], b[key], err_msg=key)
