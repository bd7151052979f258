"""Queued resources of Cloud TPU: VMs that wait in a queue for their chips, created and deleted with gcloud.

A queued resource becomes nodes, one per slice. Both are checked together, because a node that outlives its queued
resource is still billed.
"""

import contextlib
import math
import pathlib
import re
import shlex
import tempfile
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from . import errors, gcloud, mailbox, manifests, spec, states, storage, tpus
from .errors import LaunchError, QuotaError, UnknownError
from .states import ABSENT, DELETING, LOST, READY, Commands, MachineStatus, Resource

QUEUED, NODES = gcloud.GROUPS
_SCOPES = "https://www.googleapis.com/auth/cloud-platform"
_AT_ONCE = 8  # parallel calls of gcloud, each of which is a process
_IDLE = ("SUSPENDED", "SUSPENDING", "FAILED")  # states of queued resources that use quota and are of no use


class Engine:
  """See `launch.states.Engine`: one queued resource per attempt.

  Args:
    run: a run of the backend qr.
    store: the directory of the run, if it is open already.
  """

  def __init__(self, run: spec.Run, store: storage.Disk | storage.Bucket | None = None) -> None:
    self._run, self._store = run, store
    self._leaked: dict[
      int, list[str]
    ] = {}  # {attempt: names of nodes that outlived their queued resource, when last looked at}

  def create(self, attempt: int, expires: int) -> None:
    """See `launch.states.Engine`. The directory of the run must contain the published attempt."""
    self._store = self._store or storage.open_storage(self._run.folder)
    published = mailbox.Mailbox(self._store, attempt).read_attempt()
    with tempfile.TemporaryDirectory() as folder:
      script = make_startup_script(self._run, attempt, published.code, expires, published.seconds)
      (pathlib.Path(folder) / "startup.sh").write_text(script)
      try:
        gcloud.run_gcloud(self._build_create_command(attempt, expires), folder=folder)
      except gcloud.ExistsError:
        self._check_ownership(attempt)
      except QuotaError as error:
        raise QuotaError(f"{error}\n{self._explain_quota(attempt)}") from None
      except gcloud.AbsentError as error:
        raise LaunchError(
          f"Cloud TPU does not know a resource of the request ({error}). Check --project, --zone and --tpu"
        ) from None

  def look(self, attempt: int) -> MachineStatus:
    """See `launch.states.Engine`."""
    name = self._run.get_attempt_name(attempt)
    item = gcloud.describe_item(QUEUED, name, **self._place(attempt))
    if item is None:
      leftover = self._find_leftover_nodes(attempt)
      if not leftover:
        return MachineStatus(ABSENT)
      detail = ", ".join(f"{gcloud.get_short_name(node)} is {gcloud.get_state_word(node)}" for node in leftover)
      return MachineStatus(
        LOST if self._leaked[attempt] else DELETING, f"{detail}, without its queued resource, and is still billed"
      )
    gcloud.check_item(item)
    if not self._is_mine(item, attempt):
      return MachineStatus(ABSENT, f"{name} exists, but it is {gcloud.get_item_owner(item)}")
    look = gcloud.get_queue_status(item)
    return (
      gcloud.get_nodes_status(self._nodes(attempt), tpus.find_slice(self._run.tpu).hosts)
      if look.state == READY
      else look
    )

  def delete(self, target: int | Resource) -> None:
    """See `launch.states.Engine`. A resource of this name with other labels stays, because it is somebody else's."""
    if isinstance(target, Resource):
      self._delete_resource(target)
      return
    name, place = self._run.get_attempt_name(target), self._place(target)
    item = gcloud.describe_item(QUEUED, name, **place)
    if item is None:
      self._find_leftover_nodes(target)
      for node in self._leaked[target]:
        _request_deletion(NODES, node, **place)
    elif self._is_mine(item, target) and gcloud.get_state_word(item) != "DELETING":
      _request_deletion(QUEUED, name, **place)

  def _delete_resource(self, resource: Resource) -> None:
    place = {"project": self._run.project, "zone": resource.location}
    for group in gcloud.GROUPS:
      if item := gcloud.describe_item(group, resource.name, **place):
        now = gcloud.make_item_resource(item)
        if now.has_labels_of(resource) and "vitjax" in gcloud.get_labels(item) and now.state != DELETING:
          _request_deletion(group, resource.name, **place)
        return

  def list_resources(self, zones: Sequence[str]) -> tuple[list[Resource], dict[str, str]]:
    """See `launch.states.Engine`. Without zones, all zones of the project are asked.

    Each zone is asked separately, because gcloud does not report zones without an answer in a list of all zones
    (`--zone=-`).
    """
    try:
      zones = zones or self._list_zones()
    except gcloud.NO_ANSWER as error:
      return [], {"all zones": str(error)}
    answers = list(zip(zones, errors.map_in_threads(self._list_zone, zones, _AT_ONCE), strict=True))
    found = [resource for _, (resources, _) in answers for resource in resources]
    return found, {zone: failure for zone, (_, failure) in answers if failure}

  def build_shell_command(self, attempt: int, worker: int | None, words: Sequence[str]) -> list[str]:
    """See `launch.states.Engine`. Without a worker, the words run on all workers.

    gcloud repeats a command if ssh ends with 255, so the words must be safe to repeat. `--worker=1,3` is not used,
    because it reports success if one of the workers fails (SDK 528, command_lib/compute/tpus/tpu_vm/ssh.py).
    """
    names, hosts = self._names(attempt), tpus.find_slice(self._run.tpu).hosts
    flags = self._place(attempt)
    if words:
      # Without `exit`, ssh ends with 255 if a signal ends the command.
      flags |= {"quiet": True, "strict_host_key_checking": "no", "command": f"{shlex.join(words)}; exit $?"}
    elif worker is None:
      raise LaunchError("a shell needs one worker. Add --worker, or a command after --")
    flags |= {"tunnel_through_iap": self._run.internal_ips}
    if worker is None and len(names) > 1:
      return gcloud.build_gcloud_command(
        QUEUED, "ssh", self._run.get_attempt_name(attempt), node="all", worker="all", **flags
      )
    node, inside = (names[0], "all") if worker is None else (names[worker // hosts], str(worker % hosts))
    return gcloud.build_gcloud_command(NODES, "ssh", node, alpha=self._run.internal_ips, worker=inside, **flags)

  def _place(self, attempt: int) -> dict[str, Any]:
    return {"project": self._run.project, "zone": self._run.get_location(attempt)}

  def build_commands(self, target: int | Resource, expires: int = 0) -> Commands:
    """See `launch.states.Engine`."""
    if isinstance(target, Resource):
      where: dict[str, Any] = {"project": self._run.project, "zone": target.location}
      group = NODES if target.detail.endswith(gcloud.ALONE) else QUEUED
      delete = gcloud.build_gcloud_command(group, "delete", target.name, force=group == QUEUED, **where)
      lists = [gcloud.build_gcloud_command(each, "list", **where) for each in gcloud.GROUPS]
      return Commands("", "; ".join(map(shlex.join, [delete, *lists])))
    attempt = target
    place, names, last = self._place(attempt), self._names(attempt), self._run.workers - 1
    both = [(QUEUED, self._run.get_attempt_name(attempt)), *((NODES, name) for name in names)]
    delete, *delete_nodes = [gcloud.build_deletion(group, name, **place) for group, name in both]
    lists = [gcloud.build_gcloud_command(group, "list", **place) for group in gcloud.GROUPS]
    script = manifests.format_script(
      ("create: the startup script of the machines, still without the hash of the code",
       [manifests.format_here_document("cat >startup.sh", make_startup_script(self._run, attempt, "0" * 64, expires))]),
      ("create: the request", [gcloud.add_output_flags(self._build_create_command(attempt, expires))]),
      ("inspect",
       [gcloud.add_output_flags(gcloud.build_gcloud_command(group, "describe", name, **place))
        for group, name in both]),
      ("inspect, if one of them is not found: the lists must confirm it", map(gcloud.add_output_flags, lists)),
      ("delete", [gcloud.add_output_flags(delete)]),
      ("delete, if nodes outlive their queued resource", map(gcloud.add_output_flags, delete_nodes)),
      (f"ssh: python -m launch ssh {self._run.name} --worker=N, with N from 0 to {last}",
       [self.build_shell_command(attempt, 0, [])]),
    )  # fmt: skip
    lines = [gcloud.build_gcloud_command(QUEUED, "delete", self._run.get_attempt_name(attempt), force=True, **place)]
    lines += [gcloud.build_gcloud_command(NODES, "delete", node, **place) for node in self._leaked.get(attempt, ())]
    return Commands(script, "; ".join(map(shlex.join, [*lines, *lists])))

  def _build_create_command(self, attempt: int, expires: int) -> list[str]:
    """Returns the command that requests the machines of an attempt."""
    run, name = self._run, self._run.get_attempt_name(attempt)
    flex = run.capacity == "flex-start"
    labels = run.make_labels(attempt) | {"vitjax-expires": str(expires)}
    return gcloud.build_gcloud_command(
      *(QUEUED, "create", name),
      alpha=flex,
      **self._place(attempt),
      **({"node_count": run.slices, "node_prefix": name} if run.slices > 1 else {"node_id": name}),
      accelerator_type=tpus.find_slice(run.tpu).rented,
      runtime_version=run.runtime_version,
      spot=run.capacity == "spot",
      reserved=run.capacity == "reserved",
      provisioning_model=flex and "flex-start",
      max_run_duration=flex and f"{round(run.max_hours * 3600)}s",  # the only limit that the cloud itself knows
      valid_until_duration=f"{max(1, round(run.limits.queue))}s",
      labels=",".join(f"{key}={value}" for key, value in labels.items()),
      network=run.network,
      subnetwork=run.subnetwork,
      internal_ips=run.internal_ips,
      tags="vitjax",
      service_account=run.service_account,
      scopes=_SCOPES,
      metadata="enable-oslogin=TRUE",  # IAM decides who may log in, instead of a growing list of keys
      metadata_from_file="startup-script=startup.sh",
      **{"async": True},
    )

  def _check_ownership(self, attempt: int) -> None:
    """Raises an error unless the resource of this name is this attempt, from an earlier request without an answer."""
    name, zone = self._run.get_attempt_name(attempt), self._run.get_location(attempt)
    item = gcloud.describe_item(QUEUED, name, **self._place(attempt))
    if item is None:
      raise UnknownError(f"{name} in {zone} existed a moment ago, and is absent now")
    if not self._run.make_labels(attempt).items() <= gcloud.get_labels(item).items():
      raise LaunchError(
        f"{name} in {zone} is in use: it is {gcloud.get_item_owner(item)}. Choose another name for the run"
      )

  def _explain_quota(self, attempt: int) -> str:
    """Returns a message about suspended queued resources that use the quota of a zone, and how to free it."""
    zone = self._run.get_location(attempt)
    try:
      items = gcloud.list_items(QUEUED, **self._place(attempt))
    except gcloud.NO_ANSWER as error:
      return f"the queued resources that use it could not be listed: {error}"
    idle = [item for item in items if gcloud.get_state_word(item) in _IDLE]
    if not idle:
      return f"no suspended queued resource uses it in {zone}: request more, or use another --zone or --tpu"
    names = [
      f"{gcloud.get_short_name(each)} ({gcloud.get_state_word(each)}, {gcloud.get_item_owner(each)})" for each in idle
    ]
    return f"these use it until they are deleted: {', '.join(names)}; `python -m launch gc` deletes those of `launch`"

  def _is_mine(self, item: Mapping[str, object], attempt: int) -> bool:
    return states.has_labels(self._run, attempt, gcloud.get_short_name(item), gcloud.get_labels(item))

  def _names(self, attempt: int) -> list[str]:
    name, slices = self._run.get_attempt_name(attempt), self._run.slices
    return [f"{name}-{i}" for i in range(slices)] if slices > 1 else [name]

  def _nodes(self, attempt: int) -> list[tuple[str, dict[str, Any] | None]]:
    """Returns (name, node or None) of each slice of an attempt."""
    names, place = self._names(attempt), self._place(attempt)
    nodes = errors.map_in_threads(lambda name: gcloud.describe_item(NODES, name, **place), names, _AT_ONCE)
    return list(zip(names, nodes, strict=True))

  def _find_leftover_nodes(self, attempt: int) -> list[dict[str, Any]]:
    """Returns the nodes of an attempt whose queued resource is gone, and notes in `_leaked` those not in deletion."""
    nodes = [node for _, node in self._nodes(attempt) if node and self._is_mine(node, attempt)]
    self._leaked[attempt] = [gcloud.get_short_name(node) for node in nodes if gcloud.get_state_word(node) != "DELETING"]
    return nodes

  def _list_zones(self) -> list[str]:
    found = gcloud.run_gcloud(gcloud.build_gcloud_command("locations", "list", project=self._run.project))
    if not found or not isinstance(found, list):
      raise UnknownError("gcloud lists no zone of Cloud TPU")
    with errors.convert_unexpected("the list of zones"):
      return [each["locationId"] for each in found]

  def _list_zone(self, zone: str) -> tuple[list[Resource], str]:
    """Returns (the known resources of a zone, the reason why the zone did not answer or "")."""
    items, found, failure = [], [], ""
    for group in gcloud.GROUPS:
      try:
        items += gcloud.list_items(group, project=self._run.project, zone=zone)
      except gcloud.NO_ANSWER as error:
        failure = str(error)
    # A node names its queued resource by the number of the project, and the list by the id of the project.
    here = {item["name"].partition("/locations/")[2] for item in items}
    for item in items:
      try:
        with errors.convert_unexpected(f"{zone}: {item['name'][-80:]}"):
          parent = str(item.get("queuedResource", "")).partition("/locations/")[2]
          if gcloud.get_labels(item).get("vitjax") and parent not in here:
            found.append(gcloud.make_item_resource(item))
      except UnknownError as error:
        failure = str(error)
    return found, failure


def make_startup_script(run: spec.Run, attempt: int, code: str, expires: int, seconds: int = 0) -> str:
  """Returns the script that every VM of an attempt executes at each boot.

  Args:
    run: the run.
    attempt: number of the attempt.
    code: the SHA-256 of the bundle.
    expires: the latest end, in seconds since the epoch.
    seconds: seconds from the first boot until the machine deletes itself; 0 if only `expires` limits it.
  """
  bucket, _, prefix = run.folder.removeprefix("gs://").partition("/")
  name = f"{prefix.strip('/')}/code/{code}.tgz"
  numbers = [f"-{number}" for number in range(run.slices)] if run.slices > 1 else [""]
  values = {
    "FOLDER": run.folder,
    "OBJECT": f"{bucket}/o/{urllib.parse.quote(name, safe='')}",
    "CODE": code,
    "ATTEMPT": str(int(attempt)),
    "EXPIRES": str(int(expires)),
    "SECONDS": str(int(seconds)),
    "NAME": run.get_attempt_name(attempt),
    "PROJECT": run.project,
    "ZONE": run.get_location(attempt),
    "IDLE": str(math.ceil(run.limits.idle)),
    "GRACE": str(math.ceil(run.limits.grace) + 60),
  }
  quoted = {key: shlex.quote(value) for key, value in values.items()}
  quoted["NODES"] = shlex.join(run.get_attempt_name(attempt) + number for number in numbers)
  template = (pathlib.Path(__file__).parent / "startup.sh.in").read_text()
  return re.sub("@([A-Z]+)@", lambda match: quoted[match[1]], template)


def _request_deletion(group: str, name: str, **place: str) -> None:
  """Requests a deletion of a resource, which may be gone already."""
  with contextlib.suppress(gcloud.AbsentError):
    gcloud.run_gcloud(gcloud.build_deletion(group, name, **place))
