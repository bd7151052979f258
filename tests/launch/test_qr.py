"""Tests of the engine of queued resources with a scripted gcloud. `test_qr_gcloud.py` uses the real gcloud."""

import pytest

from launch import spec
from launch.errors import DENIED, NO_CAPACITY, USAGE, LaunchError, UnknownError
from launch.states import ABSENT, DELETING, FAILED, LOST, QUEUED, READY, REPAIRING, STARTING
from tests.launch import cloud
from tests.launch.descriptions import EXPIRES, MANY, engine, flags, item, labels, node
from tests.launch.scripted import Answer, api_error

# Requests.


@pytest.mark.parametrize(
  ("capacity", "own"),
  [
    ("spot", {"--spot": ""}),
    ("reserved", {"--reserved": ""}),
    ("on-demand", {}),
    ("flex-start", {"--provisioning-model": "flex-start", "--max-run-duration": "86400s"}),
  ],
)
def test_each_capacity_has_its_own_flags(tmp_path, program, capacity, own):
  program.answers("queued-resources", "create", {})
  engine(tmp_path, capacity=capacity).create(1, EXPIRES)
  (call,) = program.calls
  found = flags(call)
  kinds = {"--spot", "--reserved", "--guaranteed", "--provisioning-model", "--max-run-duration", "--best-effort"}
  assert {key: value for key, value in found.items() if key in kinds} == own
  assert (call[0] == "alpha") == (capacity == "flex-start")
  assert found["--accelerator-type"] == "v3-32" and found["--valid-until-duration"] == "21600s"


def test_request_contains_all_settings_of_the_run(tmp_path, program):
  program.answers("queued-resources", "create", {})
  more = {
    "network": "n",
    "subnetwork": "s",
    "internal_ips": True,
    "service_account": "vit@proj-x.iam.gserviceaccount.com",
  }
  engine(tmp_path, **more, limits=spec.Limits(queue=90.0)).create(2, EXPIRES)
  (call,) = program.calls
  folder = labels(cloud.run())["vitjax-folder"]
  assert flags(call) == {
    "--project": "proj-x", "--zone": "europe-west4-a", "--node-id": "vit-b16-a2", "--accelerator-type": "v3-32",
    "--runtime-version": "tpu-ubuntu2204-base", "--spot": "", "--valid-until-duration": "90s",
    "--labels": "vitjax=1,vitjax-run=vit-b16,vitjax-owner=alice,vitjax-attempt=2,"
                f"vitjax-folder={folder},vitjax-expires={EXPIRES}",
    "--network": "n", "--subnetwork": "s", "--internal-ips": "", "--tags": "vitjax",
    "--service-account": "vit@proj-x.iam.gserviceaccount.com",
    "--scopes": "https://www.googleapis.com/auth/cloud-platform", "--metadata": "enable-oslogin=TRUE",
    "--metadata-from-file": "startup-script=startup.sh", "--async": "", "--quiet": "", "--format": "json",
  }  # fmt: skip
  assert program.verbs() == ["queued-resources create vit-b16-a2"]


def test_several_slices_form_one_request(tmp_path, program):
  program.answers("queued-resources", "create", {})
  engine(tmp_path, **MANY).create(1, EXPIRES)
  found = flags(program.calls[0])
  assert (found["--node-count"], found["--node-prefix"]) == ("3", "vit-b16-a1") and "--node-id" not in found
  assert found["--accelerator-type"] == "v5litepod-16"


def test_attempts_alternate_between_the_zones(tmp_path, program):
  made = engine(tmp_path, zones=("europe-west4-a", "us-central1-a"))
  assert [made._run.get_location(k) for k in (1, 2, 3)] == ["europe-west4-a", "us-central1-a", "europe-west4-a"]
  program.answers("queued-resources", "create", {})
  made.create(2, EXPIRES)
  assert flags(program.calls[0])["--zone"] == "us-central1-a"


def test_flex_start_allows_at_most_a_week(tmp_path, program):
  with pytest.raises(LaunchError, match=r"--max-hours: 200.*168"):
    engine(tmp_path, capacity="flex-start", max_hours=200)
  assert not program.calls


def test_unpublished_attempt_is_not_requested(tmp_path, program):
  with pytest.raises(LaunchError, match="no attempt 3"):
    engine(tmp_path).create(3, EXPIRES)
  assert not program.calls


def test_existing_resource_of_the_same_attempt_is_accepted(tmp_path, program):
  made = engine(tmp_path)
  program.answers("queued-resources", "create", api_error("ALREADY_EXISTS"))
  program.answers("queued-resources", "describe", item(cloud.run(), "ACCEPTED"))
  made.create(1, EXPIRES)
  assert program.verbs() == [f"queued-resources {verb} vit-b16-a1" for verb in ("create", "describe")]


@pytest.mark.parametrize(
  ("other", "whose"),
  [
    ({"owner": "bob"}, "of run vit-b16 of bob"),
    ({"name": "vit"}, "of run vit of alice"),
    ({"workdir": "gs://bkt/other"}, "of run vit-b16"),
    (None, "not of `launch`"),
  ],
)
def test_resource_of_another_run_is_neither_used_nor_deleted(tmp_path, program, other, whose):
  made = engine(tmp_path)
  theirs = item(cloud.run(**(other or {})), "ACTIVE", name="vit-b16-a1")
  if other is None:
    theirs["tpu"]["nodeSpec"][0]["node"]["labels"] = {"team": "speech"}
  program.answers("queued-resources", "create", api_error("ALREADY_EXISTS"))
  program.answers("queued-resources", "describe", theirs)
  with pytest.raises(LaunchError, match=whose) as caught:
    made.create(1, EXPIRES)
  assert caught.value.code == USAGE
  if other and "workdir" not in other:  # possibly this run, with changed labels
    for call in (made.look, made.delete):
      with pytest.raises(UnknownError, match=r"other labels \(vitjax-"):
        call(1)
  else:
    look = made.look(1)
    made.delete(1)
    assert look.state == ABSENT and whose in look.detail
  assert not [verb for verb in program.verbs() if "delete" in verb]


def test_changed_labels_are_not_an_absence(tmp_path, program):
  program.answers("queued-resources", "describe", item(cloud.run(), "ACTIVE", attempt=1, name="vit-b16-a2"))
  with pytest.raises(UnknownError, match="vitjax-attempt=1"):
    engine(tmp_path).look(2)


def test_quota_error_names_the_resources_that_use_it(tmp_path, program):
  run = cloud.run()
  other = item(run, "FAILED", name="speech-1")
  other["tpu"]["nodeSpec"][0]["node"]["labels"] = {}
  listed = [item(run, "SUSPENDED", name="old-a3"), item(run, "ACTIVE", name="new-a1"), other]
  program.answers(
    "queued-resources", "create", api_error("RESOURCE_EXHAUSTED", "Quota limit 'TPUV3s' has been exceeded.")
  )
  program.answers("queued-resources", "list", listed)
  with pytest.raises(LaunchError) as caught:
    engine(tmp_path).create(1, EXPIRES)
  text = str(caught.value)
  assert caught.value.code == DENIED and "TPUV3s" in text and "python -m launch gc" in text
  assert "old-a3 (SUSPENDED, attempt 1 of run vit-b16 of alice)" in text and "speech-1 (FAILED, not of" in text
  assert "new-a1" not in text


@pytest.mark.parametrize("listed", [[], api_error("UNAVAILABLE")])
def test_quota_error_is_kept_if_no_resources_can_be_named(tmp_path, program, listed):
  program.answers(
    "queued-resources", "create", api_error("RESOURCE_EXHAUSTED", "Quota limit 'TPUV3s' has been exceeded.")
  )
  program.answers("queued-resources", "list", listed)
  with pytest.raises(LaunchError, match=r"no suspended|could not be listed: .*UNAVAILABLE") as caught:
    engine(tmp_path).create(1, EXPIRES)
  assert caught.value.code == DENIED


@pytest.mark.parametrize(
  ("answer", "kind", "code"),
  [
    (api_error("RESOURCE_EXHAUSTED", "There is no more capacity in the zone"), LaunchError, NO_CAPACITY),
    (api_error("PERMISSION_DENIED"), LaunchError, DENIED),
    (api_error("INVALID_ARGUMENT"), LaunchError, USAGE),
    (api_error("NOT_FOUND", "Resource 'networks/n' was not found"), LaunchError, USAGE),
    (api_error("", "bad flag", 2), LaunchError, USAGE),
    (api_error("INTERNAL"), UnknownError, None),
    (Answer("<html>"), UnknownError, None),
  ],
)
def test_refusal_has_its_code(tmp_path, program, answer, kind, code):
  program.answers("queued-resources", "create", answer)
  with pytest.raises(kind) as caught:
    engine(tmp_path).create(1, EXPIRES)
  assert getattr(caught.value, "code", None) == code


# Looks.


@pytest.mark.parametrize(
  ("words", "state"),
  [
    ({"state": "WAITING_FOR_RESOURCES"}, QUEUED),
    ({"state": "PROVISIONING"}, STARTING),
    ({"state": "SUSPENDED"}, LOST),
    ({"state": "DELETING"}, DELETING),
    ({"state": "A_WORD_OF_2027"}, STARTING),
  ],
)
def test_inactive_queued_resource_needs_no_look_at_nodes(tmp_path, program, words, state):
  program.answers("queued-resources", "describe", item(cloud.run(), **words))
  look = engine(tmp_path).look(1)
  assert look.state == state and words["state"] in look.detail
  assert program.verbs() == ["queued-resources describe vit-b16-a1"]


@pytest.mark.parametrize(
  ("changes", "state"),
  [({}, READY), ({"hosts": 3}, STARTING), ({"state": "REPAIRING"}, REPAIRING), ({"state": "PREEMPTED"}, LOST)],
)
def test_active_queued_resource_has_the_state_of_its_node(tmp_path, program, changes, state):
  program.answers("queued-resources", "describe", item(cloud.run(), "ACTIVE"))
  program.answers("tpu-vm", "describe", node(cloud.run(), **changes))
  look = engine(tmp_path).look(1)
  assert look.state == state and look.hosts == changes.get("hosts", 4)


def test_every_slice_is_looked_at(tmp_path, program):
  made, run = engine(tmp_path, **MANY), cloud.run(**MANY)
  program.answers("queued-resources", "describe", item(run, "ACTIVE"))
  for i in range(3):
    program.answers("tpu-vm", "describe", node(run, f"vit-b16-a1-{i}"), name=f"vit-b16-a1-{i}")
  assert (made.look(1).state, made.look(1).hosts) == (READY, 12)
  program.answers("tpu-vm", "describe", node(run, "vit-b16-a1-2", "STOPPED"), name="vit-b16-a1-2")
  look = made.look(1)
  assert look.state == LOST and "vit-b16-a1-2: STOPPED" in look.detail and "a1-0" not in look.detail


def test_failed_queued_resource_has_its_reason(tmp_path, program):
  error = {"code": 8, "message": "Quota limit 'TPUV3s' has been exceeded"}
  program.answers("queued-resources", "describe", item(cloud.run(), "FAILED", failedData={"error": error}))
  look = engine(tmp_path).look(1)
  assert (look.state, look.code) == (FAILED, DENIED) and error["message"] in look.detail


@pytest.mark.parametrize(
  "answer", [api_error("INTERNAL"), api_error("UNAVAILABLE"), Answer("{"), Answer(""), Answer("[]"), Answer("{}")]
)
@pytest.mark.parametrize("group", ["queued-resources", "tpu-vm"])
def test_invalid_response_is_never_an_absence(tmp_path, program, group, answer):
  program.answers("queued-resources", "describe", item(cloud.run(), "ACTIVE"))
  program.answers(group, "describe", answer)
  with pytest.raises(UnknownError):
    engine(tmp_path).look(1)


def test_expired_credentials_are_reported(tmp_path, program):
  program.answers("queued-resources", "describe", api_error("UNAUTHENTICATED"))
  with pytest.raises(LaunchError, match="gcloud auth login") as caught:
    engine(tmp_path).look(1)
  assert caught.value.code == DENIED
