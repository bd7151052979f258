"""The two clouds with one interface, so that one suite tests both engines."""

import contextlib
import os
import pathlib

from launch import spec
from launch.states import make_engine
from launch.storage import open_storage
from tests.launch import cloud, quick_gcloud
from tests.launch.cluster import Cluster
from tests.launch.crew import Crew
from tests.launch.kubernetes_api import Fault

LIMITS = spec.Limits(beat=0.05, poll=0.4, silence=3.0, grace=0.4, pause=0.05, delete=3.0, start=6.0, repair=2.0,
                     queue=3.0, provision=3.0, appear=0.3)  # fmt: skip
IMAGE = "europe-docker.pkg.dev/p/r/vit@sha256:" + "0" * 64


class Provider:
  """A cloud with crews on its machines. It is a context manager. `words` are run arguments of this cloud only."""

  words = {}

  def __init__(self, folder: pathlib.Path, bucket: str, **changes):
    args = ("--config=c.py", f"--workdir={bucket}")
    values = {"tpu": "v3-32", "owner": "alice", "limits": LIMITS} | self.words | changes
    self.run = spec.check_and_complete(spec.Run("vit", module="vit_jax.train", args=args, workdir=bucket, **values))
    self._folder, self._resources, self._before = folder, contextlib.ExitStack(), {}
    self.crews = []

  def __enter__(self):
    self.open()
    self._before = {name: os.environ.get(name) for name in self.environment}
    os.environ.update(self.environment)
    self.engine = make_engine(self.run)
    return self

  def __exit__(self, *_):
    self._resources.close()
    for name, value in self._before.items():
      if value is None:
        del os.environ[name]
      else:
        os.environ[name] = value

  def crew(self, attempt: int, **words) -> None:
    """Adds workers for an attempt that does not exist yet."""
    made = Crew(open_storage(self.run.folder), attempt, **self.hooks(attempt), **words)
    self.crews.append(made)
    self._resources.enter_context(made)


class Queued(Provider):
  """Queued resources of Cloud TPU."""

  words = {"backend": "qr", "project": "proj-x", "zones": ("europe-west4-a",)}

  def open(self):
    self._server = self._resources.enter_context(cloud.Server())
    folder = quick_gcloud.install(self._folder / "bin")
    self.environment = self._server.environment | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}

  def hooks(self, attempt):
    """Returns no arguments of `Crew`, because the order in the storage restarts workers."""
    return {}

  def states(self):
    """Returns {name: state} of the existing machines that are not being deleted."""
    return {name: state for name, state in self._server.states().items() if state != "DELETING"}

  def everything(self):
    """Returns all existing resources, including nodes."""
    return self._server.live()

  def made(self):
    """Returns the names of all created resources in their order."""
    return [request.query["queuedResourceId"] for request in self._server.requests if request.verb == "create"]

  def wait(self, name):
    """Leaves a resource without capacity."""
    self._server.script(name, "WAITING_FOR_RESOURCES")

  def preempt(self, name):
    """Preempts the machines of a resource."""
    self._server.set_state(name, "SUSPENDED")

  def take(self, name):
    """Removes a resource for good."""
    self._server.set_state(name, "SUSPENDED")

  def murmur(self, name):
    """Reports an unknown state of a resource for a while."""
    self._server.script(name, *["FLOURISHING"] * 8, *cloud.GRANTED)

  def silence(self, calls):
    """Makes descriptions fail for a number of calls."""
    self._server.faults(describe=[500, 503, "cut", 429] * (calls // 4), node=[500] * calls)

  def lose_answer(self):
    """Loses the response to the next create request."""
    self._server.faults(create=["lost"])

  def refuse(self, code):
    """Refuses the next create requests with an HTTP status."""
    self._server.faults(create=[code] * 100)

  def keep(self):
    """Refuses all delete requests."""
    self._server.faults(delete=[500] * 10**4)

  def linger(self):
    """Keeps deleted resources visible for a long time."""
    self._server.lingering = 10**6

  def mute(self):
    """Refuses all list requests."""
    self._server.faults(list=[500] * 1000, list_nodes=[500] * 1000)


class Gke(Provider):
  """JobSets of a cluster."""

  words = {"backend": "gke", "image": IMAGE, "cluster": "loopback"}

  def open(self):
    self._cluster = self._resources.enter_context(Cluster(starts=True))
    self.environment = self._cluster.environment

  def hooks(self, attempt):
    """Returns arguments of `Crew` with which the JobSet restarts ended workers."""
    name = self.run.get_attempt_name(attempt)

    def ended(codes):
      if not any(codes):
        self._cluster.complete(name)
      elif name in self.states():
        worker = next(w for w, code in enumerate(codes) if code not in (0, 134))
        self._cluster.exit(name, worker, codes[worker])

    def ordered():
      jobset = self._cluster.jobset(name)
      if not jobset or any(each["type"] == "Failed" for each in jobset["status"]["conditions"]):
        return 0
      return 1 + jobset["status"]["restarts"]

    return {"ended": ended, "ordered": ordered}

  def states(self):
    """Returns {name: state} of the existing machines that are not being deleted."""
    return dict.fromkeys(self._cluster.standing(), "there")

  def everything(self):
    """Returns all existing objects, including pods."""
    return self._cluster.live()

  def made(self):
    """Returns the names of all created resources in their order."""
    return [body["metadata"]["name"] for body in self._cluster.bodies("jobsets")]

  def wait(self, name):
    """Leaves a resource without capacity."""
    self._cluster.starts = False

  def preempt(self, name):
    """Preempts the machines of a resource."""
    self._cluster.lose(name)

  def take(self, name):
    """Removes a resource for good."""
    self._cluster.remove(name)

  def murmur(self, name):
    """Reports an unknown condition of a JobSet."""
    self._cluster.say(name, "Flourishing")

  def silence(self, calls):
    """Makes descriptions fail for a number of calls."""
    self._cluster.faults(Fault("GET", code=500, times=calls))

  def lose_answer(self):
    """Loses the response to the next create request."""
    self._cluster.faults(Fault("POST", "jobsets", code=0, after=True))

  def refuse(self, code):
    """Refuses the next create requests with an HTTP status."""
    self._cluster.faults(Fault("POST", "jobsets", code=code, times=100))

  def keep(self):
    """Refuses all delete requests."""
    self._cluster.faults(Fault("DELETE", code=500, times=10**4))

  def linger(self):
    """Keeps deleted resources visible for a long time."""
    self._cluster.linger()
