"""The code of a run as one file with its SHA-256 as name, and the detection of secrets, which are refused.

A run is stored in its bucket. All readers of the bucket can read its code, variables and arguments. Secrets
belong to --secret, which names the location from which a worker reads the value.
"""

import collections
import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import math
import os
import pathlib
import re
import shlex
import sys
import tarfile
import zlib
from collections.abc import Iterable, Mapping, Sequence

from .errors import USAGE, LaunchError, call
from .storage import Bucket, Disk

PATIENCE = 600.0  # seconds for a command of git, on a slow disk
BYTES = 50 * 10**6  # the largest total size of all files
DIFF = 10**6  # characters of the diff that are kept
PackedFile = tuple[int, bytes] | tuple[None, str]  # mode and bytes of a file, or None and the target of a link
WORKER = "launch/worker.py"  # the program of the workers


@dataclasses.dataclass(frozen=True)
class Bundle:
  """A tar.gz and its origin.

  Args:
    sha: SHA-256 of the content.
    content: the tar.gz.
    names: names of the files, from the root of the repository.
    commit: the commit that is checked out, "" before the first one.
    dirty: whether the files differ from the commit.
    diff: the difference as text, without new files.
    untracked: names of new files.
  """

  sha: str
  content: bytes = dataclasses.field(repr=False)
  names: tuple[str, ...]
  commit: str
  dirty: bool
  diff: str = dataclasses.field(repr=False)
  untracked: tuple[str, ...] = ()

  @property
  def words(self) -> str:
    """Returns a description for messages."""
    commit = f"commit {self.commit[:7]}" if self.commit else "no commit yet"
    return f"{commit}{', changed' * self.dirty}, bundle {self.sha[:12]}"

  def to_json(self) -> str:
    """Returns all fields as JSON, with counts instead of content and names."""
    values = dataclasses.asdict(dataclasses.replace(self, content=b"", names=()))
    return json.dumps({**values, "content": len(self.content), "names": len(self.names)}, indent=1)


def make_bundle(folder: pathlib.Path) -> Bundle:
  """Returns the bundle of the repository of a folder: the same bytes for the same files, on any machine.

  It contains tracked and new files, and never ignored files.

  Raises:
    LaunchError: there is no repository, the program of the workers is missing, the files are too large, or one of them
      looks like a secret.
  """
  root = find_repository(folder)
  untracked = _list_names(root, "-o", "--exclude-standard")
  files = _read_files(root, sorted({*_list_names(root, "-c"), *untracked}, key=os.fsencode))
  if WORKER not in files:
    raise LaunchError(f"{root} has no {WORKER}, which the workers run. Start from a clone of vit_jax, or a fork of it")
  for name, (_, content) in files.items():
    if isinstance(content, bytes) and (_FILES.fullmatch(pathlib.PurePath(name).name) or _CONTENT.search(content)):
      raise LaunchError(
        f"{name} looks like a key, and every reader of the bucket could read it. Add it to .gitignore (and if "
        f"it is tracked, run: git rm --cached {shlex.quote(name)}), and pass it to the workers by --secret"
      )
  content = _pack_files(files)
  commit = _run_git(root, "rev-parse", "--verify", "--quiet", "HEAD", allowed=(0, 1)).decode().strip()
  diff = _run_git(root, "diff", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD") if commit else b""
  text = "not kept, because it contains a key" if _CONTENT.search(diff) else diff.decode(errors="replace")[:DIFF]
  sha = hashlib.sha256(content).hexdigest()
  return Bundle(sha, content, tuple(files), commit, bool(diff or untracked or not commit), text, tuple(untracked))


def upload(storage: Disk | Bucket, bundle: Bundle) -> None:
  """Writes a bundle into the directory of a run, unless it is there. Raises UnknownError or LaunchError."""
  name = f"code/{bundle.sha}.tgz"
  storage.write(f"code/{bundle.sha}.json", bundle.to_json().encode())
  if name not in storage.list_names(name):
    with contextlib.suppress(FileExistsError):  # another process was faster, with the same bytes
      storage.write(name, bundle.content, generation=0)


def find_repository(folder: pathlib.Path) -> pathlib.Path:
  """Returns the root of the git repository of a folder. Raises LaunchError outside of repositories."""
  code, output, why = _call_git(folder, "rev-parse", "--show-toplevel")
  if code:
    inside = "site-packages" in pathlib.Path(__file__).resolve().parent.parts
    installed = " (vit_jax is installed outside of one, but only files that git tracks are sent to workers)" * inside
    raise LaunchError(f"{folder} is not in a readable git repository{installed}: {why}. "
                      "Start from a clone of vit_jax, or a fork of it")  # fmt: skip
  return pathlib.Path(os.fsdecode(output).rstrip("\n"))


def _list_names(root: pathlib.Path, *flags: str) -> list[str]:
  return [os.fsdecode(name) for name in _run_git(root, "ls-files", "-z", *flags).split(b"\0") if name]


def _run_git(root: pathlib.Path, *words: str, allowed: Sequence[int] = (0,)) -> bytes:
  code, output, why = _call_git(root, *words)
  if code not in allowed:
    raise LaunchError(f"git {words[0]} failed in {root}: {why}. Fix the repository, and run the command again")
  return output


def _call_git(folder: pathlib.Path, *words: str) -> tuple[int, bytes, str]:
  """Returns (exit code, output, first line of the error) of git."""
  code, output, why = call(["git", "-C", str(folder), *words], PATIENCE, "Run: apt-get install git", missing=USAGE)
  return code, output, why.strip().partition("\n")[0]


def _read_files(root: pathlib.Path, names: Iterable[str]) -> dict[str, PackedFile]:
  """Returns {name: (mode and bytes of a file, or None and the target of a link)} of the files that exist."""
  try:
    found = {name: size for name in names if (size := _check_size(root, name)) is not None}
    total = sum(found.values())
    if total > BYTES:
      largest = sorted(found, key=lambda name: found[name], reverse=True)[:5]
      sizes = ", ".join(f"{name} ({found[name] / 1e6:,.1f} MB)" for name in largest)
      raise LaunchError(
        f"the code has {total / 1e6:,.1f} MB, and a bundle at most {BYTES / 1e6:,.0f}; the largest: {sizes}. "
        "Put data and weights into the bucket, or name them in .gitignore"
      )
    return {name: _read_file(root / name) for name in found}
  except OSError as error:
    raise LaunchError(f"{error.filename}: {error.strerror}. Make it readable, or name it in .gitignore") from None


def _check_size(root: pathlib.Path, name: str) -> int | None:
  """Returns the bytes of a file, or 0 for a link. Returns None, with a message, if workers do not get the file."""
  path = root / name
  if path.is_symlink():
    target = pathlib.Path(os.path.realpath(path))
    outside = os.path.isabs(os.readlink(path)) or pathlib.Path(os.path.realpath(root)) not in target.parents
    if not outside and ".git" not in target.parts:
      return 0
  elif path.is_file():
    return path.stat().st_size
  elif not path.exists():  # deleted, but git still lists it
    return None
  what = "a link to a path outside of the repository" if path.is_symlink() else "another repository"
  print(f"{name} is {what}, and is not sent to the workers", file=sys.stderr)
  return None


def _read_file(path: pathlib.Path) -> PackedFile:
  if path.is_symlink():
    return None, os.readlink(path)
  return 0o755 if path.stat().st_mode & 0o100 else 0o644, path.read_bytes()


def _pack_files(files: Mapping[str, PackedFile]) -> bytes:
  """Returns a tar.gz without times, owners or compression, because the versions of zlib compress differently."""
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as tar:
    for name, (mode, content) in files.items():
      member = tarfile.TarInfo(name)
      if isinstance(content, str):
        member.type, member.linkname = tarfile.SYMTYPE, content
        tar.addfile(member)
      else:
        member.mode, member.size = mode or 0o644, len(content)
        tar.addfile(member, io.BytesIO(content))
  plain, size = buffer.getvalue(), 2**16 - 1
  stored = [b"\x1f\x8b\x08\0\0\0\0\0\0\xff"]  # RFC 1952: no name, no time, unknown system
  for at in range(0, len(plain), size):  # RFC 1951, 3.2.4: blocks that are not compressed
    block = plain[at : at + size]
    length = len(block).to_bytes(2, "little")
    stored += [bytes([at + size >= len(plain)]), length, bytes(255 - byte for byte in length), block]
  return b"".join([*stored, zlib.crc32(plain).to_bytes(4, "little"), len(plain).to_bytes(4, "little")])


# Words in names of variables with a secret. A path to a secret is not secret itself.
_WORDS = {"KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "APIKEY"}
_ENDINGS = r"\w(?<!MON)(?<!TUR)(?<!HOT)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)"  # of words without underscores
_SHORT_WORDS = {"PASS", "AUTH", "PWD"}  # also names of modes: their values may be numbers and switches
_SWITCH = r"(?i)|[\d.]+|true|false|yes|no|on|off|none|auto|default"
_PATHS = {"FILE", "PATH", "DIR"}
# Names of files with secrets; templates of an .env file have no secrets.
_FILES = re.compile(
  r"\.env(\.(?!example$|sample$|template$|dist$).*)?|\.netrc|_netrc|\.pypirc|\.git-credentials|id_(rsa|dsa|ecdsa|ed25519)"
  r"|.*\.(pem|key|p12|pfx|jks|keystore|kdbx)|(application_default_)?credentials\.(json|db)|kubeconfig",
  re.IGNORECASE,
)
# Files are code, which may contain examples: only the exact lengths of real secrets count.
_CONTENT = re.compile(
  rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bAIza[0-9A-Za-z_-]{35}\b|\bgh[pousr]_[0-9A-Za-z]{36}\b"
  rb"|\bgithub_pat_[0-9A-Za-z]{22}_[0-9A-Za-z]{59}\b|\bglpat-[0-9A-Za-z_-]{20}\b|\bhf_[0-9A-Za-z]{34}\b"
  rb"|\bya29\.[0-9A-Za-z_-]{50}"
)
_VALUES = (
  ("a Hugging Face token", r"\bhf_[0-9A-Za-z]{16,}"),
  ("a GitHub token", r"\bgh[pousr]_[0-9A-Za-z]{16,}|\bgithub_pat_\w{16,}"),
  ("a GitLab token", r"\bgl(pat|dt|rt|cbt|ptt)-[\w-]{16,}"),
  ("an AWS access key", r"\b(AKIA|ASIA)[0-9A-Z]{16}\b"),
  ("a Google API key", r"\bAIza[\w-]{30,}"),
  ("a Google access token", r"\bya29\.[\w-]{8,}|\b1//0[\w-]{20,}|\bGOCSPX-[\w-]{16,}"),
  ("a Slack webhook", r"\bhooks\.slack\.com/services/\w+/\w+/\w{8,}"),
  ("a storage account key", r"(?i)\bAccountKey=[\w+/]{40,}"),
  ("a SendGrid key", r"\bSG\.[\w-]{16,}\.[\w-]{16,}"),
  ("a DigitalOcean token", r"\bdo[opr]_v1_[0-9a-f]{32,}"),
  ("a password of .netrc", r"\bmachine\s+\S+\s+login\s+\S+\s+password\s+\S+"),
  ("a Slack token", r"\bxox[a-z]-[\w-]{8,}|\bxapp-[\w-]{16,}"),
  ("an API key", r"\bsk-([a-z]{2,8}\d*-){0,2}(?=[A-Za-z_]*\d)\w{16,}|\b[sr]k_(live|test)_\w{16,}"),
  ("a Weights & Biases key", r"\bwandb_v\d+_\w{16,}"),
  ("a package registry token", r"\bnpm_[0-9A-Za-z]{30,}|\bpypi-[\w-]{50,}"),
  ("a private key", r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----"),
  ("a JSON Web Token", r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
  ("a service account key", r'"type"\s*:\s*"(service_account|authorized_user|external_account)"|"private_key"\s*:'),
  ("a URL with a password", r"\b[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s:@]+@"),
  ("a signed URL", r"[?&](X-Goog-Signature|X-Amz-Signature|sig)=[\w%+/=-]{16,}"),
)
RANDOM_KEY = "a random key"
LENGTH, BITS, CHANGES, SEPARATORS = 24, 3.5, 0.3, 0.1


def detect_secret_variable(name: str, value: str) -> str:
  """Returns the type of secret that a variable seems to contain, or ""."""
  words = name.upper().split("_")
  named = bool(_WORDS & {*words}) or any(re.fullmatch(rf".*{_ENDINGS}", word) for word in words)
  named = named or (bool(_SHORT_WORDS & {*words}) and not re.fullmatch(_SWITCH, value))
  if named and words[-1] not in _PATHS and name != "GOOGLE_APPLICATION_CREDENTIALS":
    return "a secret, by its name"
  return detect_secret_value(value)


def detect_secret_value(value: str) -> str:
  """Returns the type of secret that a value resembles, or ""."""
  kind = next((kind for kind, pattern in _VALUES if re.search(pattern, value)), "")
  return kind or RANDOM_KEY * looks_random(value)


def looks_random(value: str) -> bool:
  """Returns whether a value looks like a random key in base 62 or base 64.

  A random key is one word of at least 24 letters, digits and `+/_-=` in which all of these hold:

  - Upper case, lower case and digits occur.
  - At least 30% of neighbouring letters and digits differ in that class, without a capital before a small letter.
    Random keys have about 45%, words in CamelCase and numbers about 25%.
  - At most 10% of the characters are `+/_-`. Random keys have 3%, names of experiments more than 10%.
  - The Shannon entropy of its characters is at least 3.5 bits.

  Hexadecimal numbers, such as SHA-256 sums, commits and UUIDs, are not random in this sense, because hashes of data are
  usual values. Paths and URLs are not random either.
  """
  if re.match(r"[~./]|[a-z][a-z0-9+.-]*://", value) or not re.fullmatch(
    rf"[A-Za-z0-9+/_-]{{{LENGTH},}}={{0,2}}", value
  ):
    return False
  letters = re.sub("[^A-Za-z0-9]", "", value)
  if re.fullmatch("[0-9A-Fa-f]+", letters) or not all(re.search(each, letters) for each in ("[A-Z]", "[a-z]", "[0-9]")):
    return False
  kinds = [1 if each.isdigit() else 2 if each.islower() else 3 for each in letters]
  changes = sum(a != b and (a, b) != (3, 2) for a, b in itertools.pairwise(kinds)) / (len(kinds) - 1)
  separators = len(re.findall("[+/_-]", value)) / len(value)
  counts = collections.Counter(letters).values()
  bits = -sum(count / len(letters) * math.log2(count / len(letters)) for count in counts)
  return changes >= CHANGES and separators <= SEPARATORS and bits >= BITS
