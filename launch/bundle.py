"""The code of a run as one file: what git knows of the repository here, named by its SHA-256."""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tarfile
import zlib

from launch import credentials
from launch.errors import LaunchError, UnknownError

PATIENCE = 600.0  # seconds for a command of git, on a slow disk
BYTES = 50 * 10**6  # of all files together
DIFF = 10**6  # characters of it that are kept
WORKER = "launch/worker.py"  # what workers run


@dataclasses.dataclass(frozen=True)
class Bundle:
  """A tar.gz and where it comes from.

  Args:
    sha: its SHA-256.
    names: of its files, from the root of the repository.
    commit: that is checked out, "" before the first one. dirty: whether it is not what the files are.
    diff: between the two, as text, without new files, which are in `untracked`.
  """

  sha: str
  content: bytes = dataclasses.field(repr=False)
  names: tuple
  commit: str
  dirty: bool
  diff: str = dataclasses.field(repr=False)
  untracked: tuple = ()

  @property
  def words(self) -> str:
    """What it is, for people: workers say the same of what they have."""
    commit = f"commit {self.commit[:7]}" if self.commit else "no commit yet"
    return f"{commit}{', changed' * self.dirty}, bundle {self.sha[:12]}"

  def about(self) -> str:
    """All but the content, as JSON."""
    values = dataclasses.asdict(dataclasses.replace(self, content=b"", names=()))
    return json.dumps({**values, "content": len(self.content), "names": len(self.names)}, indent=1)


def make(folder: pathlib.Path) -> Bundle:
  """The bundle of the repository that a folder is in: the same for the same files, on any machine.

  It has what git tracks and what is new, never what is ignored. LaunchError where there is no repository, it lacks what
  workers run, it is too large, or something in it looks like a key.
  """
  root = repository(folder)
  untracked = _names(root, "-o", "--exclude-standard")
  files = _files(root, sorted({*_names(root, "-c"), *untracked}, key=os.fsencode))
  if WORKER not in files:
    raise LaunchError(f"{root} has no {WORKER}, which the workers run; start from a clone of vit_jax, or a fork of it")
  _refuse_secrets(files)
  content = _packed(files)
  commit = _git(root, "rev-parse", "--verify", "--quiet", "HEAD", fine=(0, 1)).decode().strip()
  diff = _git(root, "diff", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD") if commit else b""
  text = diff.decode(errors="replace")[:DIFF] if not credentials.in_content(diff) else "not kept, as it shows a key"
  sha = hashlib.sha256(content).hexdigest()
  return Bundle(sha, content, tuple(files), commit, bool(diff or untracked or not commit), text, tuple(untracked))


def upload(storage, bundle: Bundle) -> None:
  """Puts a bundle into a run's folder, a `Disk` or `Bucket`, unless it is there. UnknownError, LaunchError."""
  name = f"code/{bundle.sha}.tgz"
  storage.write(f"code/{bundle.sha}.json", bundle.about().encode())
  if name not in storage.names(name):
    with contextlib.suppress(FileExistsError):  # somebody was faster, with the same bytes: they are its name
      storage.write(name, bundle.content, generation=0)


def repository(folder: pathlib.Path) -> pathlib.Path:
  """The root of the git repository that a folder is in. LaunchError where there is none."""
  result = _call(["git", "-C", str(folder), "rev-parse", "--show-toplevel"])
  if result.returncode:
    why = os.fsdecode(result.stderr).strip().splitlines()[:1]
    installed = " (vit_jax is installed outside of one, and workers get the files that git knows)"
    here = pathlib.Path(__file__).resolve().parent
    raise LaunchError(
      f"{folder} is in no git repository that can be read{installed if 'site-packages' in here.parts else ''}: "
      f"{' '.join(why)}. Start from a clone of vit_jax, or a fork of it"
    )
  return pathlib.Path(os.fsdecode(result.stdout).rstrip("\n"))


def _names(root, *flags):
  return [os.fsdecode(name) for name in _git(root, "ls-files", "-z", *flags).split(b"\0") if name]


def _git(root, *words, fine=(0,)):
  result = _call(["git", "-C", str(root), *words])
  if result.returncode not in fine:
    why = os.fsdecode(result.stderr).strip().splitlines()[:1]
    raise LaunchError(f"git {words[0]} failed in {root}: {' '.join(why)}; mend the repository, and start again")
  return result.stdout


def _call(words):
  """Returns the result of git. UnknownError if there is none, LaunchError if git is not installed."""
  try:
    return subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=PATIENCE)
  except FileNotFoundError:
    if not os.path.isdir(words[2]):
      raise LaunchError(f"{words[2]}: the directory does not exist. Change to a clone of vit_jax") from None
    raise LaunchError("git is not installed; it says which files are the code: apt-get install git") from None
  except subprocess.TimeoutExpired:
    raise UnknownError(f"git {words[3]} did not end within {PATIENCE:.0f} s") from None
  except OSError as error:
    raise UnknownError(f"git cannot be run: {error.strerror}") from None


def _files(root, names):
  """See `_readable`. LaunchError for what cannot be read."""
  try:
    return _readable(root, names)
  except OSError as error:
    raise LaunchError(f"{error.filename}: {error.strerror}; make it readable, or name it in .gitignore") from None


def _readable(root, names):
  """{name: (mode, bytes or where a link leads)} of what is there; links that leave the tree and other repositories are
  said, and left out."""
  paths, total = {}, 0
  for name in names:
    path = root / name
    if path.is_symlink():
      target = os.readlink(path)
      inside = os.path.realpath(path).startswith(os.path.realpath(root) + os.sep)
      if inside and not os.path.isabs(target) and ".git" not in pathlib.PurePath(os.path.realpath(path)).parts:
        paths[name] = None
        continue
    elif path.is_file():
      paths[name] = path.stat().st_size
      continue
    elif not path.exists():  # deleted, and git still has it
      continue
    what = "a link out of the repository" if path.is_symlink() else "another repository"
    print(f"{name} is {what}: workers do not get it", file=sys.stderr)
  total = sum(size or 0 for size in paths.values())
  if total > BYTES:
    largest = sorted(paths, key=lambda name: -(paths[name] or 0))[:5]
    sizes = ", ".join(f"{name} ({(paths[name] or 0) / 1e6:,.1f} MB)" for name in largest)
    raise LaunchError(
      f"the code has {total / 1e6:,.1f} MB, and a bundle at most {BYTES / 1e6:,.0f}; the largest: {sizes}. "
      "Put data and weights into the bucket, or name them in .gitignore"
    )
  return {name: _content(root / name, size) for name, size in paths.items()}


def _content(path, size):
  if size is None:
    return "link", os.readlink(path)
  return 0o755 if path.stat().st_mode & 0o100 else 0o644, path.read_bytes()


def _refuse_secrets(files):
  for name, (mode, content) in files.items():
    if mode == "link":
      continue
    if credentials.is_secret_file(pathlib.PurePath(name).name, content):
      raise LaunchError(
        f"{name} looks like a key, and would be seen by all who may read the bucket: name it in .gitignore (and if it "
        f"is tracked, run: git rm --cached {shlex.quote(name)}), and let workers have it by --secret"
      )


def _packed(files):
  """A tar.gz without times, owners or compression: what zlib makes of the same bytes differs between its versions."""
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as tar:
    for name, (mode, content) in files.items():
      member = tarfile.TarInfo(name)
      if mode == "link":
        member.type, member.linkname = tarfile.SYMTYPE, content
        tar.addfile(member)
      else:
        member.mode, member.size = mode, len(content)
        tar.addfile(member, io.BytesIO(content))
  plain, size = buffer.getvalue(), 2**16 - 1
  stored = [b"\x1f\x8b\x08\0\0\0\0\0\0\xff"]  # RFC 1952: no name, no time, unknown system
  for at in range(0, len(plain), size):  # RFC 1951, 3.2.4: blocks that are not compressed
    block = plain[at : at + size]
    length = len(block).to_bytes(2, "little")
    stored += [bytes([at + size >= len(plain)]), length, bytes(255 - byte for byte in length), block]
  return b"".join([*stored, zlib.crc32(plain).to_bytes(4, "little"), len(plain).to_bytes(4, "little")])
