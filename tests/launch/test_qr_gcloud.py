"""Tests of the engine of queued resources with the real gcloud and a local Cloud TPU server.

A call takes a second, so tests use few calls and run several at once.
"""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from launch import gcloud, qr
from launch.errors import DENIED, USAGE, LaunchError, UnknownError
from launch.states import ABSENT, READY
from tests.launch import cloud
from tests.launch.descriptions import EXPIRES, engine, labels

pytestmark = [
  pytest.mark.heavy,
  pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed: cloud.google.com/sdk/docs/install"),
]
ZONE = "europe-west4-a"


@pytest.fixture(scope="module")
def started():
  with cloud.Server() as server:
    yield server


@pytest.fixture
def server(started, monkeypatch):
  for name, value in started.environment.items():
    monkeypatch.setenv(name, value)
  return started


def call_concurrently(*calls):
  """Calls functions in threads and returns their results or errors."""

  def outcome(call):
    try:
      return call()
    except (LaunchError, UnknownError, gcloud.AbsentError, gcloud.ExistsError) as error:
      return error

  with ThreadPoolExecutor(len(calls)) as pool:
    return list(pool.map(outcome, calls))


def make_body(run, attempt, script, **more):
  """Returns the expected request of a run, written from the reference of Cloud TPU's REST interface."""
  name, zone = run.get_attempt_name(attempt), run.zones[0]
  node = {
    "acceleratorType": run.tpu.replace("v5e", "v5litepod"),
    "runtimeVersion": run.runtime_version,
    "labels": labels(run, attempt),
    "networkConfig": {
      "network": run.network or "default",
      "enableExternalIps": not run.internal_ips,
    }
    | ({"subnetwork": run.subnetwork} if run.subnetwork else {}),
    "serviceAccount": {"scope": ["https://www.googleapis.com/auth/cloud-platform"]}
    | ({"email": run.service_account} if run.service_account else {}),
    "tags": ["vitjax"],
    "metadata": {"enable-oslogin": "TRUE", "startup-script": script},
  }
  spec = {"parent": f"projects/proj-x/locations/{zone}", "node": node} | more.pop("several", {"nodeId": name})
  return {"tpu": {"nodeSpec": [spec]}, "queueingPolicy": {"validUntilDuration": "21600s"}} | more


@pytest.mark.long
def test_requests_match_the_rest_interface(server, tmp_path):
  hostile = "gs://bkt/a b/'$(id)' \"@CODE@\"/ü,=:^"
  network = {"network": "n", "subnetwork": "s", "internal_ips": True}
  asked = {
    "spot": ({"workdir": hostile, "service_account": "-v@proj-x.iam.gserviceaccount.com", **network}, {"spot": {}}),
    "reserved": ({}, {"reservationName": f"projects/proj-x/locations/{ZONE}/reservations/-"}),
    "on-demand": (
      {"tpu": "v5e-16", "slices": 2},
      {"several": {"multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "on-demand-a1"}}},
    ),
    "flex-start": (
      {"tpu": "v6e-8", "max_hours": 1.5},
      {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "5400s"}},
    ),
  }
  runs = {name: cloud.run(name=name, capacity=name, zones=(ZONE,), **values) for name, (values, _) in asked.items()}
  engines = [qr.Engine(run, cloud.store(tmp_path / name, run)) for name, run in runs.items()]
  found = call_concurrently(*(lambda made=made: made.create(1, EXPIRES) for made in engines))
  assert found == [None] * 4
  requests = {each.query["queuedResourceId"]: each for each in server.requests if each.verb == "create"}
  for name, (_, more) in asked.items():
    request, run = requests[f"{name}-a1"], runs[name]
    request.body["tpu"]["nodeSpec"][0]["node"].pop("autocheckpointEnabled", None)  # v2alpha1 sends false
    assert request.body == make_body(run, 1, qr.make_startup_script(run, 1, cloud.CODE, EXPIRES), **more)
    assert request.version == ("v2alpha1" if name == "flex-start" else "v2")
    assert request.path == f"/{request.version}/projects/proj-x/locations/{ZONE}/queuedResources"


@pytest.mark.long
def test_attempt_is_requested_once_and_deleted(server, tmp_path):
  made = engine(tmp_path, name="life")
  server.faults(create=["lost"])
  made.create(1, EXPIRES)  # the response is lost, so gcloud repeats the request, and the resource already exists
  assert [name for name in server.live() if "life" in name] == [f"{ZONE}/life-a1"]
  server.set_state("life-a1", "ACTIVE")
  assert made.look(1).state == READY
  server.lingering = 0
  made.delete(1)
  assert made.look(1).state == ABSENT
  assert not [name for name in server.live() if "life" in name]


@pytest.mark.long
def test_errors_of_the_server_are_classified(server, tmp_path):
  made = engine(tmp_path, name="refused")
  place = {"project": "proj-x", "zone": ZONE}
  quota = (429, "Quota limit 'TPUV3s' has been exceeded. Limit: 32 in zone europe-west4-a.")
  server.faults(describe=[403], create=[400], list=[quota], list_nodes=[429], node=[401], delete_node=[9.0])
  found = call_concurrently(
    lambda: made.look(1),
    lambda: made.create(1, EXPIRES),
    lambda: gcloud.run_gcloud(gcloud.build_gcloud_command("queued-resources", "list", **place)),
    lambda: gcloud.run_gcloud(gcloud.build_gcloud_command("tpu-vm", "list", **place)),
    lambda: gcloud.run_gcloud(gcloud.build_gcloud_command("tpu-vm", "describe", "x", **place)),
    lambda: gcloud.run_gcloud(gcloud.build_gcloud_command("tpu-vm", "delete", "x", **place), timeout=3.0),
    lambda: gcloud.run_gcloud(gcloud.build_gcloud_command("tpu-vm", "list", "--no-such-flag", **place)),
  )
  assert [(type(error), getattr(error, "code", None)) for error in found] == [
    (LaunchError, DENIED),
    (LaunchError, USAGE),
    (gcloud.QuotaError, DENIED),
    (UnknownError, None),
    (LaunchError, DENIED),
    (UnknownError, None),
    (LaunchError, USAGE),
  ]
  assert "roles/tpu.admin" in str(found[0]) and "TPUV3s" in str(found[2]) and "gcloud auth login" in str(found[4])


@pytest.mark.long
def test_inventory_queries_each_zone_because_gcloud_hides_unreachable_zones(server, tmp_path):
  run = cloud.run(name="kept")
  with cloud.Server(zones=(ZONE, "us-central1-b")) as own:
    os.environ |= own.environment  # the fixture's `monkeypatch` restores the environment
    made = qr.Engine(run)
    own.add("kept-a1", labels(run))
    own.set_state("kept-a1", "ACTIVE")
    own.forget("kept-a1")
    own.unreachable = ["us-central1-b"]
    everywhere = gcloud.build_gcloud_command("queued-resources", "list", project="proj-x", zone="-")
    own.faults(list=[None, 403])
    assert gcloud.run_gcloud(everywhere) == []  # gcloud does not mention us-central1-b
    found, failures = made.list_resources(())
  assert len(failures) == 1 and "PERMISSION_DENIED" in next(iter(failures.values()))
  assert [(each.name, each.state, each.run, each.location) for each in found] == [("kept-a1", READY, "kept", ZONE)]


@pytest.mark.long
def test_shell_runs_words_unchanged_and_returns_their_exit_code(server, tmp_path, monkeypatch):
  made = engine(tmp_path, name="shell")
  server.add("shell-a1", {}, metadata={"enable-oslogin": "TRUE"})
  server.set_state("shell-a1", "ACTIVE")
  for name in ("bin", "home"):
    (tmp_path / name).mkdir()
  # Like ssh, the program joins its words to one string for the remote shell.
  ssh = tmp_path / "bin/ssh"
  ssh.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec bash -c "$*"\n')
  ssh.chmod(0o755)
  monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  words = ["", "a  b", "-x", "$(id)", "`id`", "ü\n'\"", "%USER%", "--", ";"]
  # The command is killed by a signal. ssh would end with 255, and gcloud would retry ten times, but 134 is returned.
  argv = made.build_shell_command(1, 1, ["sh", "-c", 'printf "%s\\0" "$@"; kill -ABRT $$', "sh", *words])
  result = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL)
  output = result.stdout[result.stdout.rindex(b"+\n") + 2 :] if b"SHA256" in result.stdout else result.stdout
  assert result.returncode == 134, result.stderr
  assert output.decode().split("\0")[:-1] == words
