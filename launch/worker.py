"""The program on each host: a worker in the foreground, or as a unit of the machine.

  python3 -m launch.worker start --folder=gs://BUCKET/runs/a/launch --attempt=1 [--worker=3] [--engine=qr]

`start` makes a unit that does `run`. If the unit is alive, `start` does nothing. `stop` ends the unit, and `look`
prints the units of this machine as JSON. On a TPU VM, a timer of startup.sh.in deletes the machine.
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

from launch import errors, executor, machine, mailbox, program, reporter, service, spec, storage
from launch.errors import LaunchError, UnknownError
from launch.log import Log

PATIENCE = 600.0  # seconds to wait for a folder that does not answer, before there is anything to do


def main(words=None) -> int:
  """Does what is asked; returns the exit code."""
  options = _parser().parse_args(words)
  try:
    return {"run": run, "start": start, "stop": stop, "look": look}[options.verb](options)
  except (LaunchError, UnknownError) as error:
    print(f"launch.worker: {error}", file=sys.stderr)
    return error.code if isinstance(error, LaunchError) else errors.UNKNOWN
  except OSError as error:  # no space, no processes, no files: the next call may succeed
    where = f"{error.filename}: " if error.filename else ""
    print(f"launch.worker: {where}{error.strerror or error}", file=sys.stderr)
    return errors.UNKNOWN


def _parser():
  parser = argparse.ArgumentParser("python3 -m launch.worker", description=__doc__, allow_abbrev=False)
  parser.add_argument("verb", nargs="?", default="run", choices=("run", "start", "stop", "look"))
  parser.add_argument("--folder", default="", help="the run's folder for launch: gs://BUCKET/runs/a/launch")
  parser.add_argument("--attempt", type=int, default=1)
  said = {key: os.environ.get(f"LAUNCH_{key}") or None for key in ("INDEX", "SLICE", "RESTART")}  # of a JobSet's pod
  parser.add_argument("--worker", type=int, default=said["INDEX"], help="of its slice; else the metadata server knows")
  parser.add_argument("--slice", type=int, default=said["SLICE"] or 0)
  parser.add_argument("--restart", type=int, default=said["RESTART"] or 0, help="how often a JobSet has started again")
  parser.add_argument("--engine", choices=spec.BACKENDS, default="qr")
  parser.add_argument("--proof", default="", help="digest of the run and its code, which the directory must have")
  parser.add_argument("--name", default="", help="of the run; by default that of the attempt in the folder")
  parser.add_argument("--home", type=pathlib.Path, default=None, help="by default below XDG_STATE_HOME")
  parser.add_argument("--grace", type=float, default=spec.Limits().grace, help="seconds that a program has to stop")
  parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds to wait for a folder without answer")
  return parser


def named(run: str, attempt: int, number: "int | None" = None) -> str:
  """What the unit of an attempt is called, of one worker where several are on one machine."""
  return f"{run}-a{attempt}" + ("" if number is None else f"-w{number:02d}")


def _unit(options, name):
  several = options.worker if options.engine == "local" else None
  return service.Service(named(name, options.attempt, several), (options.home or service.home()).absolute())


def _board(options):
  if not options.folder:
    raise LaunchError("--folder: missing; the run's workdir and /launch")
  return mailbox.Mailbox(storage.storage(options.folder), options.attempt)


def _patiently(ask, patience, asked=()):
  """What `ask` gives, again and again while nobody answers; UnknownError when patience ends."""
  deadline = time.monotonic() + patience
  while True:
    try:
      return ask()
    except UnknownError:
      if time.monotonic() > deadline or asked:
        raise
      time.sleep(min(2.0, patience / 10))


def _name(options):
  """The run's name: as a unit of this machine knows it, or else the attempt."""
  mine = (options.folder, options.attempt)
  found = [each["run"] for each in service.every((options.home or service.home()).absolute(), options.engine)
           if (each.get("folder"), each.get("attempt")) == mine]  # fmt: skip
  return options.name or next(iter(found), "") or _patiently(_board(options).attempt, options.patience).run.name


# The commands.


def start(options) -> int:
  """A unit that does `run`; one that lives is fine."""
  about = {"folder": options.folder, "engine": options.engine, "run": options.name, "attempt": options.attempt,
           "worker": options.worker}  # fmt: skip
  if not options.name:
    attempt = _patiently(_board(options).attempt, options.patience)
    about |= {"run": attempt.run.name, "owner": attempt.run.owner, "expires": attempt.expires}
  made = _unit(options, about["run"])
  before = (made.about or about).get("folder")
  if before != options.folder:
    raise LaunchError(f"{made.name} is there for {before}; give the run another name, or stop that one")
  if not made.about:
    made.make(about)
  keys = ("proof", "folder", "attempt", "slice", "restart", "engine", "patience")
  words = [f"--name={about['run']}", *(f"--{key}={getattr(options, key)}" for key in keys)]
  words += [f"--home={options.home.absolute()}"] if options.home else []
  words += [] if options.worker is None else [f"--worker={options.worker}"]
  print(made.start(words, options.grace, systemd=options.engine != "local"), flush=True)
  return 0


def stop(options) -> int:
  """Stops the unit with all that it has started, and forgets it."""
  found = _unit(options, _name(options))
  whose = (found.about or {}).get("folder", options.folder)
  if options.folder and whose != options.folder:
    print(f"{found.name} is there for {whose}, and stays", flush=True)
    return 0
  if not found.stop(options.grace + 30):
    raise LaunchError(f"{found.name} does not end; its processes are those of {found.folder}", errors.BUG)
  found.forget()
  print(f"{found.name} is stopped", flush=True)
  return 0


def look(options) -> int:
  """Prints the units of this machine, as JSON: of a run's attempt where it is named, or all."""
  found = service.every((options.home or service.home()).absolute(), options.engine)
  if options.name:
    found = [each for each in found if (each.get("run"), each.get("attempt")) == (options.name, options.attempt)]
  if options.folder:
    found = [each for each in found if each.get("folder") == options.folder]
  print(json.dumps(found), flush=True)
  return 0


def run(options) -> int:
  """A worker in this process, until its work has ended; the exit code is that of its program where a JobSet asks."""
  machine.adopt_orphans()
  asked = []
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda got, _: asked.append(got))
  name, here = _name(options), _board(options)
  own = _unit(options, name)
  if own.lock() is None:
    raise LaunchError(f"{own.name} lives already on this host, process {own.process()}; this one ends", errors.BUG)
  program.end(f"{own.folder}/")  # of a worker that was killed
  first = 1 + options.restart
  try:
    attempt = _patiently(here.attempt, options.patience, asked)
    if (attempt.number, attempt.run.name) != (options.attempt, name):
      raise LaunchError(f"{options.folder} has the attempt {attempt.run.attempt(attempt.number)}, which is not {name}-"
                        f"a{options.attempt}")  # fmt: skip
    if options.proof not in ("", attempt.proof):
      raise LaunchError(f"{options.folder}: the run or its code was changed after it was started; nothing is executed")
    number = machine.worker(attempt.run, options.attempt, options.worker, options.slice)
    log = Log(own.folder / "log")
    try_ = max(first, _begun(here, number, own, attempt.run.limits.beat) + 1)
  except (LaunchError, UnknownError, OSError) as error:
    _last_report(here, options, str(error))
    raise error if not isinstance(error, OSError) else LaunchError(f"{error.filename}: {error.strerror}") from None
  report = mailbox.Report(number, try_, host=socket.gethostname())
  with reporter.opened(options.folder, options.attempt, report, attempt.run.limits.beat, log) as letters:
    home = (options.home or service.home()).absolute()
    made = executor.Executor(attempt, number, options.engine, home, own, letters, log, asked)
    code = errors.DONE
    try:
      code = made.work(first, try_)
      if not asked and options.engine != "gke":
        made.end("its work is done")
    except executor.End as reason:
      made.end(str(reason))
      code = executor.FATAL if options.engine == "gke" and not asked else errors.DONE
    except LaunchError as error:
      made.end(str(error), failed=True)
      code = error.code
  print(f"{own.name}, worker {number}: {letters.report.phase}: {letters.report.detail}", flush=True)
  return code


def _begun(here, number, own, beat):
  """The last try that a worker has started in a life before; 0 for none. It is not started twice."""
  begun = 0
  with contextlib.suppress(OSError, ValueError):
    begun = int((own.folder / "tries").read_text())
  try:
    found = _patiently(lambda: here.seen(number), 4 * beat)
  except UnknownError:  # garbage, or no answer: the machine's own word counts
    return begun
  if found and (found[0].phase in (mailbox.RUNNING, mailbox.EXITED) or found[0].exit is not None):
    begun = max(begun, found[0].try_)
  return begun


def _last_report(here, options, detail):
  """Says why a worker cannot even begin, if it knows its number."""
  if options.worker is not None:
    report = mailbox.Report(options.worker, phase=mailbox.ENDED, detail=detail, host=socket.gethostname())
    try:
      here.report(dataclasses.replace(report, clock=time.time()))
    except (LaunchError, UnknownError) as error:
      print(f"launch.worker: {error}", file=sys.stderr)


if __name__ == "__main__":
  sys.exit(main())
