"""The command line of a worker, which runs in the foreground or as a service of its machine.

  python3 -m launch.worker start --folder=gs://BUCKET/runs/a/launch --attempt=1 [--worker=3] [--engine=qr]

`start` starts a service that executes `run`, unless the service is alive. `stop` stops the services of an attempt.
`look` prints the services of this machine as JSON. On a TPU VM, a timer of startup.sh.in deletes the machine.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import sys
import time
from collections.abc import Sequence

from . import errors, executor, machine, mailbox, program, service, spec, storage
from .errors import LaunchError, UnknownError
from .program import WorkerLog

PATIENCE = 600.0  # seconds for which requests to a directory that does not answer are repeated


def main(words: Sequence[str] | None = None) -> int:
  """Executes a command and returns its exit code.

  Args:
    words: command-line arguments. Defaults to those of this process.
  """
  options = _make_parser().parse_args(words)
  try:
    return {"run": run, "start": start, "stop": stop, "look": look}[options.verb](options)
  except (LaunchError, UnknownError) as error:
    print(f"launch.worker: {error}", file=sys.stderr)
    return error.code if isinstance(error, LaunchError) else errors.UNKNOWN
  except OSError as error:  # the host has run out of disk space, processes or files, which may be temporary
    print(f"launch.worker: {_explain_error(error)}", file=sys.stderr)
    return errors.UNKNOWN


def _make_parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser("python3 -m launch.worker", description=__doc__, allow_abbrev=False)
  parser.add_argument("verb", nargs="?", default="run", choices=("run", "start", "stop", "look"))
  parser.add_argument("--folder", default="", help="directory of the run: gs://BUCKET/runs/a/launch")
  parser.add_argument("--mark", default="", help="for stop: digest of --folder, instead of --folder")
  parser.add_argument("--attempt", type=int, default=1)
  pod = {key: os.environ.get(f"LAUNCH_{key}") or None for key in ("INDEX", "SLICE", "RESTART")}  # of a JobSet
  parser.add_argument(
    "--worker",
    type=int,
    default=pod["INDEX"],
    help="number of the worker in the slice; default: from the metadata server",
  )
  parser.add_argument("--slice", type=int, default=pod["SLICE"] or 0)
  parser.add_argument("--restart", type=int, default=pod["RESTART"] or 0, help="number of restarts of the JobSet")
  parser.add_argument("--engine", choices=spec.BACKENDS, default="qr")
  parser.add_argument("--proof", default="", help="digest that the run and its code must have")
  parser.add_argument("--name", default="", help="name of the run; default: that of the attempt")
  path = lambda text: pathlib.Path(text).absolute()  # noqa: E731
  parser.add_argument("--home", type=path, default=service.get_default_home(), help="directory for code and services")
  parser.add_argument(
    "--grace", type=float, default=spec.Limits().grace, help="seconds that a program may take to stop"
  )
  parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds to wait for an answer of --folder")
  return parser


def _open_mailbox(options: argparse.Namespace) -> mailbox.Mailbox:
  if not options.folder:
    raise LaunchError("--folder: missing. Use the workdir of the run followed by /launch")
  return mailbox.Mailbox(storage.open_storage(options.folder), options.attempt)


def _read_attempt(options: argparse.Namespace, stop_signals: Sequence[int] = ()) -> mailbox.Attempt:
  """Returns the attempt. Waits `options.patience` seconds for an answer, unless a signal requested a stop."""

  def pause(error: UnknownError) -> None:
    if stop_signals:
      raise error
    time.sleep(min(2.0, options.patience / 10))

  return errors.retry_request(_open_mailbox(options).read_attempt, options.patience, pause)


# The commands.


def start(options: argparse.Namespace) -> int:
  """Starts the service of a worker, unless it is alive.

  Args:
    options: the parsed command line.

  Returns:
    The exit code.

  Raises:
    LaunchError: the attempt does not exist, its name is in use for another directory, or the service does not start.
    UnknownError: the directory of the run, or this machine, does not answer.
  """
  attempt = _read_attempt(options)
  name = attempt.run.name
  made = service.Service(service.name_service(name, options.attempt, options.engine, options.worker), options.home)
  about = made.about or {"folder": options.folder, "engine": options.engine, "run": name, "attempt": options.attempt,
                         "worker": options.worker, "owner": attempt.run.owner, "expires": attempt.expires}  # fmt: skip
  if about.get("folder") != options.folder:
    raise LaunchError(f"{made.name}: the service is in use for {about.get('folder')}. Rename the run, or stop that one")
  if not made.about:
    made.describe(about)
  keys = ("proof", "folder", "attempt", "slice", "restart", "engine", "patience", "home")
  words = [f"--name={name}", *(f"--{key}={getattr(options, key)}" for key in keys)]
  words += [] if options.worker is None else [f"--worker={options.worker}"]
  print(made.start(words, options.grace, systemd=options.engine != "local"), flush=True)
  return errors.DONE


def stop(options: argparse.Namespace) -> int:
  """Stops the services of an attempt on this machine with all their processes, and deletes their descriptions.

  Args:
    options: the parsed command line.

  Returns:
    The exit code.

  Raises:
    UnknownError: a service does not end.
  """
  name = options.name or _read_attempt(options).run.name
  mark, found = options.mark or (spec.compute_label(options.folder) if options.folder else ""), []
  for each in service.find_services(options.home, name, options.attempt, options.engine, options.worker):
    folder = (each.about or {}).get("folder")
    if folder and mark and spec.compute_label(folder) != mark:
      print(f"{each.name} is in use for {folder}, and is not stopped", flush=True)
    else:
      found.append(each)
  for each in found:
    each.ask()
  for each in found:
    if not each.stop(options.grace + 30):
      raise UnknownError(f"{each.name} does not end; its processes are those of {each.folder}")
    each.forget()
    print(f"{each.name} is stopped", flush=True)
  return errors.DONE


def look(options: argparse.Namespace) -> int:
  """Prints the services of an engine on this machine as JSON, and returns the exit code."""
  print(json.dumps(service.list_services(options.home, options.engine)), flush=True)
  return errors.DONE


def run(options: argparse.Namespace) -> int:
  """Executes an attempt in this process.

  Args:
    options: the parsed command line.

  Returns:
    The exit code of the worker. If a JobSet may restart the worker, this is the exit code of the program.

  Raises:
    LaunchError: the worker is already alive, or the attempt cannot be executed.
    UnknownError: the directory of the run, or this machine, does not answer.
  """
  machine.adopt_orphans()
  stop_signals: list[int] = []
  for request in (signal.SIGTERM, signal.SIGINT):
    signal.signal(request, lambda got, _: stop_signals.append(got))
  files, name = _open_mailbox(options), options.name or _read_attempt(options).run.name
  own = service.Service(service.name_service(name, options.attempt, options.engine, options.worker), options.home)
  if not own.lock():
    raise LaunchError(
      f"{own.name} is already running on this host as process {own.process()}. Stop it first", errors.BUG
    )
  program.kill_all(f"{own.folder}/")  # programs that survived a worker that was killed
  first = 1 + options.restart
  try:
    attempt = _read_attempt(options, stop_signals)
    if (attempt.number, attempt.run.name) != (options.attempt, name):
      found = attempt.run.get_attempt_name(attempt.number)
      raise LaunchError(f"{options.folder} contains the attempt {found} instead of {name}-a{options.attempt}")
    if options.proof not in ("", attempt.proof):
      raise LaunchError(f"{options.folder}: the run or its code changed after the start. Start the run again")
    number = machine.find_worker(attempt.run, options.attempt, options.worker, options.slice)
    log = WorkerLog(own.folder / "log")
    try_ = max(first, _find_last_try(files, number, own, attempt.run.limits.beat) + 1)
  except (LaunchError, UnknownError, OSError) as error:
    error = LaunchError(_explain_error(error)) if isinstance(error, OSError) else error
    _report_end(files, options, str(error))
    raise error from None
  report = mailbox.WorkerReport(number, try_, host=socket.gethostname())
  with contextlib.closing(executor.Reporter(files, report, attempt.run.limits.beat, log)) as reporter:
    made = executor.Executor(attempt, number, options.engine, own, reporter, log, stop_signals)
    code = made.execute(first, try_)
  print(f"{own.name}, worker {number}: {reporter.report.phase}: {reporter.report.detail}", flush=True)
  return code


def _find_last_try(files: mailbox.Mailbox, number: int, own: service.Service, beat: float) -> int:
  """Returns the number of the last try that an earlier process of this worker started, or 0.

  This try is not started again.
  """
  last = 0
  with contextlib.suppress(OSError, ValueError):
    last = int((own.folder / "tries").read_text())
  try:
    found = errors.retry_request(
      lambda: files.read_report(number), 4 * beat, lambda _: time.sleep(min(2.0, 0.4 * beat))
    )
  except UnknownError:  # without a valid report, the file on this machine decides
    return last
  if found and (found[0].phase in (mailbox.RUNNING, mailbox.EXITED) or found[0].exit is not None):
    last = max(last, found[0].try_)
  return last


def _report_end(files: mailbox.Mailbox, options: argparse.Namespace, detail: str) -> None:
  """Reports why a worker cannot start, if it knows its number."""
  if options.worker is not None:
    report = mailbox.WorkerReport(options.worker, phase=mailbox.ENDED, detail=detail, host=socket.gethostname())
    try:
      files.write_report(dataclasses.replace(report, clock=time.time()))
    except (LaunchError, UnknownError) as error:
      print(f"launch.worker: {error}", file=sys.stderr)


def _explain_error(error: Exception) -> str:
  name, reason = getattr(error, "filename", None), getattr(error, "strerror", None)
  return ": ".join(filter(None, (str(name or ""), reason or str(error))))


if __name__ == "__main__":
  sys.exit(main())
