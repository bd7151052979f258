"""The verbs that change a run: start it, watch it, start its programs again, stop them, delete what was made."""

import contextlib
import dataclasses
import os
import pathlib
import shlex
import subprocess
import sys
import time

from launch import bundle, checks, errors, event_log, mailbox, manifests, removal, spec
from launch.backends import engine as engine_of
from launch.errors import LaunchError, UnknownError, say, utc
from launch.event_log import EventLog
from launch.mailbox import Held, Lease
from launch.spec import Run
from launch.states import OVER, WATCHING, State
from launch.storage import storage
from launch.watch import BEATS, Watch


def opened(name: str, workdir: str = "") -> EventLog:
  """The journal of a run that was started here, or whose workdir is named. LaunchError where there is none."""
  if not workdir:
    return EventLog(name, storage(EventLog(name).run.folder))
  if "://" not in workdir:
    workdir = os.path.abspath(workdir)
  folder = f"{workdir.rstrip('/')}/launch"
  found = EventLog(name, storage(folder))
  if not found.events:
    raise LaunchError(f"--workdir: there is no run {name} in {workdir}")
  if found.run.folder != folder:
    raise LaunchError(
      f"--workdir: {name} is here the run of {found.run.workdir}, and {workdir} has none of that name; leave it out"
    )
  return found


def run(args, run: Run) -> int:
  """Checks a run, makes it and watches it to its end; goes on with one of that name."""
  run = placed(run)
  engine_ = engine_of(run)
  if args.dry_run:
    print(engine_.request(1, int(time.time() + run.max_hours * 3600)))
    return errors.DONE
  say(f"{run.name}: bundling the code")  # which takes seconds where the disk is slow
  code = bundle.make(pathlib.Path.cwd())
  if refused := 0 if args.force else checks.refusal(checks.check(run, args.price, args.host_rate, code)):
    raise LaunchError("not started, as of what is refused above", refused)
  book = EventLog(run.name, storage(run.folder))
  with Watch(run, book, engine_) as watch:
    if book.open and book.state.stage != OVER:
      if book.unconfirmed or book.run != run or book.code != code.sha:
        raise LaunchError(
          f"{run.name} is under way with other arguments or other code; python -m launch adopt {run.name} goes on with "
          f"those, python -m launch down {run.name} ends it, or take another name"
        )
      say(f"{run.name}: goes on with attempt {book.state.attempt}")
    else:
      _free(run, book, engine_)
      watch.begin(code)
    if not args.detach:
      return _watched(watch, run)
  return _detached(run)


def _free(run, book, engine_):
  """LaunchError where something of that name is there that the new attempts would not look at."""
  if remaining := book.remaining():
    keys = ("backend", "project", "zones", "cluster", "namespace", "hosts", "workdir")
    differing = [key for key in keys if getattr(run, key) != getattr(book.run, key)]
    if differing:
      names = ", ".join(run.attempt(attempt) for attempt in remaining)
      raise LaunchError(
        f"{names} may still be there, with another {differing[0]} ({getattr(book.run, differing[0])!r}): "
        f"python -m launch down {run.name} looks, and deletes it"
      )
  resources, troubles = engine_.inventory(run.zones)
  for location, why in troubles.items():
    say(f"{location} could not be asked whether anything of {run.name} is there: {why}")
  for resource in resources:
    if resource.run == run.name and resource.owner == run.owner and resource.attempt not in remaining:
      raise LaunchError(
        f"{resource.name} is there in {resource.location} ({resource.detail}), and no journal here knows of it: "
        f"python -m launch adopt {run.name} --workdir=… goes on with it; or take another name, or delete it: "
        f"{engine_.deletion(resource.attempt)}"
      )


def placed(run: Run) -> Run:
  """The run with the cluster that kubectl uses by default, which may be another one tomorrow."""
  if run.backend == "gke" and not run.cluster:
    return spec.checked(dataclasses.replace(run, cluster=manifests.context()))
  return run


def confirmed(book: EventLog, yes: bool = False) -> EventLog:
  """Returns a journal whose run may be executed here; the user confirms a run that only its directory describes.

  Whoever may write to the bucket could otherwise choose what this machine runs. LaunchError if the user does not.
  """
  if not (run := book.unconfirmed):
    return book
  rows = {"backend": run.backend, "project": run.project, "zones": ", ".join(run.zones), "hosts": ", ".join(run.hosts),
          "cluster": run.cluster, "code": (book.last("run") or {}).get("sha", ""), "workdir": run.workdir,
          "python": run.python, "program": shlex.join([run.module, *run.args]),
          "variables": ", ".join(sorted({*run.env, *run.secrets}))}  # fmt: skip
  lines = [f"  {key:<10}{value}" for key, value in rows.items() if value]
  print(f"{run.name}: this machine did not start the run that {run.folder} describes:", *lines, sep="\n", flush=True)
  if not yes and not (sys.stdin.isatty() and input("continue with this run? [y/N] ").strip().lower() == "y"):
    command = f"python -m launch adopt {run.name} --workdir={shlex.quote(run.workdir)} --yes"
    raise LaunchError(f"{run.name}: not confirmed; {command} confirms the run above")
  book.confirm()
  return book


def adopt(args) -> int:
  """Watches a run whose watcher is gone."""
  book = confirmed(opened(args.name, args.workdir), args.yes)
  run = book.run
  with Watch(run, book, force=args.force) as watch:
    if not book.open or book.state.stage == OVER:
      raise LaunchError(_over(book, run))
    return _watched(watch, run)


def restart(args) -> int:
  """Starts the programs again, on the same machines or others; watches where nobody does."""
  book = confirmed(opened(args.name, args.workdir))
  run, state = book.run, book.state
  kept = state.stage == OVER and state.kept
  if not kept and (state.stage == OVER or not book.open):
    raise LaunchError(_over(book, run))
  if not kept and state.stage != WATCHING:
    text = "has no machines now, and makes others by itself while it is watched"
    raise LaunchError(f"{run.name} {text}: python -m launch adopt {run.name}")
  files = mailbox.Mailbox(storage(run.folder), state.attempt)
  tries = [state.try_, files.order().try_, *(report.try_ for report, _ in files.reports(run.workers).values())]
  order = mailbox.Order(max(tries) + (not args.fresh_vm), fresh=args.fresh_vm)
  with contextlib.ExitStack() as stack:
    try:
      watch = stack.enter_context(Watch(run, book))
    except Held as error:  # the one who watches sees the order
      files.give(order)
      say(f"{run.name}: ordered; it is watched by {error.holder}")
      return errors.DONE
    if kept:
      watch.resume(order.try_)
    files.give(order)
    return _watched(watch, run)


def stop(args) -> int:
  """Lets the programs of a run save and end, and keeps its machines."""
  book = opened(args.name, args.workdir)
  run, attempt = book.run, book.state.attempt
  if not book.open or book.state.stage == OVER:
    raise LaunchError(_over(book, run))
  if book.state.stage != WATCHING:
    raise LaunchError(f"{run.name} has no machines now that could stop; python -m launch down {run.name} ends it")
  files = mailbox.Mailbox(storage(run.folder), attempt)
  files.give(mailbox.Order(max(1, files.order().try_), stop=True))
  deadline = time.monotonic() + 3 * run.limits.beat + run.limits.grace
  while time.monotonic() < deadline:
    reports = files.reports(run.workers)
    going = [w for w, (report, _) in reports.items() if report.phase in (mailbox.RUNNING, mailbox.INSTALLING)]
    if reports and not going:
      codes = ", ".join(f"w{w:02d}: {report.exit}" for w, (report, _) in reports.items())
      kept = "it keeps no machines"
      if not run.restarts_itself:
        kept = f"its machines are kept{' and go on to cost' * run.billed}: python -m launch restart {run.name}, or down"
      say(f"{run.attempt(attempt)} is stopped ({codes}); {kept}")
      return errors.DONE
    time.sleep(min(2.0, run.limits.beat))
  raise LaunchError(
    f"w{going[0] if going else 0:02d} has not stopped within {run.limits.grace:g} s; python -m launch down ends it"
  )


def down(args) -> int:
  """Deletes all that was made for a run, and sees that it is gone. BILLING where that is not seen."""
  book = confirmed(opened(args.name, args.workdir), args.yes)
  run = book.run
  engine_ = engine_of(run)
  attempts = _alive(engine_, run, book)
  if attempts and not args.yes:
    names = ", ".join(run.attempt(attempt) for attempt in attempts)
    if not sys.stdin.isatty() or input(f"delete {names}? What is not saved is lost. [y/N] ").strip().lower() != "y":
      raise LaunchError(f"{names}: not deleted; --yes does not ask")
  lease, untold = Lease(storage(run.folder), BEATS * run.limits.poll), None
  try:
    lease.take(force=True)  # or the one who watches would make the next attempt
    book.read()
    untold = book.silent
  except (UnknownError, LaunchError) as error:
    untold = str(error)
  if untold and not args.force:
    return _elsewhere(engine_, run, attempts, untold)
  if untold:
    say(f"{run.name}: one who watches it cannot be told: {untold}; what is known of is deleted all the same")

  def before():
    """Another who has taken over decides from then on."""
    if not untold and not lease.renew():
      raise UnknownError("the run's directory gives no answer, and another may have taken over")

  def wait(seconds):
    if not untold:
      lease.renew()
    time.sleep(seconds)

  end = before_end(book)
  if end:
    book.take_over()
  past = (0, "deleted by down") if book.open or not (end and end.end) else end.end
  code, text = (0, "deleted by down") if past[0] in (errors.DETACHED, errors.BILLING) else past
  attempts = sorted({*attempts, *book.remaining()})
  remaining = removal.delete(engine_, run, attempts, book, wait, before)
  clean = removal.delete_strays(engine_, run, book, remaining, wait, before) and not remaining and not untold
  if attempts or book.open:  # or the end of the run stays what it was
    number = end.attempt if end else max(book.attempts(), default=0)
    used = {"used": end.used} if end else {}
    state = State(number, stage=OVER, end=(code, text), unverified=tuple(remaining), **used)
    book.append("end", state, code=code if clean else errors.BILLING, text=text)
  with contextlib.suppress(UnknownError, LaunchError):
    lease.give_back()
  if remaining:
    commands = "\n".join(f"  {engine_.deletion(attempt)}" for attempt in remaining)
    say(f"{run.name} {run.left}: its deletion was not seen within {run.limits.delete:.0f} s:\n{commands}")
  if untold:
    say(
      f"{run.name}: who watches it may make the next attempt, as the run's folder does not say it is over; end that "
      f"one by Ctrl-C, or fix what is reported above, then give python -m launch down {run.name} once more"
    )
  if not clean:
    return errors.BILLING
  say(f"{run.name}: nothing is left")
  return errors.DONE


def before_end(book: EventLog) -> State | None:
  """Returns the state that a journal's last line shows; None for a line of another version, which is reported."""
  try:
    return book.state
  except LaunchError as error:
    say(f"{error}; what its events name is deleted")
    return None


def _elsewhere(engine_, run, attempts, why):
  """Names the machines of a run whose directory gives no answer: another may need them."""
  say(f"{run.name}: its directory gives no answer ({why}), so another may be watching it: nothing is deleted")
  for attempt in attempts:
    say(f"{run.attempt(attempt)} {run.left}; delete it with\n  {engine_.deletion(attempt)}")
  say(f"python -m launch down {run.name} --force deletes all the same")
  return errors.BILLING


def _alive(engine_, run, book):
  """Attempts that may be there: of the journal and of the cloud."""
  try:
    resources, troubles = engine_.inventory(run.zones)
  except (UnknownError, LaunchError) as error:
    resources, troubles = (), {run.name: str(error)}
  for location, why in troubles.items():
    say(f"{location} could not be asked ({why}); what the journal names is deleted all the same")
  return sorted(
    {*book.remaining(), *(r.attempt for r in resources if (r.run, r.owner, r.mark) == (run.name, run.owner, run.mark))}
  )


def _watched(watch, run):
  """Watches to the end. An interruption leaves what a kill would leave, and names what goes on."""
  ended = False
  try:
    code = watch.to_end()
    ended = True
    return code
  except Held:
    ended = True
    raise
  except KeyboardInterrupt:
    return errors.DETACHED
  finally:
    if not ended:
      errors.ignore_interruptions()  # a second one would cut off the line that names the machines
      _left_alone(run)


def interrupted(words: list[str]) -> int:
  """Names the machines that may go on after a command was interrupted; its exit code."""
  name = next((word for word in words[1:2] if not word.startswith("-")), "")
  try:
    book = EventLog(name)
    if words[0] in ("run", "adopt", "restart", "down", "stop") and book.remaining():
      _left_alone(book.run)
      return errors.DETACHED
  except (UnknownError, LaunchError):
    pass
  return errors.INTERRUPTED


def _left_alone(run):
  """Names what goes on without this program, by what is written down, and how to end it."""
  try:
    book = EventLog(run.name)
    names = ", ".join(map(run.attempt, book.remaining())) or f"{run.name}, which has no machines yet,"
    until = utc(book.state.expires) if book.state.expires else "its own limits"
  except (UnknownError, LaunchError):
    names, until = run.name, "its own limits"
  say(f"left alone: {names} goes on, until {until} at the latest")
  say(f"  go on watching: python -m launch adopt {run.name}\n  end it:         python -m launch down {run.name}")


def _detached(run):
  """Goes on in the background."""
  log = event_log.folder() / f"{run.name}.log"
  with open(log, "ab") as file:
    words = [sys.executable, "-m", "launch", "adopt", run.name]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
  say(f"{run.name}: watched by process {process.pid}, which writes to {log}")
  return errors.DONE


def _over(book, run):
  """What to do with a run that is over."""
  text = f"{run.name} has ended ({(book.state.end or ('', 'nothing was asked for'))[1]})"
  if book.state.kept:
    goes_on = f"python -m launch restart {run.name} goes on with its machines"
    return f"{text}: {goes_on}, python -m launch down {run.name} deletes them"
  if remaining := book.remaining():
    names = ", ".join(run.attempt(attempt) for attempt in remaining)
    return f"{text}, and {names} {run.left}: python -m launch down {run.name} looks, and deletes it"
  return f"{text}, and has no machines: its command, given again, goes on from its last checkpoint"
