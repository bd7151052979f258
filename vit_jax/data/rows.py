"""What is known of a dataset before any of its files is opened: a row of the catalog."""

import dataclasses
from collections.abc import Callable, Mapping


@dataclasses.dataclass(frozen=True)
class Rule:
  """A label that no feature of a record holds, but that follows from some.

  `label` takes the numbers of each feature, flat as TFDS stores them, and gives a class; -1 where there is none.
  """

  features: tuple[str, ...]  # "objects/location" for one inside of a list
  label: Callable[..., int]
  names: tuple[str, ...]  # of the classes


@dataclasses.dataclass(frozen=True)
class Segments:
  """The feature of a record that is its mask, and the number that each class has in it."""

  feature: str
  values: Mapping[str, int]
  ignored: tuple[int, ...] = ()  # numbers of no class, beside 255


@dataclasses.dataclass(frozen=True)
class Row:
  """A dataset of the catalog: its reader, the TFDS builder with its version, and facts, where these are known.

  A plan needs the facts. Without a builder they are those of a set that TFDS cannot make: `path` names the user's own
  copy.
  """

  reader: Callable  # (name, row, split, *, keys of the config) -> Source
  builder: str | None = None
  splits: Mapping[str, int] = dataclasses.field(default_factory=dict)  # images
  classes: int | None = None
  train: str = "train"  # split strings, unless a config says otherwise
  test: str = "test"
  labels: int = 1  # the most that one image has
  image_bytes: int | None = None  # of a typical stored image, for the rate at which a host must read
  slices: Mapping[str, str] = dataclasses.field(default_factory=dict)  # split strings that have a name: val200
  label: str | Rule | None = None  # the feature that is the label; None: the only one, or "label"
  segments: Segments | None = None  # where records have masks
  image: Callable[[bytes], bytes] | None = None  # what is done to an image file before it is decoded
  subset: tuple[int, ...] | None = None  # the classes that occur, where these are not all
  metric: str = "top-1 accuracy"  # that is published
  flip: bool = True  # whether a mirror image has the same label
  crop: bool = True  # whether a part of an image has the same label
  exif: bool = False  # whether images are turned as EXIF says, unless a config says otherwise
  manual: tuple[str, ...] = ()  # files and folders that have to be in downloads/manual before it is prepared
  steps: str = ""  # how they get there
  caution: str = ""  # what else to know before it is prepared
