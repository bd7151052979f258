"""The verbs that change a run: start it, watch it, start its programs again, stop them, delete what was made."""

import contextlib
import dataclasses
import pathlib
import subprocess
import sys
import time

from launch import board, bundle, check, engine, errors, journal, kubectl, spec
from launch.backends import engine as engine_of
from launch.errors import LaunchError, UnknownError
from launch.journal import Journal
from launch.lease import Held, Lease
from launch.spec import Run
from launch.state import OVER, WATCHING, State
from launch.storage import storage
from launch.watch import BEATS, Watch, say


def opened(name: str, workdir: str = "") -> Journal:
  """The journal of a run that was started here, or whose workdir is named. LaunchError where there is none."""
  if workdir:
    return Journal(name, storage(f"{workdir.rstrip('/')}/launch"))
  found = Journal(name)
  return Journal(name, storage(found.run.folder))


def run(args, run: Run) -> int:
  """Checks a run, makes it and watches it to its end; goes on with one of that name."""
  run = placed(run)
  engine_ = engine_of(run)
  if args.dry_run:
    print(engine_.request(1, int(time.time() + run.max_hours * 3600)))
    return errors.DONE
  code = bundle.make(pathlib.Path.cwd())
  findings = [] if args.force else check.check(run, args.price, args.host_rate)
  check.show(findings)
  if any(finding.refuses for finding in findings):
    raise LaunchError("not started, as of what is said above; --force starts it all the same")
  book = Journal(run.name, storage(run.folder))
  with Watch(run, book, engine_) as watch:
    if book.open and book.state.stage != OVER:
      if book.run != run or (book.last("run") or {}).get("sha") != code.sha:
        raise LaunchError(
          f"{run.name} is under way with other arguments or other code; `launch adopt {run.name}` goes on with those, "
          f"`launch down {run.name}` ends it, or take another name"
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
        f"launch down {run.name} looks, and deletes it"
      )
  resources, troubles = engine_.inventory(run.zones)
  for location, why in troubles.items():
    say(f"{location} could not be asked whether anything of {run.name} is there: {why}")
  for resource in resources:
    if resource.run == run.name and resource.owner == run.owner and resource.attempt not in remaining:
      raise LaunchError(
        f"{resource.name} is there in {resource.location} ({resource.detail}), and no journal here knows of it: launch "
        f"adopt {run.name} --workdir=… goes on with it; or take another name, or delete it: "
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
      raise LaunchError(f"{run.name} has ended ({_end(book)}); `launch run` or `launch restart` starts it again")
    return _watched(watch, run)


def restart(args) -> int:
  """Starts the programs again, on the same machines or others; watches where nobody does."""
  book = opened(args.name, args.workdir)
  run, state = book.run, book.state
  kept = state.stage == OVER and state.kept
  if not kept and state.stage != WATCHING:
    raise LaunchError(f"{run.name} has no machines ({_end(book) or state.stage}); `launch run` starts it again")
  files = board.Board(storage(run.folder), state.attempt)
  tries = [state.try_, files.order().try_, *(report.try_ for report, _ in files.reports(run.workers).values())]
  order = board.Order(max(tries) + (not args.fresh_vm), fresh=args.fresh_vm)
  with contextlib.ExitStack() as stack:
    try:
      watch = stack.enter_context(Watch(run, book))
    except Held as error:  # the one who watches sees the order
      files.give(order)
      say(f"{run.name}: ordered; {error}")
      return errors.DONE
    if kept:
      watch.resume(order.try_)
    files.give(order)
    return _watched(watch, run)


def stop(args) -> int:
  """Lets the programs of a run save and end, and keeps its machines."""
  book = opened(args.name, args.workdir)
  run, attempt = book.run, book.state.attempt
  if book.state.stage != WATCHING:
    raise LaunchError(
      f"{run.name} has no machines that run ({_end(book) or book.state.stage}); see launch status {run.name}"
    )
  files = board.Board(storage(run.folder), attempt)
  files.give(board.Order(max(1, files.order().try_), stop=True))
  deadline = time.monotonic() + 3 * run.limits.beat + run.limits.grace
  while time.monotonic() < deadline:
    reports = files.reports(run.workers)
    going = [w for w, (report, _) in reports.items() if report.phase in (board.RUNNING, board.INSTALLING)]
    if reports and not going:
      codes = ", ".join(f"w{w:02d}: {report.exit}" for w, (report, _) in reports.items())
      costs = (
        "it keeps no machines" if engine_of(run).restarts else f"its machines go on to cost: launch down {run.name}"
      )
      say(f"{run.attempt(attempt)} is stopped ({codes}); {costs}")
      return errors.DONE
    time.sleep(min(2.0, run.limits.beat))
  raise LaunchError(
    f"w{going[0] if going else 0:02d} has not stopped within {run.limits.grace:g} s; launch down ends it"
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
  lease = Lease(storage(run.folder), BEATS * run.limits.poll)
  with contextlib.suppress(UnknownError, LaunchError):  # a bucket that is away shall not keep machines alive
    lease.take(force=True)  # or the one who watches would make the next attempt
    book.read()
  remaining = deleted(engine_, run, sorted({*attempts, *book.remaining()}), book)
  state = State(book.state.attempt, stage=OVER, end=(0, "deleted"), unverified=tuple(remaining))
  book.append("end", state, code=errors.BILLING if remaining else 0, text="deleted by launch down")
  with contextlib.suppress(UnknownError, LaunchError):
    lease.give_back()
  if remaining:
    commands = "\n".join(f"  {engine_.deletion(attempt)}" for attempt in remaining)
    say(f"{run.name}: may still be billed, as its deletion was not seen within {run.limits.delete:.0f} s:\n{commands}")
    return errors.BILLING
  say(f"{run.name}: nothing is left")
  return errors.DONE


def deleted(engine_: engine.Engine, run: Run, attempts: list[int], book: Journal) -> list[int]:
  """Deletes attempts until they are seen to be gone; those that are not within `limits.delete`."""
  remaining, deadline, pause = list(attempts), time.monotonic() + run.limits.delete, 0.5
  while remaining and time.monotonic() < deadline:
    for attempt in list(remaining):
      try:
        found = engine_.look(attempt)
        if found.state == engine.ABSENT and book.settled(attempt):
          remaining.remove(attempt)
          book.append("deleted", State(attempt))
        elif found.state not in (engine.ABSENT, engine.DELETING):
          engine_.delete(attempt)
      except (UnknownError, LaunchError) as error:
        say(f"{run.attempt(attempt)}: {error}")
    if remaining:
      time.sleep(min(pause, run.limits.poll, max(0.0, deadline - time.monotonic())))
      pause = min(2 * pause, 15.0)
  return remaining


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
  say(f"left alone: {name} goes on ({state.look or 'not yet made'}), by {_utc(state.expires)} at the latest")
  say(f"  go on watching: python -m launch adopt {run.name}\n  end it:         python -m launch down {run.name}")


def _detached(run):
  """Goes on in the background."""
  log = journal.folder() / f"{run.name}.log"
  with open(log, "ab") as file:
    words = [sys.executable, "-m", "launch", "adopt", run.name]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
  say(f"{run.name}: watched by process {process.pid}, which writes to {log}")
  return errors.DONE


def _end(book):
  event = book.last("end")
  return event["text"] if event else ""


def _utc(seconds):
  return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)) if seconds else "its own limits"
