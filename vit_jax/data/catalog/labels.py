"""Labels that VTAB computes from other features, and a correction of image brightness.

Source: task_adaptation, data/; d7630d3. Class i contains the distances in (t_i, t_(i+1)]. A distance equal to a
threshold belongs to the nearer class.
"""

import bisect
import itertools
from collections.abc import Sequence

import cv2
import numpy as np

from vit_jax.data.dataset_row import LabelRule
from vit_jax.schema import format_amount

CLEVR_DISTANCES = (8.0, 8.5, 9.0, 9.5, 10.0)  # thresholds of the depth in pixel_coords (clevr.py:45-53)
KITTI_DISTANCES = (8.0, 20.0, 999.0)  # metres (kitti.py:90-103)
NO_VEHICLE = 1000.0  # metres, larger than all thresholds
VEHICLES = 3  # types of objects below this number are vehicles: Car, Van, Truck


def clevr_count(coordinates: Sequence[float]) -> int:
  """Returns the number of objects minus 3, or -1 without objects (clevr.py:32-34).

  Args:
    coordinates: `pixel_coords` of all objects, three numbers per object.
  """
  return max(len(coordinates) // 3 - 3, -1)


def clevr_distance(coordinates: Sequence[float]) -> int:
  """Returns the class of the depth of the nearest object, or -1 without objects.

  Args:
    coordinates: `pixel_coords` of all objects, three numbers per object. The third number is the depth.
  """
  return bisect.bisect_left(CLEVR_DISTANCES, min(coordinates[2::3])) if coordinates else -1


def kitti_distance(types: Sequence[int], locations: Sequence[float]) -> int:
  """Returns the class of the distance of the nearest vehicle along the camera's axis.

  Args:
    types: type of each object. Types below `VEHICLES` are vehicles.
    locations: position of each object, three numbers in metres per object. The third number is the distance.
  """
  depths = [depth for kind, depth in zip(types, locations[2::3], strict=True) if kind < VEHICLES]
  return bisect.bisect_left(KITTI_DISTANCES, min(depths, default=NO_VEHICLE))


def dsprites_location(position: Sequence[int]) -> int:
  """Returns the class of a horizontal position. Each class contains two of the 32 positions, from left to right."""
  return position[0] // 2


def dsprites_orientation(orientation: Sequence[int]) -> int:
  """Returns the class of one of 40 angles. The 16 classes contain 3, 2, 3, 2, ... angles (dsprites.py:58-65)."""
  return int(orientation[0] / 2.5)


def brighten(data: bytes) -> bytes:
  """Converts a PNG file with pixels 0 and 1 to a PNG file with pixels 0 and 255 (dsprites.py:95-103).

  Args:
    data: the image file.

  Raises:
    OSError: if the data are not a complete image.
  """
  pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if data else None
  if pixels is None:
    raise OSError(f"not a complete image: {format_amount(len(data), 'byte')} beginning with {data[:8]!r}")
  return cv2.imencode(".png", np.minimum(pixels, 1) * 255)[1].tobytes()


def _format_ranges(thresholds: Sequence[float], unit: str) -> tuple[str, ...]:
  ends = [f"{end:g}" for end in thresholds]
  between = [f"{low} to {high}{unit}" for low, high in itertools.pairwise(ends)]
  return (f"up to {ends[0]}{unit}", *between, f"beyond {ends[-1]}{unit}")


def _format_numbers(count: int, first: int = 0) -> tuple[str, ...]:
  return tuple(map(str, range(first, first + count)))


CLEVR_COUNT = LabelRule(("objects/pixel_coords",), clevr_count, _format_numbers(8, 3))
CLEVR_DISTANCE = LabelRule(("objects/pixel_coords",), clevr_distance, _format_ranges(CLEVR_DISTANCES, ""))
KITTI_DISTANCE = LabelRule(
  ("objects/type", "objects/location"),
  kitti_distance,
  (*_format_ranges(KITTI_DISTANCES[:2], " m"), "no vehicle"),
)
DSPRITES_LOCATION = LabelRule(("label_x_position",), dsprites_location, _format_numbers(16))
DSPRITES_ORIENTATION = LabelRule(("label_orientation",), dsprites_orientation, _format_numbers(16))
