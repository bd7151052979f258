"""A cloud in memory with the interface of engines, and the crews of its machines."""

import contextlib
import time

from launch import states
from launch.errors import LaunchError, UnknownError
from launch.storage import open_storage
from tests.launch.crew import Crew


class Killed(BaseException):
  """Raised instead of a kill of the watcher between two instructions."""


class Cloud:
  """The machines by attempt, which outlive watchers. It is a context manager.

  Args:
    crews: arguments of `Crew` by attempt. The last item applies to all further attempts.
    removal: duration of a deletion in seconds.
  """

  def __init__(self, crews=({},), removal: float = 0.05):
    self.states, self.calls, self.made, self.most = {}, [], [], 0
    self.crews, self.removal, self.resources = crews, removal, contextlib.ExitStack()
    self.kill_at, self.fail_at, self.refuse, self.silent = None, set(), None, {}

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.resources.close()

  def live(self):
    """Returns the attempts that exist and are not being deleted."""
    return [attempt for attempt, (state, _) in self.states.items() if state != states.DELETING]

  def count(self, call: str) -> None:
    """Records a call, and raises its fault. Engines count before and after each change."""
    self.calls.append(call)
    if len(self.calls) == self.kill_at:
      raise Killed
    if len(self.calls) in self.fail_at:
      raise UnknownError("no answer")


class Engine:
  """The engine of a run on a `Cloud`."""

  def __init__(self, run, cloud: Cloud):
    self._run, self._cloud = run, cloud

  def create(self, attempt, expires):
    cloud = self._cloud
    cloud.count("create")
    if cloud.refuse:
      raise LaunchError(*cloud.refuse)
    if attempt not in cloud.states:
      cloud.states[attempt] = states.READY, 0.0
      cloud.made.append(attempt)
      words = cloud.crews[min(len(cloud.made), len(cloud.crews)) - 1]
      cloud.resources.enter_context(Crew(open_storage(self._run.folder), attempt, **words))
    cloud.most = max(cloud.most, len(cloud.live()))
    cloud.count("created")

  def look(self, attempt):
    cloud = self._cloud
    cloud.count("look")
    state, since = cloud.states.get(attempt, (states.ABSENT, 0.0))
    if state == states.DELETING and time.monotonic() - since > cloud.removal:
      del cloud.states[attempt]
      state = states.ABSENT
    return states.MachineStatus(state)

  def delete(self, target):
    cloud, attempt = self._cloud, target.attempt if isinstance(target, states.Resource) else target
    cloud.count("delete")
    if cloud.states.get(attempt, (states.DELETING,))[0] != states.DELETING:
      cloud.states[attempt] = states.DELETING, time.monotonic()
    cloud.count("deleted")

  def build_commands(self, target, expires=0):
    name = target.name if isinstance(target, states.Resource) else self._run.get_attempt_name(target)
    return states.Commands(f"make {name}", f"remove {name}")

  def list_resources(self, zones):
    run = self._run
    rows = [states.Resource(run.get_attempt_name(a), "memory", run.name, run.owner, a, state, mark=run.mark)
            for a, (state, _) in self._cloud.states.items()]  # fmt: skip
    return tuple(rows), self._cloud.silent

  def build_shell_command(self, attempt, worker, words):
    return words
