"""Tests of records of every dataset in the catalog, from the features of its builder to a training step."""

import cv2
import jax
import numpy as np
import pytest

from tests import runs
from tests.data import prepared
from vit_jax import schema
from vit_jax.corpora.builders import MADE
from vit_jax.data import catalog, masks, sources
from vit_jax.data.dataset_row import DatasetRow
from vit_jax.data.images import Images
from vit_jax.data.readers import tfds
from vit_jax.data.readers.records import create_parser
from vit_jax.data.views import Fields
from vit_jax.training import build

SETS = [name for name, row in catalog.CATALOG.items() if row.builder and name not in MADE]


def below(thresholds, distance):
  """Returns the largest i with a threshold below the distance."""
  return max(i for i, threshold in enumerate(thresholds) if threshold < distance)


def nearest_vehicle(record):
  return min([float(one["location"][2]) for one in record["objects"] if one["type"] < 3], default=1000.0)


# Labels that are not the feature "label", computed from a record as TFDS takes it.
EXPECTED = {
  "imagenet2012_real": lambda record: tuple(record["real_label"]),
  "imagenet2012_multilabel": lambda record: tuple(record["correct_multi_labels"]),
  "clevr_count": lambda record: len(record["objects"]) - 3,
  "clevr_distance": lambda record: below(
    [0, 8, 8.5, 9, 9.5, 10, 100], min(float(one["pixel_coords"][2]) for one in record["objects"])
  ),
  "kitti_distance": lambda record: below([-100, 8, 20, 999], nearest_vehicle(record)),
  "dsprites_location": lambda record: int(np.floor(record["label_x_position"] / 2)),
  "dsprites_orientation": lambda record: int(np.floor(record["label_orientation"] / 2.5)),
  "smallnorb_azimuth": lambda record: record["label_azimuth"],
  "smallnorb_elevation": lambda record: record["label_elevation"],
}


@pytest.fixture(scope="module", params=SETS)
def stored(request, tmp_path_factory):
  """Returns (name, records, source) of a dataset stored as its own builder would store it."""
  name, root = request.param, tmp_path_factory.mktemp("data")
  records, row = prepared.write(name, root), prepared.small(request.param)
  return name, records, tfds.open_catalogued(name, row, "train", path=str(root), train=row.train, test=row.test)


def pixels(record, name):
  """Returns the pixels that a model should get from a record: three channels, black and white for dSprites."""
  image = record["image"] * (255 if name.startswith("dsprites") else 1)
  return np.repeat(image, 3 // image.shape[2], axis=2)


def test_source_has_the_images_and_labels_of_its_records(stored):
  name, records, source = stored
  row = catalog.CATALOG[name]
  label = EXPECTED.get(name, lambda record: record["label"])
  assert (len(source), len(source.classes), source.labels) == (len(records), row.classes, row.labels)
  assert [source.label(i) for i in range(len(source))] == [label(record) for record in records]
  for i, record in enumerate(records):
    data, number = source.read(i)
    assert number == label(record)
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    np.testing.assert_array_equal(decoded, pixels(record, name))


def test_mask_and_class_numbers_match_the_record_and_the_row(stored):
  name, records, source = stored
  segments = catalog.CATALOG[name].segments
  assert (source.masks is None) == (segments is None)
  for i, record in enumerate(records if segments else ()):
    np.testing.assert_array_equal(
      masks.decode_numbers(source.masks.read(i), 10**6, 10), record[segments.feature][..., 0]
    )
    other = sources.select_subset(source, range(i, len(source)))
    assert other.masks.read(0) == source.masks.read(i)
  if segments:
    assert dict(zip(source.masks.classes, source.masks.values, strict=True)) == segments.values


@pytest.mark.parametrize("name", ["imagenet2012_real", "clevr_count", "dsprites_location"])
def test_tfrecord_and_array_record_give_the_same_dataset(name, tmp_path):
  sources_of = []
  for form in ("array_record", "tfrecord"):
    prepared.write(name, tmp_path / form, form=form)
    row = prepared.small(name)
    sources_of.append(
      tfds.open_catalogued(name, row, "train", path=str(tmp_path / form), train=row.train, test=row.test)
    )
  one, other = sources_of
  assert (other.classes, other.labels, len(other)) == (one.classes, one.labels, len(one))
  for i in range(len(one)):
    assert (other.read(i), other.label(i), other.identify(i)) == (one.read(i), one.label(i), one.identify(i))


def first_example(name, source):
  """Returns (image of 32 pixels, labels) of the first training example with the row's own defaults."""
  choice = schema.bind(schema.Choice(name, {"image_size": 32}), catalog.DATA[name], catalog.DATA)
  feed = choice.train_examples(source, 0, Fields(), 8)
  image, label, _ = feed.example(Images(source, "raise", 10**6, 100.0).read_prepared, 0)
  return image, [int(number) for number in np.atleast_1d(label) if number >= 0]


def test_dataset_is_cropped_and_labelled(stored):
  name, _, source = stored
  image, labels = first_example(name, source)
  assert (image.shape, image.dtype) == ((32, 32, 3), np.uint8)
  assert 1 <= len(labels) <= source.labels and max(labels) < len(source.classes)
  if name.startswith("dsprites"):
    assert image.mean() > 60  # half of the pixels are ink, and an image of ones instead of 255 would be black


@pytest.mark.long
def test_one_image_of_each_dataset_is_trained_on(tmp_path):
  batch = {"image": [], "label": []}
  for name in SETS:
    prepared.write(name, tmp_path / name)
    row = prepared.small(name)
    source = tfds.open_catalogued(name, row, "train", path=str(tmp_path / name), train=row.train, test=row.test)
    image, labels = first_example(name, source)
    batch["image"].append(image)
    batch["label"].append((labels + 9 * [-1])[:9])  # no generated list is longer
  whole = sources.Source("made", "train", tuple(map(str, range(1000))), len(SETS), None, str, 9)
  parts = build.build(runs.run(batch=len(SETS)), jax.devices()[:1], lambda choice, split: whole)
  batch = {key: np.array(values) for key, values in batch.items()} | {"draw": np.arange(len(SETS), dtype=np.uint32)}
  _, metrics = parts.step(parts.create_initial_state(), {**batch, "label": batch["label"].astype(np.int32)}, {})
  assert 0 < metrics["loss"] < 100


def features(**more):
  import tensorflow_datasets

  kinds = tensorflow_datasets.features
  return kinds.FeaturesDict({"image": kinds.Image(), "label": kinds.ClassLabel(num_classes=2)} | more)


def test_missing_label_feature_is_named():
  with pytest.raises(
    schema.ConfigError, match=r"the label feature 'real_label'.*Its features are \['image', 'label'\]"
  ):
    create_parser(DatasetRow(print, label="real_label"), features())
  with pytest.raises(schema.ConfigError, match=r"the label is computed from the features \['objects'\]"):
    create_parser(catalog.CATALOG["clevr_count"], features())


def test_record_without_the_features_of_its_label_is_damaged():
  kinds = prepared.features("kitti:3.3.0")
  read = create_parser(catalog.CATALOG["kitti_distance"], kinds).parse
  with pytest.raises(OSError, match="damaged: a record with 0 images"):
    read(b"")
  with pytest.raises(OSError, match="damaged: "):
    read(b"garbage")
