"""Files that describe a corpus next to its shards: TFDS's description, counts, and lists of omitted images."""

import collections
import json
import pathlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax import schema
from vit_jax.corpora import plan, record_maker
from vit_jax.schema import ConfigError, escape_line, format_amount
from vit_jax.schema.errors import format_names
from vit_jax.storage import files, paths

PLAN, INFO = "prepare.json", "dataset_info.json"  # INFO marks a corpus as complete and is written last


def check_dataset_name(name: str) -> None:
  """Checks that TFDS accepts a name of a dataset.

  Args:
    name: the name.

  Raises:
    ConfigError: TFDS would not accept the name.
  """
  if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
    raise ConfigError(
      f"{name!r} is not a valid dataset name. Use lower-case letters, digits and _, with a letter first"
    )


def check_classes(classes: Sequence[str]) -> None:
  """Checks that TFDS can store the names of classes, as lines of a text file, and that they are different.

  Args:
    classes: the names.

  Raises:
    ConfigError: a name cannot be stored or occurs twice.
  """
  for name in classes:
    if not name or name != name.strip() or "\n" in name or "\r" in name or not _is_unicode(name):
      raise ConfigError(
        f"class {name!a} cannot be stored by TFDS, which writes one name per line: it is empty, starts or ends with a "
        f"blank, contains a line break, or is not UTF-8. Rename it"
      )
  if twice := [name for name, count in collections.Counter(classes).items() if count > 1]:
    raise ConfigError(f"several classes are called {format_names(map(repr, twice), 5)}. Rename them")


def _is_unicode(name: str) -> bool:
  try:
    name.encode()
  except UnicodeEncodeError:
    return False
  return True


def build_features(classes: Sequence[str], labels: int) -> Any:
  """Returns the TFDS features of a corpus.

  Args:
    classes: names of the classes.
    labels: maximum number of labels of an image. With more than one, an image has a list of labels.
  """
  import tensorflow_datasets as tfds

  label = tfds.features.ClassLabel(names=classes)
  return tfds.features.FeaturesDict(
    {
      "image": tfds.features.Image(shape=(None, None, 3)),  # JPEG or PNG
      "label": tfds.features.Sequence(label) if labels > 1 else label,
      "id": tfds.features.Text(),  # identifier of the input, for example the name of a file
    }
  )


def write_description(
  corpus: pathlib.Path,
  made: plan.CorpusPlan,
  classes: Sequence[str],
  reports: Mapping[str, Sequence[record_maker.ShardReport]],
) -> None:
  """Writes the files that describe a corpus.

  Args:
    corpus: folder of the corpus.
    made: the plan.
    classes: names of the classes.
    reports: {split: reports of its shards, in order}.

  Raises:
    ConfigError: a shard contains no images.
  """
  for split in made.splits:
    empty = [number for number, report in enumerate(reports[split.name]) if not report.records]
    left_out = sum(len(report.duplicates) for report in reports[split.name])
    if left_out and len(empty) == split.shards:
      raise ConfigError(
        f"no image is left in split {split.name!r}: {left_out:,} of {format_amount(len(split), 'image')} are "
        f"left out as duplicates of {', '.join(made.options.against)}. Leave this test set out of --dedup-against, "
        "lower --dedup-distance, or give input without this split"
      )
    if empty:
      raise ConfigError(
        f"no image is left for {len(empty)} of {format_amount(split.shards, 'file')} of split {split.name!r}. Fix "
        "the input, or use fewer --shards"
      )
  of_splits = {name: record_maker.sum_reports(each) for name, each in reports.items()}
  everything = record_maker.sum_reports(of_splits.values())
  rows = {
    "rejected.jsonl": everything.rejected,
    "duplicates.jsonl": [{k: v for k, v in row.items() if k != "picture"} for row in everything.duplicates],
  }
  for name, lines in rows.items():
    if lines or name == "rejected.jsonl":
      files.write_text(corpus / name, "".join(json.dumps(line) + "\n" for line in lines))
  by_class = {name: {label: each.classes[i] for i, label in enumerate(classes)} for name, each in of_splits.items()}
  files.write_text(corpus / "counts.json", json.dumps(by_class, indent=1) + "\n")
  about = {
    "records": {name: each.records for name, each in of_splits.items()},
    "rejected": len(everything.rejected),
    "duplicates": len(everything.duplicates),
    "done": dict(sorted(everything.done.items())),
  }
  files.write_text(corpus / PLAN, json.dumps(made.to_json() | about, indent=1) + "\n")
  _write_tfds_files(corpus, made, classes, reports)


def _write_tfds_files(
  corpus: pathlib.Path, made: Any, classes: Sequence[str], reports: Mapping[str, Sequence[record_maker.ShardReport]]
) -> None:
  """Writes TFDS's files. The file that marks the corpus as complete is written last."""
  import tensorflow_datasets as tfds

  with tempfile.TemporaryDirectory(prefix="vit_jax_") as folder:
    identity = tfds.core.dataset_info.DatasetIdentity(
      name=made.name, version=tfds.core.Version("1.0.0"), data_dir=folder, module_name=""
    )
    done = f"at most {made.options.size} pixels on the smaller side" if made.options.size else "of their original sizes"
    info = tfds.core.DatasetInfo(
      builder=identity,
      features=build_features(classes, made.labels),
      description=f"Images {done}, upright. Verified and written by python -m vit_jax.prepare. See prepare.json.",
    )
    info.set_file_format(tfds.core.FileFormat.ARRAY_RECORD)
    info.set_splits(
      tfds.core.splits.SplitDict(
        [
          tfds.core.SplitInfo(
            name=split.name,
            shard_lengths=[report.records for report in reports[split.name]],
            num_bytes=sum(report.bytes for report in reports[split.name]),
            filename_template=tfds.core.ShardedFileTemplate(
              data_dir=corpus, dataset_name=made.name, split=split.name, filetype_suffix="array_record"
            ),
          )
          for split in made.splits
        ]
      )
    )
    info.write_to_directory(folder)
    for file in sorted(pathlib.Path(folder).iterdir(), key=lambda file: file.name == INFO):
      if paths.is_in_bucket(corpus):
        files.copy_to_bucket(file, corpus / file.name)
      else:
        files.write_text(corpus / file.name, file.read_text())


def summarise_reports(reports: Mapping[str, Sequence[record_maker.ShardReport]], classes: Sequence[str]) -> list[str]:
  """Returns lines for the screen: images and classes of each split, changes, and omitted images by reason.

  Args:
    reports: {split: reports of its shards}.
    classes: names of the classes.
  """
  lines, of_splits = [], {name: record_maker.sum_reports(each) for name, each in reports.items()}
  everything = record_maker.sum_reports(of_splits.values())
  for name, each in of_splits.items():
    few, many = (pick((each.classes[i], label) for i, label in enumerate(classes)) for pick in (min, max))
    lines.append(
      f"{name}: {format_amount(each.records, 'image')} in {format_amount(len(reports[name]), 'file')}, "
      f"{each.bytes / 2**20:,.0f} MiB; {format_amount(len(classes), 'class', 'classes')} with "
      + (
        f"{few[0]:,} ({schema.show(few[1])}) to {many[0]:,} images ({schema.show(many[1])})"
        if few[0] != many[0]
        else f"{format_amount(few[0], 'image')} each"
      )
    )
  if everything.done:
    lines.append(", ".join(f"{count:,} {word}" for word, count in sorted(everything.done.items())))
  if everything.duplicates:
    lines.append(
      f"{format_amount(len(everything.duplicates), 'duplicate')} of test images left out; duplicates.html shows them"
    )
  kinds = collections.defaultdict(list)
  for row in everything.rejected:
    kinds[re.sub(r"\d[\d,]*", "", row["reason"])[:100]].append(f"{row['file']}: {row['reason'][:200]}")
  if kinds:
    lines.append(f"{len(everything.rejected):,} rejected; rejected.jsonl names them")
    largest = sorted(kinds.values(), key=len, reverse=True)[:5]
    lines += [f"  {len(each):>7,}  {'such as ' * (len(each) > 1)}{escape_line(each[0])}" for each in largest]
  return lines
