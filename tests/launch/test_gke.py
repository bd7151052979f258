"""Tests of attempts on GKE with a scripted kubectl."""

import pytest

from launch import gke, manifests, spec, states
from launch.errors import LaunchError, UnknownError
from tests.launch import launches
from tests.launch.cluster import NO_NODES, NO_QUOTA
from tests.launch.scripted_kubectl import Answer, Kubectl, complaint

NAME, EXPIRES = "vit-b16-a1", 1_795_300_000
JOBSETS = "jobsets.jobset.x-k8s.io"


@pytest.fixture
def script(tmp_path, monkeypatch):
  monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
  return Kubectl(tmp_path)


def make_gke_engine(**changes):
  return gke.Engine(launches.run("gke", **changes))


def jobset(suspend=False, restarts=0, **conditions):
  value = manifests.make_jobset(launches.run("gke"), 1, EXPIRES)
  value["metadata"] |= {"uid": "u-1", "namespace": "default", "creationTimestamp": "2026-11-23T10:00:00Z"}
  value["spec"]["suspend"] = suspend
  output = [{"type": key, "status": "True", "reason": reason, "message": f"{reason} said"}
          for key, reason in conditions.items()]  # fmt: skip
  return value | {"status": {"restarts": restarts, "conditions": output}}


def pod(worker, phase="Running", restart=0, condition=None, waiting=None, **metadata):
  labels = {manifests.JOB_INDEX: "0", manifests.RESTART: str(restart)}
  named = {"name": f"{NAME}-s-0-{worker}-abcde", "labels": labels, "annotations": {manifests.COMPLETION: str(worker)}}
  status = {"phase": phase, "podIP": f"10.0.0.{worker}", "conditions": [condition] if condition else []}
  if waiting:
    status["containerStatuses"] = [{"state": {"waiting": {"reason": waiting, "message": "because"}}}]
  return {"kind": "Pod", "metadata": named | metadata, "status": status}


def items(*values):
  return {"kind": "List", "items": list(values)}


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NO_NODES}
ALL = [pod(worker) for worker in range(4)]


@pytest.mark.parametrize(
  ("found", "pods", "state", "words", "hosts"),
  [
    (jobset(), ALL, states.READY, "", 4),
    (jobset(), [*ALL[:3], pod(3, "Succeeded")], states.READY, "", 4),
    (jobset(), [], states.STARTING, "0 of 4 pods", 0),
    (jobset(), ALL[:3], states.STARTING, "3 of 4 pods", 3),
    (jobset(), [*ALL[:3], pod(3, "Pending", waiting="ImagePullBackOff")], states.STARTING, "w03: ImagePullBackOff", 3),
    (jobset(), [*ALL[:3], pod(3, "Pending", condition=UNSCHEDULABLE)], states.STARTING, "w03: 0/8 nodes", 3),
    (jobset(), [pod(w, "Pending", condition=UNSCHEDULABLE) for w in range(4)], states.QUEUED, "4 of 4 pods without", 0),
    (jobset(), [pod(0, "Pending"), pod(1, "Pending", condition=UNSCHEDULABLE)], states.STARTING, "w01: 0/8 nodes", 0),
    (jobset(), [pod(0, "Pending", condition=UNSCHEDULABLE)], states.QUEUED, "1 of 4 pods without a node", 0),
    (jobset(), [*ALL[:3], pod(3, "Failed")], states.REPAIRING, "3 of 4 pods", 3),
    (jobset(), [*ALL[:3], pod(3, deletionTimestamp="now")], states.REPAIRING, "3 of 4", 3),
    (
      jobset(restarts=1, RestartingJobSet="x"),
      ALL,
      states.REPAIRING,
      "0 of 4 pods of vit-b16-a1 running; start 2, 0",
      0,
    ),
    (jobset(restarts=1), [pod(w, restart=1) for w in range(4)], states.READY, "", 4),
    (jobset(Completed="AllJobsCompleted"), None, states.DONE, "AllJobsCompleted", 0),
    (jobset(Failed="ReachedMaxRestarts"), None, states.FAILED, "ReachedMaxRestarts: ReachedMaxRestarts said", 0),
    (jobset() | {"metadata": jobset()["metadata"] | {"deletionTimestamp": "now"}}, None, states.DELETING, "", 0),
  ],
)
def test_state_follows_from_the_jobset_and_its_pods(script, found, pods, state, words, hosts):
  script.answers(f"get {JOBSETS}", found)
  script.answers("get events", items())
  if pods is not None:
    script.answers("get pods", items(*pods))
  look = make_gke_engine().look(1)
  assert (look.state, look.hosts) == (state, hosts)
  assert words in look.detail
  assert look.code == 0  # the exit code of the run gives the meaning of its failure


def test_addresses_are_in_the_order_of_the_workers(script):
  script.answers(f"get {JOBSETS}", jobset())
  script.answers("get pods", items(*reversed(ALL)))
  assert make_gke_engine().look(1).addresses == ("10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3")


def test_suspended_jobset_is_queued_with_the_reason_of_kueue(script):
  output = {"status": {"conditions": [{"type": "QuotaReserved", "status": "False", "message": NO_QUOTA}]}}
  checks = [
    {"name": "dws", "state": "Pending", "message": "no machines yet"},
    {"name": "b", "state": "Ready", "message": "b"},
  ]
  reserved = [{"type": "QuotaReserved", "status": "True", "message": "reserved"}]
  checked = {"status": {"conditions": reserved, "admissionChecks": checks}}
  script.answers(f"get {JOBSETS}", jobset(suspend=True))
  unknown = complaint('error: the server doesn\'t have a resource type "workloads"')
  script.answers("get workloads.kueue.x-k8s.io", items(output), items(checked), unknown)
  assert make_gke_engine().look(1) == states.MachineStatus(states.QUEUED, f"Kueue: {NO_QUOTA}")
  assert "--selector=kueue.x-k8s.io/job-uid=u-1" in script.calls[-1]
  assert make_gke_engine().look(1) == states.MachineStatus(states.QUEUED, "Kueue: reserved; no machines yet")
  assert make_gke_engine().look(1) == states.MachineStatus(
    states.QUEUED, "suspended"
  )  # a user suspended it in a cluster without Kueue


def test_only_not_found_is_absent_and_remaining_pods_are_deleting(script):
  missing = complaint(f'Error from server (NotFound): {JOBSETS} "{NAME}" not found')
  script.answers(f"get {JOBSETS}", missing, missing, complaint("Unable to connect to the server: EOF"))
  script.answers(f"get {JOBSETS},jobs,pods,configmaps", items(pod(2)), items())
  look = make_gke_engine().look(1)
  assert look.state == states.DELETING and f"pod {NAME}-s-0-2-abcde" in look.detail
  assert make_gke_engine().look(1).state == states.ABSENT
  with pytest.raises(UnknownError, match="EOF"):
    make_gke_engine().look(1)


def test_cluster_without_jobsets_is_absent_unless_pods_exist(script):
  script.answers(f"get {JOBSETS}", complaint('error: the server doesn\'t have a resource type "jobsets"'))
  script.answers("get jobs,pods,configmaps", items(), items(pod(0)))
  assert make_gke_engine().look(1).state == states.ABSENT
  with pytest.raises(UnknownError, match=r"but pods of .* exist"):
    make_gke_engine().look(1)


def test_output_that_is_not_json_is_unknown(script):
  script.answers(f"get {JOBSETS}", Answer("<html>"))
  with pytest.raises(UnknownError, match="JSON"):
    make_gke_engine().look(1)


def test_unreachable_cluster_is_not_empty(script):
  script.answers(f"get {JOBSETS}", complaint("Unable to connect to the server: EOF"))
  found, unknown = make_gke_engine(cluster="ctx", namespace="team").list_resources(())
  assert not found
  assert list(unknown) == ["ctx/team"] and "EOF" in unknown["ctx/team"]
  assert list(make_gke_engine(cluster="ctx").list_resources(("-",))[1]) == ["ctx/*"]


def test_listed_attempts_have_the_values_of_labels_and_states(script):
  odd = jobset(Failed="ReachedMaxRestarts")
  odd["metadata"]["labels"] = {"vitjax": "1", "vitjax-run": "r", "vitjax-expires": "never", "vitjax-attempt": "²"}
  script.answers(f"get {JOBSETS}", items(jobset(suspend=True), odd))
  probe = spec.Run("ls", "gke", "none", (), "gs://none/none", cluster="ctx")  # a run without a slice
  (queued, failed), unknown = gke.Engine(probe).list_resources(())
  assert not unknown
  assert (queued.run, queued.owner, queued.attempt, queued.expires) == ("vit-b16", "alice", 1, EXPIRES)
  assert (queued.state, queued.detail, queued.kind) == (states.QUEUED, "suspended", "v5e-16")
  assert (failed.run, failed.attempt, failed.expires) == ("r", 0, 0)  # users can change labels
  assert (failed.state, failed.detail) == (states.FAILED, "ReachedMaxRestarts")


def test_every_command_names_the_context_and_the_namespace(script):
  script.answers(f"get {JOBSETS}", jobset())
  script.answers("get pods", items(*ALL))
  script.answers(f"delete {JOBSETS},configmaps", Answer())
  one = make_gke_engine(cluster="ctx", namespace="team")
  one.look(1)
  one.delete(1)
  assert all({"--context=ctx", "--namespace=team"} <= set(call) for call in script.calls)
  assert {"--wait=false", "--ignore-not-found"} <= set(script.calls[-1])


def test_words_for_a_shell_reach_the_pod_of_the_worker_unchanged(script):
  other = pod(0)
  other["metadata"]["labels"] = other["metadata"]["labels"] | {manifests.JOB_INDEX: "1"}
  script.answers("get pods", items(*ALL, other, pod(2, "Failed")))
  one = make_gke_engine(slices=2)
  assert one.build_shell_command(1, 4, ["echo", *launches.HOSTILE])[-len(launches.HOSTILE) - 3 :] == [
    "--container=train", "--", "echo", *launches.HOSTILE
  ]  # fmt: skip
  assert f"{NAME}-s-0-2-abcde" in one.build_shell_command(1, 2, ["true"])
  assert one.build_shell_command(1, 2, [])[-1] == "sh" and "--tty" in one.build_shell_command(1, 2, [])
  with pytest.raises(LaunchError, match="worker 7"):
    one.build_shell_command(1, 7, ["true"])
