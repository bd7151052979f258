"""What is known of an attempt and of a run, and the interface of the engines that make its machines."""

import dataclasses
from typing import Protocol

# States of what an attempt runs on. Only what the cloud says is not there is ABSENT; a word that nobody knows is
# STARTING, which is waited for.
ABSENT = "absent"
QUEUED = "queued"  # for capacity: nothing is billed yet
STARTING = "starting"
READY = "ready"  # all hosts are there and healthy
REPAIRING = "repairing"  # was or may become ready by itself, as a node that is repaired
LOST = "lost"  # preempted, suspended, terminated: never ready again, until deleted
FAILED = "failed"  # refused: `detail` says why; a JobSet that has given up
DONE = "done"  # a JobSet that says that all of it succeeded
DELETING = "deleting"
STATES = (ABSENT, QUEUED, STARTING, READY, REPAIRING, LOST, FAILED, DONE, DELETING)


@dataclasses.dataclass(frozen=True)
class Look:
  """What is known of an attempt's resources at one time.

  Args:
    state: one of STATES.
    detail: the cloud's own words, for people.
    code: of FAILED, the exit code of `launch` that it means: NO_CAPACITY, DENIED, USAGE; 0 where the run's own counts.
    hosts: that are there.
    addresses: of the hosts, in their order, where the engine knows them.
    quota: it is FAILED as a quota is used up.
  """

  state: str
  detail: str = ""
  code: int = 0
  hosts: int = 0
  addresses: tuple = ()
  quota: bool = False


@dataclasses.dataclass(frozen=True)
class Resource:
  """Something in the cloud that carries our labels.

  Args:
    name: vit-b16-a1.
    location: its zone, or context and namespace.
    run, owner, attempt, expires: of its labels; expires in seconds since the epoch, 0 if it has none.
    state: one of STATES; `detail` the cloud's own word.
    created: seconds since the epoch, 0 if nobody knows.
    kind: v3-32.
    mark: of the run's folder, as spec.Run.mark; "" where nobody knows.
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


class Engine(Protocol):
  """Every call has a deadline of its own and may be repeated: it does what is not done yet.

  All raise UnknownError where the cloud gave no answer, LaunchError with DENIED where it refuses for good (credentials,
  permission, quota), NO_CAPACITY or USAGE (what it calls an invalid argument).
  """

  restarts: bool  # whether it starts a try that failed again by itself, as JobSets do

  def location(self, attempt: int) -> str:
    """Where the attempt is or will be: a zone, or whatever says it to people."""

  def request(self, attempt: int, expires: int) -> str:
    """Returns the commands of an attempt as a script of the shell; nothing is executed.

    The script contains the commands that create, inspect and delete the attempt, and that open a shell on a worker.
    """

  def create(self, attempt: int, expires: int) -> None:
    """Asks for what the attempt needs, and for it to end at `expires`, seconds since the epoch.

    One that is there already and has this run's labels is fine: an answer may have been lost.
    """

  def look(self, attempt: int) -> Look:
    """How it is."""

  def delete(self, attempt: int) -> None:
    """Asks for it to be deleted; what is absent or being deleted is fine. `look` says when it is gone."""

  def remove(self, resource: Resource) -> None:
    """Asks for something of the inventory to be deleted, if it is still what it was there."""

  def deletion(self, attempt: int) -> str:
    """The command with which a person deletes it by hand and looks whether it is gone."""

  def inventory(self, zones: tuple) -> tuple:
    """(resources of all runs that carry our labels, {location: why it could not be asked})."""

  def shell(self, attempt: int, worker: int, words: list) -> list:
    """The argument list of a command that runs `words` on a worker, or a shell for none; ends with its exit code."""
