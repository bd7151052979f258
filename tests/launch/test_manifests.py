"""Tests of the JobSet and the ConfigMap of an attempt."""

import base64
import io
import json
import pathlib
import re
import subprocess
import sys
import zipfile

import hypothesis
import pytest
from hypothesis import strategies

from launch import manifests, spec, tpus
from launch.errors import LaunchError
from tests.launch import launches

PACKAGE = pathlib.Path(manifests.__file__).parent
# The message of the Job controller for a failed pod, in Go's format: pkg/controller/job/pod_failure_policy.go of
# kubernetes/kubernetes.
FAILED = "Container %s for pod %s/%s failed with exit code %v matching %v rule at index %d"


def make_jobset(attempt=1, **changes):
  return manifests.make_jobset(launches.run("gke", **changes), attempt, 1_795_300_000)


def job(jobset):
  (replicated,) = jobset["spec"]["replicatedJobs"]
  return replicated["template"]["spec"]


def pod(jobset):
  return job(jobset)["template"]["spec"]


def container(jobset):
  (only,) = pod(jobset)["containers"]
  return only


def variables(jobset):
  return {each["name"]: each for each in container(jobset)["env"]}


@pytest.mark.parametrize("name", tpus.list_slices())
def test_each_host_of_a_slice_has_a_pod_with_all_its_chips(name):
  jobset, slice_ = make_jobset(tpu=name, slices=3), tpus.find_slice(name)
  hosts, limits = job(jobset)["parallelism"], container(jobset)["resources"]["limits"]
  assert hosts == job(jobset)["completions"] == slice_.hosts
  assert hosts * limits["google.com/tpu"] == slice_.chips
  assert container(jobset)["resources"]["requests"] == limits
  sides = [int(side) for side in pod(jobset)["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")]
  product = 1
  for side in sides:
    product *= side
  assert product == slice_.chips
  assert jobset["spec"]["replicatedJobs"][0]["replicas"] == 3
  exclusive = jobset["metadata"]["annotations"].get("alpha.jobset.sigs.k8s.io/exclusive-topology")
  assert exclusive == ("cloud.google.com/gke-nodepool" if slice_.hosts > 1 else None)


def test_single_pod_is_never_restarted():
  assert job(make_jobset())["backoffLimit"] == 0
  assert pod(make_jobset())["restartPolicy"] == "Never"
  assert make_jobset()["spec"]["failurePolicy"]["restartStrategy"] == "BlockingRecreate"
  assert job(make_jobset())["completionMode"] == "Indexed"


def action(jobset, reason, message):
  """Returns the action of JobSet's controller: the first rule that matches reason and message, or a counted restart."""
  for rule in jobset["spec"]["failurePolicy"]["rules"]:
    patterns = rule.get("onJobFailureMessagePatterns", [])
    if reason in rule["onJobFailureReasons"] and (not patterns or any(re.search(each, message) for each in patterns)):
      return rule["action"]
  return "RestartJobSet"


@pytest.mark.parametrize("code", [1, 2, 42, 43, 44, 45, 134, 137, 143, 144, 245, 254])
def test_exit_codes_have_their_documented_effect_on_gke(code):
  jobset = make_jobset()
  reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
  exits, disruption = job(jobset)["podFailurePolicy"]["rules"]
  assert disruption == {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
  codes = exits["onExitCodes"]
  assert (codes["operator"], codes["containerName"]) == ("In", container(jobset)["name"])
  if code in codes["values"]:
    reason = "PodFailurePolicy"
    values = ("train", "team-2", "vit-44-a2-s-0-0-abcde", code, "FailJob", 0)
    message = re.sub("%[svd]", "{}", FAILED).format(*values)
  expected = {2: "FailJobSet", 44: "FailJobSet", 45: "FailJobSet", 42: "RestartJobSetAndIgnoreMaxRestarts",
              143: "RestartJobSetAndIgnoreMaxRestarts"}.get(code, "RestartJobSet")  # fmt: skip
  assert action(jobset, reason, message) == expected


def test_only_failures_count_and_the_deadline_is_final():
  jobset = make_jobset(max_failures=5, max_hours=0.5)
  assert jobset["spec"]["failurePolicy"]["maxRestarts"] == 4  # plus the first start
  lost = "Pod default/vit-b16-a1-s-0-2-45xyz has condition DisruptionTarget matching FailJob rule at index 1"
  assert action(jobset, "PodFailurePolicy", lost) == "RestartJobSetAndIgnoreMaxRestarts"
  assert job(jobset)["activeDeadlineSeconds"] == 1800
  assert action(jobset, "DeadlineExceeded", "Job was active longer than specified deadline") == "FailJobSet"
  assert jobset["spec"]["ttlSecondsAfterFinished"] > 0
  names = [rule["name"] for rule in jobset["spec"]["failurePolicy"]["rules"]]
  assert all(re.fullmatch("[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", name) for name in names)  # JobSet's own rule


def test_worker_gets_slice_host_and_restart_from_its_pod():
  paths = {key: value["valueFrom"]["fieldRef"]["fieldPath"]
           for key, value in variables(make_jobset()).items() if key.startswith("LAUNCH_")}  # fmt: skip
  assert paths == {
    "LAUNCH_SLICE": "metadata.labels['jobset.sigs.k8s.io/job-index']",
    "LAUNCH_INDEX": "metadata.annotations['batch.kubernetes.io/job-completion-index']",
    "LAUNCH_RESTART": "metadata.labels['jobset.sigs.k8s.io/restart-attempt']",
  }


def expand_variables(text, environment):
  """Expands variables like Kubernetes: third_party/forked/golang/expansion of kubernetes/kubernetes."""
  return re.sub(r"\$(\$|\(([^)]*)\))",
                lambda m: "$" if m[1] == "$" else environment.get(m[2], m[0]), text)  # fmt: skip


@hypothesis.given(strategies.text("$()aHOME_;' \"", min_size=1, max_size=20))
def test_command_reaches_the_worker_unchanged(name):
  workdir = f"gs://bkt/{name}"
  words = container(make_jobset(workdir=workdir))["command"]
  received = [expand_variables(word, {"HOME": "/root", "PYTHONPATH": "x", "a": "b"}) for word in words]
  folder = f"--folder={workdir.rstrip('/')}/launch"
  start = ["python3", "-u", "-m", "launch.worker", "run"]
  assert received == [*start, folder, "--attempt=1", "--engine=gke"]


def test_jobset_has_neither_secrets_nor_words_of_the_user():
  secrets = {"KEY": "k8s:wandb/api.key", "TOKEN": "projects/p/secrets/t/versions/3"}
  jobset = make_jobset(secrets=secrets, env={"A": "canary-env"}, args=("--x=canary-word",))
  assert "canary" not in json.dumps(jobset)
  assert variables(jobset)["KEY"] == {
    "name": "KEY", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "api.key"}}
  }  # fmt: skip
  assert "TOKEN" not in variables(jobset)  # the worker reads it with the pod's service account


@pytest.mark.parametrize("capacity", spec.CAPACITIES)
def test_capacity_selects_the_nodes(capacity):
  jobset = make_jobset(capacity=capacity, max_hours=2)
  labels = {"spot": "cloud.google.com/gke-spot", "flex-start": "cloud.google.com/gke-flex-start"}
  selector, tolerated = pod(jobset)["nodeSelector"], {each["key"] for each in pod(jobset)["tolerations"]}
  assert {key for key in labels.values() if selector.get(key) == "true"} == {labels.get(capacity)} - {None}
  assert {"google.com/tpu"} <= tolerated
  assert (capacity == "flex-start") == ("cloud.google.com/gke-queued" in tolerated)
  affinity = pod(jobset).get("affinity", {}).get("nodeAffinity", {})
  if capacity in ("on-demand", "reserved"):  # never on preemptible machines
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {(each["key"], each["operator"]) for each in term["matchExpressions"]} == {
      (key, "DoesNotExist") for key in labels.values()
    }
  limit = jobset["metadata"]["annotations"].get("provreq.kueue.x-k8s.io/maxRunDurationSeconds")
  assert limit == ("7200" if capacity == "flex-start" else None)


def test_objects_of_an_attempt_have_labels_and_belong_to_the_jobset():
  run = launches.run("gke", queue="tpu-queue", owner="al_ice")
  jobset = manifests.make_jobset(run, 12, 1_795_300_000)
  mine = {"vitjax": "1", "vitjax-run": "vit-b16", "vitjax-owner": "al_ice", "vitjax-attempt": "12",
          "vitjax-expires": "1795300000", "vitjax-folder": run.mark}  # fmt: skip
  kueue = {"kueue.x-k8s.io/queue-name": "tpu-queue"}
  assert jobset["metadata"]["labels"] == mine | kueue
  (replicated,) = jobset["spec"]["replicatedJobs"]
  assert replicated["template"]["metadata"]["labels"] == job(jobset)["template"]["metadata"]["labels"] == mine
  created = jobset | {"metadata": jobset["metadata"] | {"uid": "u-1"}}
  code = manifests.make_config_map(run, 12, 1_795_300_000, created)
  assert code["metadata"]["labels"] == mine
  assert code["metadata"]["name"] == jobset["metadata"]["name"] == "vit-b16-a12"
  (owner,) = code["metadata"]["ownerReferences"]
  assert owner == {
    "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "vit-b16-a12", "uid": "u-1"
  }  # fmt: skip
  assert "kueue" not in json.dumps(make_jobset(queue=""))


def test_pod_names_fit_with_the_longest_run_name():
  jobset = make_jobset(999, name="n" * 42, tpu="v5e-256", slices=256)
  (replicated,) = jobset["spec"]["replicatedJobs"]
  last = f"-{replicated['replicas'] - 1}-{job(jobset)['completions'] - 1}-abcde"
  assert len(jobset["metadata"]["name"] + "-" + replicated["name"] + last) <= 63  # a DNS label


def test_volumes_match_the_mounts():
  mounts = {each["name"]: each["mountPath"] for each in container(make_jobset())["volumeMounts"]}
  volumes = {each.pop("name"): each for each in pod(make_jobset())["volumes"]}
  assert volumes == {"shm": {"emptyDir": {"medium": "Memory"}}, "code": {"configMap": {"name": "vit-b16-a1"}}}
  assert mounts.keys() == volumes.keys() and mounts["shm"] == "/dev/shm"
  assert variables(make_jobset())["PYTHONPATH"]["value"] == f"{mounts['code']}/launch.zip"
  assert pod(make_jobset())["terminationGracePeriodSeconds"] > launches.run("gke").limits.grace


def test_service_account_must_be_of_kubernetes():
  assert pod(make_jobset(service_account="vit-train"))["serviceAccountName"] == "vit-train"
  assert "serviceAccountName" not in pod(make_jobset())
  with pytest.raises(LaunchError, match=r"--service-account: 'vit@p\.iam.*Kubernetes"):
    make_jobset(service_account="vit@p.iam.gserviceaccount.com")
  with pytest.raises(LaunchError, match=r"--service-account: 'vit-train'.*an address"):
    launches.run("qr", service_account="vit-train")


def test_packed_code_is_reproducible_and_fits_into_a_config_map():
  packed = manifests.pack_launch()
  assert packed == manifests.pack_launch()
  assert len(base64.b64encode(packed)) < 2**20  # the limit of a ConfigMap
  with zipfile.ZipFile(io.BytesIO(packed)) as file:
    names = file.namelist()
    assert file.read("launch/spec.py").decode() == open(spec.__file__).read()
  assert "launch/__init__.py" in names and "launch/gke.py" in names
  assert all(name.endswith(".py") for name in names)


@pytest.mark.heavy
def test_python_imports_launch_from_the_archive(tmp_path):
  (tmp_path / "launch.zip").write_bytes(manifests.pack_launch())
  names = [str(path.relative_to(PACKAGE).with_suffix("")).replace("/", ".") for path in PACKAGE.rglob("[!_]*.py")]
  program = "import importlib, sys; [importlib.import_module(f'launch.{name}') for name in sys.argv[1:]]\n"
  program += "import launch.spec; print(launch.spec.__file__)"
  words = [sys.executable, "-S", "-c", program, *names]
  environment = {"PYTHONPATH": str(tmp_path / "launch.zip")}
  result = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
  assert result.stdout.strip() == str(tmp_path / "launch.zip" / "launch" / "spec.py")
