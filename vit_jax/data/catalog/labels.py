"""Labels that VTAB makes of other features (task_adaptation, data/; d7630d3), and images that it changes.

Distances lie in (t_i, t_(i+1)], and the class is i: at a threshold exactly it is the nearer one.
"""

import bisect
import itertools
from collections.abc import Sequence

import cv2
import numpy as np

from vit_jax.data.rows import Rule
from vit_jax.schema import amount

CLEVR_DISTANCES = (8.0, 8.5, 9.0, 9.5, 10.0)  # of pixel_coords, the depth (clevr.py:45-53)
KITTI_DISTANCES = (8.0, 20.0, 999.0)  # metres (kitti.py:90-103)
NO_VEHICLE = 1000.0  # metres, beyond all thresholds
VEHICLES = 3  # the first types of objects: Car, Van, Truck


def clevr_count(coordinates: Sequence[float]) -> int:
  """Objects less 3, of pixel_coords of all of them, three numbers each (clevr.py:32-34); -1 without objects."""
  return max(len(coordinates) // 3 - 3, -1)


def clevr_distance(coordinates: Sequence[float]) -> int:
  """Class of the depth of the nearest object, by the same numbers; -1 without objects."""
  return bisect.bisect_left(CLEVR_DISTANCES, min(coordinates[2::3])) if coordinates else -1


def kitti_distance(types: Sequence[int], locations: Sequence[float]) -> int:
  """Class of the distance of the nearest vehicle along the camera's axis; of locations, three metres an object."""
  depths = [depth for kind, depth in zip(types, locations[2::3], strict=True) if kind < VEHICLES]
  return bisect.bisect_left(KITTI_DISTANCES, min(depths, default=NO_VEHICLE))


def dsprites_location(position: Sequence[int]) -> int:
  """The 32 places from left to right, two by two."""
  return position[0] // 2


def dsprites_orientation(orientation: Sequence[int]) -> int:
  """The 40 angles in 16 classes of 3, 2, 3, 2, ... (dsprites.py:58-65)."""
  return int(orientation[0] / 2.5)


def bright(data: bytes) -> bytes:
  """A PNG file of zeros and ones as one of 0 and 255 (dsprites.py:95-103); OSError for what is no image."""
  pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if data else None
  if pixels is None:
    raise OSError(f"not a complete image; {amount(len(data), 'byte')} beginning with {data[:8]!r}")
  return cv2.imencode(".png", np.minimum(pixels, 1) * 255)[1].tobytes()


def _ranges(thresholds, unit):
  ends = [f"{end:g}" for end in thresholds]
  between = [f"{low} to {high}{unit}" for low, high in itertools.pairwise(ends)]
  return (f"up to {ends[0]}{unit}", *between, f"beyond {ends[-1]}{unit}")


def _numbers(count, first=0):
  return tuple(map(str, range(first, first + count)))


CLEVR_COUNT = Rule(("objects/pixel_coords",), clevr_count, _numbers(8, 3))
CLEVR_DISTANCE = Rule(("objects/pixel_coords",), clevr_distance, _ranges(CLEVR_DISTANCES, ""))
KITTI_DISTANCE = Rule(
  ("objects/type", "objects/location"),
  kitti_distance,
  (*_ranges(KITTI_DISTANCES[:2], " m"), "no vehicle"),
)
DSPRITES_LOCATION = Rule(("label_x_position",), dsprites_location, _numbers(16))
DSPRITES_ORIENTATION = Rule(("label_orientation",), dsprites_orientation, _numbers(16))
