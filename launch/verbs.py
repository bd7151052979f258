"""The verbs that change a run: start it, watch it, start its programs again, stop them, delete what was made."""

import contextlib
import dataclasses
import os
import pathlib
import subprocess
import sys
import time

from launch import board, bundle, check, errors, journal, kubectl, removal, spec
from launch.backends import engine as engine_of
from launch.errors import LaunchError, UnknownError
from launch.journal import Journal
from launch.lease import Held, Lease
from launch.screen import say, utc
from launch.spec import Run
from launch.state import OVER, WATCHING, State
from launch.storage import storage
from launch.watch import BEATS, Watch


def opened(name: str, workdir: str = "") -> Journal:
  """The journal of a run that was started here, or whose workdir is named. LaunchError where there is none."""
  if not workdir:
    return Journal(name, storage(Journal(name).run.folder))
  if "://" not in workdir:
    workdir = os.path.abspath(workdir)
  folder = f"{workdir.rstrip('/')}/launch"
  found = Journal(name, storage(folder))
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
  if refused := 0 if args.force else check.refusal(check.check(run, args.price, args.host_rate, code)):
    raise LaunchError("not started, as of what is refused above", refused)
  book = Journal(run.name, storage(run.folder))
  with Watch(run, book, engine_) as watch:
    if book.open and book.state.stage != OVER:
      if book.run != run or (book.last("run") or {}).get("sha") != code.sha:
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
    return spec.checked(dataclasses.replace(run, cluster=kubectl.context()))
  return run


def adopt(args) -> int:
  """Watches a run whose watcher is gone."""
  book = opened(args.name, args.workdir)
  run = book.run
  with Watch(run, book, force=args.force) as watch:
    if not book.open or book.state.stage == OVER:
      raise LaunchError(_over(book, run))
    return _watched(watch, run)


def restart(args) -> int:
  """Starts the programs again, on the same machines or others; watches where nobody does."""
  book = opened(args.name, args.workdir)
  run, state = book.run, book.state
  kept = state.stage == OVER and state.kept
  if not kept and (state.stage == OVER or not book.open):
    raise LaunchError(_over(book, run))
  if not kept and state.stage != WATCHING:
    text = "has no machines now, and makes others by itself while it is watched"
    raise LaunchError(f"{run.name} {text}: python -m launch adopt {run.name}")
  files = board.Board(storage(run.folder), state.attempt)
  tries = [state.try_, files.order().try_, *(report.try_ for report, _ in files.reports(run.workers).values())]
  order = board.Order(max(tries) + (not args.fresh_vm), fresh=args.fresh_vm)
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
  files = board.Board(storage(run.folder), attempt)
  files.give(board.Order(max(1, files.order().try_), stop=True))
  deadline = time.monotonic() + 3 * run.limits.beat + run.limits.grace
  while time.monotonic() < deadline:
    reports = files.reports(run.workers)
    going = [w for w, (report, _) in reports.items() if report.phase in (board.RUNNING, board.INSTALLING)]
    if reports and not going:
      codes = ", ".join(f"w{w:02d}: {report.exit}" for w, (report, _) in reports.items())
      kept = "it keeps no machines"
      if not engine_of(run).restarts:
        kept = f"its machines are kept{' and go on to cost' * run.billed}: python -m launch restart {run.name}, or down"
      say(f"{run.attempt(attempt)} is stopped ({codes}); {kept}")
      return errors.DONE
    time.sleep(min(2.0, run.limits.beat))
  raise LaunchError(
    f"w{going[0] if going else 0:02d} has not stopped within {run.limits.grace:g} s; python -m launch down ends it"
  )


def down(args) -> int:
  """Deletes all that was made for a run, and sees that it is gone. BILLING where that is not seen."""
  book = opened(args.name, args.workdir)
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
  except (UnknownError, LaunchError) as error:  # a bucket that is away shall not keep machines alive
    untold = error
    say(f"{run.name}: one who watches it cannot be told: {error}; what is known of is deleted all the same")

  def wait(seconds):
    if not untold:
      lease.renew()
    time.sleep(seconds)

  book.taken()
  past = (0, "deleted by down") if book.open or not book.state.end else book.state.end
  code, text = (0, "deleted by down") if past[0] in (errors.DETACHED, errors.BILLING) else past
  attempts = sorted({*attempts, *book.remaining()})
  remaining = removal.deleted(engine_, run, attempts, book, wait)
  clean = removal.swept(engine_, run, book, remaining, wait) and not remaining and not untold
  if attempts or book.open:  # or the end of the run stays what it was
    state = State(book.state.attempt, stage=OVER, end=(code, text), unverified=tuple(remaining))
    book.append("end", state, code=code if clean else errors.BILLING, text=text)
  with contextlib.suppress(UnknownError, LaunchError):
    lease.give_back()
  if remaining:
    commands = "\n".join(f"  {engine_.deletion(attempt)}" for attempt in remaining)
    say(f"{run.name} {run.left}: its deletion was not seen within {run.limits.delete:.0f} s:\n{commands}")
  if untold:
    say(
      f"{run.name}: who watches it may make the next attempt, as the run's folder does not say it is over; end that "
      f"one by Ctrl-C, or mend what is said above, then give python -m launch down {run.name} once more"
    )
  if not clean:
    return errors.BILLING
  say(f"{run.name}: nothing is left")
  return errors.DONE


def _alive(engine_, run, book):
  """Attempts that may be there: of the journal and of the cloud."""
  resources, troubles = engine_.inventory(run.zones)
  for location, why in troubles.items():
    say(f"{location} could not be asked ({why}); what the journal names is deleted all the same")
  return sorted(
    {*book.remaining(), *(r.attempt for r in resources if (r.run, r.owner, r.mark) == (run.name, run.owner, run.mark))}
  )


def _watched(watch, run):
  """Watches to the end; Ctrl-C leaves the run alone."""
  try:
    return watch.to_end()
  except KeyboardInterrupt:
    watch.leave()
    _left_alone(watch, run)
    return errors.DETACHED
  except (LaunchError, UnknownError) as error:
    if not isinstance(error, Held):
      _left_alone(watch, run)
    raise


def _left_alone(watch, run):
  """Says what goes on without this program, and how to end it."""
  state = watch.state
  name = run.attempt(state.attempt) if state.attempt else run.name
  until = utc(state.expires) if state.expires else "its own limits"
  say(f"left alone: {name} goes on ({state.look or 'not yet made'}), by {until} at the latest")
  say(f"  go on watching: python -m launch adopt {run.name}\n  end it:         python -m launch down {run.name}")


def _detached(run):
  """Goes on in the background."""
  log = journal.folder() / f"{run.name}.log"
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
