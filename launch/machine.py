"""Functions for the machine of a worker: number, address, ports, limits, secrets, code, interpreter and deletion.

On TPU VMs the metadata server gives the number of a worker, as it does to JAX (jax/_src/clusters/cloud_tpu_cluster.py).
GCE_METADATA_HOST names another server, as for Google's own clients.
"""

import base64
import ctypes
import fcntl
import gzip
import hashlib
import http.client
import io
import json
import os
import pathlib
import random
import re
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from typing import IO, Any

from .errors import DENIED, LaunchError, UnknownError, convert_unexpected, format_amount
from .spec import Run
from .storage import Storage, Token

TRIES = 6  # number of tries of a request
# The coordinator uses the first free one of these ports. The firewall rule in docs/guides/tpu-vms.md opens them. JAX's
# default port was 8476. Since JAX 0.8.1 it is 8482, which Cloud TPU does not open on some slices (jax-ml/jax issue
# 35905).
PORTS = range(8476, 8483)
SLICES_PORT = 8081  # of libtpu's coordinator of slices
FILES = 100_000  # number of files that may be open at once
PYTHON = "3.12"  # JAX requires 3.11 or newer, and TPU VMs have 3.10
INSTALLS = 3  # tries of a command of the installation
BUNDLE, BUNDLE_FILES = 2**30, 100_000  # bytes and files of an unpacked bundle
_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h


# Google's servers.


def send_request(request: urllib.request.Request, pause: float = 0.5, timeout: float = 20.0) -> "bytes | None":
  """Returns the answer of a Google server, or None for HTTP status 404.

  Args:
    request: the request.
    pause: seconds before a further try. They are multiplied by a random number from 1 to 2.
    timeout: seconds for each try.

  Raises:
    LaunchError: the server refuses the request with HTTP status 400, 401 or 403.
    UnknownError: the server does not answer after six tries.
  """
  reason = ""
  for number in range(TRIES):
    if number:
      time.sleep(pause * random.uniform(1, 2))
    try:
      with urllib.request.urlopen(request, timeout=timeout) as answer:
        return answer.read()
    except urllib.error.HTTPError as error:
      if error.code == 404:
        return None
      reason = f"{error.code}: {_read_text(error)}"
      if error.code in (400, 401, 403):
        raise LaunchError(f"{request.full_url} refuses ({reason})", DENIED) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
      reason = str(getattr(error, "reason", error)) or type(error).__name__
  raise UnknownError(f"{request.full_url} does not answer ({reason})")


def _read_text(error: urllib.error.HTTPError) -> str:
  """Returns the text of an answer with an error status, or "" if the connection fails."""
  try:
    with error:
      return " ".join(error.read(2000).decode(errors="replace").split())[:200]
  except (OSError, ValueError, http.client.HTTPException):
    return ""


def read_metadata(key: str) -> "str | None":
  """Returns a value of the metadata server, such as instance/zone, or None if the value does not exist."""
  host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
  url = f"http://{host}/computeMetadata/v1/{key}"
  answer = send_request(urllib.request.Request(url, headers={"Metadata-Flavor": "Google"}), timeout=5.0)
  return None if answer is None else answer.decode(errors="replace")


def read_secret(name: str) -> str:
  """Returns a value from Secret Manager, read with the account of this machine.

  Args:
    name: projects/P/secrets/NAME/versions/V.

  Raises:
    LaunchError: the secret does not exist, is not UTF-8 text, or may not be read.
    UnknownError: Secret Manager does not answer.
  """
  server = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", "https://secretmanager.googleapis.com/")
  answer = send_request(urllib.request.Request(f"{server.rstrip('/')}/v1/{name}:access", headers=Token().make_header()))
  if answer is None:
    raise LaunchError(f"--secret: {name} does not exist. Create the secret, or correct its name")
  try:
    return base64.b64decode(json.loads(answer)["payload"]["data"], validate=True).decode()
  except (ValueError, KeyError, TypeError, RecursionError) as error:
    raise LaunchError(f"--secret: the value of {name} is not UTF-8 text ({type(error).__name__})") from None


def delete_own_slice(run: Run, attempt: int) -> None:
  """Deletes the queued resource of this machine.

  All workers do this, at random times within `limits.beat` seconds. As for gcloud, the variable
  CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU can set another server.

  Args:
    run: the run.
    attempt: number of the attempt.

  Raises:
    LaunchError: the deletion failed. The message contains a command with which the user can repeat it.
  """
  name, zone, pause = run.get_attempt_name(attempt), run.zones[0] if run.zones else "", run.limits.beat
  server = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", "https://tpu.googleapis.com/").rstrip("/")
  try:
    project = run.project or read_metadata("project/project-id") or ""
    zone = (read_metadata("instance/zone") or "").rpartition("/")[2] or zone
    url = f"{server}/v2/projects/{project}/locations/{zone}/queuedResources/{name}?force=true"
    time.sleep(pause * random.random())
    send_request(urllib.request.Request(url, headers=Token().make_header(), method="DELETE"), pause)
  except (LaunchError, UnknownError) as error:
    words = ["gcloud", "compute", "tpus", "queued-resources", "delete", name, "--force"]
    command = shlex.join([*words, f"--project={run.project}", f"--zone={zone}"])
    raise LaunchError(
      f"the machine could not be deleted and is still billed ({error}). Run: {command}", DENIED
    ) from None


# Identity and network.


def find_worker(run: Run, attempt: int, number: "int | None", slice_: int = 0) -> int:
  """Returns the number of this worker among all workers of the run.

  Args:
    run: the run.
    attempt: number of the attempt.
    number: number in the slice. If it is None, the metadata server provides this number and that of the slice.
    slice_: number of the slice.

  Raises:
    LaunchError: the metadata server has no valid number, or the number is outside of the run.
    UnknownError: the metadata server does not answer.
  """
  hosts = run.workers // run.slices
  if number is None:
    text = read_metadata("instance/attributes/agent-worker-number")
    if text is None or not re.fullmatch(r"\d{1,9}", text.strip(), re.ASCII):
      raise LaunchError(
        f"the metadata server has no number for this worker ({text!r}). Start the worker on a TPU VM, or set --worker"
      )
    number, slice_ = int(text), (_find_slice(run, attempt) if run.slices > 1 else 0)
  if not (0 <= number < hosts and 0 <= slice_ < run.slices):
    shape = f"{format_amount(run.slices, 'slice')} of {format_amount(hosts, 'worker')}"
    raise LaunchError(
      f"worker {number} of slice {slice_} is outside of the run, which has {shape}. Correct --worker or --slice"
    )
  return slice_ * hosts + number


def _find_slice(run: Run, attempt: int) -> int:
  """Returns the number of the slice. The name of its node ends with this number: NAME-a1-0."""
  name, found = run.get_attempt_name(attempt), []
  for key in ("instance/attributes/tpu-env", "instance/attributes/instance-id", "instance/description"):
    text = read_metadata(key) or ""
    if key.endswith("tpu-env"):  # contains lines such as NODE_ID: 'vit-a1-0'
      text = "".join(re.findall(r"^NODE_ID:.*$", text, re.MULTILINE))
    found.append(text)
    if match := re.search(rf"{re.escape(name)}-(\d+)(?![\w-])", text):
      return int(match[1])
  raise LaunchError(f"the metadata server does not name the node {name}-N of this worker: {found}")


def find_address(engine: str) -> str:
  """Returns the IP address at which other workers reach this worker.

  Args:
    engine: name of the backend.
  """
  if engine == "local":
    return "127.0.0.1"
  if engine == "qr" and (address := (read_metadata("instance/network-interfaces/0/ip") or "").strip()):
    return address
  with convert_unexpected("the sockets of this host"), socket.socket(type=socket.SOCK_DGRAM) as probe:
    try:
      probe.connect(
        ("192.0.2.1", 9)
      )  # an address for documentation (RFC 5737); connecting a UDP socket sends no packet
      return probe.getsockname()[0]
    except OSError:  # the host has no route to other networks
      return "127.0.0.1"


def find_port(engine: str) -> tuple[int, str]:
  """Finds a free port for the coordinator.

  Args:
    engine: name of the backend. The system chooses the port for local and hosts.

  Returns:
    The port, and a note on ports that are in use, or "".

  Raises:
    LaunchError: all ports are in use.
  """
  taken: list[str] = []
  for number in (0,) if engine in ("local", "hosts") else PORTS:  # with 0, the system chooses a port
    with convert_unexpected("the sockets of this host"), socket.socket() as probe:
      try:
        if number:
          probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", number))
        return probe.getsockname()[1], f"port {', '.join(taken)} of this host is in use" if taken else ""
      except OSError:
        if not number:
          raise
        taken.append(str(number))
  raise LaunchError(
    f"ports {PORTS[0]} to {PORTS[-1]} of this host are in use. Stop the programs that use them: ss -ltnp"
  )


# Limits of the system.


def raise_limits(engine: str, root: str = "/") -> str:
  """Raises the limits of the system that training on TPUs reaches.

  Args:
    engine: name of the backend.
    root: root of the file system.

  Returns:
    A note on limits that could not be raised, or "".
  """
  notes = []
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
  if soft != resource.RLIM_INFINITY and soft < wanted:
    try:
      resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
      notes.append(f"only {soft} files may be open at once ({error})")
  if engine in ("qr", "gke"):
    if wanted < FILES:
      notes.append(f"only {format_amount(wanted, 'file')} may be open at once")
    try:
      if "[always]" not in pathlib.Path(root, _PAGES).read_text():
        pathlib.Path(root, _PAGES).write_text("always")
    except OSError as error:
      notes.append(f"transparent huge pages could not be enabled ({error.strerror}); v5e and newer are slower without")
  return "; ".join(notes)


def adopt_orphans() -> None:
  """Makes this process the parent of orphaned descendants, so that it can kill and reap them, also in a container."""
  if sys.platform == "linux":
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def count_oom_kills(root: str = "/") -> int:
  """Returns the number of processes of this control group that were killed because memory ran out.

  Returns 0 if the system does not count them.

  Args:
    root: root of the file system.
  """
  count = 0
  for line in _read_file(pathlib.Path(root, "proc/self/cgroup")).splitlines():
    _, controllers, path = [*line.split(":", 2), "", ""][:3]
    file = {"": f"{path}/memory.events", "memory": f"memory{path}/memory.oom_control"}.get(controllers)  # cgroup v2, v1
    if file:
      text = _read_file(pathlib.Path(root, "sys/fs/cgroup", file.lstrip("/")))
      count += sum(int(number) for number in re.findall(r"^oom_kill (\d+)$", text, re.MULTILINE))
  return count


def _read_file(path: pathlib.Path) -> str:
  try:
    return path.read_text(errors="replace")
  except OSError:
    return ""


# Code and interpreter.


def fetch_code(storage: Storage, digest: str, home: pathlib.Path) -> pathlib.Path:
  """Returns the directory of a bundle. Downloads, verifies and unpacks the bundle if the directory does not exist.

  Args:
    storage: the directory of the run, a `Disk` or `Bucket`.
    digest: SHA-256 of the bundle, in hexadecimal.
    home: directory of the launcher on this machine.

  Raises:
    LaunchError: the bundle is missing, has another SHA-256, or cannot be unpacked.
    UnknownError: the directory of the run does not answer.
  """
  if not re.fullmatch("[0-9a-f]{64}", digest):
    raise LaunchError(f"{digest[:80]!r} is not the SHA-256 of a bundle. Start the run again")
  name, folder = f"code/{digest}.tgz", home / "code" / digest
  if os.path.isdir(folder):  # the directory gets this name only after its hash is verified
    return folder
  item = storage.read(name)
  if item is None:
    raise LaunchError(f"{name} is not in the run's directory. Start the run again, which uploads it")
  if (found := hashlib.sha256(item.content).hexdigest()) != digest:
    raise LaunchError(f"{name} has the SHA-256 {found}: it was changed. Start the run again")
  try:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent, ignore_cleanup_errors=True) as draft:
      unpack(item.content, pathlib.Path(draft, "code"))
      os.rename(pathlib.Path(draft, "code"), folder)
  except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
    raise LaunchError(f"{name} is not a bundle: {error}") from None
  except OSError as error:
    if not os.path.isdir(folder):  # another worker of this machine has created it
      raise LaunchError(f"{folder.parent}: {name} cannot be unpacked: {error.strerror}") from None
  return folder


def unpack(content: bytes, folder: pathlib.Path) -> None:
  """Unpacks a tar archive safely, because older versions of Python 3.10 lack `filter="data"`.

  Args:
    content: the archive, compressed by gzip.
    folder: the directory, which must not exist.

  Raises:
    ValueError: a member would be outside of the directory, or is neither a file, a directory nor a symbolic link.
  """
  links, size = [], 0
  folder.mkdir(0o700)
  with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
    for count, member in enumerate(tar):
      name, size = pathlib.PurePosixPath(member.name), size + member.size
      if size > BUNDLE or count >= BUNDLE_FILES:
        raise ValueError(f"it is larger than {BUNDLE:,} bytes or {BUNDLE_FILES:,} files")
      if not name.parts or name.is_absolute() or ".." in name.parts or "\0" in member.name:
        raise ValueError(f"{member.name!r} is not a valid path inside the bundle")
      path = folder / name
      (path if member.isdir() else path.parent).mkdir(parents=True, exist_ok=True)
      if member.isreg():
        content_of_member = tar.extractfile(member)
        assert content_of_member
        with open(path, "xb") as file:
          shutil.copyfileobj(content_of_member, file)
        path.chmod(0o755 if member.mode & 0o100 else 0o644)
      elif member.issym():
        links.append((path, member.linkname))
      elif not member.isdir():
        raise ValueError(f"{member.name!r} is neither a file nor a directory")
  for path, target in links:  # links come last, so that no file is written through a link
    os.symlink(target, path)
  inside = os.path.realpath(folder) + os.sep
  for path, target in links:
    if os.path.isabs(target) or not os.path.realpath(path).startswith(inside):
      raise ValueError(f"{path.name!r} leads to {target!r}, outside of it")


def install_interpreter(
  run: Run, code: pathlib.Path, home: pathlib.Path, log: pathlib.Path, tick: Callable[[], None], date: str = ""
) -> str:
  """Returns a Python interpreter that has the packages of a run.

  This is `run.python`, or an environment that uv installs once for each setup.py and date.

  Args:
    run: the run.
    code: directory of its code.
    home: directory of the launcher on this machine.
    log: file that receives the output of uv and pip.
    tick: function that is called several times per second. An exception from it ends the installation.
    date: newest allowed date of a package, or "" for no limit.

  Raises:
    LaunchError: the interpreter cannot be used, or the installation failed.
  """
  if run.python:
    if not os.access(run.python, os.X_OK):
      raise LaunchError(f"--python: {run.python} is not a program on this host. Correct the path, or omit the flag")
    return run.python
  extras, deadline = ",".join(list_extras()), time.monotonic() + run.limits.install
  try:
    key = hashlib.sha256((code / "setup.py").read_bytes() + extras.encode() + date.encode()).hexdigest()[:16]
  except OSError:
    raise LaunchError("the code has no setup.py with its requirements. Add one, or use --python") from None
  made = home / "python" / key
  newest = [f"--exclude-newer={date}"] if date else []
  try:
    made.parent.mkdir(parents=True, exist_ok=True)
    with open(made.with_suffix(".lock"), "a") as lock:
      while not _try_lock(lock):  # another worker of this machine is installing
        tick()
        time.sleep(0.05)
      if not (made / "complete").exists():
        uv = _find_uv(home, log, tick, deadline)
        _run_with_retries([uv, "venv", "--quiet", "--clear", "--python", PYTHON, str(made)], log, tick, deadline)
        words = ["pip", "install", "--python", str(made / "bin/python"), f"{code}[{extras}]", *newest]
        _run_with_retries([uv, *words], log, tick, deadline)
        (made / "complete").touch()
  except OSError as error:
    raise LaunchError(f"{error.filename or made}: {error.strerror}. Free disk space, or repair the directory") from None
  return str(made / "bin/python")


def list_extras(root: str = "/") -> list[str]:
  """Returns the extras of setup.py that the devices of this machine need.

  Args:
    root: root of the file system.
  """
  devices = pathlib.Path(root, "dev")
  patterns = (("gpu", "nvidia[0-9]*"), ("tpu", "accel*"), ("tpu", "vfio/[0-9]*"))  # TPUs from v5 on use vfio
  return [*[extra for extra, pattern in patterns if any(devices.glob(pattern))][:1], "gcs"]


def _try_lock(file: IO[Any]) -> bool:
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True


def _find_uv(home: pathlib.Path, log: pathlib.Path, tick: Callable[[], None], deadline: float) -> str:
  """Returns the path of uv. If it is missing, installs it below `home`, which every distribution allows."""
  if found := shutil.which("uv"):
    return found
  target = home / "uv"
  if not (target / "bin/uv").exists():
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(target), "uv"]
    _run_with_retries(words, log, tick, deadline)
  return str(target / "bin/uv")


def _run_with_retries(words: Sequence[str], log: pathlib.Path, tick: Callable[[], None], deadline: float) -> None:
  """Runs a command that needs the network, at most three times. Raises a LaunchError with its last line of output."""
  for number in range(INSTALLS):
    with open(log, "ab") as file:
      start = file.tell()
      process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    try:
      while process.poll() is None:
        tick()
        if time.monotonic() > deadline:
          raise LaunchError(f"{' '.join(words[:4])} took longer than limits.install")
        time.sleep(0.05)
    finally:
      if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode == 0:
      return
    tick()
    time.sleep(min(2.0, 0.5 * 2**number))
  with open(log, "rb") as file:
    file.seek(start)
    lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
  raise LaunchError(f"{' '.join(words)} ended with {process.returncode}: {(lines or ['no output'])[-1][:300]}")
