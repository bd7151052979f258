"""Rows of a split from its batches: in order, without padding, and a batch ahead of what is fetched."""

import numpy as np
import pytest

from vit_jax.evals import subject


class Batches:
  """Row numbers in batches, the last padded; says when it was closed."""

  def __init__(self, length, size, gone=()):
    self.length, self.size, self.gone, self.closed = length, size, gone, False

  def __iter__(self):
    for start in range(0, self.length, self.size):
      row = np.arange(start, start + self.size)
      yield {"row": row, "mask": np.array([r < self.length and r not in self.gone for r in row], np.float32)}

  def close(self):
    self.closed = True


@pytest.mark.parametrize(("length", "size"), [(10, 4), (8, 4), (3, 16), (5, 1)])
def test_rows_come_in_order_without_padding(length, size):
  batches, seen = Batches(length, size, gone={2}), []

  def compute(batch):
    seen.append(len(batch["row"]))
    return {"square": batch["row"] ** 2, "pair": np.stack([batch["row"]] * 2, 1), "mask": batch["mask"]}

  found = subject.rows(compute, batches, lambda: None, size)
  expected = np.array([row for row in range(length) if row != 2])
  np.testing.assert_array_equal(found["position"], expected)
  np.testing.assert_array_equal(found["square"], expected**2)
  assert found["pair"].shape == (len(expected), 2)
  assert len(seen) == -(-length // size)
  assert batches.closed


def test_threads_are_ended_when_a_poll_asks_to_stop():
  batches = Batches(10, 4)

  def stop():
    raise InterruptedError

  with pytest.raises(InterruptedError):
    subject.rows(lambda batch: batch, batches, stop, 4)
  assert batches.closed
