"""States of machines and runs, the interface of the engines, and the verdict on a try by the reports of its workers."""

import calendar
import dataclasses
import importlib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from .errors import GuardedObject, LaunchError, UnknownError, format_amount
from .mailbox import ENDED, EXITED, RUNNING, Order, Reports, WorkerReport
from .spec import Run

# States of the machines of an attempt. ABSENT needs an answer of the cloud that the machines do not exist. An unknown
# word of a cloud counts as STARTING, which has a time limit.
ABSENT = "absent"
QUEUED = "queued"  # waits for capacity, and is not billed
STARTING = "starting"
READY = "ready"  # all hosts exist and are healthy
REPAIRING = "repairing"  # may become ready by itself, such as a node in repair
LOST = "lost"  # preempted, suspended or terminated: never ready again
FAILED = "failed"  # refused, with the reason in `detail`; or a JobSet that used up its restarts
DONE = "done"  # a JobSet that succeeded
DELETING = "deleting"
GONE = (ABSENT, LOST, DELETING)  # the machines do not exist, or will not become ready
STATES = (ABSENT, QUEUED, STARTING, READY, REPAIRING, LOST, FAILED, DONE, DELETING)


@dataclasses.dataclass(frozen=True)
class MachineStatus:
  """The machines of an attempt at one time.

  Args:
    state: one of STATES.
    detail: the words of the cloud, for the user.
    code: for FAILED, the exit code of `launch`: NO_CAPACITY, DENIED or USAGE; 0 if the exit code of the program counts.
    hosts: number of hosts that exist.
    addresses: addresses of the hosts in their order, if the engine knows them.
    quota: the state is FAILED because a quota is used up.
  """

  state: str
  detail: str = ""
  code: int = 0
  hosts: int = 0
  addresses: tuple[str, ...] = ()
  quota: bool = False


@dataclasses.dataclass(frozen=True)
class Resource:
  """A machine, or a set of machines, in the cloud with our labels.

  Args:
    name: its name, such as vit-b16-a1.
    location: its zone, or its context and namespace.
    run, owner, attempt, expires: values of its labels; `expires` in seconds since the epoch, 0 without a label.
    state: one of STATES. detail: the word of the cloud.
    created: seconds since the epoch; 0 if unknown.
    kind: type of the slice, such as v3-32.
    mark: label of its run's directory, as in spec.Run.mark, or "" if unknown.
  """

  name: str
  location: str
  run: str
  owner: str
  attempt: int
  state: str
  detail: str = ""
  expires: int = 0
  created: float = 0.0
  kind: str = ""
  mark: str = ""

  @property
  def is_consistent(self) -> bool:
    """Returns whether the name agrees with the labels, which somebody may have changed."""
    return re.fullmatch(rf"{re.escape(self.run)}-a{self.attempt}(-\d+)?", self.name) is not None

  def has_labels_of(self, other: "Resource") -> bool:
    """Returns whether both belong to the same attempt of the same run."""
    keys = ("run", "owner", "attempt", "mark")
    return all(getattr(self, key) == getattr(other, key) for key in keys)


def make_resource(
  name: str, location: str, labels: Mapping[str, str], state: str, detail: str, created: str, kind: str
) -> Resource:
  """Returns a resource with our labels. Users may have changed the labels, so unreadable numbers become 0.

  Args:
    name, location, state, detail, kind: see Resource.
    labels: all labels of the resource.
    created: a time such as 2026-11-23T10:38:43.123456789Z.
  """
  numbers = [labels.get(f"vitjax-{key}") or "" for key in ("attempt", "expires")]
  attempt, expires = (int(text) if re.fullmatch(r"\d{1,12}", text, re.ASCII) else 0 for text in numbers)
  run, owner, mark = (labels.get(f"vitjax-{key}", "") for key in ("run", "owner", "folder"))
  second = re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", created)
  seconds = float(calendar.timegm(time.strptime(second[0], "%Y-%m-%dT%H:%M:%S"))) if second else 0.0
  return Resource(name, location, run, owner, attempt, state, detail, expires, seconds, kind, mark)


@dataclasses.dataclass(frozen=True)
class Commands:
  """The commands of an attempt, as text for a shell.

  Args:
    script: the commands that create, inspect and delete the attempt, and that open a shell on a worker.
    delete: a command with which a user deletes the attempt and verifies the deletion.
  """

  script: str
  delete: str


def has_labels(run: Run, attempt: int, name: str, labels: Mapping[str, str]) -> bool:
  """Returns whether an object with the name of an attempt belongs to it, by its labels.

  Raises:
    UnknownError: the labels are almost those of the attempt. Somebody may have changed them.
  """
  own = run.make_labels(attempt)
  if own.items() <= labels.items():
    return True
  folder = "vitjax-folder"
  if labels.get(folder) == own[folder] or (folder not in labels and own.items() & labels.items()):
    changed = ", ".join(f"{key}={labels.get(key, '')}" for key in own if labels.get(key) != own[key])
    raise UnknownError(f"{name} seems to belong to this run, but has other labels ({changed}). Restore or delete it")
  return False


class Engine(Protocol):
  """Creates, inspects and deletes the machines of a run. Every call has its own deadline and may be repeated.

  Raises:
    UnknownError: the cloud did not answer.
    LaunchError: the cloud refuses: DENIED for credentials, permissions and quota, NO_CAPACITY, or USAGE for an invalid
      argument.
  """

  def create(self, attempt: int, expires: int) -> None:
    """Requests the machines of an attempt. They delete themselves at `expires`, in seconds since the epoch.

    An existing attempt with the labels of this run is accepted, because an earlier answer may have been lost.
    """

  def look(self, attempt: int) -> MachineStatus:
    """Returns the state of an attempt."""

  def delete(self, target: int | Resource) -> None:
    """Requests the deletion of an attempt, or of a listed resource if its labels are unchanged.

    A target that is absent or in deletion is accepted. `look` or `list_resources` confirms the end of the deletion.
    """

  def list_resources(self, zones: Sequence[str]) -> tuple[list[Resource], dict[str, str]]:
    """Returns (resources of all runs with our labels, {location: why it did not answer})."""

  def build_shell_command(self, attempt: int, worker: int, words: Sequence[str]) -> list[str]:
    """Returns the argument list of a command that runs `words` on a worker, or opens a shell without words."""

  def build_commands(self, target: int | Resource, expires: int = 0) -> Commands:
    """Returns the commands of an attempt without executing them. See `create` for the arguments.

    For a listed resource, only the command that deletes it is returned.
    """


def make_engine(run: Run) -> Engine:
  """Returns the engine of a run's backend. The module of a backend contains its class `Engine`."""
  module = importlib.import_module(f"{__package__}.{'hosts' if run.backend == 'local' else run.backend}")
  return cast(Engine, GuardedObject(module.Engine(run), run.backend))


# Stages of a run. In IDLE no attempt is alive. In DELETING the last attempt is being deleted. OVER is the end.
IDLE, WATCHING, OVER = "idle", "watching", "over"


@dataclasses.dataclass(frozen=True)
class State:
  """The state of a run, which each line of the event log contains. Times are in seconds since the epoch.

  Args:
    attempt: number of the current attempt, or 0 before the first attempt. try_: number of its current try.
    expires: time at which the attempt ends itself; before it is ready, the latest possible time.
    stage: one of the stages above. since: its start.
    look: the last known state of the machines. look_since: time since which it is the same.
    gone_since: time of the first answer that the machines are gone, or 0, see `decisions`.
    seen: the attempt was observed. ready: time at which it was first ready, or 0.
    exists: time at which its first machine was observed, or 0. From then on it may be billed.
    answered: when the last creation was answered. absent: consecutive answers that the attempt does not exist.
    trouble: when the first process of the try ended or became silent; 0 if none did.
    starting: when the try was ordered.
    best_start: the latest step from which a try started. start_known: the start of the current try is known.
    first_start: the step from which the first try of the attempt started; -1 before it is known.
    failures: tries that failed since the last progress. lost: attempts that were lost since then.
    hangs: tries of this attempt that hung. worker_restarts: its workers that restarted by themselves.
    deletion_polls: observations of its deletion.
    retries: number of consecutive requests to create or delete. retry: time of the next request.
    zone: consecutive zones without capacity.
    used: seconds of machine time of the earlier attempts.
    pause: time before which no attempt is created.
    end: (exit code, message) once it is known.
    unverified: attempts whose deletion was requested and not confirmed. With `kept`, also the current one.
    kept: the machines of the current attempt are kept.
  """

  attempt: int = 0
  try_: int = 0
  expires: float = 0.0
  stage: str = IDLE
  since: float = 0.0
  look: str = ""
  look_since: float = 0.0
  gone_since: float = 0.0
  seen: bool = False
  ready: float = 0.0
  exists: float = 0.0
  answered: float = 0.0
  absent: int = 0
  trouble: float = 0.0
  starting: float = 0.0
  best_start: int = 0
  start_known: bool = False
  first_start: int = -1
  failures: int = 0
  lost: int = 0
  hangs: int = 0
  worker_restarts: int = 0
  deletion_polls: int = 0
  retries: int = 0
  retry: float = 0.0
  zone: int = 0
  used: float = 0.0
  pause: float = 0.0
  end: tuple[int, str] | None = None
  unverified: tuple[int, ...] = ()
  kept: bool = False

  def compute_machine_seconds(self, now: float) -> float:
    """Returns the seconds of machine time of all attempts."""
    live = self.exists and (self.stage in (WATCHING, DELETING) or self.kept)
    return self.used + (max(0.0, now - self.exists) if live else 0.0)


# Names of fields in event logs of earlier versions.
RENAMED = {"continued": "best_start", "begun": "start_known", "reached": "first_start", "anew": "worker_restarts",
           "asked": "deletion_polls"}  # fmt: skip


def loads(values: Mapping[str, Any]) -> State:
  """Returns the state that a line of an event log contains.

  Unknown fields are ignored: a newer version may have written them.

  Raises:
    LaunchError: a field has another type.
  """
  defaults = {field.name: field.default for field in dataclasses.fields(State)}
  known = {RENAMED.get(key, key): value for key, value in values.items()}
  known = {key: tuple(value) if isinstance(value, list) else value for key, value in known.items() if key in defaults}
  known.setdefault("exists", known.get("ready", 0.0))  # an earlier version counted from `ready`
  for key, value in known.items():
    if key == "end":
      valid = value is None or (isinstance(value, tuple) and [type(each) for each in value] == [int, str])
    elif key == "unverified":
      valid = isinstance(value, tuple) and all(isinstance(each, int) for each in value)
    elif isinstance(value, (int, float)) and not abs(value) < 1e12:
      valid = False
    else:
      kind = type(defaults[key])
      valid = isinstance(value, (int, float) if kind is float else kind)
    if not valid:
      raise LaunchError(f"the last line has {key}={str(value)[:40]!r}, which this version cannot read")
  return State(**known)


@dataclasses.dataclass(frozen=True)
class Observation:
  """The facts about an attempt at one time. None means that the fact is unknown.

  Args:
    now: the service's time, in seconds since the epoch.
    look: the machines in the cloud.
    reports: {worker: (report, its age in seconds)}.
    order: the last order to the workers, for example by `launch stop`.
    refusal: the error with which the creation of the attempt was refused.
    clock: time of the bucket when the reports were read, or 0 if unknown.
  """

  now: float
  look: MachineStatus | None
  reports: Reports | None = None
  order: Order | None = None
  refusal: LaunchError | None = None
  clock: float = 0.0

  def is_stop_requested(self, try_: int) -> bool:
    """Returns whether the user requested a stop.

    If the order is damaged, one report of a stop request in this try is sufficient.
    """
    if self.order:
      return self.order.stop
    reports = [report for report, _ in (self.reports or {}).values()]
    return any(report.asked for report in reports if report.try_ == try_)


@dataclasses.dataclass(frozen=True)
class Action:
  """One action: "create" or "delete" the attempt, "order" its workers, or "note" an event in the event log.

  Args:
    tail: last lines of a log, to be shown.
  """

  verb: str
  order: Order | None = None
  event: str = ""
  text: str = ""
  tail: str = ""


HANG = 43
PEER, TERMINATED = 134, 143  # exit codes that follow from the end of another process, see vit_jax/runtime/exits.py
STOPS = {42, 130, TERMINATED}  # exit codes of a program that was asked to stop
FATAL = (2, 44, 45, 46)  # exit codes that every further try would repeat

# Verdicts. TROUBLE: a process has ended or is silent, and the others are waited for. FRESH: the try failed, and its
# machines are the cause, or are gone.
GOING, TROUBLE, DONE, STOPPED, SAVED, FAILED, FRESH, FINAL = (
  "going", "trouble", "done", "stopped", "saved", "failed", "fresh", "final",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Verdict:
  """A verdict with its reason. `code`: the exit code of the process. `tail`: last lines of a log."""

  kind: str
  text: str = ""
  tail: str = ""
  code: int = 0


def judge_try(run: Run, try_: int, reports: Reports, order: Order | None, waited: float, hangs: int) -> Verdict:
  """Returns the verdict on a try from the reports of its workers.

  Args:
    run: the run.
    try_: number of the try.
    reports: {worker: (report, its age in seconds)}.
    order: the last order to the workers.
    waited: seconds since the first problem, such as a missing report, or 0 without problems.
    hangs: number of earlier tries on these machines that ended with HANG.
  """
  current = {w: report for w, (report, _) in reports.items() if report.try_ == try_}
  exits = {w: report.exit for w, report in current.items() if report.phase == EXITED and report.exit is not None}
  if len(exits) == run.workers and not any(exits.values()):
    return Verdict(DONE, "all processes ended with 0")
  if order and order.stop:
    return Verdict(STOPPED if len(exits) == run.workers else GOING, "stopped on request")
  ended = [report for report in current.values() if report.phase == ENDED]
  gone = [w for w in range(run.workers) if w not in reports] if has_started(current.values(), try_) else []
  silent = [w for w, (report, age) in reports.items() if age > run.limits.silence and report.phase != ENDED]
  silent = sorted(silent + gone * (waited > run.limits.silence))
  if not (exits or ended or silent):
    return Verdict(TROUBLE if gone else GOING)
  # The other processes end within JAX's heartbeat. Only then it is known which process ended first.
  complete = len(exits) + len(ended) == run.workers
  if not complete and not silent and waited < run.limits.grace:
    return Verdict(TROUBLE)
  if ended:
    return Verdict(FRESH, f"w{ended[0].worker:02d} stopped: {ended[0].detail}", ended[0].tail)
  return _judge_codes(current, exits, silent, hangs) or _judge_silence(run, exits, silent, waited, current)


def has_started(reports: Iterable[WorkerReport], try_: int) -> bool:
  """Returns whether a try has started, which requires reports of all workers."""
  return any(report.try_ == try_ and report.phase in (RUNNING, EXITED) for report in reports)


def _judge_codes(
  current: Mapping[int, WorkerReport], exits: Mapping[int, int], silent: Sequence[int], hangs: int
) -> Verdict | None:
  """Judges by exit codes that are not a consequence of the end of another process. Returns None without such a code."""
  culprits = {w: code for w, code in exits.items() if code not in (0, PEER, TERMINATED)}
  for worker, code in sorted(culprits.items()):
    if code in FATAL:
      return Verdict(
        FINAL, f"w{worker:02d} ended with {code} and would end in the same way again", current[worker].tail, code
      )
  # A silent worker may have asked its program to stop. Without a request, such an exit code is a failure: otherwise the
  # run would be tried again for ever.
  stop_requested = bool(silent) or any(report.asked for report in current.values())
  if stop_requested and not STOPS.isdisjoint(exits.values()):
    return Verdict(SAVED, "the processes were requested to stop")
  if not culprits:
    return None
  worker = min(culprits, key=lambda w: (culprits[w] == HANG, current[w].clock, w))
  report = current[worker]
  text = f"w{worker:02d} ({report.host}) ended with {report.exit}" + (f": {report.detail}" if report.detail else "")
  if report.exit in STOPS:
    text += ", the exit code of a stop on request, but nobody requested it"
  return Verdict(FRESH if report.exit == HANG and hangs else FAILED, text, report.tail, report.exit or 0)


def _judge_silence(
  run: Run, exits: Mapping[int, int], silent: Sequence[int], waited: float, current: Mapping[int, WorkerReport]
) -> Verdict:
  """Judges processes that send no reports, or that ended because another process died."""
  if silent:
    names = ", ".join(f"w{worker:02d}" for worker in silent[:8])
    if len(silent) < run.workers:
      return Verdict(FAILED, f"no report of {names} for {run.limits.silence:g} s")
    if waited < run.limits.silence:
      return Verdict(TROUBLE)  # the bucket may be the cause
    return Verdict(FRESH, f"no report of any worker for {2 * run.limits.silence:.0f} s")
  aborted = sorted(w for w, code in exits.items() if code)
  if not aborted:
    return Verdict(TROUBLE if waited < 2 * run.limits.grace else FAILED, "some processes ended with 0, others continue")
  first = current[aborted[0]]
  return Verdict(
    FAILED, f"w{first.worker:02d} ended with {first.exit}, which indicates that another process died", first.tail
  )


def summarise_progress(run: Run, reports: Reports) -> str:
  """Returns a summary of the workers: how many run, and the step of the slowest one. Returns "" without reports."""
  running = [report for report, _ in reports.values() if report.phase == RUNNING]
  others = [report.phase for report, _ in reports.values() if report.phase != RUNNING]
  words = [f"{len(running)} of {format_amount(run.workers, 'worker')} running"] * bool(running)
  words += [f"{others.count(phase)} {phase}" for phase in sorted({*others})]
  if running:
    slowest = min(running, key=lambda report: report.step)
    words += [f"step {slowest.step}"] * (slowest.step >= 0) + [slowest.doing or "starting"]
  return ", ".join(words)


def find_first_failure(reports: Reports) -> WorkerReport | None:
  """Returns the report of the worker that failed first in any try, or None if no worker failed."""
  failed = [report for report, _ in reports.values() if report.exit not in (None, 0, PEER, TERMINATED)]
  return min(failed, key=lambda report: (report.exit not in FATAL, report.clock)) if failed else None
