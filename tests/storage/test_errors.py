"""Tests of disks that are full, limited, read-only or removed.

Each is one error with a fix, and no data are lost.
"""

import contextlib
import dataclasses
import errno
import functools
import json
import resource
import shutil
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest

from tests import runs
from tests.checkpoints.test_store import make_mesh, same, shapes_of
from vit_jax import checkpoints, cli
from vit_jax.parallel import sharding
from vit_jax.storage import errors, files
from vit_jax.training import experiment, goodput, loop, steps, writer

pytestmark = pytest.mark.heavy

SAME = ("weights_sha256", "top1", "loss", "images", "steps")  # keys of result.json


def large(step, g):
  """Returns a state that is saved in files of many sizes."""
  draw = np.random.default_rng(step)
  whole = sharding.make_replicated_sharding(g)
  params = {f"{i}": jax.device_put(draw.normal(size=(16, 2**i)).astype(np.float32), whole) for i in range(12)}
  return steps.State(jax.device_put(np.int32(step), whole), params, {}, {})


@contextlib.contextmanager
def limited(size):
  """Limits the size of files to `size` bytes, like ulimit -f."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def settled(store):
  """Closes a store after a failed save, and waits until its writes end."""
  with contextlib.suppress(OSError):
    store.close()
  folder, before = store.directory, None
  while before != (before := sorted((path, path.stat().st_size) for path in folder.rglob("*") if path.is_file())):
    time.sleep(0.2)


@pytest.mark.parametrize("size", [0, 1_000, 30_000])
def test_failed_save_names_the_last_complete_checkpoint(tmp_path, size):
  g = make_mesh(1)
  store = checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(g))
  store.save(1, large(1, g), {})
  store.wait()
  before = {file: file.read_bytes() for file in (tmp_path / "checkpoints/1").rglob("*") if file.is_file()}
  wrong = "could not be saved: File too large. The last complete checkpoint is step 1"
  with pytest.raises(OSError, match=wrong) as error, limited(size):
    store.save(2, large(2, g), {})
    store.wait()
  assert (error.value.errno, error.value.filename) == (errno.EFBIG, str(tmp_path / "checkpoints"))
  settled(store)
  assert {file: file.read_bytes() for file in before} == before
  # Restarts with enough space.
  again = checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(g))
  assert same(again.restore(shapes_of(large(1, g)))[0], large(1, g))
  again.save(2, large(2, g), {})
  again.close()
  assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == ["1", "2"]


def test_failed_background_save_is_an_error_at_the_next_save(tmp_path):
  g = make_mesh(1)
  store = checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(g))
  store.save(1, large(1, g), {})  # returns when the save is complete
  with limited(30_000):
    store.save(2, large(2, g), {})
    while store._manager.is_saving_in_progress():
      time.sleep(0.05)
  with pytest.raises(OSError, match=r"File too large. The last complete checkpoint is step 1"):
    store.save(3, large(3, g), {})
  settled(store)


def test_other_errors_than_those_of_the_disk_are_not_changed(tmp_path):
  g = make_mesh(1)
  store = checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(g))
  with pytest.raises(TypeError, match="not JSON serializable"):
    store.save(1, large(1, g), {"bug": object()})
    store.wait()
  settled(store)


def test_other_folders_are_not_taken_for_the_last_checkpoint(tmp_path):
  store = checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(make_mesh(1)))
  for name in ("3", "12.unreadable", "1²"):
    (tmp_path / "checkpoints" / name).mkdir()
  with pytest.raises(OSError, match=r"File too large. The last complete checkpoint is step 3"), limited(0):
    store.save(5, large(5, make_mesh(1)), {})
    store.wait()
  settled(store)


class Broken:
  """An object that raises an error in its destructor, which cannot be caught."""

  def __init__(self, error):
    self._error = error

  def __del__(self):
    raise self._error


def test_reads_that_end_after_a_failure_are_not_reported(monkeypatch, capsys):
  monkeypatch.setattr(sys, "unraisablehook", errors.hide_request_errors)
  for error in (RuntimeError("Event loop is closed"), KeyError("mine")):
    Broken(error)
  output = capsys.readouterr().err
  assert "KeyError: 'mine'" in output and "Event loop" not in output


@pytest.mark.parametrize("what", ["removed", "moved", "replaced"])
def test_missing_workdir_is_detected_at_the_next_save(tmp_path, what):
  g = make_mesh(1)
  workdir = tmp_path / "run"
  store = checkpoints.Checkpoints(workdir, sharding.make_replicated_sharding(g))
  store.save(1, large(1, g), {})
  store.wait()
  workdir.rename(tmp_path / "moved") if what != "removed" else shutil.rmtree(workdir)
  if what == "replaced":
    (workdir / "checkpoints").mkdir(parents=True)
  with pytest.raises(FileNotFoundError, match="the workdir no longer exists") as error:
    store.save(2, large(2, g), {})
  assert error.value.filename == str(workdir / "checkpoints")
  assert not list(workdir.glob("checkpoints/*"))
  store.close()


def test_unwritable_disk_ends_a_save_immediately(tmp_path):
  """Checks that the threads of Orbax do not wait five minutes for a folder that is never created."""
  g = make_mesh(1)
  mount = tmp_path / "disk"
  mount.mkdir()
  if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(mount)], capture_output=True).returncode:
    pytest.skip("nothing may be mounted here")
  try:
    store = checkpoints.Checkpoints(mount, sharding.make_replicated_sharding(g))
    store.save(1, large(1, g), {})
    store.wait()
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
    before = set(threading.enumerate())
    with pytest.raises(OSError, match=r"Read-only file system. The last complete checkpoint is step 1"):
      store.save(2, large(2, g), {})
    for thread in set(threading.enumerate()) - before:
      thread.join(5)
      assert not thread.is_alive(), thread.name
    store.close()
    subprocess.run(["mount", "-o", "remount,rw", str(mount)], check=True)
    # The disk becomes full during a save.
    with contextlib.suppress(OSError), open(mount / "ballast", "wb", buffering=0) as file:
      file.write(bytes(shutil.disk_usage(mount).free - 100_000))
    store = checkpoints.Checkpoints(mount, sharding.make_replicated_sharding(g))
    with pytest.raises(OSError, match=r"No space left on device. The last complete checkpoint is step 1"):
      store.save(2, large(2, g), {})
      store.wait()
    settled(store)
  finally:
    subprocess.run(["umount", "-l", str(mount)], check=True)


# The other files of a run.


def test_error_of_a_metrics_line_that_does_not_fit_names_the_file(tmp_path):
  log = writer.Writer(tmp_path, 0, active=True)
  log.write(1, {"a": 1.0})
  whole = (tmp_path / "metrics.jsonl").read_text()
  with limited(30), pytest.raises(OSError, match="File too large") as error:
    log.write(2, {"a": 2.0})
  assert error.value.filename == str(tmp_path / "metrics.jsonl")
  log.close()
  # Writes the same step again, with enough space. The failed line leaves no trace.
  log = writer.Writer(tmp_path, 1, active=True)
  assert (tmp_path / "metrics.jsonl").read_text() == whole
  log.close()


def test_file_that_cannot_be_replaced_stays_and_is_named(tmp_path):
  file = tmp_path / "config.json"
  files.write_text(file, "old")
  with limited(10), pytest.raises(OSError, match="File too large") as error:
    files.write_text(file, "new" * 10)
  assert errors.describe_error(error.value) == (
    f"{file}: File too large. Raise the limit of file sizes of this process (ulimit -f), and run the same command again"
  )
  assert file.read_text() == "old"
  assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("trouble", ["a file", "full"])
def test_failure_of_tensorboard_is_one_warning(tmp_path, caplog, trouble):
  folder = tmp_path / "tensorboard"
  if trouble == "a file":
    folder.write_text("mine")
  log = writer.Writer(tmp_path, 0, active=True)
  with limited(100_000):
    for step in range(1, 9):
      log.write(step, {"a": 1.0} if trouble == "a file" else {f"{step}/{i}": 1.0 for i in range(1000)})
      if trouble == "full":
        (tmp_path / "metrics.jsonl").write_text("")
  log.close()
  (warning,) = [record.getMessage() for record in caplog.records]
  assert str(folder) in warning and "The run continues without further TensorBoard output" in warning


# Whole runs.


@pytest.fixture(scope="module")
def parts():
  """Returns a run of 12 steps on one device."""
  return runs.parts(1)


@pytest.fixture(scope="module")
def complete_run(parts, tmp_path_factory):
  """Returns the result of the undisturbed run."""
  return loop.train(parts, tmp_path_factory.mktemp("whole"))


def saved(workdir):
  """Waits until step 3 is on disk.

  A checkpoint that is being saved may appear again in a removed folder.
  """
  deadline = time.monotonic() + 60
  while not (workdir / "checkpoints/3").exists():
    assert time.monotonic() < deadline
    time.sleep(0.01)
  return True


def happening(parts, step, what):
  """Returns the run with a change of the disk at a step."""

  def measure(params, poll):
    what()
    return evaluation(params, poll)

  evaluation = parts.evals["test"].measure
  return dataclasses.replace(parts, evals={"test": experiment.Eval(step, measure)})


@pytest.mark.long
def test_run_with_failed_saves_resumes_to_the_same_bits(parts, complete_run, tmp_path):
  with contextlib.ExitStack() as limit:
    # Large enough for every file except a checkpoint.
    smaller = happening(parts, 5, lambda: saved(tmp_path) and limit.enter_context(limited(8_000)))
    with pytest.raises(OSError, match=r"could not be saved: File too large. The last complete checkpoint is step 3"):
      loop.train(smaller, tmp_path)
  time.sleep(0.5)  # ends the pending writes, as the end of the process would
  assert not (tmp_path / "result.json").exists()
  result = loop.train(parts, tmp_path)
  assert {key: result[key] for key in SAME} == {key: complete_run[key] for key in SAME}


@pytest.mark.long
@pytest.mark.parametrize("moved", [True, False])
def test_run_without_its_workdir_ends_without_writing_elsewhere(parts, tmp_path, moved):
  workdir = tmp_path / "run"
  gone = functools.partial(workdir.rename, tmp_path / "moved") if moved else functools.partial(shutil.rmtree, workdir)
  with pytest.raises(FileNotFoundError, match="the workdir no longer exists"):
    loop.train(happening(parts, 5, lambda: saved(workdir) and gone()), workdir)
  assert not workdir.exists()


@pytest.mark.long
def test_unwritable_tensorboard_folder_does_not_change_the_result(parts, complete_run, tmp_path, caplog):
  (tmp_path / "tensorboard").write_text("mine")
  result = loop.train(parts, tmp_path)
  assert {key: result[key] for key in SAME} == {key: complete_run[key] for key in SAME}
  assert json.loads((tmp_path / "result.json").read_text()) == result
  assert caplog.text.count("The run continues without further TensorBoard output") == 1


@pytest.mark.long
def test_result_accounts_for_the_whole_time(parts, tmp_path):
  start_time = time.time()
  with pytest.raises(InterruptedError):
    loop.train(runs.dying(parts, 5), tmp_path)
  result = loop.train(parts, tmp_path)
  took, account = (tmp_path / "result.json").stat().st_mtime - start_time, result["goodput"]
  assert account["attempts"] == 2
  assert sum(value for name, value in account.items() if name not in ("goodput", "attempts")) == pytest.approx(
    took, abs=0.5
  )
  for name in ("steps", goodput.LOST, *goodput.PHASES.values()):
    assert account[name] >= 0
  assert account[goodput.LOST] > 0  # steps 4 and 5
  assert account["program_startup"] > 0 < account["custom_badput_events"]


def test_full_disk_is_reported_in_one_line(tmp_path, capsys):
  def verb():
    with limited(10), files.atomic_write(tmp_path / "p.csv") as partial:
      partial.write_text("x" * 100)

  with pytest.raises(SystemExit) as end:
    cli.run_verb(verb)
  assert end.value.code == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith(f"error: {tmp_path / 'p.csv'}: File too large. ")
