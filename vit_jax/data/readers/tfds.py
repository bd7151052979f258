"""Datasets that TFDS prepared, as sources."""

import os
import re
from collections.abc import Mapping

from vit_jax import schema
from vit_jax.data import sources


def data_dir(path: str | None):
  """The TFDS data directory: `path`, else $TFDS_DATA_DIR, else ~/tensorflow_datasets. Knows gs:// too."""
  import tensorflow_datasets as tfds  # 0.3 s, only for runs that read TFDS; it does not import TensorFlow

  return tfds.core.Path(path or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def open_tfds(
  builder: str | None, path: str | None, counts: Mapping[str, int], labels: int, spec: str, where: str, remedy: str
) -> sources.Source:
  """A split of the prepared dataset `builder` ("cifar10:3.0.2"); `path` is a data directory or the builder directory.

  Only `array_record` files give records by number. `counts` are the sizes that the catalog states, if any; `labels` is
  the most that an image has where they are lists. Errors end in `remedy`; AbsentError if there is no such dataset.
  """
  import tensorflow_datasets as tfds

  folder = builder_dir(builder, path)
  if folder is None:
    missing = f"dataset {builder!r} is not in {data_dir(path)}" if builder else f"no dataset_info.json in {path!r}"
    raise sources.AbsentError(f"{where}: {missing}; {remedy}")
  try:
    opened = tfds.builder_from_directory(folder)
  except (tfds.core.registered.DatasetNotFoundError, ValueError, OSError) as error:
    raise schema.ConfigError(f"config.data.path: {folder} is not a TFDS dataset: {error}; {remedy}") from error
  info, again = opened.info, f"remove it and {remedy}" if builder else remedy
  if builder and info.name != re.split("[:/]", builder)[0]:
    raise schema.ConfigError(f"config.data.path: {folder} holds the dataset {info.name!r}, not {builder!r}")
  if info.file_format is not tfds.core.FileFormat.ARRAY_RECORD:
    form = info.file_format.value
    raise schema.ConfigError(f"{where}: {folder} is in {form} format, not array_record; {again}")
  sizes = {split: opened.info.splits[split].num_examples for split in opened.info.splits}
  for split, count in counts.items():
    if sizes.get(split) != count:
      raise schema.ConfigError(
        f"{where}: {folder} has {sizes.get(split, 'no')} records in {split!r}, not {count}; {again}"
      )
  image, label = (_key(info.features, kind, where) for kind in (tfds.features.Image, tfds.features.ClassLabel))
  parts = sources.select(spec, sizes, where)
  # Other features (a mask, a file name) are neither parsed nor decoded.
  features = tfds.features.FeaturesDict({key: info.features[key] for key in (image, label)})
  undecoded = {image: tfds.decode.SkipDecoding()}
  raw = tfds.decode.DeserializeMethod.RAW_BYTES
  records = {split: opened.as_data_source(split=split, deserialize_method=raw) for split in {s for s, _ in parts}}

  def read(split, i):
    record = features.deserialize_example_np(records[split][i], decoders=undecoded)
    found = record[label]
    return record[image], tuple(map(int, found)) if listed else int(found)

  listed = isinstance(info.features[label], tfds.features.Sequence)
  classes = (info.features[label].feature if listed else info.features[label]).names
  return sources.assemble(
    info.name,
    spec,
    classes,
    parts,
    read,
    lambda *_: "",
    lambda split, i: f"{split}/{i}",
    lambda: _reach(folder, lambda: sources.digest((folder.parts[-2:], parts), _stamps(folder))),
    labels if listed else 1,
  )


def _stamps(folder):
  """(name, size, time of last change) of the files of a TFDS directory."""
  for file in sorted(folder.iterdir(), key=lambda f: f.name):
    if "://" in str(folder):
      found = file.stat()
      yield file.name, found.length, found.mtime  # whole seconds: buckets tell no more
    else:
      yield file.name, *sources.stamp(file)


def builder_dir(builder: str | None, path: str | None):
  """Directory with dataset_info.json: `path` itself, or the highest version of `builder` in the data directory.

  None if there is none; sources.AbsentError for a bucket that cannot be reached.
  """
  root = data_dir(path)
  return _reach(root, lambda: _builder_dir(root, builder, path))


def _reach(root, ask):
  """What `ask()` says of a directory; sources.AbsentError if it is in a bucket and does not answer."""
  if "://" not in str(root):
    return ask()
  import tensorflow as tf  # TFDS reads buckets with it, and passes its errors on

  try:
    return ask()
  except (OSError, tf.errors.OpError) as error:
    raise sources.AbsentError(f"config.data.path: {root} cannot be reached: {str(error).splitlines()[0]}") from error


def _builder_dir(root, builder, path):
  import tensorflow_datasets as tfds

  if path and (root / "dataset_info.json").exists():
    return root
  if not builder:
    return None
  name, _, version = builder.partition(":")
  if version:
    found = [root / name / version]
  else:
    folders = (root / name).iterdir() if (root / name).is_dir() else ()
    found = sorted((f for f in folders if tfds.core.Version.is_valid(f.name)), key=lambda f: tfds.core.Version(f.name))
  found = [f for f in found if (f / "dataset_info.json").exists()]
  return found[-1] if found else None


def _key(features, kind, where):
  """The feature of a kind, or for labels the list of that kind; "image" and "label" before others."""

  def fits(feature):
    return isinstance(feature, kind) or (preferred == "label" and isinstance(getattr(feature, "feature", None), kind))

  preferred = {"Image": "image", "ClassLabel": "label"}[kind.__name__]
  keys = [key for key, feature in features.items() if fits(feature)]
  if preferred not in keys and len(keys) != 1:
    raise schema.ConfigError(f"{where}: the dataset needs one {kind.__name__} feature; it has {keys or 'none'}")
  return preferred if preferred in keys else keys[0]
