"""The machine that a worker is on: which one it is, its address, its ports and limits, and how it is given back.

On TPU VMs the metadata server says who a worker is, as it does to JAX (jax/_src/clusters/cloud_tpu_cluster.py).
GCE_METADATA_HOST leads to another one, as for Google's own clients.
"""

import base64
import ctypes
import http.client
import json
import os
import pathlib
import random
import re
import resource
import socket
import sys
import time
import urllib.error
import urllib.request

from launch.errors import DENIED, LaunchError, UnknownError, amount
from launch.spec import Run
from launch.storage import Token

TRIES = 6  # of a request
# Of the coordinator, the first that is free. The rule in docs/pods.md opens them. JAX's own was 8476, and has been 8482
# since 0.8.1, which the rules that Cloud TPU makes do not open on some slices (jax-ml/jax issue 35905).
PORTS = range(8476, 8483)
SLICES_PORT = 8081  # of the coordinator of slices, libtpu's own
FILES = 100_000  # open at once
_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h


def ask(request: urllib.request.Request, pause: float = 0.5, timeout: float = 20.0) -> "bytes | None":
  """The answer of a Google server; None for 404. UnknownError for none, LaunchError where it refuses.

  Args:
    pause: seconds before the second try, and up to twice as long before each other.
  """
  reason = ""
  for number in range(TRIES):
    if number:
      time.sleep(pause * random.uniform(1, 2))
    try:
      with urllib.request.urlopen(request, timeout=timeout) as answer:
        return answer.read()
    except urllib.error.HTTPError as error:
      text = _text(error)
      if error.code == 404:
        return None
      reason = f"{error.code}: {text}"
      if error.code in (400, 401, 403):
        raise LaunchError(f"{request.full_url} refuses ({reason})", DENIED) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
      reason = str(getattr(error, "reason", error)) or type(error).__name__
  raise UnknownError(f"{request.full_url} does not answer ({reason})")


def _text(error):
  """Returns the text of an answer with an error status; "" if it breaks off."""
  try:
    with error:
      return " ".join(error.read(2000).decode(errors="replace").split())[:200]
  except (OSError, ValueError, http.client.HTTPException):
    return ""


def metadata(key: str) -> "str | None":
  """What the metadata server says, as of instance/zone; None where it knows no such thing."""
  host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
  url = f"http://{host}/computeMetadata/v1/{key}"
  answer = ask(urllib.request.Request(url, headers={"Metadata-Flavor": "Google"}), timeout=5.0)
  return None if answer is None else answer.decode(errors="replace")


def worker(run: Run, attempt: int, number: "int | None", slice_: int = 0) -> int:
  """The number of this worker among all of the run.

  Args:
    number: in its slice, where it is known; else the metadata server is asked, for the slice too.
  """
  hosts = run.workers // run.slices
  if number is None:
    text = metadata("instance/attributes/agent-worker-number")
    if text is None or not re.fullmatch(r"\d{1,9}", text.strip(), re.ASCII):
      raise LaunchError(f"the metadata server says no number of this worker ({text!r}); is this a TPU VM?")
    number, slice_ = int(text), _slice(run, attempt) if run.slices > 1 else 0
  if not (0 <= number < hosts and 0 <= slice_ < run.slices):
    raise LaunchError(
      f"worker {number} of slice {slice_}; the run has {amount(run.slices, 'slice')} of {amount(hosts, 'worker')}"
    )
  return slice_ * hosts + number


def _slice(run, attempt):
  """The slice, which ends the name of its node: NAME-a1-0."""
  shape = rf"{re.escape(run.attempt(attempt))}-(\d+)(?![\w-])"
  said = []
  for key in ("instance/attributes/tpu-env", "instance/attributes/instance-id", "instance/description"):
    text = metadata(key) or ""
    if key.endswith("tpu-env"):  # lines as NODE_ID: 'vit-a1-0'
      text = "".join(re.findall(r"^NODE_ID:.*$", text, re.MULTILINE))
    said.append(text)
    if match := re.search(shape, text):
      return int(match[1])
  raise LaunchError(f"the metadata server does not name the node of this worker, {run.attempt(attempt)}-N: {said}")


def address(engine: str) -> str:
  """The address at which other workers reach this one."""
  if engine == "local":
    return "127.0.0.1"
  if engine == "qr":
    return (metadata("instance/network-interfaces/0/ip") or "").strip() or _route()
  return _route()


def _route():
  """Returns the address of this machine on its way out; nothing is sent."""
  with _socket(socket.SOCK_DGRAM) as probe:
    try:
      probe.connect(("192.0.2.1", 9))  # of no one: RFC 5737
      return probe.getsockname()[0]
    except OSError:  # no way out
      return "127.0.0.1"


def _socket(kind=socket.SOCK_STREAM):
  """Returns a new socket. UnknownError if the system has none."""
  try:
    return socket.socket(socket.AF_INET, kind)
  except OSError as error:
    raise UnknownError(f"this host opens no socket: {error.strerror}") from None


def port(engine: str) -> tuple:
  """(a free port for the coordinator, which ones are taken, in words). LaunchError where there is none."""
  if engine in ("local", "hosts"):
    with _socket() as probe:
      try:
        probe.bind(("", 0))
        return probe.getsockname()[1], ""
      except OSError as error:
        raise UnknownError(f"this host has no free port: {error.strerror}") from None
  taken = []
  for number in PORTS:
    with _socket() as probe:
      try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", number))
        return number, f"port {', '.join(taken)} of this host is in use" if taken else ""
      except OSError:
        taken.append(str(number))
  raise LaunchError(f"ports {PORTS[0]} to {PORTS[-1]} of this host are all in use; stop what uses them: ss -ltnp")


def widen(engine: str, root: str = "/") -> str:
  """Raises the limits that training on TPUs meets; says what could not be done."""
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
      notes.append(f"only {amount(wanted, 'file')} may be open at once")
    try:
      if "[always]" not in pathlib.Path(root, _PAGES).read_text():
        pathlib.Path(root, _PAGES).write_text("always")
    except OSError as error:
      notes.append(f"transparent huge pages stay as they are ({error.strerror}), which is slower from v5e on")
  return "; ".join(notes)


def adopt_orphans() -> None:
  """Makes this process the parent of those whose own has died, so that none stays a zombie, in a container too."""
  if sys.platform == "linux":
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def oom_kills(root: str = "/") -> int:
  """How many processes of this one's control group were killed for want of memory; 0 where nobody counts."""
  count = 0
  for line in _read(pathlib.Path(root, "proc/self/cgroup")).splitlines():
    _, controllers, path = [*line.split(":", 2), "", ""][:3]
    if not controllers:
      file = pathlib.Path(root, "sys/fs/cgroup", path.lstrip("/"), "memory.events")
    elif controllers == "memory":
      file = pathlib.Path(root, "sys/fs/cgroup/memory", path.lstrip("/"), "memory.oom_control")
    else:
      continue
    count += sum(int(number) for number in re.findall(r"^oom_kill (\d+)$", _read(file), re.MULTILINE))
  return count


def _read(path):
  try:
    return path.read_text(errors="replace")
  except OSError:
    return ""


def give_back(name: str, project: str = "", zone: str = "", pause: float = 15.0) -> None:
  """Deletes the queued resource that this machine belongs to, which is called `name`; one that is gone is fine.

  All workers of a slice do it, at random times. CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU leads to another server, as for
  gcloud. Raises LaunchError or UnknownError where it cannot.
  """
  project = project or metadata("project/project-id") or ""
  zone = (metadata("instance/zone") or "").rpartition("/")[2] or zone
  server = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", "https://tpu.googleapis.com/").rstrip("/")
  url = f"{server}/v2/projects/{project}/locations/{zone}/queuedResources/{name}?force=true"
  time.sleep(pause * random.random())
  ask(urllib.request.Request(url, headers=Token().header(), method="DELETE"), pause)


def secret(name: str) -> str:
  """The value of projects/P/secrets/NAME/versions/V of Secret Manager, for the account of this machine."""
  server = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", "https://secretmanager.googleapis.com/")
  url = f"{server.rstrip('/')}/v1/{name}:access"
  answer = ask(urllib.request.Request(url, headers=Token().header()))
  if answer is None:
    raise LaunchError(f"--secret: there is no {name}; make it, or correct its name")
  try:
    return base64.b64decode(json.loads(answer)["payload"]["data"], validate=True).decode()
  except (ValueError, KeyError, TypeError, RecursionError) as error:
    raise LaunchError(f"--secret: {name} has no value that is text ({type(error).__name__})") from None
