"""Tests of calls of gcloud and of the meaning of its errors."""

import pathlib
import time

import pytest

from launch import gcloud
from launch.errors import DENIED, NO_CAPACITY, USAGE, LaunchError, UnknownError
from tests.launch.scripted import Answer, api_error

DESCRIBE = gcloud.build_gcloud_command(
  "queued-resources", "describe", "vit-a1", project="proj-x", zone="europe-west4-a"
)
PREFIX = "ERROR: (gcloud.compute.tpus.queued-resources.create) "
# Observed errors: of SDK 528 with the local server, in Google's documentation, and in threads on GitHub.
COMPLAINTS = (
  ("NOT_FOUND: Resource 'projects/p/locations/z/queuedResources/a' was not found", gcloud.AbsentError, None),
  ("NOT_FOUND: Project 'p' not found or deleted", LaunchError, USAGE),
  ("NOT_FOUND: The requested location europe-west9-z is not found", LaunchError, USAGE),
  ("ALREADY_EXISTS: Resource 'projects/p/locations/z/queuedResources/a' already exists", gcloud.ExistsError, None),
  (
    "RESOURCE_EXHAUSTED: Quota limit 'TPUV3sPreemptiblePodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 32 in "
    "zone europe-west4-a.",
    gcloud.QuotaError,
    DENIED,
  ),
  (
    'RESOURCE_EXHAUSTED: There is no more capacity in the zone "europe-west4-a"; you can try in another zone where '
    "Cloud TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions)",
    LaunchError,
    NO_CAPACITY,
  ),
  (
    "RESOURCE_EXHAUSTED: Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute' of "
    "service 'tpu.googleapis.com' for consumer 'project_number:1'.",
    UnknownError,
    None,
  ),
  (
    "RESOURCE_EXHAUSTED: Quota exceeded.\n- '@type': type.googleapis.com/google.rpc.ErrorInfo\n"
    "  domain: googleapis.com\n  reason: RATE_LIMIT_EXCEEDED",
    UnknownError,
    None,
  ),
  (
    "RESOURCE_EXHAUSTED: There is no more capacity in the zone; try again later, there is quota for it elsewhere",
    LaunchError,
    NO_CAPACITY,
  ),
  ("INTERNAL: a server answered UNAUTHENTICATED to another", UnknownError, None),
  ("UNAVAILABLE: The quota service is out of reach", UnknownError, None),
  ("RESOURCE_EXHAUSTED: Resource has been exhausted (e.g. check quota).", UnknownError, None),
  ("RESOURCE_EXHAUSTED: scripted", UnknownError, None),
  ("PERMISSION_DENIED: Permission 'tpu.queuedResources.get' denied on resource", LaunchError, DENIED),
  (
    "PERMISSION_DENIED: Cloud TPU API has not been used in project 1 before or it is disabled. Enable it by visiting "
    "https://console.developers.google.com/apis/api/tpu.googleapis.com/overview?project=1 then retry.",
    LaunchError,
    DENIED,
  ),
  ("UNAUTHENTICATED: Request had invalid authentication credentials", LaunchError, DENIED),
  ("There was a problem refreshing your current auth tokens: ('invalid_grant: Bad Request', {})", LaunchError, DENIED),
  ("There was a problem refreshing your current auth tokens: Reauthentication failed. cannot prompt during "
   "non-interactive execution.\nPlease run:\n\n  $ gcloud auth login\n", LaunchError, DENIED),
  (
    "There was a problem refreshing your current auth tokens: HTTPSConnectionPool(host='oauth2.googleapis.com', "
    "port=443): Max retries exceeded with url: /token (Caused by NameResolutionError(...))",
    UnknownError,
    None,
  ),
  ("You do not currently have an active account selected.\nPlease run:\n\n  $ gcloud auth login", LaunchError, DENIED),
  ("INVALID_ARGUMENT: Cloud TPU received a bad request. the accelerator v3-33 was not found", LaunchError, USAGE),
  ("FAILED_PRECONDITION: vit-a1 is being deleted", UnknownError, None),
  ("INTERNAL: internal error", UnknownError, None),
  ("UNAVAILABLE: The service is currently unavailable.", UnknownError, None),
  ("ABORTED: conflict", UnknownError, None),
  ("HttpError accessing <https://tpu.googleapis.com/v2/x?alt=json>: response: <{'status': 404}>, content <<html>404 "
   "Not Found</html>>", UnknownError, None),
  ("HttpError accessing <https://tpu.googleapis.com/v2/x?alt=json>: response: <{'status': 500}>, content <{\"error\": "
   "{\"code\": 500, \"message\": \"Quota service\", \"status\": \"INTERNAL\"}}>\nThis may be due to network "
   "connectivity issues. Please check your network settings, and the status of the service you are trying to reach.",
   UnknownError, None),
  ("gcloud crashed (ConnectionError): ('Connection aborted.', RemoteDisconnected('Remote end closed'))", UnknownError,
   None),
)  # fmt: skip


@pytest.mark.parametrize(("text", "kind", "code"), COMPLAINTS, ids=[each[0][:50] for each in COMPLAINTS])
def test_error_is_classified(text, kind, code):
  error = gcloud.make_error(1, PREFIX + text + "\n")
  assert type(error) is kind
  assert getattr(error, "code", None) == code
  assert "\n" not in str(error) and " ".join(text.split())[:40] in str(error)


@pytest.mark.parametrize(
  ("text", "remedy"),
  [
    ("PERMISSION_DENIED: Permission 'tpu.queuedResources.create' denied on 'projects/p'", "roles/tpu.admin"),
    ("PERMISSION_DENIED: The caller lacks iam.serviceAccounts.actAs on vit@p", "roles/iam.serviceAccountUser"),
    ("PERMISSION_DENIED: Cloud TPU API has not been used in project 1 before", "gcloud services enable tpu.googleapis"),
    ("UNAUTHENTICATED: Request had invalid authentication credentials", "gcloud auth login"),
  ],
)
def test_denied_permission_names_a_fix(text, remedy):
  assert remedy in str(gcloud.make_error(1, PREFIX + text))


def test_only_the_status_of_gcloud_means_absent():
  # Messages about other resources, or names, may also contain this word.
  for text in ("INTERNAL: the subnetwork is NOT_FOUND", "PERMISSION_DENIED: NOT_FOUND", "NOT_FOUND"):
    assert not isinstance(gcloud.make_error(1, PREFIX + text), gcloud.AbsentError)


def test_unknown_flag_of_gcloud_is_an_error_without_retries():
  error = gcloud.make_error(2, PREFIX + "unrecognized arguments: --best-effort\n\nTo search the help text of gcloud …")
  assert isinstance(error, LaunchError) and error.code == USAGE
  assert "--best-effort" in str(error) and "help" not in str(error)


@pytest.mark.parametrize("code", [-9, 3, 130, 255])
def test_other_exit_codes_are_unknown(code):
  assert isinstance(gcloud.make_error(code, "NOT_FOUND"), UnknownError)


@pytest.mark.parametrize(
  ("error", "code"),
  [
    ({"code": 8, "message": "There is no more capacity in the zone"}, NO_CAPACITY),
    ({"code": 8, "message": "Quota limit 'TPUV3' has been exceeded. Limit: 32"}, DENIED),
    ({"code": 9, "message": "Quota exceeded for TPU v5e"}, DENIED),
    ({"code": 4, "message": "valid until constraint expired"}, NO_CAPACITY),
    ({"message": "The valid_until_duration of the request has expired"}, NO_CAPACITY),
    ({"code": 7, "message": "The service account may not be used"}, DENIED),
    ({"code": 16, "message": "no credentials"}, DENIED),
    ({"message": "Permission denied on subnetwork"}, DENIED),
    ({"code": 3, "message": "the runtime version is unknown"}, USAGE),
    ({"code": 13, "message": "an internal error has occurred"}, NO_CAPACITY),
    ({}, NO_CAPACITY),
  ],
)
def test_reason_of_a_failed_request_is_classified(error, code):
  found, words = gcloud.explain_failed(error)
  assert found == code and words and error.get("message", "") in words


def test_output_is_parsed_and_empty_output_is_none(program):
  program.answers("queued-resources", "describe", {"name": "ä"}, Answer(" \n"))
  assert gcloud.run_gcloud(DESCRIBE) == {"name": "ä"}
  assert gcloud.run_gcloud(DESCRIBE) is None
  assert program.calls[0] == [*DESCRIBE[1:], "--quiet", "--format=json"]


@pytest.mark.parametrize("text", ["<html>", "{", "[" * 100_000, "\udcff"])
def test_unreadable_output_is_unknown(program, text):
  answer = Answer("x")
  program.answers("queued-resources", "describe", answer)
  file = program.folder / "gcloud.answers/queued-resources.describe/000/output"
  file.write_bytes(text.encode(errors="surrogateescape"))
  with pytest.raises(UnknownError, match="JSON"):
    gcloud.run_gcloud(DESCRIBE)


def test_hanging_call_is_killed_with_its_children(program, tmp_path):
  (program.folder / "gcloud").write_text(f"#!/bin/sh\nsleep 61 & echo $! > {tmp_path}/child\nwait\n")
  start = time.monotonic()
  with pytest.raises(UnknownError, match=r"queued-resources.* did not answer within 0.2 s"):
    gcloud.run_gcloud(DESCRIBE, timeout=0.2)
  assert time.monotonic() - start < 5
  child = int((tmp_path / "child").read_text())
  for _ in range(100):
    if not _alive(child):
      break
    time.sleep(0.02)
  assert not _alive(child)


def _alive(process):
  try:
    return pathlib.Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
  except FileNotFoundError:
    return False


def test_missing_gcloud_is_reported_with_its_address(tmp_path, monkeypatch):
  monkeypatch.setenv("PATH", str(tmp_path))
  with pytest.raises(LaunchError, match=r"cloud\.google\.com/sdk") as caught:
    gcloud.run_gcloud(DESCRIBE)
  assert caught.value.code == DENIED


def test_each_flag_is_one_word():
  argv = gcloud.build_gcloud_command(
    "a", "b", "c", alpha=True, node_id="-x y", spot=True, reserved=False, network="", count=2
  )
  assert argv == ["gcloud", "alpha", "compute", "tpus", "a", "b", "c", "--node-id=-x y", "--spot", "--count=2"]


@pytest.mark.parametrize(
  "answer", [api_error("NOT_FOUND", "Resource 'vit-a1'"), api_error("INTERNAL"), api_error("nothing", code=2)]
)
def test_failed_calls_are_not_repeated(program, answer):
  program.answers("queued-resources", "describe", answer)
  with pytest.raises((gcloud.AbsentError, UnknownError, LaunchError)):
    gcloud.run_gcloud(DESCRIBE)
  assert len(program.calls) == 1
