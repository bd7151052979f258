"""Tests of the code bundle of a run: only files that git knows, reproducible bytes, and no keys."""

import hashlib
import io
import json
import os
import pathlib
import shutil
import tarfile
import time

import pytest

from launch import bundle
from launch.errors import LaunchError, UnknownError
from launch.storage import Disk
from tests.launch import repositories

ROOT = pathlib.Path(__file__).parents[2]


def read_members(made):
  """Returns {name: (kind, mode, content)} with Python's tar reader."""
  with tarfile.open(fileobj=io.BytesIO(made.content), mode="r:gz") as tar:
    return {
      m.name: (m.type, m.mode, m.linkname if m.issym() else tar.extractfile(m).read().decode())
      for m in tar.getmembers()
    }


def test_bundle_has_tracked_and_new_files_without_ignored_files(tmp_path):
  root = repositories.made(tmp_path)
  repositories.write(
    root, {"new.py": "1\n", ".env": "KEY=1", "data/a.jpg": "x", "ä b\n.py": "2", "configs/a.py": "# b\n"}
  )
  (root / "setup.py").unlink()
  (root / "run.sh").write_text("")
  (root / "run.sh").chmod(0o700)
  os.symlink("configs/a.py", root / "a.py")
  made = bundle.make_bundle(root / "configs")  # from any folder inside
  found = read_members(made)
  expected = {".gitignore", "launch/worker.py", "configs/a.py", "new.py", "ä b\n.py", "run.sh", "a.py"}
  assert set(found) == set(made.names) == expected
  assert list(found) == sorted(found, key=os.fsencode)
  assert found["configs/a.py"] == (tarfile.REGTYPE, 0o644, "# b\n")
  assert found["run.sh"][1] == 0o755 and found["a.py"] == (tarfile.SYMTYPE, 0o644, "configs/a.py")
  assert hashlib.sha256(made.content).hexdigest() == made.sha


def test_same_files_give_the_same_bytes(tmp_path):
  first = bundle.make_bundle(repositories.made(tmp_path / "a"))
  other = repositories.made(tmp_path / "b", dict(reversed(repositories.FILES.items())), commit=False)
  for path in other.rglob("*"):
    os.utime(path, (0, 0))
  (other / "setup.py").chmod(0o600)
  assert bundle.make_bundle(other).content == first.content
  repositories.write(other, {"configs/a.py": "# c\n"})
  assert bundle.make_bundle(other).sha != first.sha


def test_bundle_records_its_commit_and_changes(tmp_path):
  root = repositories.made(tmp_path)
  clean = bundle.make_bundle(root)
  assert len(clean.commit) == 40 and not clean.dirty and clean.diff == ""
  repositories.write(root, {"configs/a.py": "# changed\n", "new.py": ""})
  changed = bundle.make_bundle(root)
  assert changed.dirty and "+# changed" in changed.diff and changed.untracked == ("new.py",)
  assert changed.commit == clean.commit
  assert json.loads(changed.to_json())["diff"] == changed.diff


def test_external_links_and_inner_repositories_are_skipped_and_named(tmp_path, capsys):
  root = repositories.made(tmp_path / "a")
  os.symlink("/etc/passwd", root / "absolute")
  os.symlink("../b", root / "relative")
  os.symlink(".git/config", root / "config")
  repositories.made(root / "inner")
  assert set(bundle.make_bundle(root).names) == set(repositories.FILES)
  output = capsys.readouterr().err
  assert all(f"{name} is a link to a path outside" in output for name in ("absolute", "relative", "config"))
  assert "inner/ is another repository" in output


KEY = "-----BEGIN OPENSSH " + "PRIVATE KEY-----"


@pytest.mark.parametrize(
  ("name", "content"),
  [
    ("sub/.env", ""), (".env.local", ""), ("server.pem", ""), ("id_ed25519", ""), ("credentials.json", "{}"),
    (".netrc", ""), ("notes.txt", f"see\n{KEY}\n"), ("a.py", "KEY = 'AKIA" + "A" * 16 + "'"),
    ("config.json", '"AIza' + "a" * 35 + '"'), ("token.txt", "ghp_" + "a" * 36),
  ],
)  # fmt: skip
@pytest.mark.parametrize("tracked", [False, True])
def test_files_that_look_like_keys_are_refused(tmp_path, name, content, tracked):
  root = repositories.made(tmp_path, repositories.FILES | {".gitignore": ""})
  repositories.write(root, {name: content})
  if tracked:
    repositories.git(root, "add", "-A")
  with pytest.raises(LaunchError, match="looks like a key") as error:
    bundle.make_bundle(root)
  assert name in str(error.value) and ".gitignore" in str(error.value) and "git rm --cached" in str(error.value)


def test_removed_key_is_not_in_the_diff(tmp_path):
  root = repositories.made(tmp_path, repositories.FILES | {"a.py": KEY})
  (root / "a.py").write_text("")
  assert KEY not in bundle.make_bundle(root).to_json()


def test_templates_and_texts_about_keys_are_accepted(tmp_path):
  files = {".env.example": "KEY=", "keys.py": "monkey = 'BEGIN'", "public.txt": "-----BEGIN PUBLIC KEY-----"}
  assert set(files) < set(bundle.make_bundle(repositories.made(tmp_path, repositories.FILES | files)).names)


def test_too_large_bundle_names_the_largest_files(tmp_path, monkeypatch):
  root = repositories.made(tmp_path)
  with open(root / "weights.npz", "wb") as file:
    file.truncate(2 * 10**9)  # uses no disk space, and is not read
  repositories.write(root, {"small.npz": b"x" * 10**6})
  start_time = time.monotonic()
  with pytest.raises(
    LaunchError, match=r"2,001\.0 MB, and a bundle at most 50; the largest: weights\.npz \(2,000\.0 MB\)"
  ):
    bundle.make_bundle(root)
  assert time.monotonic() - start_time < 2


def test_missing_repository_git_or_worker_is_reported_with_a_fix(tmp_path, monkeypatch):
  with pytest.raises(LaunchError, match=r"not in a readable git repository.*clone of vit_jax"):
    bundle.make_bundle(tmp_path)
  with pytest.raises(LaunchError, match=r"no launch/worker\.py"):
    bundle.make_bundle(repositories.made(tmp_path, {"a.py": ""}))
  monkeypatch.setattr(bundle, "__file__", "/usr/lib/python3/site-packages/launch/bundle.py")
  (tmp_path / "outside").mkdir()
  shutil.rmtree(tmp_path / ".git")
  with pytest.raises(LaunchError, match="installed outside of one"):
    bundle.make_bundle(tmp_path / "outside")
  monkeypatch.setenv("PATH", str(tmp_path))
  with pytest.raises(LaunchError, match="git is not installed"):
    bundle.make_bundle(tmp_path)


def test_bundle_is_uploaded_once(tmp_path):
  made, files = bundle.make_bundle(repositories.made(tmp_path / "a")), Disk(str(tmp_path / "run"))
  bundle.upload(files, made)
  before = files.read(f"code/{made.sha}.tgz")
  bundle.upload(files, made)
  assert files.read(f"code/{made.sha}.tgz").generation == before.generation and before.content == made.content
  assert json.loads(files.read(f"code/{made.sha}.json").content)["commit"] == made.commit


def test_bundle_of_this_repository_has_files_for_workers():
  if not (ROOT / ".git").exists():
    pytest.skip("not a clone")
  names = set(bundle.make_bundle(ROOT).names)
  assert {"setup.py", "launch/storage.py", "vit_jax/train.py", "configs/digits.py"} <= names


@pytest.mark.parametrize("script", ["not a program", "#!/no/such/interpreter\n"])
def test_git_that_cannot_be_run_is_reported(tmp_path, monkeypatch, script):
  (tmp_path / "git").write_text(script)
  (tmp_path / "git").chmod(0o755)
  monkeypatch.setenv("PATH", str(tmp_path))
  with pytest.raises((UnknownError, LaunchError), match=r"git (cannot be run|is not installed)"):
    bundle.make_bundle(tmp_path)


def test_git_without_a_response_is_unknown(tmp_path, monkeypatch):
  (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 5\n")
  (tmp_path / "git").chmod(0o755)
  monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
  monkeypatch.setattr(bundle, "PATIENCE", 0.2)
  with pytest.raises(UnknownError, match=r"rev-parse.* did not answer within"):
    bundle.make_bundle(tmp_path)


def test_deleted_directory_is_reported_in_one_line(tmp_path, monkeypatch):
  (tmp_path / "gone").mkdir()
  monkeypatch.chdir(tmp_path / "gone")
  (tmp_path / "gone").rmdir()
  for folder in (tmp_path / "gone", pathlib.Path(".")):
    with pytest.raises(LaunchError, match=r"does not exist|git repository") as error:
      bundle.make_bundle(folder)
    assert "\n" not in str(error.value)
