"""Tests of the environment of a program, its secrets, its status file, and the meaning of its end."""

import os
import subprocess
import sys

import pytest

from launch import mailbox, program, spec, storage
from launch.errors import LaunchError

GKE = {"tpu": "v6e-16", "image": "h/p@sha256:" + "0" * 64, "workdir": "gs://bkt/x"}
SLICES = spec.check_and_complete(spec.Run("vit", "gke", "job", (), slices=2, env={"A": "1", "B": "2"}, **GKE))


def make_variables(monkeypatch, tmp_path, engine="gke", run=SLICES, worker=5, **inherited):
  for name in list(os.environ):
    monkeypatch.delenv(name)
  for name, value in inherited.items():
    monkeypatch.setenv(name, value)
  return program.make_environment(
    run, worker, engine, "10.0.0.2:8477", tmp_path / "s.json", tmp_path / "code", {"B": "3"}
  )


def test_variables_of_another_job_are_not_inherited(tmp_path, monkeypatch):
  old = {"MEGASCALE_NUM_SLICES": "9", "VITJAX_PROCESS": "9", "JAX_COORDINATOR_PORT": "9", "HTTPS_PROXY": "p",
         "no_proxy": "q", "TPU_WORKER_ID": "1", "KEPT": "k", "HOME": "/h", "PATH": "/p",
         "JAX_PLATFORMS": "cpu"}  # fmt: skip
  new = make_variables(monkeypatch, tmp_path, **old)
  assert new == {
    "KEPT": "k", "HOME": "/h", "PATH": "/p", "JAX_PLATFORMS": "cpu", "TPU_WORKER_ID": "1", "A": "1", "B": "3",
    "VITJAX_COORDINATOR": "10.0.0.2:8477", "VITJAX_PROCESSES": "8", "VITJAX_PROCESS": "5", "VITJAX_DEVICES": "32",
    "VITJAX_STATUS": str(tmp_path / "s.json"), "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(tmp_path / "code"),
    "MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.2:8081", "MEGASCALE_PORT": "8081", "MEGASCALE_NUM_SLICES": "2",
    "MEGASCALE_SLICE_ID": "1",
  }  # fmt: skip
  assert "TPU_WORKER_ID" not in make_variables(monkeypatch, tmp_path, "qr", **old)


def test_single_slice_and_unknown_devices_set_no_variables(tmp_path, monkeypatch):
  run = spec.check_and_complete(spec.Run("vit", "local", "job", (), "/x"))
  new = make_variables(monkeypatch, tmp_path, "local", run, 0)
  assert not [name for name in new if name.startswith("MEGASCALE_") or name == "VITJAX_DEVICES"]
  assert new["VITJAX_COORDINATOR"] and os.path.isdir(new["HOME"]) and new["PATH"]


def test_missing_secrets_are_reported(tmp_path, monkeypatch):
  def run(source):
    return spec.check_and_complete(spec.Run("vit", "local", "job", (), "/x", secrets={"KEY": source}))

  with pytest.raises(LaunchError, match="--secret: KEY=file:/no/such cannot be read on this host: No such file"):
    program.read_secrets(run("file:/no/such"))
  (tmp_path / "binary").write_bytes(b"\xff\xfe")
  with pytest.raises(LaunchError, match="not UTF-8 text"):
    program.read_secrets(run(f"file:{tmp_path}/binary"))
  (tmp_path / "zero").write_bytes(b"a\0b")
  with pytest.raises(LaunchError, match="zero byte"):
    program.read_secrets(run(f"file:{tmp_path}/zero"))
  monkeypatch.delenv("KEY", raising=False)
  of_cluster = spec.check_and_complete(spec.Run("vit", "gke", "job", (), secrets={"KEY": "k8s:name/key"}, **GKE))
  with pytest.raises(LaunchError, match="Kubernetes did not set it"):
    program.read_secrets(of_cluster)
  monkeypatch.setenv("KEY", "value")
  assert program.read_secrets(of_cluster) == {"KEY": "value"}


@pytest.fixture
def child(tmp_path, request):
  """A program in sh."""
  environment = {"VITJAX_STATUS": str(tmp_path / "s.json"), "PATH": os.environ["PATH"]}
  child = program.Program(["sh", "-c", request.param], tmp_path, environment, tmp_path / "log")
  yield child
  child.close()


@pytest.mark.parametrize("child", ["kill -9 $$"], indirect=True)
def test_kill_for_lack_of_memory_is_named(child, monkeypatch):
  monkeypatch.setattr(program.machine, "count_oom_kills", lambda: 1)
  child._oom_kills = 0
  child._process.wait()
  code, meaning = child.explain(child.poll(), "")
  assert code == 137 and meaning.startswith("killed because the host ran out of memory")
  child._oom_kills = 1
  assert child.explain(137, "") == (137, "killed by the system (SIGKILL)")


@pytest.mark.parametrize(
  "child, expected, meaning",
  [
    ("kill -ABRT $$", 134, ""),
    ("kill -TERM $$", 143, ""),
    ("kill -9 $$", 137, "killed by the system"),
    ("echo /dev/accel0 is held by process 77; exit 43", 43, "/dev/accel0 is held by process 77"),
    ("echo /dev/accel0 is held by process 77; exit 1", 1, ""),
    ("echo 'Timeout (0:30:00)!'; exit 1", 43, "no progress"),
    ("exit 44", 44, ""),
  ],
  indirect=["child"],
)
def test_end_of_a_program_has_its_exit_code_and_reason(child, tmp_path, expected, meaning):
  child._process.wait()
  code, words = child.explain(child.poll(), (tmp_path / "log").read_text())
  assert code == expected
  assert meaning in words and bool(meaning) == bool(words)


@pytest.mark.parametrize("child", ["sleep 60"], indirect=True)
@pytest.mark.parametrize("text", ["", "{", "[1]", '{"step": "x"}', "[" * 9000, '{"doing": "x"}'])
def test_invalid_status_file_is_ignored(child, tmp_path, text):
  (tmp_path / "s.json").write_text('{"step": 3, "doing": "step"}')
  child.read_progress()
  moved = child.moved
  (tmp_path / "s.json").write_text(text)
  child.read_progress()
  assert child.progress == {"step": 3, "began": -1, "doing": "step"} and child.moved == moved
  (tmp_path / "s.json").write_text('{"step": 3, "doing": "save"}')
  child.read_progress()
  assert child.moved > moved


@pytest.mark.parametrize("child", ["sleep 60"], indirect=True)
@pytest.mark.parametrize(
  "output, reported",
  [
    ('{"step": 2000000000000000000, "began": true, "doing": 7}', (-1, -1, "")),
    ('{"step": -3, "began": 1e999, "doing": "\\ud800 \\udcff"}', (-1, -1, "? \udcff")),
    ('{"step": ' + "9" * 400 + ', "began": 4, "asked": true, "phase": "ended"}', (-1, 4, "")),
  ],
)
def test_invalid_progress_values_are_replaced(child, tmp_path, output, reported):
  (tmp_path / "s.json").write_text(output)
  child.read_progress()
  assert tuple(child.progress.values()) == reported
  mailbox.Mailbox(storage.Disk(str(tmp_path)), 1).write_report(mailbox.WorkerReport(0, **child.progress))
  assert mailbox.Mailbox(storage.Disk(str(tmp_path)), 1).read_report(0)[0].step == -1


@pytest.mark.parametrize("child", ["sleep 60"], indirect=True)
def test_status_that_is_not_a_small_file_is_ignored(child, tmp_path):
  path = tmp_path / "s.json"
  os.mkfifo(path)
  child.read_progress()
  path.unlink()
  path.mkdir()
  (path / "file").touch()
  before = os.listdir("/proc/self/fd")
  child.read_progress()
  assert os.listdir("/proc/self/fd") == before
  environment = {"VITJAX_STATUS": str(path), "PATH": os.environ["PATH"]}
  program.Program(["true"], tmp_path, environment, tmp_path / "log").close()  # the next try
  assert not path.exists()
  path.symlink_to("/dev/zero")
  child.read_progress()
  path.unlink()
  with open(path, "wb") as file:
    file.truncate(2**40)
  child.read_progress()
  assert child.progress == {}


def test_program_that_cannot_be_started_is_reported(tmp_path):
  environment = {"VITJAX_STATUS": str(tmp_path / "s.json")}
  for words in (["/no/such"], ["/bin/true", "x" * 3_000_000]):
    with pytest.raises(LaunchError, match="cannot be started"):
      program.Program(words, tmp_path, environment, tmp_path / "log")


def test_only_processes_with_the_mark_are_killed(tmp_path):
  def started(mark):
    return subprocess.Popen(["sleep", "60"], env={"VITJAX_STATUS": mark, "PATH": os.environ["PATH"]})

  mine, other = started(f"{tmp_path}/vit-a1/status.json"), started(f"{tmp_path}/vit-a10/status.json")
  try:
    assert program.kill_all(f"{tmp_path}/vit-a1/") == []
    assert mine.wait(5) == -9 and other.poll() is None
  finally:
    other.kill()
    other.wait()
  assert sys.platform != "linux" or not program.find_marked(str(tmp_path))
