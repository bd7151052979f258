"""What to do next for a run: a function of what was done, what is seen and the time. It asks nobody and does nothing.

An attempt is machines of its own, with a new name each; a try is one start of the program on them. Never are two
attempts alive: the next one is made when the one before is seen to be gone, or to be going for longer than
`limits.delete`, and then it is named at the end. Losing machines costs nothing but a pause; tries that fail have a
budget, which a try that continues from a later checkpoint fills again.
"""

import dataclasses

from launch import assumptions, engine, errors, mailbox, states
from launch.errors import amount
from launch.spec import Run
from launch.states import DELETING, IDLE, OVER, WATCHING, Action, Seen, State

LONGEST_PAUSE = 30  # times limits.pause
RAREST = 20  # times limits.poll: what was asked for to no effect is asked again, after twice as long each time
ASKED = 5  # looks at a deletion before it is given up
ANEW = 2  # workers that are started anew for nothing, as after a repair; further ones are failures


def decide(run: Run, restarts: bool, state: State, seen: Seen) -> tuple[State, list[Action]]:
  """The next state, and what leads there. Where an action has no answer the state before holds, and it is asked again.

  Args:
    restarts: the engine starts a try that failed again by itself.
  """
  if state.stage == OVER:
    return state, []
  state = _steady(run, state, seen.now)
  if state.stage == IDLE:
    return _idle(run, state, seen)
  seen = _credible(run, state, seen)
  if seen.look:
    absent = state.absent + 1 if seen.look.state == engine.ABSENT else 0
    state = dataclasses.replace(state, absent=absent)
  if seen.look and seen.look.state != state.look:
    state = dataclasses.replace(state, look=seen.look.state, look_since=seen.now)
  if state.stage == DELETING:
    return _deleting(run, state, seen)
  if seen.refusal:
    return _refused(run, restarts, state, seen, engine.Look(engine.FAILED, str(seen.refusal), seen.refusal.code))
  if seen.order and seen.order.fresh:
    return _again(run, state, seen, "fresh", "other machines, as ordered", lost=0)
  if seen.order and seen.order.try_ > state.try_:  # of `launch restart`, or of one who watched before
    state = dataclasses.replace(state, try_=seen.order.try_, trouble=0.0, starting=seen.now, begun=False)
  state = _progress(restarts, state, seen)
  state, actions = _by_reports(run, restarts, state, seen)
  return _by_look(run, restarts, state, seen) if actions is None else (state, actions)


def _credible(run, state, seen):
  """Returns what is seen without answers that others contradict.

  An answer that a machine is absent may be older than the answer to its request. Health of machines outweighs nothing:
  as long as all workers report that they run, a cloud that calls their machines ill, lost or gone is not believed.
  """
  if not seen.look or seen.look.state == engine.READY:
    return seen
  early = seen.now < state.answered + run.limits.appear
  if seen.look.state == engine.ABSENT and run.billed and not state.seen and state.answered and early:
    return dataclasses.replace(seen, look=None)
  if state.stage == WATCHING and seen.look.state not in (engine.FAILED, engine.DONE) and lives(run, state, seen):
    look = dataclasses.replace(seen.look, state=engine.READY)
    return dataclasses.replace(seen, look=look if state.ready else None)
  return seen


def lives(run: Run, state: State, seen: Seen) -> bool:
  """Returns whether every worker has reported of late that its program runs."""
  reports = (seen.reports or {}).values()
  fresh = [r for r, age in reports if r.phase == mailbox.RUNNING and age <= assumptions.SIGNS * run.limits.beat]
  return len(fresh) == run.workers


def _latest(run, state):
  """Returns the seconds from a request to the latest end of its machines: in the queue, until ready, and at work."""
  limits = run.limits
  return limits.queue + limits.provision + limits.start + max(0.0, run.seconds - state.used)


def _steady(run, state, now):
  """The state, where a clock was set back: nothing has begun after now, or is to wait for longer than it ever would."""
  begun = {
    key: min(getattr(state, key), now) for key in ("since", "look_since", "ready", "answered", "trouble", "starting")
  }
  allowed = max(0.0, run.seconds - state.used) if state.ready else _latest(run, state)
  expires = min(state.expires, now + allowed)
  retry = state.retry if state.retry <= now + run.limits.poll * RAREST else now
  pause = state.pause if state.pause <= now + run.limits.pause * LONGEST_PAUSE else now
  return dataclasses.replace(state, **begun, expires=expires, retry=retry, pause=pause)


def _past(state, seen, grace=0.0):
  """Whether the attempt's time has ended: by the clock here, and by one of the others that answer."""
  others = [report.clock + age for report, age in (seen.reports or {}).values() if report.clock]
  others += [seen.clock] * bool(seen.clock)
  return min(seen.now, max(others, default=seen.now)) >= state.expires + grace


def _idle(run, state, seen):
  if run.seconds <= state.used and not state.end:
    cost = run.seconds < run.max_hours * 3600
    limit = f"--max-cost={run.max_cost:g} is" if cost else f"--max-hours={run.max_hours:g} are"
    state = _ending(state, errors.GAVE_UP, f"{limit} used up; with a higher limit the run continues")
  if state.end:
    return dataclasses.replace(state, stage=OVER), []
  if seen.now < state.pause:
    return state, []
  kept = ("failures", "lost", "zone", "used", "continued", "unverified")
  state = State(
    attempt=state.attempt + 1, try_=1, expires=seen.now + _latest(run, state),
    stage=WATCHING, since=seen.now, look_since=seen.now,
    **{key: getattr(state, key) for key in kept},
  )  # fmt: skip
  return _asked(run, state, seen, "create")


def _deleting(run, state, seen):
  """Asks again and again until it is gone."""
  waited, found = seen.now - state.since, seen.look.state if seen.look else None
  if found == engine.ABSENT and state.absent >= assumptions.LOOKS:
    return _deleted(state, seen, ())
  state = dataclasses.replace(state, asked=state.asked + 1)
  if waited > run.limits.delete and state.asked > ASKED:  # and not only of a laptop that slept
    if found != engine.DELETING and not state.end:
      name = run.attempt(state.attempt)
      text = f"{name} could not be deleted for {waited:.0f} s, and no other is made beside it"
      state = _ending(state, errors.BILLING, text)
    return _deleted(state, seen, (state.attempt,))
  return (state, []) if found in (engine.DELETING, engine.ABSENT) else _asked(run, state, seen, "delete")


def _asked(run, state, seen, verb):
  """Asks the cloud for it, if it was not asked a moment ago."""
  if seen.now < state.retry:
    return state, []
  pause = run.limits.poll * min(RAREST, 2**state.retries)
  return dataclasses.replace(state, retries=state.retries + 1, retry=seen.now + pause), [Action(verb)]


def _deleted(state, seen, unverified):
  """The attempt is gone, or counts as such."""
  used = state.used + (seen.now - state.ready if state.ready else 0)
  state = dataclasses.replace(state, stage=IDLE, since=seen.now, used=used, unverified=state.unverified + unverified)
  return state, [Action("note", event="unverified" if unverified else "deleted")]


def _by_reports(run, restarts, state, seen):
  """What follows from what the workers say; None for the actions where it is the cloud's turn."""
  if not seen.reports:
    return state, None
  ahead = [r for r, _ in seen.reports.values() if r.try_ > state.try_]
  if ahead and state.look == engine.READY and not restarts:
    text, state = (
      f"w{ahead[0].worker:02d} ({ahead[0].host}) was started anew",
      dataclasses.replace(state, anew=state.anew + 1),
    )
    return _ordered(run, state, seen, text) if state.anew <= ANEW else _failed(run, state, seen, text, fresh=True)
  waited = seen.now - state.trouble if state.trouble else 0.0
  found = states.judge(run, state.try_, seen.reports, seen.order, waited, state.hangs)
  if found.kind == states.DONE:
    return _over(run, _ending(state, errors.DONE, "done"), seen, "done", found.text)
  if found.kind == states.STOPPED and restarts:  # a JobSet whose pods have ended keeps no machines
    return _over(run, _ending(state, errors.DETACHED, "stopped as ordered"), seen, "stopped", found.text)
  if found.kind == states.STOPPED:
    return _kept(_ending(state, errors.DETACHED, "stopped as ordered, its machines are kept"), "stopped", found.text)
  if restarts:  # and decides by itself what is to be tried again
    return state, None
  if found.kind == states.GOING:
    return dataclasses.replace(state, trouble=0.0), None
  if not state.trouble:
    state = dataclasses.replace(state, trouble=seen.now)
  # A machine that is repaired reports again; of those that are going the last words are how they went.
  if found.kind == states.TROUBLE or state.look != engine.READY:
    return state, None
  if found.kind == states.SAVED:
    return _again(run, state, seen, "preempted", found.text)
  if found.kind == states.FINAL:
    return _final(run, state, seen, found)
  if found.kind == states.FRESH and (_past(state, seen) or mailbox.TIME_ENDED in found.text):
    return _again(run, state, seen, "expired", "it has ended itself at its end")
  state = dataclasses.replace(state, hangs=state.hangs + (found.code == states.HANG))
  return _failed(run, state, seen, found.text, found.tail, fresh=found.kind == states.FRESH)


def _by_look(run, restarts, state, seen):
  """What follows from what the cloud says."""
  look, waited = seen.look, seen.now - state.look_since
  if look is None:
    return state, []
  if look.state == engine.ABSENT and not state.seen:  # the answer may have been lost, or the question
    if seen.now - state.since > run.limits.queue:
      return _elsewhere(run, state, seen, f"it could not be asked for within {run.limits.queue / 3600:.1f} h")
    return _asked(run, state, seen, "create")
  if look.state == engine.ABSENT and state.absent < assumptions.LOOKS:
    return state, []
  state = dataclasses.replace(state, seen=True)
  if look.state == engine.READY:
    return _ready(run, restarts, state, seen)
  if look.state == engine.QUEUED:
    text = f"no capacity within {run.limits.queue / 3600:.1f} h: {look.detail}"
    return (state, []) if waited <= run.limits.queue else _elsewhere(run, state, seen, text)
  if look.state == engine.STARTING:
    text = f"not ready after {waited:.0f} s: {look.detail}"
    return (state, []) if waited <= run.limits.provision else _failed(run, state, seen, text, fresh=True)
  if look.state == engine.REPAIRING:
    text = f"not repaired after {waited:.0f} s: {look.detail}"
    return (state, []) if waited <= run.limits.repair else _again(run, state, seen, "preempted", text)
  if look.state == engine.FAILED:
    return _refused(run, restarts, state, seen, look)
  if look.state == engine.DONE:
    return _over(run, _ending(state, errors.DONE, "done"), seen, "done", look.detail)
  return _again(run, state, seen, "preempted", f"{look.state}: {look.detail}")  # ABSENT, LOST, DELETING


def _refused(run, restarts, state, seen, look):
  """The cloud says no, or a JobSet has tried as often as it may."""
  held = isinstance(seen.refusal, errors.QuotaError) or look.quota
  if held and state.attempt > 1 and seen.now - state.since < run.limits.queue:  # by an attempt that is being deleted
    if look is seen.look:  # a request that was accepted, and has failed: it keeps its name
      return _again(run, state, seen, "quota", f"{look.detail}; waits until earlier machines are gone")
    return state, []
  if look.code == errors.NO_CAPACITY:
    return _elsewhere(run, state, seen, look.detail)
  if look.code:
    return _over(run, _ending(state, look.code, look.detail), seen, "failed", look.detail)
  first = states.first_failure(seen.reports or {})
  text = look.detail + (f"; w{first.worker:02d} ended with {first.exit}" if first else "")
  tail = first.tail if first else ""
  if first and first.exit in states.FATAL:
    return _final(run, state, seen, states.Verdict(states.FINAL, text, tail, first.exit))
  if restarts and state.continued <= max(0, state.reached):
    state = dataclasses.replace(state, failures=run.max_failures - 1)
  return _failed(run, state, seen, text, tail, fresh=True)


def _ready(run, restarts, state, seen):
  """The machines are there: their workers must report, install and start."""
  if not state.ready:
    expires = seen.now + max(0.0, run.seconds - state.used)
    state = dataclasses.replace(state, ready=seen.now, starting=seen.now, zone=0, expires=expires)
    return state, [Action("note", event="ready")]
  started = [report.started for report, _ in (seen.reports or {}).values() if report.started]
  if started and state.since <= min(started) < state.ready:  # before anybody looked
    ready = min(started)
    state = dataclasses.replace(state, ready=ready, expires=ready + max(0.0, run.seconds - state.used))
  if _past(state, seen, run.limits.grace):  # of workers that nobody hears too
    return _again(run, state, seen, "expired", "it has reached its end, and goes on")
  if seen.reports is None:
    return state, []
  waited, reports = seen.now - state.starting, {w: r for w, (r, _) in seen.reports.items()}
  absent = [w for w in range(run.workers) if w not in reports]
  late = [r for r in reports.values() if r.phase == mailbox.INSTALLING or r.try_ < state.try_]
  if absent and waited > run.limits.start and not states.begun(reports.values(), state.try_):
    names = ", ".join(f"w{w:02d}" for w in absent[:8])
    return _failed(
      run, state, seen, f"{names}: no sign of life {waited:.0f} s after the machines were ready", fresh=True
    )
  if late and waited > run.limits.start + run.limits.install:
    text = f"w{late[0].worker:02d} is not ready after {waited:.0f} s: {late[0].detail}"
    return _failed(run, state, seen, text, fresh=True)
  return state, []


# How a try, an attempt or the run ends.


def _ending(state, code, text):
  return dataclasses.replace(state, end=(code, text))


def _final(run, state, seen, found):
  """A failure that no other try would change."""
  state = _ending(state, found.code, found.text)
  if run.keep_on_fail:
    return _kept(state, "failed", found.text, found.tail)
  return _over(run, state, seen, "failed", found.text, found.tail)


def _over(run, state, seen, event, text, tail=""):
  """Removes the attempt, after which all is over."""
  state, actions = _asked(run, _removing(state, seen), seen, "delete")
  return state, [*actions, Action("note", event=event, text=text, tail=tail)]


def _removing(state, seen, **changes):
  changes |= {"stage": DELETING, "since": seen.now, "asked": 0, "retries": 0, "retry": 0.0}
  return dataclasses.replace(state, **changes)


def _kept(state, event, text, tail=""):
  """All is over, and the machines stay."""
  state = dataclasses.replace(state, stage=OVER, unverified=(*state.unverified, state.attempt), kept=True)
  return state, [Action("note", event=event, text=text, tail=tail)]


def _again(run, state, seen, event, text, tail="", lost=1):
  """Removes the attempt; the next one comes after a pause."""
  if seen.order and seen.order.stop:
    return _over(run, _ending(state, errors.DETACHED, f"stopped as ordered; {text}"), seen, event, text, tail)
  lost += state.lost
  pause = run.limits.pause * min(LONGEST_PAUSE, 2 ** max(0, max(lost, state.failures) - 1))
  state, actions = _asked(run, _removing(state, seen, lost=lost, pause=seen.now + pause), seen, "delete")
  return state, [*actions, Action("note", event=event, text=text, tail=tail)]


def _elsewhere(run, state, seen, text):
  """Tries the next zone, where there is one."""
  state = dataclasses.replace(state, zone=state.zone + 1)
  if state.zone < len(run.zones):
    return _again(run, state, seen, "capacity", text, lost=0)
  return _over(run, _ending(state, errors.NO_CAPACITY, text), seen, "capacity", text)


def _failed(run, state, seen, text, tail="", fresh=False):
  """Another try, on the same machines or on fresh ones, while the budget lasts."""
  state = dataclasses.replace(state, failures=state.failures + 1)
  if state.failures >= run.max_failures:
    text = f"{amount(state.failures, 'try', 'tries')} without a new checkpoint; the last: {text}"
    return _final(run, state, seen, states.Verdict(states.FINAL, text, tail, errors.GAVE_UP))
  if fresh:
    return _again(run, state, seen, "failed", text, tail, lost=0)
  return _ordered(run, state, seen, text, tail)


def _ordered(run, state, seen, text, tail=""):
  """Another try on the same machines."""
  order = mailbox.Order(max([state.try_, *(r.try_ - 1 for r, _ in (seen.reports or {}).values())]) + 1)
  state = dataclasses.replace(state, try_=order.try_, trouble=0.0, starting=seen.now, begun=False)
  return state, [Action("order", order), Action("note", event="again", text=text, tail=tail)]


def _progress(restarts, state, seen):
  """A try that goes on from a later step than all before it has a new checkpoint behind it."""
  reports = [r for r, _ in (seen.reports or {}).values()]
  if restarts and reports and (latest := max(r.try_ for r in reports)) > state.try_:
    state = dataclasses.replace(state, try_=latest, begun=False)
  began = [r.began for r in reports if r.try_ == state.try_ and r.began >= 0]
  if state.begun or not began:
    return state
  if state.reached < 0:
    state = dataclasses.replace(state, reached=max(state.continued, *began))
  if min(began) <= state.continued:
    return dataclasses.replace(state, begun=True)
  return dataclasses.replace(state, begun=True, continued=min(began), failures=0, lost=0)
