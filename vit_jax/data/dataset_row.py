"""Rows of the catalog: the facts that are known about a dataset before any of its files is opened."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

Label = int | tuple[int, ...]  # class number of a record, or the numbers of all of its classes


@dataclasses.dataclass(frozen=True)
class LabelRule:
  """A rule that computes labels from other features of a record.

  Attributes:
    features: names of the features. "objects/location" is a feature inside a list of objects.
    label: function of the numbers of each feature, as a flat list, which is the form in which TFDS stores them. It
      returns a class, or -1 if the record has no class.
    names: names of the classes.
  """

  features: tuple[str, ...]
  label: Callable[..., int]
  names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class MaskFeature:
  """The feature of a record that contains its segmentation mask.

  Attributes:
    feature: name of the feature.
    values: pixel value of each class, by class name.
    ignored: pixel values without a class, in addition to 255.
  """

  feature: str
  values: Mapping[str, int]
  ignored: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class DatasetRow:
  """A dataset of the catalog.

  Planning needs the facts of a row. A row without a builder describes a dataset that TFDS cannot prepare. In this case
  `path` in the config is the location of the user's own copy.

  Attributes:
    reader: function (name, row, split, *, keys of the config) that returns a `Source`.
    builder: TFDS builder with its version.
    splits: number of images of each split.
    classes: number of classes.
    train: default split string for training.
    test: default split string for testing.
    labels: largest number of labels of an image.
    image_bytes: size of a typical image file, from which the required read rate of a host is estimated.
    slices: split strings of named slices, such as "val200".
    label: feature that contains the label, or the rule that computes it. None: the only label feature, or "label".
    segments: feature of the segmentation masks, if records have masks.
    image: function that is applied to an image file before it is decoded.
    subset: numbers of the classes that occur, if not all classes occur.
    metric: name of the metric that is published for the dataset.
    flip: whether a mirror image has the same label.
    crop: whether a crop of an image has the same label.
    exif: default of the config key `exif`: whether images are rotated according to their EXIF data.
    manual: files and directories that must be in downloads/manual before the dataset can be prepared.
    steps: instructions for getting the files of `manual`.
    caution: further information for users who prepare the dataset.
  """

  reader: Callable[..., Any]  # a function of `vit_jax.data.readers`
  builder: str | None = None
  splits: Mapping[str, int] = dataclasses.field(default_factory=dict)
  classes: int | None = None
  train: str = "train"
  test: str = "test"
  labels: int = 1
  image_bytes: int | None = None
  slices: Mapping[str, str] = dataclasses.field(default_factory=dict)
  label: str | LabelRule | None = None
  segments: MaskFeature | None = None
  image: Callable[[bytes], bytes] | None = None
  subset: tuple[int, ...] | None = None
  metric: str = "top-1 accuracy"
  flip: bool = True
  crop: bool = True
  exif: bool = False
  manual: tuple[str, ...] = ()
  steps: str = ""
  caution: str = ""
