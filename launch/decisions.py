"""The decision about a run: a pure function of its state, the observations and the time.

An attempt is a set of machines with its own name. A try is one start of the program on these machines. Two attempts
never exist at the same time. The next attempt is created after the previous attempt is absent, or after its deletion
has taken longer than `limits.delete`. In the second case, a message names the old attempt at the end of the run. Losing
machines costs only a pause. Tries that fail use up a budget. A try that continues from a later checkpoint restores the
budget.
"""

from dataclasses import replace

from . import errors, mailbox, states
from .errors import format_amount
from .spec import Run
from .states import DELETING, IDLE, OVER, WATCHING, Action, Observation, State

Decision = tuple[State, list[Action]]

LONGEST_PAUSE = 30  # times limits.pause
LONGEST_RETRY = 20  # times limits.poll: the wait between equal requests doubles up to this value
DELETION_POLLS = 5  # observations of a deletion that are required before it is given up
WORKER_RESTARTS = 2  # workers of an attempt that may restart by themselves, as after a repair, before it is a failure


def decide(run: Run, state: State, observation: Observation) -> tuple[State, list[Action]]:
  """Returns the next state of a run and the actions that lead to it.

  The function calls nothing and changes nothing. If an action is not carried out, the caller keeps the previous state,
  and the same decision is made again.
  """
  if state.stage == OVER:
    return state, []
  state = _correct_times(run, state, observation.now)
  if state.stage == IDLE:
    return _start_attempt(run, state, observation)
  observation = _drop_contradicted(run, state, observation)
  look, order = observation.look, observation.order
  if look:
    state = replace(state, absent=state.absent + 1 if look.state == states.ABSENT else 0)
  if look and look.state != state.look:
    state = replace(state, look=look.state, look_since=observation.now)
  state = replace(state, gone_since=_find_gone_since(run, state, observation))
  if look and not state.exists and (look.hosts or look.state in (states.READY, states.REPAIRING)):
    expires = min(state.expires, observation.now + _time_left(run, state))
    state = replace(state, exists=observation.now, expires=expires)
  if state.stage == DELETING:
    return _continue_deletion(run, state, observation)
  if observation.refusal:
    refused = states.MachineStatus(states.FAILED, str(observation.refusal), observation.refusal.code)
    return _handle_refusal(run, state, observation, refused)
  if order and order.fresh:
    return _replace_machines(run, state, observation, "fresh", "new machines were requested", lost=0)
  if order and order.try_ > state.try_:  # by `launch restart`, or by an earlier watcher
    state = replace(state, try_=order.try_, trouble=0.0, starting=observation.now, start_known=False)
  state = _record_progress(run, state, observation)
  state, reported = _decide_by_reports(run, state, observation)
  return _decide_by_look(run, state, observation) if reported is None else (state, reported)


# Corrections of the input.


def _correct_times(run: Run, state: State, now: float) -> State:
  """Corrects a state for a clock that was set back: no time is in the future, no wait is longer than its limit."""
  past = ("since", "look_since", "gone_since", "ready", "exists", "answered", "trouble", "starting")
  state = replace(state, **{key: min(getattr(state, key), now) for key in past})
  allowed = _time_left(run, state) if state.exists else _longest_life(run, state)
  retry = state.retry if state.retry <= now + run.limits.poll * LONGEST_RETRY else now
  pause = state.pause if state.pause <= now + run.limits.pause * LONGEST_PAUSE else now
  return replace(state, expires=min(state.expires, now + allowed), retry=retry, pause=pause)


def _time_left(run: Run, state: State) -> float:
  """Returns the remaining seconds of machine time after earlier attempts."""
  return max(0.0, run.seconds - state.used)


def _longest_life(run: Run, state: State) -> float:
  """Returns the longest time from a request to the end of its machines, in seconds: queue, start and work."""
  return run.limits.queue + run.limits.provision + run.limits.start + _time_left(run, state)


def _drop_contradicted(run: Run, state: State, observation: Observation) -> Observation:
  """Ignores an answer of the cloud that contradicts other answers.

  The answer "absent" may be older than the answer to the request. Reports of all workers have priority over the state
  of the machines. While every program runs, the states repairing, lost and absent are ignored.
  """
  look = observation.look
  if not look or look.state == states.READY:
    return observation
  early = observation.now < state.answered + run.limits.appear
  if look.state == states.ABSENT and run.billed and not state.seen and state.answered and early:
    return replace(observation, look=None)
  watched = state.stage == WATCHING and look.state not in (states.FAILED, states.DONE)
  if watched and are_all_running(run, observation):
    ready = state.ready or look.state in (states.STARTING, states.REPAIRING)
    return replace(observation, look=replace(look, state=states.READY) if ready else None)
  return observation


def _find_gone_since(run: Run, state: State, observation: Observation) -> float:
  """Returns the time of the first answer that the machines are gone, or 0.

  The result is 0 if the machines are ready or all programs run. Another state resets the time only after
  `limits.silence`, so that alternating states do not delay the replacement of lost machines.
  """
  look, now = observation.look, observation.now
  if are_all_running(run, observation) or (look and look.state == states.READY):
    return 0.0
  if look and look.state in states.GONE:
    existed = state.seen or look.state != states.ABSENT  # ABSENT can mean that the creation is not answered yet
    return state.gone_since or (now if existed else 0.0)
  return 0.0 if look and now - state.look_since > run.limits.silence else state.gone_since


def are_all_running(run: Run, observation: Observation) -> bool:
  """Returns True if every worker has recently reported that its program runs."""
  limit = errors.SIGNS * run.limits.beat
  ages = [age for report, age in (observation.reports or {}).values() if report.phase == mailbox.RUNNING]
  return len(ages) == run.workers and all(age <= limit for age in ages)


def _is_past(state: State, observation: Observation, grace: float = 0.0) -> bool:
  """Returns True if the attempt has expired according to the service's time and the latest available clock."""
  others = [report.clock + age for report, age in (observation.reports or {}).values() if report.clock]
  others += [observation.clock] * bool(observation.clock)
  return min(observation.now, max(others, default=observation.now)) >= state.expires + grace


def _record_progress(run: Run, state: State, observation: Observation) -> State:
  """Records the step from which a try starts. A later step proves a new checkpoint, which restores the budget."""
  reports = [report for report, _ in (observation.reports or {}).values()]
  latest = max((report.try_ for report in reports), default=0)
  if run.restarts_itself and latest > state.try_:
    state = replace(state, try_=latest, start_known=False)
  starts = [report.began for report in reports if report.try_ == state.try_ and report.began >= 0]
  if state.start_known or not starts:
    return state
  if state.first_start < 0:
    state = replace(state, first_start=max(state.best_start, *starts))
  state = replace(state, start_known=True)
  if min(starts) <= state.best_start:
    return state
  return replace(state, best_start=min(starts), failures=0, lost=0)


# Creation and deletion of an attempt.


def _start_attempt(run: Run, state: State, observation: Observation) -> Decision:
  """Creates the next attempt after the pause, or ends the run."""
  if run.seconds <= state.used and not state.end:
    by_cost = run.seconds < run.max_hours * 3600
    limit = f"--max-cost={run.max_cost:g} is" if by_cost else f"--max-hours={run.max_hours:g} are"
    text = f"{limit} used up. Set a higher limit to continue the run"
    state = replace(state, end=(errors.GAVE_UP, text))
  if state.end:
    return replace(state, stage=OVER), []
  if observation.now < state.pause:
    return state, []
  kept = ("failures", "lost", "zone", "used", "best_start", "unverified")
  state = State(
    attempt=state.attempt + 1, try_=1, expires=observation.now + _longest_life(run, state),
    stage=WATCHING, since=observation.now, look_since=observation.now,
    **{key: getattr(state, key) for key in kept},
  )  # fmt: skip
  return _request_action(run, state, observation, "create")


def _request_action(run: Run, state: State, observation: Observation, verb: str) -> Decision:
  """Requests a creation or a deletion, unless the last request was a short time ago."""
  if observation.now < state.retry:
    return state, []
  pause = run.limits.poll * min(LONGEST_RETRY, 2**state.retries)
  return replace(state, retries=state.retries + 1, retry=observation.now + pause), [Action(verb)]


def _continue_deletion(run: Run, state: State, observation: Observation) -> Decision:
  """Requests the deletion again until the attempt is absent, or until the limit has passed."""
  waited, found = observation.now - state.since, observation.look.state if observation.look else None
  if found == states.ABSENT and state.absent >= errors.LOOKS:
    return _leave_attempt(state, observation, "deleted")
  state = replace(state, deletion_polls=state.deletion_polls + 1)
  # A laptop that slept has waited for long without a look.
  if waited > run.limits.delete and state.deletion_polls > DELETION_POLLS:
    if found != states.DELETING and not state.end:
      name = run.get_attempt_name(state.attempt)
      text = f"{name} could not be deleted for {waited:.0f} s, and no other attempt is created"
      state = replace(state, end=(errors.BILLING, text))
    return _leave_attempt(state, observation, "unverified")
  return (
    (state, []) if found in (states.DELETING, states.ABSENT) else _request_action(run, state, observation, "delete")
  )


def _leave_attempt(state: State, observation: Observation, event: str) -> Decision:
  """Leaves an attempt that is deleted, or that has an "unverified" deletion."""
  used = state.used + (observation.now - state.exists if state.exists else 0)
  unverified = state.unverified + ((state.attempt,) if event == "unverified" else ())
  return replace(state, stage=IDLE, since=observation.now, used=used, unverified=unverified), [_make_note(event)]


# Decisions about a live attempt.


def _decide_by_reports(run: Run, state: State, observation: Observation) -> tuple[State, list[Action] | None]:
  """Decides by the reports of the workers. The actions are None if the state of the machines decides."""
  if not observation.reports:
    return state, None
  ahead = [report for report, _ in observation.reports.values() if report.try_ > state.try_]
  if ahead and state.look == states.READY and not run.restarts_itself:
    text = f"w{ahead[0].worker:02d} ({ahead[0].host}) was restarted"
    state = replace(state, worker_restarts=state.worker_restarts + 1)
    if state.worker_restarts > WORKER_RESTARTS:
      return _handle_failure(run, state, observation, text, fresh=True)
    return _restart_programs(run, state, observation, text)
  waited = observation.now - state.trouble if state.trouble else 0.0
  verdict = states.judge_try(run, state.try_, observation.reports, observation.order, waited, state.hangs)
  if verdict.kind == states.DONE:
    return _end_run(run, state, observation, "done", errors.DONE, verdict.text, summary="done")
  if verdict.kind == states.STOPPED:  # a JobSet keeps no machines after its pods have ended
    kept = not run.restarts_itself
    summary = "stopped on request" + ", its machines are kept" * kept
    return _end_run(run, state, observation, "stopped", errors.DETACHED, verdict.text, summary=summary, keep=kept)
  if run.restarts_itself:  # the engine decides about further tries
    return state, None
  if verdict.kind == states.GOING:
    return replace(state, trouble=0.0), None
  state = replace(state, trouble=state.trouble or observation.now)
  # Machines that are repaired report again. The last reports of machines that are lost only show their end.
  if verdict.kind == states.TROUBLE or state.look != states.READY:
    return state, None
  if verdict.kind == states.SAVED and observation.order is None:  # the user may have requested the stop
    return state, None
  if verdict.kind == states.SAVED:
    return _replace_machines(run, state, observation, "preempted", verdict.text)
  if verdict.kind == states.FINAL:
    return _end_run(run, state, observation, "failed", verdict.code, verdict.text, verdict.tail, keep=run.keep_on_fail)
  fresh = verdict.kind == states.FRESH
  if fresh and (_is_past(state, observation) or mailbox.TIME_ENDED in verdict.text):
    return _replace_machines(run, state, observation, "expired", "it reached its time limit")
  state = replace(state, hangs=state.hangs + (verdict.code == states.HANG))
  return _handle_failure(run, state, observation, verdict.text, verdict.tail, fresh)


def _decide_by_look(run: Run, state: State, observation: Observation) -> Decision:
  """Decides by the state of the machines in the cloud."""
  look, waited, limits = observation.look, observation.now - state.look_since, run.limits
  if look is None:
    return state, []
  if look.state == states.ABSENT and not state.seen:  # the request may be lost, or its answer
    # The service accepted an answered request, so the attempt may be in its queue. It is requested again until its end.
    if observation.now > (state.expires if state.answered else state.since + limits.queue):
      text = f"the creation could not be requested within {limits.queue / 3600:.1f} h"
      return _try_next_zone(run, state, observation, text)
    return _request_action(run, state, observation, "create")
  state = replace(state, seen=True)
  if look.state == states.READY:
    return _check_workers(run, state, observation)
  temporary = (states.STARTING, states.REPAIRING, *states.GONE)
  if state.exists and look.state in temporary and _is_past(state, observation, limits.grace):
    return _replace_machines(run, state, observation, "expired", f"it reached its time limit: {look.detail}")
  if look.state == states.FAILED:
    return _handle_refusal(run, state, observation, look)
  if look.state == states.DONE:
    return _end_run(run, state, observation, "done", errors.DONE, look.detail, summary="done")
  allowed = {states.QUEUED: limits.queue, states.STARTING: limits.provision, states.REPAIRING: limits.repair}
  if look.state in states.GONE:
    # One answer may be false. After an outage, current reports arrive late. Therefore the machines are replaced after a
    # second such answer. If no report can be read, they are replaced after `limits.silence`.
    waited = observation.now - state.gone_since
    allowed[look.state] = limits.silence if observation.reports is None else 0.0
  if waited <= allowed[look.state]:
    return state, []
  if look.state == states.QUEUED:
    text = f"no capacity within {limits.queue / 3600:.1f} h: {look.detail}"
    return _try_next_zone(run, state, observation, text)
  if look.state == states.STARTING:
    text = f"not ready after {waited:.0f} s: {look.detail}"
    return _handle_failure(run, state, observation, text, fresh=True)
  text = f"not repaired after {waited:.0f} s" if look.state == states.REPAIRING else look.state
  return _replace_machines(
    run, state, observation, "preempted", f"{text}: {look.detail}"
  )  # also ABSENT, LOST, DELETING


def _check_workers(run: Run, state: State, observation: Observation) -> Decision:
  """Checks that workers report, install packages and start in time after their machines are ready."""
  now, limits = observation.now, run.limits
  if not state.ready:
    state = replace(state, ready=now, starting=now, zone=0)
    return state, [_make_note("ready")]
  started = [report.started for report, _ in (observation.reports or {}).values() if report.started]
  if started and state.since <= min(started) < state.ready:  # before the first look
    exists = min(state.exists, *started)
    state = replace(state, ready=min(started), exists=exists, expires=exists + _time_left(run, state))
  if _is_past(state, observation, limits.grace):  # also if no worker reports
    return _replace_machines(run, state, observation, "expired", "it reached its time limit and still runs")
  if observation.reports is None:
    return state, []
  waited, reports = now - state.starting, {worker: report for worker, (report, _) in observation.reports.items()}
  absent = [worker for worker in range(run.workers) if worker not in reports]
  late = [r for r in reports.values() if r.phase == mailbox.INSTALLING or r.try_ < state.try_]
  if absent and waited > limits.start and not states.has_started(reports.values(), state.try_):
    names = ", ".join(f"w{worker:02d}" for worker in absent[:8])
    text = f"{names}: no report within {waited:.0f} s after the machines were ready"
    return _handle_failure(run, state, observation, text, fresh=True)
  if late and waited > limits.start + limits.install:
    text = f"w{late[0].worker:02d} is not ready after {waited:.0f} s: {late[0].detail}"
    return _handle_failure(run, state, observation, text, fresh=True)
  return state, []


# Ends of a try, of an attempt and of the run.


def _make_note(event: str, text: str = "", tail: str = "") -> Action:
  return Action("note", event=event, text=text, tail=tail)


def _end_run(
  run: Run,
  state: State,
  observation: Observation,
  event: str,
  code: int,
  text: str,
  tail: str = "",
  summary: str = "",
  keep: bool = False,
) -> Decision:
  """Ends the run, after deleting the machines of the attempt unless they are kept."""
  state, note = replace(state, end=(code, summary or text)), _make_note(event, text, tail)
  if keep:
    return replace(state, stage=OVER, unverified=(*state.unverified, state.attempt), kept=True), [note]
  return _delete_machines(run, state, observation, note)


def _delete_machines(run: Run, state: State, observation: Observation, note: Action) -> Decision:
  """Deletes the machines of the attempt."""
  state = replace(state, stage=DELETING, since=observation.now, deletion_polls=0, retries=0, retry=0.0)
  state, actions = _request_action(run, state, observation, "delete")
  return state, [*actions, note]


def _replace_machines(
  run: Run, state: State, observation: Observation, event: str, text: str, tail: str = "", lost: int = 1
) -> Decision:
  """Deletes the attempt. The next attempt follows after a pause that doubles with each loss or failure."""
  if observation.is_stop_requested(state.try_):
    summary = f"stopped on request; {text}"
    return _end_run(run, state, observation, event, errors.DETACHED, text, tail, summary)
  lost += state.lost
  pause = run.limits.pause * min(LONGEST_PAUSE, 2 ** max(0, max(lost, state.failures) - 1))
  state = replace(state, lost=lost, pause=observation.now + pause)
  return _delete_machines(run, state, observation, _make_note(event, text, tail))


def _try_next_zone(run: Run, state: State, observation: Observation, text: str) -> Decision:
  """Continues in the next zone, or ends the run after the last one."""
  state = replace(state, zone=state.zone + 1)
  if state.zone < len(run.zones):
    return _replace_machines(run, state, observation, "capacity", text, lost=0)
  return _end_run(run, state, observation, "capacity", errors.NO_CAPACITY, text)


def _handle_failure(
  run: Run, state: State, observation: Observation, text: str, tail: str = "", fresh: bool = False
) -> Decision:
  """Starts another try while the budget lasts: on the same machines, or on others if `fresh`."""
  state = replace(state, failures=state.failures + 1)
  if state.failures >= run.max_failures:
    text = f"{format_amount(state.failures, 'try', 'tries')} without a new checkpoint; the last: {text}"
    return _end_run(run, state, observation, "failed", errors.GAVE_UP, text, tail, keep=run.keep_on_fail)
  if fresh:
    return _replace_machines(run, state, observation, "failed", text, tail, lost=0)
  return _restart_programs(run, state, observation, text, tail)


def _restart_programs(run: Run, state: State, observation: Observation, text: str, tail: str = "") -> Decision:
  """Orders another try on the same machines."""
  if observation.is_stop_requested(state.try_):
    summary = f"stopped on request, its machines are kept; {text}"
    return _end_run(run, state, observation, "stopped", errors.DETACHED, text, tail, summary, keep=True)
  latest = max([state.try_, *(report.try_ - 1 for report, _ in (observation.reports or {}).values())])
  order = mailbox.Order(latest + 1)
  state = replace(state, try_=order.try_, trouble=0.0, starting=observation.now, start_known=False)
  return state, [Action("order", order), _make_note("again", text, tail)]


def _handle_refusal(run: Run, state: State, observation: Observation, look: states.MachineStatus) -> Decision:
  """Handles machines that the cloud refuses, or a JobSet that has used up its restarts."""
  over_quota = isinstance(observation.refusal, errors.QuotaError) or look.quota
  if over_quota and state.attempt > 1 and observation.now - state.since < run.limits.queue:  # of a dying attempt
    if look is observation.look:  # a request that was accepted, and failed later: its name is used
      text = f"{look.detail}; waits until earlier machines are gone"
      return _replace_machines(run, state, observation, "quota", text)
    return state, []
  if look.code == errors.NO_CAPACITY:
    return _try_next_zone(run, state, observation, look.detail)
  if look.code:
    return _end_run(run, state, observation, "failed", look.code, look.detail)
  first = states.find_first_failure(observation.reports or {})
  text = look.detail + (f"; w{first.worker:02d} ended with {first.exit}" if first else "")
  tail = first.tail if first else ""
  if first and first.exit in states.FATAL:
    return _end_run(run, state, observation, "failed", first.exit, text, tail, keep=run.keep_on_fail)
  if run.restarts_itself and state.best_start <= max(0, state.first_start):  # no try made progress
    state = replace(state, failures=run.max_failures - 1)
  return _handle_failure(run, state, observation, text, tail, fresh=True)
