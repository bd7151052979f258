"""Tests of the derived labels of VTAB at their thresholds, against the rules of task_adaptation."""

import cv2
import numpy as np
import pytest

from vit_jax.data.catalog import labels

CAR, VAN, PEDESTRIAN, CYCLIST = 0, 1, 3, 5


def largest(thresholds, distance):
  """Returns the largest i with a threshold below the distance, as in task_adaptation."""
  return max(i for i, threshold in enumerate(thresholds) if threshold < distance)


def objects(*depths):
  """Returns three numbers for each object in a flat list. The third number is the depth."""
  return [float(number) for depth in depths for number in (1, 2, depth)]


@pytest.mark.parametrize(
  ("objects_", "expected"),
  [
    ([], 3),
    ([(CAR, 8.0)], 0),
    ([(CAR, 8.001)], 1),
    ([(CAR, 20.0)], 1),
    ([(CAR, 20.1)], 2),
    ([(VAN, 5), (CAR, 30)], 0),
    ([(CYCLIST, 5)], 3),
    ([(PEDESTRIAN, 5), (CAR, 15)], 1),
  ],
)
def test_kitti_distance_is_the_class_of_the_nearest_vehicle(objects_, expected):
  kinds, depths = [kind for kind, _ in objects_], [depth for _, depth in objects_]
  assert labels.kitti_distance(kinds, objects(*depths)) == expected
  vehicles = [depth for kind, depth in objects_ if kind < 3]
  assert largest([-100, 8, 20, 999], min([*vehicles, 1000])) == expected


@pytest.mark.parametrize(
  ("depth", "expected"), [(7, 0), (8.0, 0), (8.5, 1), (8.51, 2), (9.0, 2), (9.5, 3), (10.0, 4), (10.01, 5)]
)
def test_depth_at_a_threshold_is_in_the_nearer_class(depth, expected):
  assert labels.clevr_distance(objects(50, depth, 70)) == expected
  assert largest([0, 8, 8.5, 9, 9.5, 10, 100], depth) == expected


def test_three_to_ten_objects_are_eight_classes():
  assert [labels.clevr_count(objects(*range(n))) for n in range(3, 11)] == list(range(8))


def test_scene_without_objects_has_no_label():
  assert labels.clevr_count([]) == labels.clevr_distance([]) == -1


def test_dsprites_positions_and_orientations_are_binned_into_16_classes():
  locations = [labels.dsprites_location([x]) for x in range(32)]
  assert locations == np.floor(np.arange(32) / 2).tolist()
  angles = [labels.dsprites_orientation([o]) for o in range(40)]
  assert angles == np.floor(np.arange(40) / 2.5).tolist()
  assert np.bincount(angles).tolist() == [3, 2] * 8
  assert (angles[37], angles[39]) == (14, 15)


def test_pixel_value_one_becomes_white():
  ink = np.random.default_rng(0).integers(0, 2, (64, 64, 1), np.uint8)
  changed = labels.brighten(cv2.imencode(".png", ink)[1].tobytes())
  decoded = cv2.imdecode(np.frombuffer(changed, np.uint8), cv2.IMREAD_COLOR)
  np.testing.assert_array_equal(decoded, np.repeat(ink * 255, 3, axis=2))


@pytest.mark.parametrize("data", [b"", b"no image"])
def test_bytes_that_are_not_an_image_are_an_error(data):
  with pytest.raises(OSError, match="not a complete image"):
    labels.brighten(data)


@pytest.mark.parametrize(
  ("rule", "classes"),
  [
    (labels.CLEVR_COUNT, 8),
    (labels.CLEVR_DISTANCE, 6),
    (labels.KITTI_DISTANCE, 4),
    (labels.DSPRITES_LOCATION, 16),
    (labels.DSPRITES_ORIENTATION, 16),
  ],
)
def test_every_class_has_a_distinct_name(rule, classes):
  assert len(set(rule.names)) == classes
