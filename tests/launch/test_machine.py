"""Tests of a worker's number from the metadata server, ports, limits, secrets, and the deletion of its machine."""

import base64
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import resource
import socket
import urllib.request

import pytest

from launch import machine, spec
from launch.errors import DENIED, LaunchError, UnknownError
from tests.launch import google

RUN = spec.check_and_complete(
  spec.Run("vit", "qr", "job", (), "gs://bkt/a", tpu="v3-32", slices=2, project="my-project", zones=("us-east1-d",))
)


@pytest.fixture
def server(monkeypatch):
  with google.Server() as server:
    for name, value in server.environment().items():
      monkeypatch.setenv(name, value)
    monkeypatch.setattr(machine.time, "sleep", lambda _: None)
    yield server
    server.shutdown()


@pytest.mark.parametrize(
  "answers",
  [
    {"attributes/tpu-env": "ZONE: 'us-east1-d'\nNODE_ID: 'vit-a3-1'\nMEGASCALE_SLICE_ID: '0'\n"},
    {"attributes/tpu-env": "NODE_ID: 'other'\n", "attributes/instance-id": "vit-a3-1"},
    {"description": "Cloud TPU node projects/p/locations/z/nodes/vit-a3-1"},
  ],
)
def test_workers_are_numbered_over_the_slices(server, answers):
  server.answers |= {f"instance/{key}": value for key, value in answers.items()}
  server.answers["instance/attributes/agent-worker-number"] = [500, "2"]
  assert machine.find_worker(RUN, 3, None) == 1 * 4 + 2
  assert all(headers["Metadata-Flavor"] == "Google" for _, _, headers in server.asked)


def test_worker_without_a_number_is_an_error(server):
  with pytest.raises(LaunchError, match="no number for this worker"):
    machine.find_worker(RUN, 3, None)
  server.answers["instance/attributes/agent-worker-number"] = "1"
  server.answers["instance/attributes/tpu-env"] = "NODE_ID: 'vit-a31-1'"
  with pytest.raises(LaunchError, match="does not name the node"):
    machine.find_worker(RUN, 3, None)
  with pytest.raises(LaunchError, match="2 slices of 4 workers"):
    machine.find_worker(RUN, 3, 4)
  assert machine.find_worker(RUN, 3, 1, 1) == 5
  server.answers["instance/attributes/agent-worker-number"] = 503
  with pytest.raises(UnknownError, match="503"):
    machine.find_worker(RUN, 3, None)


def test_address_is_the_address_of_the_machine(server):
  server.answers["instance/network-interfaces/0/ip"] = "10.1.2.3\n"
  assert machine.find_address("qr") == "10.1.2.3"
  assert machine.find_address("local") == "127.0.0.1"
  socket.inet_aton(machine.find_address("hosts"))


def test_coordinator_uses_the_first_free_port_that_the_firewall_opens():
  taken = [socket.socket() for _ in machine.PORTS]
  for probe, number in zip(taken[:2], machine.PORTS, strict=False):
    probe.bind(("", number))
    probe.listen()
  try:
    assert machine.find_port("qr") == (8478, "port 8476, 8477 of this host is in use")
    for probe, number in zip(taken[2:], machine.PORTS[2:], strict=True):
      probe.bind(("", number))
      probe.listen()
    with pytest.raises(LaunchError, match="8476 to 8482"):
      machine.find_port("gke")
  finally:
    for probe in taken:
      probe.close()
  assert machine.find_port("qr") == (8476, "")
  assert machine.find_port("local")[0] not in machine.PORTS


def test_documented_firewall_rule_opens_the_ports_of_a_run():
  page = pathlib.Path(__file__).parents[2].joinpath("docs/guides/tpu-vms.md").read_text()
  (rule,) = re.findall(r"--target-tags=vitjax --allow=((?:tcp:[\d-]+,?)+)\n.*subnets", page)
  ranges = [[int(number) for number in part.split("-")] for part in rule.replace("tcp:", "").split(",")]
  opened = {number for first, *last in ranges for number in range(first, (last or [first])[0] + 1)}
  assert {*machine.PORTS, machine.SLICES_PORT} <= opened
  assert f"{machine.PORTS[0]} to {machine.PORTS[-1]} for the coordinator" in page
  shown, *_ = re.findall(r"tcp (\d+)-(\d+) ─▶ other hosts", page)
  assert [int(number) for number in shown] == ranges[0]


def test_queued_resource_of_the_machine_is_deleted(server):
  path = "/v2/projects/my-project/locations/europe-west4-a/queuedResources/vit-a3?force=true"
  server.answers |= {"instance/zone": "projects/7/zones/europe-west4-a", path: [503, 500, "{}"]}
  run = dataclasses.replace(RUN, limits=spec.Limits(beat=0.01))
  machine.delete_own_slice(run, 3)
  deletes = [(path, headers.get("Authorization")) for method, path, headers in server.asked if method == "DELETE"]
  assert deletes == [(path, "Bearer abc")] * 3
  server.answers[path] = 404  # another worker has deleted it
  machine.delete_own_slice(run, 3)
  for status in (403, 500):
    server.answers[path] = status
    with pytest.raises(LaunchError, match=f"{status}.*gcloud .* delete vit-a3 --force --project=my-project") as error:
      machine.delete_own_slice(run, 3)
    assert error.value.code == DENIED


def test_secret_is_read_from_secret_manager(server):
  name = "projects/p/secrets/wandb/versions/3"
  value = "ä" * 9
  data = base64.b64encode(value.encode()).decode()
  server.answers[f"/v1/{name}:access"] = json.dumps({"payload": {"data": data}})
  assert machine.read_secret(name) == value
  with pytest.raises(LaunchError, match="projects/p/secrets/x/versions/1 does not exist"):
    machine.read_secret("projects/p/secrets/x/versions/1")
  server.answers[f"/v1/{name}:access"] = json.dumps({"payload": {"data": "%%%"}})
  with pytest.raises(LaunchError, match="is not UTF-8 text"):
    machine.read_secret(name)


@pytest.mark.parametrize(
  "group, file, text, count",
  [
    ("0::/a/b\n", "sys/fs/cgroup/a/b/memory.events", "oom 4\noom_kill 3\noom_group_kill 9\n", 3),
    ("4:memory:/x\n0::/\n", "sys/fs/cgroup/memory/x/memory.oom_control", "under_oom 0\noom_kill 2\n", 2),
    ("2:cpu:/x\n", "sys/fs/cgroup/memory/x/memory.oom_control", "oom_kill 2\n", 0),
    ("garbage", "a", "", 0),
  ],
)
def test_kills_for_lack_of_memory_are_counted(tmp_path, group, file, text, count):
  for name, content in (("proc/self/cgroup", group), (file, text)):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(content)
  assert machine.count_oom_kills(str(tmp_path)) == count
  assert machine.count_oom_kills(str(tmp_path / "none")) == 0


def test_huge_pages_are_enabled_or_a_note_is_returned(tmp_path):
  file = tmp_path / machine._PAGES
  file.parent.mkdir(parents=True)
  file.write_text("always [madvise] never")
  machine.raise_limits("qr", str(tmp_path))
  assert file.read_text() == "always"
  assert "transparent huge pages" in machine.raise_limits("gke", str(tmp_path / "none"))
  assert machine.raise_limits("local", str(tmp_path / "none")) == ""


def test_port_is_unknown_without_free_descriptors():
  """Uses all file descriptors, like a process that leaks them."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
  taken = []
  try:
    with contextlib.suppress(OSError):
      while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
    for call in (
      lambda: machine.find_port("local"),
      lambda: machine.find_port("qr"),
      lambda: machine.find_address("hosts"),
    ):
      with pytest.raises(UnknownError, match="Too many open files"):
        call()
    with pytest.raises(UnknownError, match="does not answer"):
      machine.send_request(urllib.request.Request("http://127.0.0.1:9/"), pause=0.0)
  finally:
    for number in taken:
      os.close(number)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("text", ["", "x", "\u00b2", "1\n2", "9" * 5000, "-1"])
def test_invalid_number_of_a_worker_is_an_error(server, text):
  server.answers["instance/attributes/agent-worker-number"] = text
  with pytest.raises(LaunchError, match=r"no number for this worker|slices of"):
    machine.find_worker(RUN, 1, None)


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"payload": 1}', '{"payload": {"data": 5}}', "[" * 10**5])
def test_secret_in_another_form_is_an_error(server, text):
  server.answers["/v1/projects/p/secrets/s/versions/1:access"] = text
  with pytest.raises(LaunchError, match="is not UTF-8 text"):
    machine.read_secret("projects/p/secrets/s/versions/1")
