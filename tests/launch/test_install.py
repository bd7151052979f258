"""Tests of the code of a run, which is verified and unpacked safely, and of its interpreter."""

import hashlib
import io
import os
import stat
import tarfile
import threading

import pytest

from launch import machine, spec, storage
from launch.errors import LaunchError
from tests.launch.workers import bundle


def make_tar(*members):
  """Returns a tar file of (name, type, link or content)."""
  content = io.BytesIO()
  with tarfile.open(fileobj=content, mode="w:gz") as tar:
    for name, kind, value in members:
      member = tarfile.TarInfo(name)
      member.type, member.mode = kind, 0o4777
      if kind == tarfile.REGTYPE:
        member.size = len(value)
        tar.addfile(member, io.BytesIO(value))
      else:
        member.linkname = value
        tar.addfile(member)
  return content.getvalue()


FILE, LINK = tarfile.REGTYPE, tarfile.SYMTYPE
GOOD = (("a/b.py", FILE, b"x = 1"), ("a/link", LINK, "b.py"), ("up", LINK, "a/../a"), ("a/c", tarfile.DIRTYPE, ""))
BAD = {
  "an absolute name": (("/tmp/vit_jax_no_such_file", FILE, b""),),
  "an absolute name with two slashes": (("//tmp/vit_jax_no_such_file", FILE, b""),),
  "a name above": (("a/../../x", FILE, b""),),
  "no name": (("", FILE, b""),),
  "an absolute link": (("a", LINK, "/etc"),),
  "a link above": (("a/b", LINK, "../../x"),),
  "a link above by another": (("b", LINK, "."), ("d/e", LINK, "../b/../x")),
  "a file through a link": (("a", LINK, "/tmp"), ("a/x", FILE, b"")),
  "a hard link": (("a", tarfile.LNKTYPE, "/etc/passwd"),),
  "a device": (("a", tarfile.CHRTYPE, ""),),
  "a pipe": (("a", tarfile.FIFOTYPE, ""),),
  "a name twice": (("a", FILE, b""), ("a", FILE, b"")),
}


def fetch(tmp_path, content, digest=None):
  digest = digest or hashlib.sha256(content).hexdigest()
  disk = storage.open_storage(str(tmp_path / "run"))
  disk.write(f"code/{digest}.tgz", content)
  return machine.fetch_code(disk, digest, tmp_path / "home")


def test_bundle_is_unpacked_once_into_a_folder_named_after_its_hash(tmp_path):
  content = make_tar(*GOOD)  # once, because gzip writes the time
  folder = fetch(tmp_path, content)
  assert folder.name == hashlib.sha256(content).hexdigest()
  assert (folder / "a/b.py").read_text() == (folder / "a/link").read_text() == (folder / "up/b.py").read_text()
  assert stat.S_IMODE((folder / "a/b.py").stat().st_mode) == 0o755  # without set-user-ID
  before = folder.stat().st_mtime_ns
  assert fetch(tmp_path, content) == folder
  assert folder.stat().st_mtime_ns == before
  assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.parametrize("name", BAD)
def test_members_outside_the_folder_are_refused(tmp_path, name):
  if name == "a link above by another":
    os.makedirs(tmp_path / "x", exist_ok=True)
  with pytest.raises(LaunchError, match=r"\.tgz (is not a bundle|cannot be unpacked)"):
    fetch(tmp_path, make_tar(*BAD[name]))
  assert not list((tmp_path / "home/code").iterdir())
  assert not os.path.exists("/tmp/vit_jax_no_such_file")


@pytest.mark.parametrize("content", [b"", b"no tar", bundle({"a": "b" * 9999})[:-100], b"\x1f\x8b" + bytes(50)])
def test_invalid_bundle_is_reported(tmp_path, content):
  with pytest.raises(LaunchError, match=r"\.tgz is not a bundle"):
    fetch(tmp_path, content)
  assert not list((tmp_path / "home/code").iterdir())


def test_too_large_bundle_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(machine, "BUNDLE", 5000)
  with pytest.raises(LaunchError, match="larger than 5,000 bytes"):
    fetch(tmp_path, bundle({"zeros": "0" * 6000}))


def test_changed_or_missing_bundle_is_refused(tmp_path):
  with pytest.raises(LaunchError, match="it was changed"):
    fetch(tmp_path, make_tar(*GOOD), "0" * 64)
  with pytest.raises(LaunchError, match="not in the run's directory"):
    machine.fetch_code(storage.open_storage(str(tmp_path)), "1" * 64, tmp_path / "home")


def test_workers_of_one_machine_unpack_concurrently(tmp_path):
  content, found = bundle({f"f{number}": "x" for number in range(200)}), []
  threads = [threading.Thread(target=lambda: found.append(fetch(tmp_path, content))) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert len(found) == 8 and len(set(found)) == 1
  assert len(list(found[0].iterdir())) == 200
  assert len(list(found[0].parent.iterdir())) == 1


# The interpreter, with a uv that records its arguments.

UV = """#!/bin/sh
echo "$@" >> "$UV_ASKED"
case "$1 $FAILS" in
  "venv "*) for last; do :; done; mkdir -p "$last/bin"; ln -sf /bin/true "$last/bin/python" ;;
  "pip yes") echo "error: no such package: jax"; exit 2 ;;
  "pip hangs") sleep 600 ;;
esac
"""
RUN = spec.Run("vit", "hosts", "job", (), "/x", hosts=("h",))


@pytest.fixture
def uv(tmp_path, monkeypatch):
  """Returns a function that returns the recorded calls of uv."""
  (tmp_path / "bin").mkdir()
  (tmp_path / "bin/uv").write_text(UV)
  (tmp_path / "bin/uv").chmod(0o755)
  monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
  monkeypatch.setenv("UV_ASKED", str(tmp_path / "asked"))
  (tmp_path / "code").mkdir()
  (tmp_path / "code/setup.py").write_text("1")
  return lambda: (tmp_path / "asked").read_text().splitlines() if (tmp_path / "asked").exists() else []


def install(tmp_path, run=RUN, tick=lambda: None, date=""):
  return machine.install_interpreter(run, tmp_path / "code", tmp_path / "home", tmp_path / "log", tick, date)


def test_interpreter_is_installed_once_per_setup(tmp_path, uv):
  first = install(tmp_path)
  assert os.path.exists(first)
  venv, pip = uv()
  assert "--python 3.12" in venv
  assert pip == f"pip install --python {first} {tmp_path}/code[{','.join(machine.list_extras())}]"
  assert install(tmp_path) == first and len(uv()) == 2
  (tmp_path / "code/setup.py").write_text("2")
  assert install(tmp_path) != first and len(uv()) == 4


def test_packages_are_not_newer_than_the_run(tmp_path, uv):
  first = install(tmp_path)
  dated = install(tmp_path, date="2026-11-23T10:00:00Z")
  assert dated != first and "--exclude-newer=2026-11-23T10:00:00Z" in uv()[-1] and "exclude" not in uv()[1]


def test_failed_installation_reports_its_last_line_and_is_repeated(tmp_path, uv, monkeypatch):
  monkeypatch.setenv("FAILS", "yes")
  monkeypatch.setattr(machine.time, "sleep", lambda _: None)
  with pytest.raises(LaunchError, match="ended with 2: error: no such package: jax"):
    install(tmp_path)
  assert len(uv()) == 1 + machine.INSTALLS
  monkeypatch.delenv("FAILS")
  assert os.path.exists(install(tmp_path))


def test_installation_ends_if_the_worker_must_end(tmp_path, uv, monkeypatch):
  monkeypatch.setenv("FAILS", "hangs")

  class Asked(Exception):
    pass

  def tick():
    if len(uv()) == 2:
      raise Asked

  with pytest.raises(Asked):
    install(tmp_path, tick=tick)
  limits = spec.Limits(install=0.3)
  with pytest.raises(LaunchError, match=r"limits\.install"):
    install(tmp_path, spec.Run("vit", "hosts", "job", (), "/x", hosts=("h",), limits=limits))


def test_given_interpreter_is_checked(tmp_path, uv):
  run = spec.Run("vit", "hosts", "job", (), "/x", hosts=("h",), python="/bin/sh")
  assert install(tmp_path, run) == "/bin/sh" and not uv()
  with pytest.raises(LaunchError, match="--python: /no/such is not a program"):
    install(tmp_path, spec.Run("vit", "hosts", "job", (), "/x", hosts=("h",), python="/no/such"))
  (tmp_path / "code/setup.py").unlink()
  with pytest.raises(LaunchError, match=r"no setup\.py"):
    install(tmp_path)


@pytest.mark.parametrize(
  "device, extras",
  [("accel0", "tpu,gcs"), ("vfio/0", "tpu,gcs"), ("nvidia0", "gpu,gcs"), ("vfio/vfio", "gcs"), ("null", "gcs")],
)
def test_extras_follow_from_the_devices(tmp_path, device, extras):
  (tmp_path / "dev" / device).parent.mkdir(parents=True)
  (tmp_path / "dev" / device).touch()
  assert ",".join(machine.list_extras(str(tmp_path))) == extras
