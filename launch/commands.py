"""The verbs that change a run: run, adopt, restart, stop and down."""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence

from . import bundle, checks, errors, gke, mailbox, removal, spec, states
from .errors import LaunchError, UnknownError, format_utc, print_line
from .event_log import EventLog, get_log_directory
from .mailbox import LeaseHeldError
from .spec import Run
from .states import OVER, WATCHING, State, make_engine
from .storage import open_storage
from .watch import Watcher, make_lease

PLACE = ("backend", "project", "zones", "cluster", "namespace", "hosts", "workdir")  # fields that locate machines
STOP_POLL = 2.0  # seconds between two looks at programs that stop


def open_event_log(name: str, workdir: str = "") -> EventLog:
  """Returns the event log of a run that this machine started, or of the run in a given workdir.

  Raises:
    LaunchError: the run does not exist.
  """
  if not workdir:
    return EventLog(name, open_storage(EventLog(name).run.folder))
  if "://" not in workdir:
    workdir = os.path.abspath(workdir)
  directory = f"{workdir.rstrip('/')}/launch"
  found = EventLog(name, open_storage(directory))
  if not found.events:
    raise LaunchError(f"--workdir: {workdir} has no run {name}. Correct the name or --workdir")
  if found.run.folder != directory:
    raise LaunchError(
      f"--workdir: {name} on this machine is the run of {found.run.workdir}, and {workdir} has no run of that name. "
      "Omit --workdir"
    )
  return found


def set_default_cluster(run: Run) -> Run:
  """Returns the run with the current default cluster of kubectl, because the default may change later."""
  if run.backend == "gke" and not run.cluster:
    return spec.check_and_complete(dataclasses.replace(run, cluster=gke.get_default_context()))
  return run


def run(args: argparse.Namespace, run: Run) -> int:
  """Checks a run, starts it and watches it to its end. Continues a run of the same name."""
  run = set_default_cluster(run)
  engine_ = make_engine(run)
  if args.dry_run:
    print(engine_.build_commands(1, int(time.time() + run.max_hours * 3600)).script)
    return errors.DONE
  print_line(f"{run.name}: bundling the code")  # takes seconds on a slow disk
  code = bundle.make_bundle(pathlib.Path.cwd())
  if refused := 0 if args.force else checks.get_refusal_code(checks.check_run(run, args.price, args.host_rate, code)):
    raise LaunchError("not started, because of the refusals above", refused)
  event_log = EventLog(run.name, open_storage(run.folder))
  with Watcher(run, event_log, engine_) as watch:
    if event_log.open and event_log.state.stage != OVER:
      if event_log.unconfirmed or event_log.run != run or event_log.code != code.sha:
        raise LaunchError(
          f"{run.name} is running with other arguments or other code. python -m launch adopt {run.name} continues "
          f"it, python -m launch down {run.name} ends it. Or choose another name"
        )
      print_line(f"{run.name}: continues with attempt {event_log.state.attempt}")
    else:
      _check_name(run, event_log, engine_)
      watch.begin(code)
    if not args.detach:
      return watch_to_end(watch, run)
  return _detach(run)


def _check_name(run: Run, event_log: EventLog, engine_: states.Engine) -> None:
  """Raises LaunchError if machines of this name exist that the new attempts could not detect."""
  remaining = event_log.list_remaining()
  differing = [key for key in PLACE if remaining and getattr(run, key) != getattr(event_log.run, key)]
  if differing:
    raise LaunchError(
      f"{_format_names(run, remaining)} may still exist with another {differing[0]} "
      f"({getattr(event_log.run, differing[0])!r}). python -m launch down {run.name} deletes it"
    )
  resources, troubles = engine_.list_resources(run.zones)
  for location, why in troubles.items():
    print_line(f"{location} did not report the machines of {run.name}: {why}")
  for resource in resources:
    if resource.run == run.name and resource.owner == run.owner and resource.attempt not in remaining:
      raise LaunchError(
        f"{resource.name} exists in {resource.location} ({resource.detail}), and no event log here contains it. "
        f"python -m launch adopt {run.name} --workdir=… continues it. Or choose another name, or delete it: "
        f"{engine_.build_commands(resource).delete}"
      )


def confirm_run(event_log: EventLog, yes: bool = False) -> EventLog:
  """Returns an event log of a run that this machine may execute. Without a local copy, the user must confirm the run.

  Otherwise everybody who may write to the bucket could choose what this machine runs.

  Raises:
    LaunchError: the user does not confirm.
  """
  if not (run := event_log.unconfirmed):
    return event_log
  hidden = ("name", "module", "args", "limits", "workdir", "max_failures")
  values = {field.name: getattr(run, field.name) for field in dataclasses.fields(run) if field.name not in hidden}
  rows = {key: value for key, value in values.items() if value and value != getattr(Run, key, None)}
  rows |= {"code": (event_log.find_last_event("run") or {}).get("sha", ""), "workdir": run.workdir,
           "program": shlex.join([run.module, *run.args])}  # fmt: skip
  lines = [f"  {key.replace('_', ' '):<17}{_format_value(value)}" for key, value in rows.items()]
  print(f"{run.name}: this machine did not start the run that {run.folder} describes:", *lines, sep="\n", flush=True)
  if not yes and not _ask_user("continue with this run?"):
    command = f"python -m launch adopt {run.name} --workdir={shlex.quote(run.workdir)} --yes"
    raise LaunchError(f"{run.name}: not confirmed; {command} confirms the run above")
  event_log.confirm()
  return event_log


def _format_value(value: object) -> str:
  """Returns a value on one line: the items of a list, or each variable with its value."""
  if isinstance(value, dict):
    value = [f"{key}={text}" for key, text in value.items()]
  return " ".join((", ".join(value) if isinstance(value, (list, tuple)) else str(value)).split())


def _ask_user(question: str) -> bool:
  """Returns True if a user at the terminal answers a question with y."""
  return sys.stdin.isatty() and input(f"{question} [y/N] ").strip().lower() == "y"


def _format_names(run: Run, attempts: Sequence[int]) -> str:
  return ", ".join(map(run.get_attempt_name, attempts))


def adopt(args: argparse.Namespace) -> int:
  """Watches a run that has no watcher."""
  event_log = confirm_run(open_event_log(args.name, args.workdir), args.yes)
  with Watcher(event_log.run, event_log, force=args.force) as watch:
    if not event_log.open or event_log.state.stage == OVER:
      raise LaunchError(_explain_end(event_log))
    return watch_to_end(watch, event_log.run)


def restart(args: argparse.Namespace) -> int:
  """Restarts the programs, on the same machines or on others. Watches the run if it has no watcher."""
  event_log = confirm_run(open_event_log(args.name, args.workdir))
  run, state = event_log.run, event_log.state
  kept = state.stage == OVER and state.kept
  if not kept and (state.stage == OVER or not event_log.open):
    raise LaunchError(_explain_end(event_log))
  if not kept and state.stage != WATCHING:
    text = "has no machines now, and its watcher creates others"
    raise LaunchError(f"{run.name} {text}. python -m launch adopt {run.name} watches it")
  files = mailbox.Mailbox(open_storage(run.folder), state.attempt)
  tries = [
    state.try_,
    _read_try(files, state),
    *(report.try_ for report, _ in files.read_reports(run.workers).values()),
  ]
  order = mailbox.Order(max(tries) + (not args.fresh_vm), fresh=args.fresh_vm)
  with contextlib.ExitStack() as stack:
    try:
      watch = stack.enter_context(Watcher(run, event_log))
    except LeaseHeldError as error:  # the other watcher sees the order
      files.write_order(order)
      print_line(f"{run.name}: ordered. The run is watched by {error.holder}")
      return errors.DONE
    if kept:
      watch.resume(order.try_)
    files.write_order(order)
    return watch_to_end(watch, run)


def _read_try(files: mailbox.Mailbox, state: State) -> int:
  """Returns the number of the try that was ordered. The next order replaces a damaged file."""
  try:
    return files.read_order().try_
  except mailbox.FormatError:
    return state.try_


def stop(args: argparse.Namespace) -> int:
  """Lets the programs of a run save and end, and keeps its machines."""
  event_log = open_event_log(args.name, args.workdir)
  run, state = event_log.run, event_log.state
  attempt = state.attempt
  if not event_log.open or event_log.state.stage == OVER:
    raise LaunchError(_explain_end(event_log))
  if event_log.state.stage != WATCHING:
    raise LaunchError(f"{run.name} has no machines now. python -m launch down {run.name} ends the run")
  files = mailbox.Mailbox(open_storage(run.folder), attempt)
  files.write_order(mailbox.Order(max(1, _read_try(files, state)), stop=True))
  deadline, active = time.monotonic() + 3 * run.limits.beat + run.limits.grace, []
  while time.monotonic() < deadline:
    reports = files.read_reports(run.workers)
    active = [w for w, (report, _) in reports.items() if report.phase in (mailbox.RUNNING, mailbox.INSTALLING)]
    if reports and not active:
      codes = ", ".join(f"w{w:02d}: {report.exit}" for w, (report, _) in reports.items())
      cost = " and continue to cost" * run.billed
      kept = f"its machines are kept{cost}: python -m launch restart {run.name}, or down"
      fate = "it keeps no machines" if run.restarts_itself else kept
      print_line(f"{run.get_attempt_name(attempt)} is stopped ({codes}); {fate}")
      return errors.DONE
    time.sleep(min(STOP_POLL, run.limits.beat))
  worker = active[0] if active else 0
  raise LaunchError(f"w{worker:02d} did not stop within {run.limits.grace:g} s. python -m launch down ends it")


def down(args: argparse.Namespace) -> int:
  """Deletes all machines of a run, and verifies the deletion. Returns BILLING if it is not confirmed."""
  event_log = confirm_run(open_event_log(args.name, args.workdir), args.yes)
  run = event_log.run
  engine_ = make_engine(run)
  attempts = _find_attempts(engine_, run, event_log)
  if attempts and not args.yes and not _ask_user(f"delete {_format_names(run, attempts)}? Unsaved results are lost."):
    raise LaunchError(f"{_format_names(run, attempts)}: not deleted. Add --yes to delete without a question")
  lease = make_lease(run)
  try:
    lease.take(force=True)  # otherwise the watcher would create the next attempt
    event_log.read()
    silent = event_log.silent
  except (UnknownError, LaunchError) as error:
    silent = str(error)
  if silent and not args.force:
    return _refuse_down(engine_, run, attempts, silent)
  if silent:
    print_line(f"{run.name}: its watcher cannot be stopped: {silent}; the known machines are deleted anyway")

  def renew() -> None:
    if not silent and not lease.renew():
      raise UnknownError("the run's directory does not answer, and another process may have taken over")

  def wait(seconds: float) -> None:
    if not silent:
      lease.renew()
    time.sleep(seconds)

  last = _last_state(event_log)
  if last:
    event_log.take_over()
  attempts = sorted({*attempts, *event_log.list_remaining()})
  was_open = event_log.open
  remaining = removal.delete(engine_, run, attempts, event_log, wait, renew)
  clean = removal.delete_strays(engine_, run, event_log, remaining, wait, renew) and not remaining and not silent
  if attempts or event_log.open:  # otherwise the earlier end stays the last event
    _record_end(event_log, last, was_open, remaining, clean)
  with contextlib.suppress(UnknownError, LaunchError):
    lease.give_back()
  for attempt in remaining:
    print_line(removal.advise(engine_, run, attempt))
  if silent:
    print_line(
      f"{run.name}: its watcher may create the next attempt, because the run's directory does not record the end. End "
      f"the watcher by Ctrl-C, or fix the problem above. Then run python -m launch down {run.name} once more"
    )
  if not clean:
    return errors.BILLING
  print_line(f"{run.name}: all its machines are deleted")
  return errors.DONE


def _last_state(event_log: EventLog) -> State | None:
  """Returns the state of an event log. If another version wrote the last line, prints a message and returns None."""
  try:
    return event_log.state
  except LaunchError as error:
    print_line(f"{error}; the machines of its events are deleted")
    return None


def _record_end(event_log: EventLog, last: State | None, was_open: bool, remaining: Sequence[int], clean: bool) -> None:
  """Records the end of a run. Keeps an earlier end, unless it was detached or unconfirmed."""
  code, text = 0, "deleted by down"
  if last and last.end and not was_open and last.end[0] not in (errors.DETACHED, errors.BILLING):
    code, text = last.end
  number = last.attempt if last else max(event_log.list_attempts(), default=0)
  used = last.used if last else 0.0
  state = State(number, stage=OVER, end=(code, text), unverified=tuple(remaining), used=used)
  event_log.append("end", state, code=code if clean else errors.BILLING, text=text)


def _refuse_down(engine_: states.Engine, run: Run, attempts: Sequence[int], why: str) -> int:
  """Lists the machines of a run with a silent directory. Another watcher may use them."""
  print_line(
    f"{run.name}: its directory does not answer ({why}), so another process may be watching it. Nothing is deleted"
  )
  for attempt in attempts:
    print_line(removal.advise(engine_, run, attempt))
  print_line(f"python -m launch down {run.name} --force deletes them anyway")
  return errors.BILLING


def _find_attempts(engine_: states.Engine, run: Run, event_log: EventLog) -> list[int]:
  """Returns the attempts that may exist according to the event log and the cloud."""
  found, troubles = removal.list_machines(engine_, run)
  for location, why in troubles.items():
    print_line(f"{location} did not answer ({why}); the attempts of the event log are deleted anyway")
  return sorted({*event_log.list_remaining(), *(each.attempt for each in found)})


def watch_to_end(watch: Watcher, run: Run) -> int:
  """Watches the run to its end. Ctrl-C ends only the watcher, and prints which machines continue.

  Args:
    watch: the open watcher of the run.
    run: the run, whose machines are listed if it continues.

  Returns:
    The exit code of the command.

  Raises:
    LeaseHeldError: another process watches the run.
  """
  ended = False
  try:
    code = watch.watch_to_end()
    ended = True
    return code
  except LeaseHeldError:
    ended = True
    raise
  except KeyboardInterrupt:
    watch.interrupted = True
    return errors.DETACHED
  finally:
    if not ended:
      errors.ignore_interruptions()  # a second one would cut off the line that names the machines
      _print_continuing(run)


def report_interruption(words: list[str]) -> int:
  """Prints the machines that may continue after a command was interrupted, and returns the exit code."""
  name = next((word for word in words[1:] if not word.startswith("-")), "")
  try:
    event_log = EventLog(name)
    if words[0] in ("run", "adopt", "restart", "down", "stop") and event_log.list_remaining():
      _print_continuing(event_log.run)
      return errors.DETACHED
  except (UnknownError, LaunchError):
    pass
  return errors.INTERRUPTED


def _print_continuing(run: Run) -> None:
  """Prints which machines continue without this process, and the commands that end them."""
  try:
    event_log = EventLog(run.name)
    names = _format_names(run, event_log.list_remaining()) or f"{run.name}, which has no machines now,"
    until = format_utc(event_log.state.expires) if event_log.state.expires else "its own limits"
  except (UnknownError, LaunchError):
    names, until = run.name, "its own limits"
  print_line(f"no longer watched: {names} continues, until {until} at the latest")
  print_line(f"  watch it: python -m launch adopt {run.name}\n  end it:   python -m launch down {run.name}")


def _detach(run: Run) -> int:
  """Watches from a process in the background."""
  log = get_log_directory() / f"{run.name}.log"
  with open(log, "ab") as file:
    words = [sys.executable, "-m", __package__, "adopt", run.name]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
  print_line(f"{run.name}: watched by process {process.pid}, which writes to {log}")
  return errors.DONE


def _explain_end(event_log: EventLog) -> str:
  """Returns a message about the end of a run, with the next commands."""
  run, state = event_log.run, event_log.state
  text = f"{run.name} has ended ({(state.end or ('', 'it was never started'))[1]})"
  if state.kept:
    restart_ = f"python -m launch restart {run.name} continues with its machines"
    return f"{text}. {restart_}, python -m launch down {run.name} deletes them"
  if remaining := event_log.list_remaining():
    return f"{text}, and {_format_names(run, remaining)} {run.left}. python -m launch down {run.name} deletes it"
  return f"{text}, and has no machines. The same command continues from its last checkpoint"
