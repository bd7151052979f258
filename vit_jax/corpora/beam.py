"""A corpus by Apache Beam, on many machines: the plan of one machine, carried out by TFDS's Beam writer.

A piece of the order of records is an element of the pipeline. The same functions make its records, which are keyed by
their places in the order; TFDS's writer groups them by shards, and writes each in the order of the keys. So the shards
are the same as those of one machine, byte by byte.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from vit_jax import extras, paths, runtime
from vit_jax.corpora import making, work
from vit_jax.corpora.plan import Options, Plan
from vit_jax.corpora.write import check_rejected, whole
from vit_jax.schema import ConfigError

REPORTS = "reports"


def write(
  name: str,
  data: dict,
  options: Options,
  root: pathlib.Path,
  words: Sequence[str],
  max_rejected: float = 0.01,
) -> list[str]:
  """As `write.write`; `words` are flags of Beam's pipeline, such as --runner=DataflowRunner.

  What Beam has begun and not ended it does again: its shards are written at its end. A corpus is whole, or over the
  bound of rejected images, when the pipeline has ended. Raises ConfigError without the extra beam.
  """
  _library()
  return whole(name, data, options, root, functools.partial(_write_shards, words, max_rejected))


def _write_shards(words, max_rejected, made, source, folders):
  """Writes all shards; their reports."""
  beam = _library()
  text = json.dumps([*map(str, folders), made.plain()])
  writers = [_writer(made, folders, split) for split in made.splits]
  with contextlib.ExitStack() as stack:
    stack.push(functools.partial(_raise_own, made, folders))
    pipeline = stack.enter_context(beam.Pipeline(options=beam.options.pipeline_options.PipelineOptions(list(words))))
    for i, split in enumerate(made.splits):
      _add(pipeline, text, i, split, writers[i])
  reports = {}
  for i, split in enumerate(made.splits):
    each = [folders.read_report(split, number) for number in range(split.shards)]
    lengths, _ = writers[i].finalize()
    expected = [report.records for report in each if report.records]
    assert lengths == expected, (lengths, expected)
    reports |= {work.Shard(i, number): report for number, report in enumerate(each)}
  check_rejected(reports, source, max_rejected)
  return reports


def _raise_own(made, folders, kind, error, trace):
  """Raises an error of ours as it was: Beam raises it anew with words about its steps, or as a bug."""
  if error is None:
    return
  chain = [error]
  while following := chain[-1].__cause__ or chain[-1].__context__:
    chain.append(following)
  own = [each for each in chain if isinstance(each, (ConfigError, runtime.Stop, OSError, KeyboardInterrupt))]
  if own:
    raise [each for each in own if type(each) is type(own[0])][-1]  # the one that had no such words
  work.reopened(made, folders)  # an error of another machine is a text


def _library():
  try:
    import apache_beam as beam
  except ImportError as error:
    raise ConfigError(f"--beam needs {extras.advice('beam')} ({error})") from error
  return beam


def _add(pipeline, text, number, split, writer):
  """Adds a split to the pipeline."""
  import apache_beam as beam

  pieces = [
    (number, shard, first)
    for shard in range(split.shards)
    for first in range(0, len(split.positions(shard)), making.TOGETHER)
  ]
  made = (
    pipeline
    | f"pieces of {split.name}" >> beam.Create(pieces)
    | f"spread {split.name}" >> beam.Reshuffle()
    | f"make {split.name}" >> beam.FlatMap(_piece, text).with_outputs(REPORTS, main="records")
  )
  written = beam.ptransform_fn(lambda records: writer.write_from_pcollection(records))
  _ = made["records"] | f"write {split.name}" >> written()
  _ = (
    made[REPORTS] | f"group {split.name}" >> beam.GroupByKey() | f"report {split.name}" >> beam.Map(_keep, text, number)
  )


def _piece(piece, text) -> Iterator[Any]:
  """Records of a piece by their places in the order of the split, and its report by its shard."""
  import apache_beam as beam

  number, shard, first = piece
  worker = _worker(text)
  split, report = worker.plan.splits[number], making.Report()
  positions = split.positions(shard)[first : first + making.TOGETHER]
  for position, record in zip(positions, worker.records(split, positions), strict=True):
    report.add(record)
    if record.data is not None:
      yield position, record.data
  yield beam.pvalue.TaggedOutput(REPORTS, (shard, (first, report.plain())))


@functools.lru_cache(maxsize=1)
def _worker(text) -> work.Worker:
  """What this process makes records with; what it has open stays open."""
  corpus, beside, values = json.loads(text)
  return work.Worker(Plan.read(values), work.Folders(*map(paths.parse, (corpus, beside))))


def _keep(pieces, text, number):
  """Writes the report of a shard."""
  shard, reports = pieces
  worker = _worker(text)
  in_order = (making.Report.read(report) for _, report in sorted(reports, key=lambda each: each[0]))
  worker.folders.write_report(worker.plan.splits[number], shard, making.total(in_order))


# TFDS's writer.


@dataclasses.dataclass(frozen=True)
class _Serialised:
  """A serializer for records that are."""

  def serialize_example(self, example: bytes) -> bytes:
    """The record as it is."""
    return example


@dataclasses.dataclass(frozen=True)
class _ExampleWriter:
  """Writes shards as one machine does."""

  def write(self, path, examples) -> None:
    """(key, record) in the order of the keys."""
    making.write(paths.parse(path), (record for _, record in examples))


def _writer(made, folders, split):
  """TFDS's writer of a split, with keys that are places in its order."""
  import tensorflow_datasets as tfds
  from tensorflow_datasets.core import writer
  from tensorflow_datasets.core.utils import shard_utils

  class Writer(writer.BeamWriter):
    """Its shards end where those of the plan do, also where the last records are left out."""

    def _assign_shard(self, key_serialized_example, num_shards, largest_key):
      return super()._assign_shard(key_serialized_example, num_shards, [len(split) - 1])

  template = tfds.core.ShardedFileTemplate(
    data_dir=folders.corpus, dataset_name=made.name, split=split.name, filetype_suffix="array_record"
  )
  return Writer(
    serializer=_Serialised(),
    filename_template=template,
    hash_salt="",
    disable_shuffling=True,
    example_writer=_ExampleWriter(),
    shard_config=shard_utils.ShardConfig(num_shards=split.shards),
  )
