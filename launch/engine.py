"""The state of an attempt's machines, and the interface of the engines that create and delete machines."""

import calendar
import dataclasses
import re
import time
from typing import Protocol

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
STATES = (ABSENT, QUEUED, STARTING, READY, REPAIRING, LOST, FAILED, DONE, DELETING)


@dataclasses.dataclass(frozen=True)
class Look:
  """The machines of an attempt at one time.

  Args:
    state: one of STATES.
    detail: the words of the cloud, for the user.
    code: for FAILED, the exit code of `launch`: NO_CAPACITY, DENIED or USAGE; 0 if the exit code of the program counts.
    hosts: number of hosts that exist.
    addresses: of the hosts, in their order, if the engine knows them.
    quota: the state is FAILED because a quota is used up.
  """

  state: str
  detail: str = ""
  code: int = 0
  hosts: int = 0
  addresses: tuple = ()
  quota: bool = False


@dataclasses.dataclass(frozen=True)
class Resource:
  """A machine, or a set of machines, in the cloud with our labels.

  Args:
    name: such as vit-b16-a1.
    location: its zone, or its context and namespace.
    run, owner, attempt, expires: values of its labels; `expires` in seconds since the epoch, 0 without a label.
    state: one of STATES. detail: the word of the cloud.
    created: seconds since the epoch; 0 if unknown.
    kind: such as v3-32.
    mark: of the directory of its run, as spec.Run.mark; "" if unknown.
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

  def has_labels_of(self, other: "Resource") -> bool:
    """Returns whether both belong to the same attempt of the same run."""
    keys = ("run", "owner", "attempt", "mark")
    return all(getattr(self, key) == getattr(other, key) for key in keys)


def resource(name: str, location: str, labels: dict, state: str, detail: str, created: str, kind: str) -> Resource:
  """Returns a resource with our labels, which anybody may have changed: numbers that cannot be read become 0.

  Args:
    name, location, state, detail, kind: as of Resource.
    labels: all labels of the resource.
    created: a time such as 2026-11-23T10:38:43.123456789Z.
  """
  numbers = [labels.get(f"vitjax-{key}") or "" for key in ("attempt", "expires")]
  attempt, expires = (int(text) if re.fullmatch(r"\d{1,12}", text, re.ASCII) else 0 for text in numbers)
  run, owner, mark = (labels.get(f"vitjax-{key}", "") for key in ("run", "owner", "folder"))
  second = re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", created)
  seconds = float(calendar.timegm(time.strptime(second[0], "%Y-%m-%dT%H:%M:%S"))) if second else 0.0
  return Resource(name, location, run, owner, attempt, state, detail, expires, seconds, kind, mark)


class Engine(Protocol):
  """Creates, inspects and deletes the machines of a run. Every call has its own deadline and may be repeated.

  Raises:
    UnknownError: the cloud gave no answer.
    LaunchError: the cloud refuses: DENIED for credentials, permissions and quota, NO_CAPACITY, or USAGE for an invalid
      argument.
  """

  def location(self, attempt: int) -> str:
    """Returns the place of an attempt, such as its zone."""

  def request(self, attempt: int, expires: int) -> str:
    """Returns the commands of an attempt as a script of the shell, without executing them.

    The script contains the commands that create, inspect and delete the attempt, and that open a shell on a worker.
    """

  def create(self, attempt: int, expires: int) -> None:
    """Requests the machines of an attempt, which end themselves at `expires`, in seconds since the epoch.

    An attempt that exists with the labels of this run is accepted: the answer to an earlier request may be lost.
    """

  def look(self, attempt: int) -> Look:
    """Returns the state of an attempt."""

  def delete(self, attempt: int) -> None:
    """Requests the deletion of an attempt, unless it is absent or in deletion. `look` confirms its end."""

  def remove(self, resource: Resource) -> None:
    """Requests the deletion of a resource of the inventory, if it is still the same resource."""

  def deletion(self, attempt: int) -> str:
    """Returns the command with which a user deletes an attempt and verifies the deletion."""

  def inventory(self, zones: tuple) -> tuple:
    """Returns (resources of all runs with our labels, {location: why it gave no answer})."""

  def shell(self, attempt: int, worker: int, words: list) -> list:
    """Returns the argument list of a command that runs `words` on a worker, or opens a shell if there are no words."""
