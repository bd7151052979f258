"""The verbs that show or collect machines: `ls` and `gc` for all runs, `status` for one run."""

import argparse
import collections
import contextlib
import dataclasses
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import commands, errors, mailbox, removal, spec, states
from .errors import LaunchError, UnknownError, format_utc, join_lines, print_line
from .event_log import EventLog, list_runs
from .mailbox import LeaseHeldError
from .removal import ELSEWHERE, RunFacts
from .spec import Run
from .states import DELETING, IDLE, OVER, WATCHING, State, make_engine
from .storage import open_storage
from .watch import make_lease

# Descriptions of the stages, for the user.
STAGES = {
  IDLE: "before its next attempt",
  WATCHING: "running",
  DELETING: "its machines are being deleted",
  OVER: "ended",
}


@dataclasses.dataclass(frozen=True)
class MachineRow:
  """A machine in the cloud, or in an event log of this machine.

  Args:
    name, owner, kind, location, state, detail: as in states.Resource.
    hours: age in hours.
    expires: time of its latest end.
    chip_hours: chip-hours of all attempts of its run, or -1 if unknown.
    step: step of the slowest worker, or -1 if unknown.
    beat: seconds since the last report; -1 without a report.
    flag: the reason why it may be deleted, or ELSEWHERE, or "".
    dated: the age is by the service's time, not by this machine's clock.
  """

  name: str
  owner: str
  kind: str
  location: str
  state: str
  hours: float
  expires: str
  chip_hours: float
  step: int
  beat: float
  flag: str
  detail: str
  dated: bool = False


def ls(args: argparse.Namespace) -> int:
  """Prints all machines with our labels and the unfinished runs of this machine. --all includes ended runs.

  Returns UNKNOWN if a zone does not answer.
  """
  found, troubles, unasked, others = _find_machines(args, args.all)
  rows = [row for row, _, _ in found]
  if args.json:
    print(json.dumps({"resources": [dataclasses.asdict(row) for row in rows], "unknown": troubles}, indent=1))
  else:
    if rows:
      _print_table(rows)
    else:
      kind, answered = "runs" if args.all else "unfinished runs", " in the locations that answered" * bool(troubles)
      print(f"no machines{' of yours' * bool(others)} and no {kind}{answered}")
    _print_omissions(troubles, unasked, others)
  return errors.UNKNOWN if troubles else errors.DONE


def gc(args: argparse.Namespace) -> int:
  """Deletes machines that are expired, dead or abandoned. Only lists them without --yes.

  Returns BILLING if a deletion was not confirmed.
  """
  oldest = spec.parse_duration(args.older_than) / 3600 if args.older_than else 0.0
  found, troubles, unasked, others = _find_machines(args)
  spared = ("",) if args.force else ("", ELSEWHERE)
  mine = [each for each in found if each[2] and (each[0].owner == spec.get_user_label() or args.all_users)]
  chosen = [each for each in mine if each[0].flag not in spared and each[0].hours >= oldest]
  if undated := [row.name for row, _, _ in chosen if oldest and not row.dated]:
    print(f"{', '.join(undated)}: not deleted, because only this machine's clock shows an age; omit --older-than")
    chosen = [each for each in chosen if each[0].dated]
  if chosen:
    _print_table([row for row, _, _ in chosen])
  _print_omissions(troubles, unasked, others)
  if kept := [row.name for row, _, resource in found if resource and row.flag == ELSEWHERE and not args.force]:
    print(
      f"{', '.join(kept)}: the directory of the run does not answer here, or the labels contradict the name; "
      "--force deletes them anyway"
    )
  if not chosen or not args.yes:
    scope = "in the locations that answered, " * bool(troubles) + "of this machine, " * bool(unasked)
    print("nothing is deleted without --yes" if chosen else f"{scope}no machine is to be deleted")
    return errors.UNKNOWN if troubles else errors.DONE
  undeleted = [row for row, run, resource in chosen if resource and not _collect_machine(run, resource, args.force)]
  return errors.BILLING if undeleted else errors.UNKNOWN if troubles else errors.DONE


def _collect_machine(run: Run, resource: states.Resource, force: bool) -> bool:
  """Deletes a machine if the deletion is still allowed. Returns False if the machine may still exist."""
  if force:
    return _is_deleted(run, resource)
  try:
    lease = make_lease(run)
    lease.take()  # so that no watcher creates an attempt meanwhile
  except LeaseHeldError as error:
    print_line(f"{resource.name}: not deleted: {error}")
    return True
  except (UnknownError, LaunchError) as error:
    print_line(f"{resource.name}: not deleted: the directory of its run does not answer ({error})")
    return False

  def confirm_deletion() -> None:
    if not lease.renew():
      raise UnknownError("the lease in the run's directory may have been lost")
    facts = _read_facts(run.name, lease)
    if removal.find_removal_reason(resource, facts) in ("", ELSEWHERE):
      raise LeaseHeldError("another", f" again: {resource.name} is not deleted")

  try:
    return _is_deleted(run, resource, confirm_deletion)
  except LeaseHeldError as error:
    print_line(f"{resource.name}: {error}")
    return True
  finally:
    with contextlib.suppress(UnknownError, LaunchError):
      lease.give_back()


def _is_deleted(run: Run, resource: states.Resource, before: Callable[[], None] = removal.do_nothing) -> bool:
  """Deletes a machine, and returns whether its deletion was seen."""
  engine_ = make_engine(run)
  for target in removal.delete(engine_, run, [resource], before=before):
    print_line(removal.advise(engine_, run, target))
    return False
  return True


def _read_facts(name: str, mine: mailbox.Lease | None = None) -> RunFacts | None:
  """Returns the facts in the directory of a run, or None if it does not answer.

  Args:
    name: name of the run.
    mine: the lease if this process holds it.
  """
  try:
    own = EventLog(name)
    store = open_storage(own.run.folder)
    event_log = EventLog(name, store)
    if event_log.silent:
      return None
    watched = mine is None and bool(make_lease(own.run).describe_holder())
    now = store.clock.now() if store.clock.known or own.run.backend == "local" else 0.0
    settled = not event_log.get_settling_seconds()
    return RunFacts(event_log.state, event_log.open, watched, now, settled)
  except (UnknownError, LaunchError):
    return None


def _print_omissions(troubles: Mapping[str, str], unasked: bool, others: Mapping[str, int]) -> None:
  for location, why in troubles.items():
    print(f"{location}: no answer, so its machines are unknown: {why}")
  if others:
    owners = ", ".join(f"{count} of {name or 'an unknown owner'}" for name, count in sorted(others.items()))
    print(f"machines of other owners exist ({owners}): --all-users shows them; you are {spec.get_user_label()}")
  if unasked:
    print("no cloud service was queried. Add --project=PROJECT for Cloud TPU, or --cluster=CONTEXT for GKE")


def status(args: argparse.Namespace) -> int:
  """Prints attempts, workers and progress of a run."""
  while True:
    event_log = commands.open_event_log(args.name, args.workdir)
    run, state = event_log.run, event_log.state
    reports: mailbox.Reports = {}
    try:
      if state.attempt:
        reports = mailbox.Mailbox(open_storage(run.folder), state.attempt).read_reports(run.workers)
    except (UnknownError, LaunchError) as error:
      print(f"reports of the workers: {error}")
    if args.json:
      workers = {w: dataclasses.asdict(report) | {"age": age} for w, (report, age) in reports.items()}
      values = {"run": json.loads(run.dumps()), "state": dataclasses.asdict(state), "workers": workers}
      print(json.dumps(values | {"watcher": _describe_watcher(run) if event_log.open else ""}))
    else:
      _print_status(event_log, run, state, reports)
    if not args.watch:
      return errors.DONE
    time.sleep(run.limits.poll)
    print()


def _print_status(event_log: EventLog, run: Run, state: State, reports: mailbox.Reports) -> None:
  end = event_log.find_last_event("end")
  over = f"ended with {end['code']}: {join_lines(end['text'])}" if end and not event_log.open else STAGES[state.stage]
  print(f"{run.name}  {run.backend} {run.tpu or run.workers}  {over}")
  print(f"  {join_lines(shlex.join(['python', '-m', run.module, *run.args]))}")
  if event_log.unconfirmed:
    print(
      f"  the run in its directory differs from the run that this machine started: python -m launch adopt {run.name} "
      "shows it"
    )
  spent = state.compute_machine_seconds(event_log.now())
  if state.attempt and run.billed:
    chips = compute_chip_hours(run, state, event_log.now())
    cost = f", {chips * run.price:,.2f} at {run.price:g} per chip-hour" if run.price and chips >= 0 else ""
    text = f"{spent / 3600:,.2f} hours of machines, {chips:,.2f} chip-hours{cost}"
    live = state.stage in (WATCHING, DELETING) or state.kept
    print(f"  {text}{f'; {run.get_attempt_name(state.attempt)} ends by {format_utc(state.expires)}' * live}")
  if event_log.open:
    who = _describe_watcher(run)
    print(f"  watched by {who}" if who else f"  it has no watcher; continue with: python -m launch adopt {run.name}")
  for event in event_log.events:
    if event["event"] not in ("run", "created", "refused", "progress"):
      when = time.strftime("%m-%d %H:%M:%S", time.gmtime(event["time"]))
      text = join_lines(event.get("text") or event.get("location") or "")
      print(f"  {when}  a{event['attempt']} try {event['try']}  {event['event']:<10} {text[:90]}")
  for worker, (report, age) in sorted(reports.items()):
    step = f"step {report.step}" if report.step >= 0 else ""
    code = f"exit {report.exit}" if report.exit is not None else ""
    words = " ".join(filter(None, [report.phase, code, step, report.doing, report.detail]))
    print(f"  w{worker:02d}  {report.host:<20} {age:5.0f} s ago  {words}")


def _describe_watcher(run: Run) -> str:
  """Returns a description of the watcher of a run, or ""."""
  try:
    return make_lease(run).describe_holder()
  except (UnknownError, LaunchError) as error:
    return f"an unknown process: {error}"


def _find_machines(
  args: argparse.Namespace, over: bool = False
) -> tuple[list[tuple[MachineRow, Run, states.Resource | None]], dict[str, str], bool, collections.Counter[str]]:
  """Finds the machines of the cloud and of the event logs.

  Args:
    args: the flags.
    over: also include runs that have ended.

  Returns:
    [(row, run, resource or None)], {location: why it did not answer}, True if no cloud was asked, and {owner: number
    of machines} of other owners.
  """
  event_logs = {name: event_log for name in list_runs() if (event_log := _read_event_log(name)) and event_log.events}
  runs = {name: run for name, event_log in event_logs.items() if (run := _read_run(event_log))}
  facts = {name: _read_facts(name) for name in runs}
  found: dict[Any, tuple[MachineRow, Run, states.Resource | None]] = {}
  troubles, seen, others = {}, set(), collections.Counter()
  probes = _make_probes(args, runs.values())
  for probe in probes:
    try:
      resources, silent = make_engine(probe).list_resources(args.zones or ())
    except (UnknownError, LaunchError) as error:
      resources, silent = [], {f"{probe.backend} {probe.project or probe.cluster}".strip(): str(error)}
    troubles |= silent
    for resource in resources:
      run = runs.get(resource.run, probe)
      known = resource.run in runs and _has_same_location(run, probe) and run.mark == resource.mark
      if not known and resource.owner != spec.get_user_label() and not args.all_users:
        others[resource.owner] += 1
        continue
      if not known:
        run = dataclasses.replace(probe, name=resource.run or "unknown")
      if run.backend == "qr":
        run = dataclasses.replace(run, zones=(resource.location,))
      key = resource.location, resource.name, resource.mark  # two runs may share a host
      if known or key not in found:
        found[key] = (_make_row(resource, facts[resource.run] if known else None, run, known), run, resource)
      if known:
        seen.add((resource.run, resource.attempt))
  rows = list(found.values())
  for name, run in runs.items():
    remaining = event_logs[name].list_remaining()
    unlisted = [attempt for attempt in remaining if (name, attempt) not in seen]
    if not remaining and (over or event_logs[name].open):
      unlisted = [0]
    rows += [(_make_unlisted_row(event_logs[name], run, attempt), run, None) for attempt in unlisted]
  return rows, troubles, not any(probe.backend in ("qr", "gke") for probe in probes), others


def _has_same_location(run: Run, probe: Run) -> bool:
  """Returns True if the machines of two runs are in the same project, cluster or hosts."""
  keys = ("backend", "project", "cluster", "hosts")
  return all(getattr(run, key) == getattr(probe, key) for key in keys)


def _make_probes(args: argparse.Namespace, runs: Iterable[Run]) -> Iterable[Run]:
  """Returns a run for each location to ask, from the flags and from all event logs."""
  probes: dict[tuple[Any, ...], Run] = {}
  for run in runs:
    probes.setdefault((run.backend, run.project, run.cluster, run.namespace, run.hosts), run)
  blank: dict[str, Any] = dict(name="ls", module="none", args=(), workdir="gs://none/none")
  if args.project and not any(key[:2] == ("qr", args.project) for key in probes):
    probe = Run(backend="qr", project=args.project, tpu="v3-8", zones=args.zones or (), **blank)
    probes["qr", args.project] = spec.check_and_complete(probe)
  if args.cluster and not any(key[2] == args.cluster for key in probes):
    probes["gke", args.cluster] = Run(backend="gke", cluster=args.cluster, namespace=args.namespace, **blank)
  if args.zones and not any(probe.backend == "qr" for probe in probes.values()):
    raise LaunchError("--zone: the project is missing. Add --project")
  return probes.values()


def _make_row(resource: states.Resource, facts: RunFacts | None, run: Run, known: bool | None) -> MachineRow:
  now = facts.now if facts and facts.now else time.time()
  flag = removal.find_removal_reason(resource, facts)
  step, beat = _find_step(run, resource.attempt) if known else (-1, -1.0)
  hours = (now - resource.created) / 3600 if resource.created else 0.0
  expires, chips = resource.expires, -1.0
  if facts:
    chips = compute_chip_hours(run, facts.state, now)
    if facts.state.attempt == resource.attempt and facts.state.ready:  # then the end is known exactly
      expires = int(facts.state.expires)
  dated = bool(facts and facts.now)
  return MachineRow(resource.name, resource.owner, resource.kind, resource.location, resource.state, round(hours, 2),
             format_utc(expires) if expires else "", chips, step, beat, flag, resource.detail, dated)  # fmt: skip


def compute_chip_hours(run: Run, state: State, now: float) -> float:
  """Returns the chip-hours of all attempts of a run; -1 if its chips are not known."""
  return round(state.compute_machine_seconds(now) / 3600 * run.chips, 2) if run.chips else -1.0


def _make_unlisted_row(event_log: EventLog, run: Run, attempt: int) -> MachineRow:
  """Returns the row of an attempt that the cloud does not list. Attempt 0 stands for a run without machines."""
  intent: dict[str, Any] = next((e for e in event_log.events if e["event"] == "intent" and e["attempt"] == attempt), {})
  now = event_log.now()
  hours = round((now - intent.get("time", now)) / 3600, 2)
  word, chips, expires = "not listed" if attempt else "no machines", -1.0, ""
  try:
    state = event_log.state
    chips = compute_chip_hours(run, state, now)
    if attempt and attempt == state.attempt and state.expires:
      expires = format_utc(state.expires)
    if not attempt and not event_log.open and state.end:
      word = f"ended with {state.end[0]}"
  except LaunchError as error:
    print(error, file=sys.stderr)
    word += ", event log not readable"
  name = run.get_attempt_name(attempt) if attempt else run.name
  return MachineRow(name, run.owner, run.tpu, intent.get("location", ""), word, hours, expires, chips, -1, -1.0, "", "")


def _find_step(run: Run, attempt: int) -> tuple[int, float]:
  """Returns (the step of the slowest worker, the age of the oldest report); -1 if unknown."""
  try:
    reports = mailbox.Mailbox(open_storage(run.folder), attempt).read_reports(run.workers)
  except (UnknownError, LaunchError):
    return -1, -1.0
  if not reports:
    return -1, -1.0
  return min(report.step for report, _ in reports.values()), max(age for _, age in reports.values())


def _print_table(rows: Sequence[MachineRow]) -> None:
  heads = ("name", "owner", "kind", "location", "state", "hours", "expires", "chip_hours", "step", "beat", "flag")
  cells = [heads] + [
    tuple("" if value in (-1, -1.0) else f"{value:.0f} s" if key == "beat" else str(value) for key, value in pairs)
    for pairs in ([(key, getattr(row, key)) for key in heads] for row in rows)
  ]
  widths = [max(len(cell[i]) for cell in cells) for i in range(len(heads))]
  for line in cells:
    print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _read_event_log(name: str) -> EventLog | None:
  """Returns the newest event log of a run. Prints a message and returns None if it cannot be read."""
  try:
    return commands.open_event_log(name)
  except (UnknownError, LaunchError) as error:
    print(error, file=sys.stderr)
    return None


def _read_run(event_log: EventLog) -> Run | None:
  try:
    return event_log.run
  except LaunchError as error:
    print(error, file=sys.stderr)
    return None
