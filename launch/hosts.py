"""Runs on hosts that exist already: this machine (local), or hosts that are reached by ssh (hosts).

Each worker is a service of its host, which `launch.worker` starts. It outlives `launch` and ends by itself. ssh
copies the package `launch` to a host. All other data are exchanged through the directory of the run.
"""

import functools
import hashlib
import json
import os
import re
import shlex
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import errors, event_log, manifests, service, spec, states
from .errors import CALL, LaunchError, UnknownError, format_amount

DEADLINE = CALL  # seconds for a command
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15",
        "-o", "ServerAliveCountMax=4")  # fmt: skip
_AT_ONCE = 32  # parallel commands
_BROKEN = 255  # exit code of ssh: the connection failed before, during or after the command
_HERE = ""  # this machine, in the place of a host
# Unpacks the package from its standard input into a directory named by its hash, which appears complete.
_BRING = """
d=${XDG_STATE_HOME:-$HOME/.local/state}/vit_jax/launch/package/$1; shift
if [ -d "$d" ]; then cat >/dev/null; else
  mkdir -p "$d.$$" && cat >"$d.$$.zip" && python3 -m zipfile -e "$d.$$.zip" "$d.$$" || exit 1
  mv -T "$d.$$" "$d" 2>/dev/null || { rm -rf "$d.$$"; [ -d "$d" ] || exit 1; }
  rm -f "$d.$$.zip"
fi
cd "$d" && printf '\n%s\n' vitjax-answer && exec python3 -m launch.worker "$@"
"""
_MARK = "\nvitjax-answer\n"  # a greeting of the host may be before it
_OURS = re.compile(r"^launch\.worker: ", re.MULTILINE)


class Engine:
  """See `launch.states.Engine`."""

  def __init__(self, run: spec.Run) -> None:
    for path in {run.workdir, spec.find_flag_value(run.args, "--workdir")} - {""}:
      if not path.startswith(("gs://", "/")):
        example = f"gs://BUCKET/NAME, or a path that all hosts share, such as {os.path.abspath(path)}"
        raise LaunchError(f"--workdir: {path!r} is relative, but each process has its own directory. Write {example}")
    if len(set(run.hosts)) < len(run.hosts):
      raise LaunchError(f"--hosts: {', '.join(run.hosts)}: a host has one worker. Name each host once")
    self._run, self._local = run, run.backend == "local"
    self._hosts = (_HERE,) if self._local else run.hosts
    self._workers = [(number, _HERE if self._local else run.hosts[number]) for number in range(run.workers)]

  def create(self, attempt: int, expires: int) -> None:
    """Starts the workers that are not alive. They read their settings and end time from the published attempt."""
    errors.map_in_threads(
      lambda worker: _call_worker(worker[1], self._start(attempt, worker[0])), self._workers, _AT_ONCE
    )

  def look(self, attempt: int) -> states.MachineStatus:
    """Returns READY while all workers are alive, and ABSENT without workers."""
    mine = (self._run.name, attempt, self._run.folder)
    answers = errors.map_in_threads(self._services, self._hosts, _AT_ONCE)
    found = {each.get("worker"): each for services in answers for each in services
             if (each.get("run"), each.get("attempt"), each.get("folder")) == mine}  # fmt: skip
    if not found:
      return states.MachineStatus(states.ABSENT)
    dead = [f"worker {number}: {found[number].get('said') or 'it has ended'}" if number in found else
            f"worker {number} was never started" for number, _ in self._workers
            if not found.get(number, {}).get("alive")]  # fmt: skip
    state = states.LOST if dead else states.READY
    return states.MachineStatus(state, "; ".join(dead)[:1000], hosts=self._run.workers - len(dead))

  def delete(self, target: int | states.Resource) -> None:
    """Stops the workers of an attempt and their programs, which have `limits.grace` to save."""
    if isinstance(target, states.Resource):
      _call_worker(_HERE if self._local else target.location, self._stop_resource(target), self._run.limits.grace)
    else:
      errors.map_in_threads(
        lambda host: _call_worker(host, self._stop(target), self._run.limits.grace), self._hosts, _AT_ONCE
      )

  def list_resources(self, zones: Sequence[str]) -> tuple[list[states.Resource], dict[str, str]]:
    """Returns all attempts on the hosts of this run."""
    found, silent = [], {}
    for host in self._hosts:
      location = host or socket.gethostname()
      try:
        found += make_resources(self._services(host), location)
      except (UnknownError, LaunchError) as error:
        silent[location] = str(error)
    return found, silent

  def build_shell_command(self, attempt: int, worker: int, words: Sequence[str]) -> list[str]:
    """Returns a command of ssh, or the words themselves on this machine."""
    if self._local:
      return list(words) or [os.environ.get("SHELL", "/bin/sh")]
    host = self._run.hosts[worker]
    return [*_SSH, host, f"{shlex.join(words)}; exit $?"] if words else ["ssh", "-t", *_SSH[1:], host]

  def build_commands(self, target: int | states.Resource, expires: int = 0) -> states.Commands:
    """See `launch.states.Engine`. This process inspects the local machine with the same function as the command."""
    if isinstance(target, states.Resource):
      return states.Commands(
        "", _format_command(_HERE if self._local else target.location, self._stop_resource(target))
      )
    attempt = target
    look = ["look", f"--engine={self._run.backend}"]
    package = "" if self._local else ", with a zip archive of launch/ in place of /dev/null"
    delete = [_format_command(host, self._stop(attempt)) for host in self._hosts]
    script = manifests.format_script(
      (f"create{package}", [_format_command(host, self._start(attempt, number)) for number, host in self._workers]),
      ("inspect", [_format_command(host, look) for host in self._hosts]),
      ("delete", delete),
      (f"ssh: python -m launch ssh {self._run.name} --worker=N",
       [self.build_shell_command(attempt, number, []) for number, _ in self._workers[: len(self._hosts)]]),
    )  # fmt: skip
    return states.Commands(script, " && ".join(delete))

  def _start(self, attempt: int, number: int) -> list[str]:
    words = ["start", f"--engine={self._run.backend}", f"--folder={self._run.folder}", f"--attempt={attempt}",
             f"--worker={number}", "--patience=30", f"--grace={self._run.limits.grace}"]  # fmt: skip
    return [*words, *([f"--proof={digest}"] if (digest := event_log.compute_proof(self._run)) else [])]

  def _stop(self, attempt: int) -> list[str]:
    return ["stop", f"--engine={self._run.backend}", f"--name={self._run.name}", f"--attempt={attempt}",
            f"--folder={self._run.folder}", f"--grace={self._run.limits.grace}"]  # fmt: skip

  def _stop_resource(self, resource: states.Resource) -> list[str]:
    return ["stop", f"--engine={self._run.backend}", f"--name={resource.run}", f"--attempt={resource.attempt}",
            f"--mark={resource.mark}", f"--grace={self._run.limits.grace}"]  # fmt: skip

  def _services(self, host: str) -> list[dict[str, Any]]:
    if self._local:
      return service.list_services(service.get_default_home(), "local")
    return parse_services(_call_worker(host, ["look", "--engine=hosts"]), host)


def make_resources(services: Iterable[Mapping[str, object]], location: str) -> list[states.Resource]:
  """Returns services as resources, one for each attempt.

  Args:
    services: descriptions of services, as returned by `service.list_services`.
    location: name of their host.
  """
  attempts: dict[tuple[str, Any, str], list[Mapping[str, Any]]] = {}
  for each in services:
    attempts.setdefault((str(each.get("run")), each.get("attempt"), str(each.get("folder"))), []).append(each)
  return [
    states.Resource(
      name=f"{run}-a{attempt}", location=location, run=run, owner=str(found[0].get("owner", "")), attempt=attempt,
      state=states.READY if all(each["alive"] for each in found) else states.LOST,
      detail=f"{sum(each['alive'] for each in found)} of {format_amount(len(found), 'worker')} alive, for {folder}",
      expires=found[0].get("expires", 0), created=min(each["made"] for each in found),
      kind=format_amount(len(found), "process", "processes"), mark=spec.compute_label(folder),
    )
    for (run, attempt, folder), found in attempts.items()
  ]  # fmt: skip


def _build_command(host: str, words: Sequence[str]) -> list[str]:
  """Returns the argument list of a command of `launch.worker` on a host."""
  if host == _HERE:
    return [sys.executable, "-m", f"{__package__}.worker", *words]
  remote = shlex.join(["sh", "-c", _BRING, "sh", hashlib.sha256(get_package()).hexdigest()[:16], *words])
  return [*_SSH, host, f"{remote}; exit $?"]


def _format_command(host: str, words: Sequence[str]) -> str:
  """Returns a command of `launch.worker` on a host as text for a shell."""
  text = f"{shlex.join(_build_command(host, words))} </dev/null"
  return f"(cd {shlex.quote(str(service.ROOT))} && {text})" if host == _HERE else text


def _call_worker(host: str, words: Sequence[str], grace: float = 0.0) -> str:
  """Returns the output of a command of `launch.worker` on a host. It must end within DEADLINE + `grace` seconds."""
  place, deadline, package_ = host or "this machine", DEADLINE + grace, get_package() if host else b""
  try:
    code, output, complaint = errors.call(
      _build_command(host, words), deadline, "Install openssh-client", package_, str(service.ROOT), errors.USAGE
    )
  except UnknownError as error:
    raise UnknownError(f"{place}: {error}") from None
  ours, text = _OURS.search(complaint) is not None, " ".join(complaint.split())[-400:]
  if code in (_BROKEN, errors.UNKNOWN) or (code not in (0, 126, 127) and not ours):
    raise UnknownError(f"{place}: {text or 'ssh did not answer'}")
  if code:
    raise LaunchError(f"{place}: {text or f'exit code {code}'}", code)
  _, mark, answer = ("\n" + output.decode(errors="replace")).rpartition(_MARK)
  if host and not mark:
    raise UnknownError(f"{place}: the answer is incomplete")
  return answer


def parse_services(text: str, host: str) -> list[dict[str, Any]]:
  """Returns the services of a host.

  Args:
    text: the output of `look`, after which the host may print something.
    host: the host.
  """
  try:
    found = json.loads(text.partition("\n")[0])
  except (ValueError, RecursionError):
    found = None
  if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
    raise UnknownError(f"{host}: expected a list of workers, got {text[:200]!r}")
  return found


@functools.cache
def get_package() -> bytes:
  """Returns the package `launch` as a zip archive, which is the same for the same files."""
  return manifests.pack_launch()
