"""Tests of interrupted corpora and of changed input or work files: the result has the same bytes, or is an error."""

import contextlib
import os
import shutil

import pytest

from tests import archive_files
from tests.corpora import folders
from tests.image_files import encode, picture
from vit_jax import runtime
from vit_jax.corpora import plan, record_maker, shard_worker, writer
from vit_jax.data import samples
from vit_jax.schema import ConfigError


def interrupt(monkeypatch, after):
  """Raises KeyboardInterrupt after `after` written reports, like a kill between a shard and its report."""
  calls, real = [], shard_worker.files.write_text

  def write_text(path, text):
    calls.append(path)
    if len(calls) > after:
      raise KeyboardInterrupt
    real(path, text)

  monkeypatch.setattr(shard_worker.files, "write_text", write_text)


def test_restart_writes_only_missing_shards_with_the_same_bytes(photos, corpus, tmp_path, monkeypatch):
  with monkeypatch.context() as patch:
    interrupt(patch, 3)  # the plan and two shards
    with pytest.raises(KeyboardInterrupt):
      folders.made(photos, tmp_path, shards=3)
  assert not (tmp_path / "corpus/1.0.0/dataset_info.json").exists()
  with pytest.raises(ConfigError):
    folders.source(tmp_path)
  with pytest.raises(ConfigError, match="started with other input or options"):
    folders.made(photos, tmp_path, shards=2)
  done = {file: file.stat().st_mtime_ns for file in (tmp_path / "corpus/1.0.0").glob("*array_record*")}
  kept = {report.name for report in (tmp_path / "corpus/.1.0.0.work").glob("t*.json")}
  assert len(kept) == 2
  folders.made(photos, tmp_path, shards=3)
  assert folders.shards(tmp_path) == folders.shards(corpus)
  untouched = [file for file, time in done.items() if file.stat().st_mtime_ns == time]
  assert len(untouched) == 2


# Changes of the input during the preparation, and the pattern of the error.
CHANGES = {
  "a class renamed": (lambda root: (root / "train/cat").rename(root / "train/zebra"), "names, members, sizes.*classes"),
  "a file copied in": (
    lambda root: (root / "train/cat/new.jpg").write_bytes(encode(picture())),
    "names, members, sizes",
  ),
  "a file removed": (lambda root: (root / "train/dog/1.jpg").unlink(), "names, members, sizes"),
  "other bytes of the same number": (
    lambda root: (root / "train/dog/1.jpg").write_bytes(bytes(len((root / "train/dog/1.jpg").read_bytes()))),
    r"\(times\)",
  ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_input_that_changes_during_preparation_is_an_error(tmp_path, change):
  root, (make, output) = folders.folder(tmp_path / "photos", 8), CHANGES[change]

  def shards(made, source, metadata):
    reports = writer.write_shards(1, 0.01, made, source, metadata)
    make(root)
    with pytest.raises(ConfigError, match=output):  # a process that opens the input now
      shard_worker.Worker(made, metadata).source  # noqa: B018
    return reports

  data = tmp_path / "data"
  output = rf"the input, '.*photos', has changed .*{output}.*remove {data}/corpus/\.1\.0\.0\.work, and run the same"
  with pytest.raises(ConfigError, match=output):
    writer.build_corpus("corpus", folders.choice(root), plan.CorpusOptions(), data, shards)
  assert not (data / "corpus/1.0.0/dataset_info.json").exists()
  shutil.rmtree(data / "corpus/.1.0.0.work")
  assert folders.made(root, data, max_rejected=0.5)[0].startswith("corpus is prepared")


def test_changed_test_set_is_an_error(photos, tmp_path):
  others = folders.folder(tmp_path / "others", 3)

  def shards(*arguments):
    folders.folder(tmp_path / "others", 4)
    return writer.write_shards(1, 0.01, *arguments)

  with pytest.raises(ConfigError, match=r"--dedup-against: test sets have changed .* Remove .*\.work"):
    writer.build_corpus(
      "corpus", folders.choice(photos), plan.CorpusOptions(against=(str(others),)), tmp_path / "data", shards
    )


def replace_content(file, seed):
  """Replaces the content of a file and keeps its size and time of modification."""
  status = file.stat()
  content = encode(picture(40, 50, seed=seed), "JPEG", quality=50).ljust(status.st_size, b"\0")
  assert len(content) == status.st_size
  file.write_bytes(content)
  os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("while_made", [False, True])
@pytest.mark.parametrize(
  ("compared", "words"), [(True, "contents of files such as"), (False, "some files were modified")]
)
def test_replaced_image_with_equal_size_and_time_is_an_error(tmp_path, monkeypatch, while_made, compared, words):
  """Also covers an image that is not one of the few images with compared content."""
  root, data = folders.folder(tmp_path / "photos", 8), tmp_path / "data"
  source = plan.open_input(folders.choice(root))
  few, known = {each["name"] for each in samples.describe_samples(source)}, source.fingerprint()
  file = root / next(name for name in map(source.identify, range(len(source))) if (name in few) == compared)
  refused = pytest.raises(ConfigError, match=rf"the input, '.*photos', has changed .*{words}.*remove .*\.work, and run")
  if while_made:
    real = writer.write_shards
    monkeypatch.setattr(writer, "write_shards", lambda *given: [real(*given), replace_content(file, 77)][0])
    with refused:
      folders.made(root, data)
    monkeypatch.undo()
  else:
    with monkeypatch.context() as patch:
      interrupt(patch, 2)  # the plan and a shard
      with pytest.raises(KeyboardInterrupt):
        folders.made(root, data, shards=2)
    replace_content(file, 77)
  assert plan.open_input(folders.choice(root)).fingerprint() == known
  with refused:
    folders.made(root, data, shards=None if while_made else 2)
  assert not (data / "corpus/1.0.0/dataset_info.json").exists()


def test_input_copied_with_its_times_is_accepted(photos, corpus, tmp_path, monkeypatch):
  shutil.copytree(photos, tmp_path / "photos")
  with monkeypatch.context() as patch:
    interrupt(patch, 2)
    with pytest.raises(KeyboardInterrupt):
      folders.made(tmp_path / "photos", tmp_path / "data", shards=3)
  shutil.copytree(tmp_path / "photos", tmp_path / "copy")
  folders.made(tmp_path / "copy", tmp_path / "data", shards=3)
  assert folders.shards(tmp_path / "data") == folders.shards(corpus)


@pytest.mark.parametrize("while_made", [False, True])
def test_replaced_test_image_with_equal_size_and_time_is_an_error(photos, tmp_path, monkeypatch, while_made):
  others = folders.folder(tmp_path / "others", 3)
  options = {"against": (str(others),), "distance": 2}
  file = others / "train/cat/1.jpg"
  if while_made:
    real = writer.write_shards
    monkeypatch.setattr(writer, "write_shards", lambda *given: [real(*given), replace_content(file, 77)][0])
    with pytest.raises(ConfigError, match=r"--dedup-against: files of test sets changed while .* Run the same"):
      folders.made(photos, tmp_path, **options)
    monkeypatch.undo()
  else:
    with monkeypatch.context() as patch:
      interrupt(patch, 2)  # the plan and a shard
      with pytest.raises(KeyboardInterrupt):
        folders.made(photos, tmp_path, **options)
    replace_content(file, 77)
  with pytest.raises(ConfigError, match=r"--dedup-against: test sets have changed .* Remove .*\.work"):
    folders.made(photos, tmp_path, **options)


def test_copied_test_images_are_compared_by_their_hashes(photos, tmp_path, monkeypatch):
  others = folders.folder(tmp_path / "others", 3)
  options = {"against": (str(others),), "distance": 2}
  with monkeypatch.context() as patch:
    interrupt(patch, 2)
    with pytest.raises(KeyboardInterrupt):
      folders.made(photos, tmp_path, **options)
  others.rename(tmp_path / "original")
  shutil.copytree(tmp_path / "original", others)  # keeps the times of modification
  assert folders.made(photos, tmp_path, **options)[0].startswith("corpus is prepared")


def test_single_process_opens_its_input_once_and_again_to_compare_it(photos, tmp_path, monkeypatch):
  calls, real = [], plan.open_input
  for module in (plan, shard_worker):
    monkeypatch.setattr(module, "open_input", lambda data: calls.append(data) or real(data))
  folders.made(photos, tmp_path)
  assert len(calls) == 2


# Damages of a shard or its report between two runs: (suffix of the file, function that damages it).
DAMAGES = {
  "the shard is gone": ("", lambda file: file.unlink()),
  "the shard is empty": ("", lambda file: file.write_bytes(b"")),
  "the shard is cut": ("", lambda file: file.write_bytes(file.read_bytes()[:-1])),
  **{
    f"the report is {text[:20]!r}": (".json", lambda file, text=text: file.write_text(text))
    for text in ("", "{}", "[]", "null", '{"records": 5}', '{"records', "[" * 100_000)
  },
  "the report has other figures": (
    ".json",
    lambda file: file.write_text(file.read_text().replace('"records": 4', '"records": 3')),
  ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_shard_is_written_again_if_it_or_its_report_is_damaged(photos, corpus, tmp_path, monkeypatch, damage):
  with monkeypatch.context() as patch:
    interrupt(patch, 3)  # the plan and two shards
    with pytest.raises(KeyboardInterrupt):
      folders.made(photos, tmp_path, shards=3)
  at, (suffix, change) = shard_worker.Folders.locate(tmp_path, "corpus"), DAMAGES[damage]
  split = plan.CorpusSplit("test", 0, 12, 3)
  change(at.report(split, 0) if suffix else at.shard("corpus", split, 0))
  folders.made(photos, tmp_path, shards=3)
  metadata = [{f.name: f.read_bytes() for f in (root / "corpus/1.0.0").iterdir()} for root in (corpus, tmp_path)]
  assert metadata[0] == metadata[1]


def test_reports_without_their_plan_are_ignored(photos, corpus, tmp_path, monkeypatch):
  with monkeypatch.context() as patch:
    interrupt(patch, 3)
    with pytest.raises(KeyboardInterrupt):
      folders.made(photos, tmp_path, shards=3, seed=1)
  (tmp_path / "corpus/.1.0.0.work/plan.json").unlink()
  folders.made(photos, tmp_path, shards=3)
  assert folders.shards(tmp_path) == folders.shards(corpus)


@pytest.mark.parametrize("damage", ["cut", "a name twice"])
def test_damaged_hashes_are_computed_again(photos, tmp_path, monkeypatch, damage):
  options = {"against": (str(folders.folder(tmp_path / "others", 3)),), "distance": 2}
  with monkeypatch.context() as patch:
    interrupt(patch, 1)  # the plan
    with pytest.raises(KeyboardInterrupt):
      folders.made(photos, tmp_path, **options)
  file = tmp_path / "corpus/.1.0.0.work/hashes.npz"
  if damage == "cut":
    file.write_bytes(b"PK")
  else:
    archive_files.repeat(file, "hashes")
  assert shard_worker.read_hashes(shard_worker.Folders.locate(tmp_path, "corpus")) is None
  assert folders.made(photos, tmp_path, **options)[0].startswith("corpus is prepared")


@pytest.mark.parametrize("size", [20, 30])
def test_corpus_finished_by_another_process_before_the_lock_is_kept(photos, tmp_path, monkeypatch, size):
  real, before = runtime.lock_workdir, {}

  def locked(*arguments):
    monkeypatch.setattr(runtime, "lock_workdir", real)
    folders.made(photos, tmp_path, size=size)
    before.update(folders.shards(tmp_path))
    return real(*arguments)

  monkeypatch.setattr(runtime, "lock_workdir", locked)
  refused = pytest.raises(ConfigError, match=r"started with other input or options .*size: 20, now 30.*another name")
  with contextlib.nullcontext() if size == 30 else refused:
    assert folders.made(photos, tmp_path, size=30) == [f"corpus is already prepared at {tmp_path}/corpus/1.0.0"]
  assert folders.shards(tmp_path) == before and before


def test_corpus_resumes_after_a_full_disk(photos, corpus, tmp_path, monkeypatch):
  def full(path, records):
    next(iter(records))
    raise OSError(28, "No space left on device", str(path))

  with monkeypatch.context() as patch:
    patch.setattr(record_maker, "write_records", full)
    with pytest.raises(OSError, match="No space left on device"):
      folders.made(photos, tmp_path, shards=3)
  folders.made(photos, tmp_path, shards=3)
  assert folders.shards(tmp_path) == folders.shards(corpus)
