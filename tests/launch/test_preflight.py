"""Tests of the read-only checks of a project, in which unexpected responses are unknown and never errors."""

import dataclasses
import json
import os
import shlex
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch import checks, preflight, storage
from launch.errors import DENIED, UnknownError
from tests.launch import apis, launches, repositories

ACCOUNT = "vit@my-project.iam.gserviceaccount.com"
RUN = launches.run("qr", zones=("europe-west4-a",), service_account=ACCOUNT, internal_ips=True)
TITLES = {
  "permissions", "service account", "self deletion", "APIs", "quota in europe-west4-a", "network", "firewall",
  "internal addresses in europe-west4", "bucket",
}  # fmt: skip
PATHS = {path.rpartition("/")[2]: path for path in apis.GOOD}


@pytest.fixture
def server(monkeypatch):
  with apis.Server() as server:
    for name, value in server.environment.items():
      monkeypatch.setenv(name, value)
    yield server


class Token(storage.Token):
  """A token that does not require a server."""

  def renew(self):
    self._text, self._until = "abc", float("inf")


def find_problems(run=RUN):
  """Checks the project of a run and returns {title: finding}."""
  listed = list(preflight.check_project(run, Token()))
  assert all("\n" not in each.text for each in listed)
  return {each.text.partition(":")[0]: each for each in listed}


def test_complete_project_is_ok(server):
  lines = find_problems()
  assert lines.keys() == TITLES and {each.kind for each in lines.values()} == {"ok"}
  assert "128 for spot v3-32, 16 chips" in lines["quota in europe-west4-a"].text
  assert {header for _, _, header, _ in server.requests} == {"Bearer abc"}


def test_requests_do_not_change_the_project(server):
  find_problems()
  for answer in (403, 404, b"x", {}):
    server.answers = dict.fromkeys(server.answers, answer)
    find_problems()
  assert len(server.requests) > 40
  posts = {path.partition("?")[0].rpartition(":")[2] for method, path, _, _ in server.requests if method == "POST"}
  assert {method for method, *_ in server.requests} == {"GET", "POST"}
  assert posts == {"testIamPermissions", "getIamPolicy"}
  bodies = [json.loads(content) for method, _, _, content in server.requests if method == "POST"]
  assert all(body.keys() <= {"permissions"} for body in bodies)
  assert not [content for method, _, _, content in server.requests if method == "GET" and content]


OFF = {"services": [{"name": "projects/1/services/tpu.googleapis.com", "state": "DISABLED"},
                    {"name": "projects/1/services/compute.googleapis.com", "state": "ENABLED"},
                    {"name": "projects/1/services/storage.googleapis.com", "state": "ENABLED"}]}  # fmt: skip
LESS = {"permissions": ["tpu.nodes.get", "tpu.nodes.list"]}
QUOTA = json.loads(json.dumps(apis.GOOD[PATHS["consumerQuotaMetrics"]]).replace('"128"', '"8"'))
SHUT = {
  "items": [
    apis.RULE | {"allowed": [{"IPProtocol": "tcp", "ports": ["22", "8470-8479"]}]},
    apis.RULE | {"direction": "EGRESS"},
    apis.RULE | {"disabled": True},
    apis.RULE | {"targetTags": ["other"]},
    apis.RULE | {"sourceRanges": ["35.235.240.0/20"]},
  ]
}
NO_ACCESS = {"privateIpGoogleAccess": False}


@pytest.mark.parametrize(
  ("name", "answer", "kind", "title", "words"),
  [
    (
      "my-project:testIamPermissions",
      LESS,
      "refuse",
      "permissions",
      "gcloud projects add-iam-policy-binding my-project",
    ),
    ("my-project:testIamPermissions", {}, "refuse", "permissions", "lacks tpu.nodes.create, tpu.nodes.delete"),
    (f"{ACCOUNT}:testIamPermissions", {}, "refuse", "service account", "--role=roles/iam.serviceAccountUser"),
    (f"{ACCOUNT}:testIamPermissions", 404, "refuse", "service account", "gcloud iam service-accounts create vit "),
    ("vitjaxEnd", {"includedPermissions": ["tpu.nodes.delete"]}, "unknown", "self deletion", "roles create vitjaxEnd"),
    (
      "my-project:getIamPolicy",
      {"bindings": []},
      "unknown",
      "self deletion",
      "tpu.queuedResources.delete. Run: gcloud",
    ),
    ("services:batchGet", OFF, "refuse", "APIs", "gcloud services enable tpu.googleapis.com --project=my-project"),
    ("consumerQuotaMetrics", QUOTA, "refuse", "quota in europe-west4-a", "8 for spot v3-32, which needs 16 chips"),
    ("consumerQuotaMetrics", {"metrics": []}, "unknown", "quota in europe-west4-a", "no limit for spot v3-32"),
    ("default", 404, "refuse", "network", "gcloud compute networks create default"),
    ("firewalls", SHUT, "unknown", "firewall", "gcloud compute firewall-rules create vitjax-internal"),
    ("routers", {}, "unknown", "internal addresses in europe-west4", "gcloud compute routers nats create vitjax"),
    ("testPermissions", {"permissions": ["storage.objects.get"]}, "refuse", "bucket", "gcloud storage buckets add-iam"),
  ],
)
def test_missing_parts_are_reported_in_one_line_with_a_command(server, name, answer, kind, title, words):
  path = f"/compute/v1/{apis.PROJECT}/global/networks/default" if name == "default" else PATHS[name]
  server.answers[path] = answer
  line = find_problems()[title]
  assert line.kind == kind and words in line.text
  if "gcloud " in line.text:
    command = line.text[line.text.index("gcloud ") :]
    assert all(each.startswith("gcloud ") for each in command.split(" && "))
    assert "my-project" in shlex.split(command)[0] or "my-project" in command or "bkt" in command


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed")
def test_gcloud_accepts_every_printed_command(server, tmp_path):
  """Uses gcloud's own parser and a project without any of the required parts."""
  place = f"/compute/v1/{apis.PROJECT}/regions/europe-west4"
  server.answers |= {path: {} for path in server.answers if path.endswith("ermissions")}
  server.answers |= {PATHS["services:batchGet"]: OFF, PATHS["my-project:getIamPolicy"]: {}, PATHS["firewalls"]: {}}
  texts = [line.text for line in find_problems().values()]
  server.answers[f"{place}/routers"] = {}
  texts += [line.text for line in find_problems().values()]
  server.answers[f"{place}/subnetworks/default"] = NO_ACCESS
  server.answers |= {f"/compute/v1/{apis.PROJECT}/global/networks/default": 404}
  server.answers["/v1/projects/-/serviceAccounts/" + f"{ACCOUNT}:testIamPermissions"] = 404
  texts += [line.text for line in find_problems().values()]
  server.answers[f"/compute/v1/{apis.PROJECT}/global/networks/default"] = {}
  texts += [line.text for line in find_problems().values()]
  printed = {part for text in texts if "un: gcloud " in text for part in text.split("un: ")[1].split(" && ")}
  commands = [part.replace(preflight.ME, "user:me@example.com") for part in sorted(printed)]
  assert len(commands) >= 12, commands
  (tmp_path / "commands").write_text(json.dumps([{"command_string": command} for command in commands]))
  words = ["gcloud", "meta", "lint-gcloud-commands", f"--commands-file={tmp_path / 'commands'}"]
  alone = {"CLOUDSDK_CONFIG": str(tmp_path / "config"), "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true"}
  plain = {key: value for key, value in os.environ.items() if not key.startswith("CLOUDSDK_")}
  result = subprocess.run(words, capture_output=True, text=True, env=plain | alone, check=True)
  wrong = [(each["command_string"], each["error_message"]) for each in json.loads(result.stdout) if not each["success"]]
  assert wrong == []


def test_hosts_without_internet_access_are_refused(server):
  place = f"/compute/v1/{apis.PROJECT}/regions/europe-west4"
  server.answers |= {f"{place}/subnetworks/default": NO_ACCESS, f"{place}/routers": {"items": []}}
  line = find_problems()["internal addresses in europe-west4"]
  assert line.kind == "refuse" and "--enable-private-ip-google-access" in line.text and line.code == DENIED


@pytest.mark.parametrize("answer", [None, 500, 403, 401, 429, b"", b"<html>", b"[1]", b"null", b"\xff", b"[" * 10**5])
def test_failed_or_invalid_response_is_unknown(server, answer):
  server.answers = dict.fromkeys(server.answers, answer)
  lines = find_problems()
  assert {each.kind for each in lines.values()} == {"unknown"} and lines.keys() >= TITLES - {"network"}


JSON = st.recursive(
  st.none() | st.booleans() | st.integers() | st.text(max_size=5),
  lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([
    "permissions", "bindings", "role", "members", "includedPermissions", "services", "name", "state", "metrics",
    "consumerQuotaLimits", "quotaBuckets", "dimensions", "effectiveLimit", "items", "network", "direction", "allowed",
    "IPProtocol", "ports", "sourceRanges", "nats", "privateIpGoogleAccess",
  ]), inner, max_size=4),
  max_leaves=12,
)  # fmt: skip


@given(answers=st.dictionaries(st.sampled_from([*apis.GOOD]), JSON | st.sampled_from([403, 404, 503]), min_size=1))
def test_any_json_gives_a_finding_and_never_an_error(answers):
  """Calls the checks without a server, which would take most of the time."""

  class Google(preflight.GoogleApi):
    def read(self, service, path, body=None):
      prefix = {"COMPUTE": "/compute/v1/", "STORAGE": "/storage/v1/"}.get(service, "/")
      answer = (apis.GOOD | answers).get(prefix + path.partition("?")[0], 404)
      answer = body if answer is apis.GRANT else answer
      if answer == 404:
        raise preflight.MissingError("HTTP status 404")
      if not isinstance(answer, dict):
        raise UnknownError("no object")
      return answer

  for title, check, *more in preflight.list_checks(RUN):
    (line,) = preflight.run_check(title, check, RUN, Google(None), *more)
    assert line.kind in ("ok", "refuse", "unknown") and "\n" not in line.text


@pytest.mark.parametrize(
  ("changes", "text"),
  [
    ({"capacity": "on-demand"}, "8 for on-demand v3-32, which needs 16 chips"),
    ({"capacity": "reserved"}, "no limit for reserved v3-32"),
    ({"capacity": "flex-start"}, "no limit for flex-start v3-32"),
    ({"tpu": "v3-8"}, "no limit for spot v3-8"),
    ({"tpu": "v5e-16"}, "no limit for spot v5e-16"),
    ({"zones": ("us-east1-d",)}, "0 for spot v3-32, which needs 16 chips"),
  ],
)
def test_quota_matches_the_slice_and_the_capacity(server, changes, text):
  run = dataclasses.replace(RUN, **changes)
  assert text in find_problems(run)[f"quota in {run.zones[0]}"].text


def test_requests_without_a_token_go_only_to_local_servers(server, monkeypatch):
  assert {each.kind for each in preflight.check_project(RUN, None)} == {"ok"}
  for name in server.environment:
    monkeypatch.delenv(name)
  assert {each.kind for each in preflight.check_project(RUN, None)} == {"unknown"}


def test_missing_credentials_are_refused_before_other_checks(tmp_path, monkeypatch):
  """Checks that not even the code is packed, which takes seconds."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
  monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
  error = "ERROR: (gcloud.auth.print-access-token) You do not currently have an active account selected."
  repositories.write(tmp_path, {"bin/gcloud": f"#!/bin/sh\necho '{error}' >&2\nexit 1\n"})
  (tmp_path / "bin/gcloud").chmod(0o755)
  monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
  (line,) = checks.check_run(RUN)
  assert line.kind == "refuse" and line.code == DENIED and "run: gcloud auth login" in line.text


@pytest.mark.parametrize(
  ("script", "kind", "words"),
  [
    ("exit 0", "ok", "JobSets can be listed"),
    ("echo 'error: the server does not have jobsets' >&2; exit 1", "unknown", "the server does not have"),
    ("echo 'Error from server (Forbidden): jobsets is forbidden' >&2; exit 1", "refuse", "ask for the rights"),
    ("echo 'The connection to the server 10.0.0.1 was refused' >&2; exit 1", "unknown", "was refused"),
    ("kill -9 $$", "unknown", "kubectl"),
  ],
)
def test_cluster_check_lists_jobsets(tmp_path, monkeypatch, script, kind, words):
  repositories.write(tmp_path, {"kubectl": f'#!/bin/sh\necho "$@" >> "{tmp_path}/calls"\n{script}\n'})
  (tmp_path / "kubectl").chmod(0o755)
  monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
  (line,) = preflight.check_cluster(launches.run("gke", cluster="c"))
  assert line.kind == kind and words in line.text
  (call,) = (tmp_path / "calls").read_text().splitlines()
  assert call.split()[-3:] == ["get", "jobsets.jobset.x-k8s.io", "--output=name"]
