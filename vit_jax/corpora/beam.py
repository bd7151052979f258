"""Writing of a corpus on many machines with Apache Beam. The plan is the same as on one machine.

An element of the pipeline is a part of the record order. The same functions as on one machine make its records. The key
of a record is its position in the order. TFDS's Beam writer groups records by shards and writes each shard in the order
of the keys. The shards are therefore equal to those of one machine, byte for byte.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vit_jax import runtime
from vit_jax.corpora import record_maker, shard_worker
from vit_jax.corpora.plan import CorpusOptions, CorpusPlan, CorpusSplit
from vit_jax.corpora.writer import Reports, build_corpus, check_rejected
from vit_jax.data.sources import Source
from vit_jax.schema import ConfigError, extras
from vit_jax.storage import paths

REPORTS = "reports"


def write(
  name: str,
  data: dict[str, Any],
  options: CorpusOptions,
  root: pathlib.Path,
  words: Sequence[str],
  max_rejected: float = 0.01,
) -> list[str]:
  """Writes a corpus with a Beam pipeline, see `writer.write`.

  An interrupted pipeline starts again from the beginning, because it writes the shards at its end. The corpus is
  complete when the pipeline has ended. The number of rejected images is also checked at that time.

  Args:
    name: name of the dataset.
    data: a name in the catalog's READERS and all arguments, as returned by `schema.to_plain`. All splits are written.
    options: processing of the images.
    root: the TFDS data directory.
    words: flags of Beam's pipeline, such as --runner=DataflowRunner.
    max_rejected: fraction of the images that may be rejected. 5 images may always be rejected.

  Returns:
    Lines that describe the result.

  Raises:
    ConfigError: as for `writer.write`, or Apache Beam is not installed (extra beam).
    OSError: the disk or bucket of the corpus failed.
  """
  _import_beam()
  return build_corpus(name, data, options, root, functools.partial(_write_shards, words, max_rejected))


def _write_shards(
  words: Sequence[str], max_rejected: float, made: CorpusPlan, source: Source, folders: shard_worker.Folders
) -> Reports:
  """Writes all shards and returns their reports."""
  beam = _import_beam()
  text = json.dumps([*map(str, folders), made.to_json()])
  writers = [_create_writer(made, folders, split) for split in made.splits]
  with contextlib.ExitStack() as stack:
    stack.push(functools.partial(_raise_original, made, folders))
    pipeline = stack.enter_context(beam.Pipeline(options=beam.options.pipeline_options.PipelineOptions(list(words))))
    for i, split in enumerate(made.splits):
      _add_split(pipeline, text, i, split, writers[i])
  reports = {}
  for i, split in enumerate(made.splits):
    each = [folders.read_report(split, number) for number in range(split.shards)]
    lengths, _ = writers[i].finalize()
    expected = [report.records for report in each if report is not None and report.records]
    assert lengths == expected, (lengths, expected)
    reports |= {shard_worker.ShardTask(i, number): report for number, report in enumerate(each)}
  check_rejected(reports, source, max_rejected)
  return reports


def _raise_original(
  made: CorpusPlan,
  folders: shard_worker.Folders,
  kind: type[BaseException] | None,
  error: BaseException | None,
  trace: object,
) -> None:
  """Raises an error of this package in its original form. Beam adds a description of its steps, or reports a bug."""
  if error is None:
    return
  chain = [error]
  while following := chain[-1].__cause__ or chain[-1].__context__:
    chain.append(following)
  own = [each for each in chain if isinstance(each, (ConfigError, runtime.Stop, OSError, KeyboardInterrupt))]
  if own:
    raise [each for each in own if type(each) is type(own[0])][-1]  # the original error, which Beam has not extended
  shard_worker.reopen_input(made, folders)  # an error of another machine arrives as text only


def _import_beam() -> types.ModuleType:
  try:
    import apache_beam as beam
  except ImportError as error:
    raise ConfigError(f"--beam needs {extras.format_advice('beam')} ({error})") from error
  return beam


def _add_split(pipeline: object, text: str, number: int, split: CorpusSplit, writer: Any) -> None:
  """Adds a split to the pipeline."""
  import apache_beam as beam

  pieces = [
    (number, shard, first)
    for shard in range(split.shards)
    for first in range(0, len(split.positions(shard)), record_maker.TOGETHER)
  ]
  made = (
    pipeline
    | f"pieces of {split.name}" >> beam.Create(pieces)
    | f"spread {split.name}" >> beam.Reshuffle()
    | f"make {split.name}" >> beam.FlatMap(_make_piece, text).with_outputs(REPORTS, main="records")
  )
  written = beam.ptransform_fn(lambda records: writer.write_from_pcollection(records))
  _ = made["records"] | f"write {split.name}" >> written()
  _ = (
    made[REPORTS]
    | f"group {split.name}" >> beam.GroupByKey()
    | f"report {split.name}" >> beam.Map(_write_report, text, number)
  )


def _make_piece(piece: tuple[int, int, int], text: str) -> Iterator[Any]:
  """Yields (position in the split, record) for each record of a piece, and (shard, report) for the piece."""
  import apache_beam as beam

  number, shard, first = piece
  worker = _open_worker(text)
  split, report = worker.plan.splits[number], record_maker.ShardReport()
  positions = split.positions(shard)[first : first + record_maker.TOGETHER]
  for position, record in zip(positions, worker.make_records(split, positions), strict=True):
    report.add(record)
    if record.data is not None:
      yield position, record.data
  yield beam.pvalue.TaggedOutput(REPORTS, (shard, (first, report.to_json())))


@functools.lru_cache(maxsize=1)
def _open_worker(text: str) -> shard_worker.Worker:
  """Returns the worker of this process, which keeps its files open."""
  corpus, work, values = json.loads(text)
  return shard_worker.Worker(CorpusPlan.read(values), shard_worker.Folders(*map(paths.parse_path, (corpus, work))))


def _write_report(pieces: tuple[int, Iterable[tuple[int, Any]]], text: str, number: int) -> None:
  """Writes the report of a shard."""
  shard, reports = pieces
  worker = _open_worker(text)
  in_order = (record_maker.ShardReport.read(report) for _, report in sorted(reports, key=lambda each: each[0]))
  worker.folders.write_report(worker.plan.splits[number], shard, record_maker.sum_reports(in_order))


# Use of TFDS's writer.


@dataclasses.dataclass(frozen=True)
class _RecordSerialiser:
  """A serializer for records that are already serialized."""

  def serialize_example(self, example: bytes) -> bytes:
    """Returns the record unchanged."""
    return example


@dataclasses.dataclass(frozen=True)
class _ExampleWriter:
  """A writer of shards that calls `record_maker.write_records`, like `writer.write`."""

  def write(self, path: os.PathLike[str], examples: Iterable[tuple[object, bytes]]) -> None:
    """Writes (key, record) pairs that are in the order of the keys."""
    record_maker.write_records(paths.parse_path(path), (record for _, record in examples))


def _create_writer(made: CorpusPlan, folders: shard_worker.Folders, split: CorpusSplit) -> Any:
  """Returns TFDS's writer of a split, with positions in its order as keys."""
  import tensorflow_datasets as tfds
  from tensorflow_datasets.core import writer
  from tensorflow_datasets.core.utils import shard_utils

  class Writer(writer.BeamWriter):
    """A writer that assigns records to shards as in the plan, even if the last records of a split are omitted."""

    def _assign_shard(self, key_serialized_example: object, num_shards: int, largest_key: Sequence[int]) -> Any:
      return super()._assign_shard(key_serialized_example, num_shards, [len(split) - 1])

  template = tfds.core.ShardedFileTemplate(
    data_dir=folders.corpus, dataset_name=made.name, split=split.name, filetype_suffix="array_record"
  )
  return Writer(
    serializer=_RecordSerialiser(),
    filename_template=template,
    hash_salt="",
    disable_shuffling=True,
    example_writer=_ExampleWriter(),
    shard_config=shard_utils.ShardConfig(num_shards=split.shards),
  )
