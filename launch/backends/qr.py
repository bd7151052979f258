"""Queued resources of Cloud TPU: VMs that wait in a queue for their chips, made and deleted with gcloud.

A queued resource and the nodes (slices) that it becomes are looked at together: a node that outlives its queued
resource is still billed.
"""

import contextlib
import math
import pathlib
import re
import shlex
import tempfile
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

from launch import assumptions, gcloud, mailbox, render, spec, storage, tpus
from launch.engine import ABSENT, DELETING, LOST, READY, Look, Resource
from launch.errors import LaunchError, QuotaError, UnknownError

_SCOPES = "https://www.googleapis.com/auth/cloud-platform"
_FLEX_HOURS = 7 * 24  # docs.cloud.google.com/tpu/docs: flex-start runs up to seven days
_AT_ONCE = 8  # calls of gcloud, each of which is a process


class Engine:
  """Queued resources for a run, one an attempt.

  Args:
    run: whose backend is qr.
    store: the run's folder, if it is open already.
  """

  def __init__(self, run: spec.Run, store=None):
    self._run, self._store = run, store
    self._leaked = {}  # {attempt: names of nodes that have outlived their queued resource}, as last seen

  def location(self, attempt: int) -> str:
    """See `launch.engine.Engine`: a zone; the run's take turns."""
    return self._run.zones[(attempt - 1) % len(self._run.zones)]

  def request(self, attempt: int, expires: int) -> str:
    """See `launch.engine.Engine`."""
    zone = {"project": self._run.project, "zone": self.location(attempt)}
    name, names, hosts = self._run.attempt(attempt), self._names(attempt), self._run.workers
    boot = startup(self._run, attempt, "0" * 64, expires)
    describe = [gcloud.command("queued-resources", "describe", name, **zone)]
    describe += [gcloud.command("tpu-vm", "describe", node, **zone) for node in names]
    listing = [gcloud.command(group, "list", **zone) for group in ("queued-resources", "tpu-vm")]
    delete = [gcloud.command("queued-resources", "delete", name, **zone, force=True, **{"async": True})]
    leaked = [gcloud.command("tpu-vm", "delete", node, **zone, **{"async": True}) for node in names]
    return render.script(
      ("create: the script of the machines, in which the hash of the code is still missing",
       [render.here("cat >startup.sh", boot)]),
      ("create: the request", [gcloud.executed(self._request(attempt, expires))]),
      ("inspect", map(gcloud.executed, describe)),
      ("inspect, if one of them is not found: the lists must confirm it", map(gcloud.executed, listing)),
      ("delete", map(gcloud.executed, delete)),
      ("delete, if nodes outlive their queued resource", map(gcloud.executed, leaked)),
      (f"ssh: python -m launch ssh {self._run.name} --worker=N, with N from 0 to {hosts - 1}",
       [self.shell(attempt, 0, [])]),
    )  # fmt: skip

  def create(self, attempt: int, expires: int) -> None:
    """See `launch.engine.Engine`. The attempt's code is read from the run's folder: publish it first."""
    self._store = self._store or storage.storage(self._run.folder)
    published = mailbox.Mailbox(self._store, attempt).attempt()
    with tempfile.TemporaryDirectory() as folder:
      (pathlib.Path(folder) / "startup.sh").write_text(
        startup(self._run, attempt, published.code, expires, published.seconds)
      )
      try:
        gcloud.run(self._request(attempt, expires), folder=folder)
      except gcloud.ExistsError:
        self._claim(attempt)
      except QuotaError as error:
        raise QuotaError(f"{error}\n{self._holders(self.location(attempt))}") from None
      except gcloud.AbsentError as error:
        raise LaunchError(
          f"Cloud TPU does not know what was asked for ({error}); see --project, --zone, --tpu"
        ) from None

  def look(self, attempt: int) -> Look:
    """See `launch.engine.Engine`."""
    name, zone = self._run.attempt(attempt), self.location(attempt)
    item = gcloud.described("queued-resources", name, self._run.project, zone)
    if item is None:
      left = self._leftover(attempt)
      if not left:
        return Look(ABSENT)
      detail = ", ".join(f"{node['name'].rpartition('/')[2]} is {gcloud.word(node)}" for node in left)
      return Look(LOST if self._leaked[attempt] else DELETING, f"{detail}, without its queued resource: it is billed")
    gcloud.check(item)
    if not self._mine(item, attempt):
      return Look(ABSENT, f"{name} is there, but it is {gcloud.whose(item)}")
    look = gcloud.waiting(item)
    return gcloud.together(self._nodes(attempt), tpus.find(self._run.tpu).hosts) if look.state == READY else look

  def delete(self, attempt: int) -> None:
    """See `launch.engine.Engine`. What has its name and not its labels is somebody else's, and stays."""
    name, zone = self._run.attempt(attempt), self.location(attempt)
    item = gcloud.described("queued-resources", name, self._run.project, zone)
    if item is None:
      self._leftover(attempt)
      for node in self._leaked[attempt]:
        _delete("tpu-vm", node, self._run.project, zone)
    elif self._mine(item, attempt) and gcloud.word(item) != "DELETING":
      _delete("queued-resources", name, self._run.project, zone)

  def remove(self, resource: Resource) -> None:
    """Asks for something of the inventory to be deleted, if it still has the labels that it had there."""
    for group in ("queued-resources", "tpu-vm"):
      item = gcloud.described(group, resource.name, self._run.project, resource.location)
      if item:
        now = gcloud.resource(item)
        same = (now.run, now.owner, now.attempt) == (resource.run, resource.owner, resource.attempt)
        if same and "vitjax" in gcloud.labels(item) and now.state != DELETING:
          _delete(group, resource.name, self._run.project, resource.location)
        return

  def deletion(self, attempt: int) -> str:
    """See `launch.engine.Engine`."""
    zone = {"project": self._run.project, "zone": self.location(attempt)}
    lines = [gcloud.command("queued-resources", "delete", self._run.attempt(attempt), force=True, **zone)]
    lines += [gcloud.command("tpu-vm", "delete", node, **zone) for node in self._leaked.get(attempt, ())]
    lines += [gcloud.command(group, "list", **zone) for group in ("queued-resources", "tpu-vm")]
    return "; ".join(shlex.join(line) for line in lines)

  def inventory(self, zones: tuple) -> tuple:
    """See `launch.engine.Engine`; all zones of the project for none.

    Each zone is asked by itself: of a list of all zones (`--zone=-`) gcloud hides which ones did not answer.
    """
    try:
      zones = zones or self._locations()
    except (UnknownError, LaunchError, gcloud.AbsentError) as error:
      return [], {"all zones": str(error)}
    found, failures = [], {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
      for zone, (listed, failure) in zip(zones, pool.map(self._listed, zones), strict=True):
        found += listed
        if failure:
          failures[zone] = failure
    return found, failures

  def shell(self, attempt: int, worker: "int | None", words: list) -> list:
    """See `launch.engine.Engine`; the words run on all workers for None.

    Never for what may run twice: gcloud runs a command again when ssh ends with 255. `--worker=1,3` is not used, for
    it reports success where a worker failed (SDK 528, command_lib/compute/tpus/tpu_vm/ssh.py).
    """
    names, hosts = self._names(attempt), tpus.find(self._run.tpu).hosts
    flags = {"project": self._run.project, "zone": self.location(attempt)}
    if words:
      # Without `exit`, ssh ends with 255 where the command dies of a signal.
      remote = f"{shlex.join(words)}; exit $?"
      flags |= {"quiet": True, "strict_host_key_checking": "no", "command": remote}
    elif worker is None:
      raise LaunchError("a shell is on one worker: give --worker, or a command behind --")
    flags |= {"tunnel_through_iap": self._run.internal_ips}
    if worker is None and len(names) > 1:
      return gcloud.command("queued-resources", "ssh", self._run.attempt(attempt), node="all", worker="all", **flags)
    node, inside = (names[0], "all") if worker is None else (names[worker // hosts], str(worker % hosts))
    return gcloud.command("tpu-vm", "ssh", node, alpha=self._run.internal_ips, worker=inside, **flags)

  def _request(self, attempt, expires):
    run, name = self._run, self._run.attempt(attempt)
    several = {"node_count": run.slices, "node_prefix": name} if run.slices > 1 else {"node_id": name}
    flex = run.capacity == "flex-start"
    if flex and run.max_hours > _FLEX_HOURS:
      raise LaunchError(
        f"--max-hours: {run.max_hours:g}; flex-start ends after {_FLEX_HOURS}, the most that is allowed"
      )
    # The only end that the cloud itself knows.
    capacity = (
      {"provisioning_model": "flex-start", "max_run_duration": f"{round(run.max_hours * 3600)}s"} if flex else {}
    )
    labels = {**_labels(run, attempt), "vitjax-expires": str(expires)}
    return gcloud.command(
      *("queued-resources", "create", name),
      alpha=flex,
      project=run.project,
      zone=self.location(attempt),
      **several,
      accelerator_type=tpus.find(run.tpu).rented,
      runtime_version=run.runtime_version,
      spot=run.capacity == "spot",
      reserved=run.capacity == "reserved",
      **capacity,
      valid_until_duration=f"{max(1, round(run.limits.queue))}s",
      labels=",".join(f"{key}={value}" for key, value in labels.items()),
      network=run.network,
      subnetwork=run.subnetwork,
      internal_ips=run.internal_ips,
      tags="vitjax",
      service_account=run.service_account,
      scopes=_SCOPES,
      # Who may log in is IAM's, and not a list of keys that grows (though gcloud writes one all the same).
      metadata="enable-oslogin=TRUE",
      metadata_from_file="startup-script=startup.sh",
      **{"async": True},
    )

  def _claim(self, attempt):
    """What has the name must be this attempt, whose creation has been answered by nobody."""
    name, zone = self._run.attempt(attempt), self.location(attempt)
    item = gcloud.described("queued-resources", name, self._run.project, zone)
    if item is None:
      raise UnknownError(f"{name} was there in {zone} a moment ago, and is not")
    if not self._mine(item, attempt):
      raise LaunchError(f"{name} in {zone} is taken: it is {gcloud.whose(item)}; choose another name for the run")

  def _holders(self, zone):
    """What holds the quota of a zone without being of use, and how it is freed."""
    try:
      items = gcloud.listed("queued-resources", self._run.project, zone)
    except (UnknownError, LaunchError, gcloud.AbsentError) as error:
      return f"what holds it could not be listed: {error}"
    idle = [item for item in items if gcloud.word(item) in ("SUSPENDED", "SUSPENDING", "FAILED")]
    if not idle:
      return f"no suspended queued resource holds it in {zone}: ask for more, or take another --zone or --tpu"
    names = ", ".join(f"{gcloud.resource(item).name} ({gcloud.word(item)}, {gcloud.whose(item)})" for item in idle)
    return f"these hold it until they are deleted: {names}; `python -m launch gc` deletes those of `launch`"

  def _mine(self, item, attempt):
    return _labels(self._run, attempt).items() <= gcloud.labels(item).items()

  def _names(self, attempt):
    name, slices = self._run.attempt(attempt), self._run.slices
    return [f"{name}-{i}" for i in range(slices)] if slices > 1 else [name]

  def _nodes(self, attempt):
    """[(name, node or None)] of an attempt's slices."""
    names, zone = self._names(attempt), self.location(attempt)
    with ThreadPoolExecutor(min(_AT_ONCE, len(names))) as pool:
      nodes = pool.map(lambda name: gcloud.described("tpu-vm", name, self._run.project, zone), names)
      return list(zip(names, nodes, strict=True))

  def _leftover(self, attempt):
    """This attempt's nodes, once their queued resource is gone; those that nobody deletes are _leaked."""
    nodes = {name: node for name, node in self._nodes(attempt) if node and self._mine(node, attempt)}
    self._leaked[attempt] = [name for name, node in nodes.items() if gcloud.word(node) != "DELETING"]
    return list(nodes.values())

  def _locations(self):
    found = gcloud.run(gcloud.command("locations", "list", project=self._run.project))
    if not found or not isinstance(found, list):
      raise UnknownError("gcloud lists no zone of Cloud TPU")
    with assumptions.boundary("the list of zones"):
      return tuple(each["locationId"] for each in found)

  def _listed(self, zone):
    """(resources of a zone, as far as it has answered, why it did not or "")."""
    items, failure = [], ""
    for group in ("queued-resources", "tpu-vm"):
      try:
        items += gcloud.listed(group, self._run.project, zone)
      except (UnknownError, LaunchError, gcloud.AbsentError) as error:
        failure = str(error)
    # A node names its queued resource by the number of the project, and the list by the id.
    here, found = {_place(item["name"]) for item in items}, []
    for item in items:
      try:
        with assumptions.boundary(f"{zone}: {item['name'][-80:]}"):
          if gcloud.labels(item).get("vitjax") and _place(item.get("queuedResource", "")) not in here:
            found.append(gcloud.resource(item))
      except UnknownError as error:
        failure = str(error)
    return found, failure


def startup(run: spec.Run, attempt: int, code: str, expires: int, seconds: int = 0) -> str:
  """The program that every VM of an attempt runs at each boot.

  Args:
    code: the SHA-256 of its bundle.
    expires: seconds since the epoch, the latest end.
    seconds: from the first boot, after which the machine deletes itself; 0 if only `expires` limits it.
  """
  bucket, _, prefix = run.folder.removeprefix("gs://").partition("/")
  name = f"{prefix.strip('/')}/code/{code}.tgz"
  values = {
    "FOLDER": run.folder,
    "OBJECT": f"{bucket}/o/{urllib.parse.quote(name, safe='')}",
    "CODE": code,
    "ATTEMPT": str(int(attempt)),
    "EXPIRES": str(int(expires)),
    "SECONDS": str(int(seconds)),
    "NAME": run.attempt(attempt),
    "PROJECT": run.project,
    "ZONE": run.zones[(attempt - 1) % len(run.zones)] if run.zones else "",
    "IDLE": str(math.ceil(run.limits.idle)),
    "GRACE": str(math.ceil(run.limits.grace) + 60),
  }
  quoted = {key: shlex.quote(value) for key, value in values.items()}
  numbers = [f"-{number}" for number in range(run.slices)] if run.slices > 1 else [""]
  quoted["NODES"] = " ".join(shlex.quote(run.attempt(attempt) + number) for number in numbers)
  template = (pathlib.Path(__file__).parent.parent / "startup.sh.in").read_text()
  return re.sub("@([A-Z]+)@", lambda match: quoted[match[1]], template)


def _labels(run, attempt):
  """What tells an attempt from everything else: also from a run of that name in another folder."""
  return {
    "vitjax": "1",
    "vitjax-run": run.name,
    "vitjax-owner": run.owner,
    "vitjax-attempt": str(attempt),
    "vitjax-folder": run.mark,
  }


def _place(name):
  """A resource's name without its project, which may be an id or a number."""
  return str(name).partition("/locations/")[2]


def _delete(group, name, project, zone):
  """Asks for something to be deleted, with what belongs to it; it may be gone already."""
  force = group == "queued-resources"
  with contextlib.suppress(gcloud.AbsentError):
    gcloud.run(gcloud.command(group, "delete", name, project=project, zone=zone, force=force, **{"async": True}))
