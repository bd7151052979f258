"""Tests of attempts on GKE with the real kubectl and a local cluster."""

import shlex
import shutil
import subprocess

import pytest

from launch import gke, manifests, states
from launch.errors import DENIED, USAGE, LaunchError, UnknownError
from tests.launch import launches
from tests.launch.cluster import NO_NODES, NO_QUOTA, Cluster
from tests.launch.kubernetes_api import KINDS, Fault

NAME, EXPIRES = "vit-b16-a1", 1_795_300_000
pytestmark = [
  pytest.mark.heavy,
  pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]


@pytest.fixture(scope="module")
def server():
  with Cluster() as cluster:
    yield cluster


@pytest.fixture
def cluster(server, monkeypatch):
  """An empty cluster in which pods wait for nodes."""
  set_environment(server, monkeypatch)
  server.reset()
  return server


@pytest.fixture
def ready(cluster):
  """A cluster in which pods run at once."""
  cluster.reset(starts=True)
  return cluster


def set_environment(cluster, monkeypatch):
  for key, value in cluster.environment.items():
    monkeypatch.setenv(key, value)


def make_gke_engine(**changes):
  return gke.Engine(launches.run("gke", **changes))


def test_attempt_passes_all_states_until_its_deletion(cluster):
  one = make_gke_engine(queue="tpu-queue")
  assert one.look(1).state == states.ABSENT
  one.create(1, EXPIRES)
  assert one.look(1) == states.MachineStatus(states.QUEUED, f"Kueue: {NO_QUOTA}")
  cluster.wait(NAME)
  cluster.tell(NAME, 0, "FailedScaleUp", "Node scale up failed: GCE out of resources")
  assert one.look(1).detail == "4 of 4 pods without a node: FailedScaleUp: Node scale up failed: GCE out of resources"
  cluster.admit(NAME)
  cluster.stick(NAME, 2, "ImagePullBackOff", "Back-off pulling image")
  look = one.look(1)
  assert look.state == states.STARTING and "w02: ImagePullBackOff: Back-off pulling image" in look.detail
  cluster.run(NAME)
  assert one.look(1).state == states.READY
  cluster.complete(NAME)
  assert one.look(1).state == states.DONE
  one.delete(1)
  assert one.look(1).state == states.ABSENT
  assert cluster.live() == []


@pytest.mark.long
def test_create_sends_the_manifest_and_the_code(cluster):
  one, run = make_gke_engine(), launches.run("gke")
  one.create(1, EXPIRES)
  (body,), (code,) = cluster.bodies("jobsets"), cluster.bodies("configmaps")
  wanted = manifests.make_jobset(run, 1, EXPIRES)
  assert body["spec"] == wanted["spec"] and body["metadata"]["labels"] == wanted["metadata"]["labels"]
  assert code["binaryData"] == manifests.make_config_map(run, 1, EXPIRES, cluster_jobset(cluster))["binaryData"]
  posts = [request for request in cluster.requests if request.method == "POST"]
  assert all(request.query["fieldValidation"] == "Strict" for request in posts)  # an unknown field is refused
  cluster.remove(NAME)  # another user deletes the JobSet
  assert cluster.live() == []


@pytest.mark.long
def test_kubectl_reads_the_rendered_text_as_the_jobset(cluster):
  run = launches.run("gke", workdir="gs://bkt/é $(HOME)", queue="tpu-queue")
  text = manifests.format_jobset(run, 1, EXPIRES)
  subprocess.run(["kubectl", "create", "--filename=-"], input=text.encode(), capture_output=True, check=True)
  (body,) = cluster.bodies("jobsets")
  wanted = manifests.make_jobset(run, 1, EXPIRES)
  assert {key: body[key] for key in wanted} | {"metadata": {}} == wanted | {"metadata": {}}
  assert {key: body["metadata"][key] for key in wanted["metadata"]} == wanted["metadata"]


def cluster_jobset(cluster):
  (reference,) = cluster.bodies("configmaps")[0]["metadata"]["ownerReferences"]
  return {"apiVersion": reference["apiVersion"], "kind": reference["kind"], "metadata": reference}


@pytest.mark.parametrize("kind", ["jobsets", "configmaps"])
def test_create_with_a_lost_response_does_not_create_objects_twice(ready, kind):
  one = make_gke_engine()
  ready.faults(Fault("POST", kind, 0, after=True, times=1))
  with pytest.raises(UnknownError):
    one.create(1, EXPIRES)
  one.create(1, EXPIRES)
  one.create(1, EXPIRES)
  kept = [name for name in ready.created if not name.startswith("pods/")]
  assert kept == [f"jobsets/{NAME}", f"configmaps/{NAME}"]


@pytest.mark.parametrize("changes", [{"owner": "bob"}, {"workdir": "gs://bkt/runs/b"}])
def test_name_of_another_run_is_refused_and_not_deleted(ready, changes):
  make_gke_engine(**changes).create(1, EXPIRES)
  before, one = ready.live(), make_gke_engine()
  with pytest.raises(LaunchError, match=r"is in use: it is of (bob|alice), in gs://bkt/runs/(a|b)/launch") as caught:
    one.create(1, EXPIRES)
  assert caught.value.code == USAGE
  one.delete(1)
  if "owner" in changes:  # perhaps this run, with a changed label
    with pytest.raises(UnknownError, match="vitjax-owner=bob"):
      one.look(1)
  else:
    look = one.look(1)
    assert look.state == states.ABSENT and "exists, but it is of" in look.detail
  assert ready.live() == before


@pytest.mark.long
@pytest.mark.parametrize(
  ("fault", "error", "words"),
  [
    (Fault("GET", "jobsets", 500, times=9), UnknownError, "trouble"),
    (Fault("GET", "jobsets", 503, times=9), UnknownError, "trouble"),
    (Fault("GET", "pods", 429, times=9), UnknownError, "trouble"),
    (Fault("GET", "jobsets", 401, times=9), LaunchError, "gcloud auth login"),
    (Fault("GET", "jobsets", 403, "jobsets is forbidden", times=9), LaunchError, "ask for the rights"),
    (Fault("GET", "jobsets", 404, times=9), UnknownError, "trouble"),  # the response of a proxy, not of the API
  ],
)
def test_failed_look_changes_no_objects_and_reports_the_reason(ready, fault, error, words):
  one = make_gke_engine()
  one.create(1, EXPIRES)
  before = ready.live()
  ready.faults(fault)
  with pytest.raises(error, match=words) as caught:
    one.look(1)
  if error is LaunchError:
    assert caught.value.code == DENIED
  ready.faults()
  assert one.look(1).state == states.READY
  assert ready.live() == before


@pytest.mark.long
def test_missing_jobset_is_reported_with_the_installation_command(monkeypatch):
  with Cluster(tuple(kind for kind in KINDS if kind != "jobsets")) as bare:
    set_environment(bare, monkeypatch)
    with pytest.raises(LaunchError, match="kubectl apply --server-side") as caught:
      make_gke_engine().create(1, EXPIRES)
    assert caught.value.code == USAGE
    make_gke_engine().delete(1)
    assert make_gke_engine().look(1).state == states.ABSENT


def test_preemptions_restart_freely_and_failures_are_limited(cluster):
  one = make_gke_engine(max_failures=3)
  one.create(1, EXPIRES)
  cluster.run(NAME)
  for _ in range(5):
    cluster.lose(NAME)
    cluster.run(NAME)
  cluster.exit(NAME, 3, 42)
  look = one.look(1)
  assert look.state == states.QUEUED and NO_NODES in look.detail
  cluster.run(NAME)
  assert one.look(1).state == states.READY
  for code in (1, 134):
    cluster.exit(NAME, 0, code)
    cluster.admit(NAME)
    assert one.look(1).state == states.REPAIRING
  assert "start 9, 2 after failures" in one.look(1).detail
  cluster.exit(NAME, 1, 137)
  look = one.look(1)
  assert look.state == states.FAILED and look.detail.startswith("ReachedMaxRestarts")


@pytest.mark.long
@pytest.mark.parametrize("end", [2, 44, 45, "time"])
def test_permanent_failure_ends_at_once(ready, end):
  make_gke_engine().create(1, EXPIRES)
  ready.expire(NAME) if end == "time" else ready.exit(NAME, 1, end)
  look = make_gke_engine().look(1)
  assert look.state == states.FAILED and "FailJobSet" in look.detail


@pytest.mark.long
def test_deleted_attempt_is_deleting_until_its_last_pod_is_gone(cluster):
  cluster.reset(starts=True, lingers=True)
  one = make_gke_engine()
  one.create(1, EXPIRES)
  one.delete(1)
  one.delete(1)
  assert one.look(1).state == states.DELETING
  cluster.reap("jobsets")
  look = one.look(1)
  assert look.state == states.DELETING and "still exist" in look.detail
  one.create(2, EXPIRES)  # under a new name while the first attempt lingers
  assert one.look(2).state == states.READY
  cluster.reap()
  assert one.look(1).state == states.ABSENT
  assert one.look(2).state == states.READY


@pytest.mark.long
def test_failed_delete_can_be_repeated_with_the_printed_command(ready):
  one = make_gke_engine(cluster="loopback")
  one.create(1, EXPIRES)
  ready.faults(Fault("DELETE", "jobsets", 500, times=1))
  with pytest.raises(UnknownError):
    one.delete(1)
  assert one.look(1).state == states.READY
  line = one.build_commands(1, 0).delete
  result = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
  assert "No resources found" in result.stderr  # the command also checks the remains
  assert ready.live() == []
  assert shlex.split(line)[0] == "kubectl" and NAME in shlex.split(line)


@pytest.mark.long
def test_inventory_has_all_objects_with_launch_labels(ready):
  make_gke_engine(owner="alice").create(1, EXPIRES)
  make_gke_engine(name="other", namespace="team", tpu="v6e-8", slices=2).create(3, EXPIRES)
  ready.complete("other-a3")
  here, unknown = make_gke_engine(cluster="loopback").list_resources(())
  assert [(each.name, each.location, each.state) for each in here] == [(NAME, "loopback/default", states.READY)]
  assert not unknown
  everywhere, _ = make_gke_engine(cluster="loopback").list_resources(("-",))
  (other,) = (each for each in everywhere if each.name == "other-a3")
  assert (other.run, other.attempt, other.state, other.kind) == ("other", 3, states.DONE, "2 x v6e-8")
  assert other.location == "loopback/team" and other.expires == EXPIRES and other.created > 1.7e9
