"""Runs on hosts that are reached by ssh: GPU boxes, VMs of an instance group, TPUs that somebody has made by hand.

ssh brings the package `launch` and starts a worker on each host; all else goes through the run's folder.
"""

import concurrent.futures
import functools
import gzip
import hashlib
import io
import json
import re
import shlex
import subprocess
import tarfile

from launch import engine, errors, event_log, render, service, spec
from launch.assumptions import CALL
from launch.errors import LaunchError, UnknownError

_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15",
            "-o", "ServerAliveCountMax=4")  # fmt: skip
_BROKEN = 255  # of ssh: the connection failed, before, while or after the command ran
_DEADLINE = CALL  # seconds for a command
# In a folder named by its hash, which appears whole. Its standard input is the package.
_BRING = """
d=${XDG_STATE_HOME:-$HOME/.local/state}/vit_jax/launch/package/$1; shift
if [ -d "$d" ]; then cat >/dev/null; else
  mkdir -p "$d.$$" && tar -xzf - -C "$d.$$" || exit 1
  mv -T "$d.$$" "$d" 2>/dev/null || { rm -rf "$d.$$"; [ -d "$d" ] || exit 1; }
fi
cd "$d" && printf '\n%s\n' vitjax-answer && exec python3 -m launch.worker "$@"
"""
_MARK = "\nvitjax-answer\n"  # before it there may be a greeting of the host
_OURS = re.compile(r"^launch\.worker: ", re.MULTILINE)


class Engine:
  """See `launch.engine.Engine`. The workers outlive `launch`, and end by themselves."""

  def __init__(self, run: spec.Run):
    if not run.workdir.startswith(("gs://", "/")):
      raise LaunchError(f"--workdir: {run.workdir!r} is no folder that all hosts have; write gs://BUCKET/NAME, or the "
                        "absolute path of a file system that they and this machine share")  # fmt: skip
    if len(set(run.hosts)) < len(run.hosts):
      raise LaunchError(f"--hosts: {', '.join(run.hosts)}: a host has one worker; name each once")
    self._run = run

  def location(self, attempt: int) -> str:
    """The hosts."""
    return ",".join(self._run.hosts)

  def request(self, attempt: int, expires: int) -> str:
    """See `launch.engine.Engine`. The package `launch` is the standard input of the commands but those of ssh."""
    hosts = list(enumerate(self._run.hosts))
    return render.script(
      ("the standard input of the commands below", ["package=/dev/null  # a tar.gz of launch/"]),
      ("create", [_command(host, self._start(attempt, number)) for number, host in hosts]),
      ("inspect", [_command(host, self._look(attempt)) for _, host in hosts]),
      ("delete", [_command(host, self._stop(attempt)) for _, host in hosts]),
      (f"ssh: python -m launch ssh {self._run.name} --worker=N",
       [self.shell(attempt, number, []) for number, _ in hosts]),
    )  # fmt: skip

  def create(self, attempt: int, expires: int) -> None:
    """Starts the worker of each host, where it does not live; a command that is delivered twice starts one."""
    self._each(lambda number: self._start(attempt, number))

  def look(self, attempt: int) -> engine.Look:
    """READY while all workers live, ABSENT when no host has one."""
    said = self._each(lambda _: self._look(attempt))
    found = {number: each[0] for number, text in enumerate(said) if (each := _listing(text, self._run.hosts[number]))}
    return service.look(found, self._run.workers)

  def delete(self, attempt: int) -> None:
    """Stops the workers and their programs, which have `limits.grace` to save."""
    self._each(lambda _: self._stop(attempt), self._run.limits.grace + _DEADLINE)

  def remove(self, resource: engine.Resource) -> None:
    """Stops the worker of a listed attempt on its host."""
    words = ["stop", f"--name={resource.run}", f"--attempt={resource.attempt}", f"--grace={self._run.limits.grace}"]
    _ask(resource.location, words, self._run.limits.grace + _DEADLINE)

  def deletion(self, attempt: int) -> str:
    """A command for each host, with which its worker is stopped."""
    return " && ".join(shlex.join([*_ssh(host), f"{_remote(self._stop(attempt))}; exit $?"]) + " </dev/null"
                       for host in self._run.hosts)  # fmt: skip

  def inventory(self, zones: tuple) -> tuple:
    """All attempts on the hosts of this run."""
    found, silent = [], {}
    for host in self._run.hosts:
      try:
        found += service.resources(_listing(_ask(host, ["look"]), host), host)
      except (UnknownError, LaunchError) as error:
        silent[host] = str(error)
    return tuple(found), silent

  def shell(self, attempt: int, worker: int, words: list) -> list:
    """ssh to the host."""
    host = self._run.hosts[worker]
    return [*_ssh(host), f"{shlex.join(words)}; exit $?"] if words else ["ssh", "-t", *_OPTIONS, host]

  def _start(self, attempt, number):
    words = ["start", f"--folder={self._run.folder}", "--patience=30", f"--grace={self._run.limits.grace}"]
    words += [f"--proof={digest}"] if (digest := event_log.proof(self._run)) else []
    return [*words, f"--attempt={attempt}", f"--worker={number}"]

  def _look(self, attempt):
    return ["look", f"--name={self._run.name}", f"--attempt={attempt}", f"--folder={self._run.folder}"]

  def _stop(self, attempt):
    words = ["stop", f"--name={self._run.name}", f"--attempt={attempt}", f"--folder={self._run.folder}"]
    return [*words, f"--grace={self._run.limits.grace}"]

  def _each(self, words, deadline=_DEADLINE):
    """What each host says to `words` of its number; raises the first trouble, when all have been asked."""
    with concurrent.futures.ThreadPoolExecutor(min(32, len(self._run.hosts))) as pool:
      answers = [pool.submit(_ask, host, words(number), deadline) for number, host in enumerate(self._run.hosts)]
    return [answer.result() for answer in answers]


def _ask(host, words, deadline=_DEADLINE):
  """What launch.worker prints on a host."""
  try:
    result = subprocess.run(
      [*_ssh(host), f"{_remote(words)}; exit $?"], input=package(), capture_output=True, timeout=deadline
    )
  except subprocess.TimeoutExpired:
    raise UnknownError(f"{host}: no answer within {deadline:.0f} s") from None
  except FileNotFoundError:
    raise LaunchError("ssh is not installed; install openssh-client") from None
  except OSError as error:
    raise UnknownError(f"ssh cannot be run now: {error.strerror}") from None
  said = result.stderr.decode(errors="replace")
  ours, said = _OURS.search(said) is not None, " ".join(said.split())[-400:]
  if result.returncode in (_BROKEN, errors.UNKNOWN) or (result.returncode not in (0, 126, 127) and not ours):
    raise UnknownError(f"{host}: {said or 'ssh gave no answer'}")
  if result.returncode:
    raise LaunchError(f"{host}: {said or f'exit code {result.returncode}'}", result.returncode)
  _, mark, answer = ("\n" + result.stdout.decode(errors="replace")).rpartition(_MARK)
  if result.returncode == 0 and not mark:
    raise UnknownError(f"{host}: the answer is incomplete")
  return answer


def _command(host, words):
  """Returns the command of `_ask` for a shell."""
  return shlex.join([*_ssh(host), f"{_remote(words)}; exit $?"]) + ' <"$package"'


def _ssh(host):
  return ["ssh", *_OPTIONS, host]


def _remote(words):
  """The one string of a remote command."""
  digest = hashlib.sha256(package()).hexdigest()[:16]
  return shlex.join(["sh", "-c", _BRING, "sh", digest, words[0], "--engine=hosts", *words[1:]])


def _listing(text, host):
  line = text.partition("\n")[0]  # a host may also print something at the end
  try:
    found = json.loads(line)
  except (ValueError, RecursionError):
    found = None
  if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
    raise UnknownError(f"{host}: expected a list of workers, got {text[:200]!r}")
  return found


@functools.cache
def package() -> bytes:
  """The package `launch`, as a tar that is the same for the same files."""
  content = io.BytesIO()
  with gzip.GzipFile(fileobj=content, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
    for path in sorted((service.ROOT / "launch").rglob("*.py")):
      member = tarfile.TarInfo(str(path.relative_to(service.ROOT)))
      data = path.read_bytes()
      member.size, member.mode = len(data), 0o644
      tar.addfile(member, io.BytesIO(data))
  return content.getvalue()
