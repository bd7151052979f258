"""Tests of the meaning of kubectl's outputs and errors."""

import pytest

from launch import gke
from launch.errors import DENIED, USAGE, LaunchError, QuotaError, UnknownError
from tests.launch.scripted_kubectl import Answer, Kubectl, complaint

REFUSED = "The connection to the server 10.0.0.1:443 was refused - did you specify the right host or port?"
# Errors of kubectl 1.32: (message, exit code of launch, text that the user must read).
FINAL = [
  ('Error from server (Forbidden): jobsets.jobset.x-k8s.io is forbidden: User "a" cannot create', DENIED, "rights"),
  ('Error from server (Forbidden): pods "x" is forbidden: exceeded quota: tpus', DENIED, "ask the administrator"),
  ("error: You must be logged in to the server (Unauthorized)", DENIED, "gcloud auth login"),
  ('Unable to connect to the server: getting credentials: exec: executable gke-gcloud-auth-plugin not found', DENIED,
   "gcloud components install gke-gcloud-auth-plugin"),
  ('error: unable to recognize "STDIN": no matches for kind "JobSet" in version "jobset.x-k8s.io/v1alpha2"', USAGE,
   "kubectl apply --server-side -f https://github.com/kubernetes-sigs/jobset/releases/"),
  ('error: the server doesn\'t have a resource type "jobsets"', USAGE, "manifests.yaml"),
  ('Error from server (NotFound): error when creating "STDIN": namespaces "team" not found', USAGE, "--namespace"),
  ('error: context "gke_p_z_c" does not exist', USAGE, "--cluster"),
  ('The JobSet "x" is invalid: spec.replicatedJobs: Invalid value', USAGE, "older than v0.12"),
  ('Error from server (BadRequest): JobSet in version "v1alpha2": strict decoding error: unknown field "spec.x"', USAGE,
   "v0.12"),
  ('error: admission webhook "vjobset.kb.io" denied the request: name too long', USAGE, "name too long"),
  ("The connection to the server localhost:8080 was refused - did you specify the right host or port?", USAGE,
   "gcloud container clusters get-credentials"),
]  # fmt: skip
PASSING = [
  REFUSED,
  "Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout",
  "Unable to connect to the server: net/http: TLS handshake timeout",
  "Error from server (TooManyRequests): the server has received too many requests",
  "Error from server (InternalError): Internal error occurred: failed calling webhook",
  "Error from server (ServiceUnavailable): the server is currently unable to handle the request",
  "Error from server (Timeout): the server was unable to return a response in the time allotted",
  "Error from server (NotFound): the server could not find the requested resource",
  'error: error validating "STDIN": error validating data: failed to download openapi: Get "https://10.0.0.1": '
  "dial tcp 10.0.0.1:443: connect: connection refused; if you choose to ignore these errors, turn validation off",
  "Unable to connect to the server: getting credentials: exec: executable gke-gcloud-auth-plugin failed with exit "
  "code 1: HTTPSConnectionPool(host='oauth2.googleapis.com', port=443): Max retries exceeded with url: /token",
  "error: something that nobody has seen before",
  "",
]


@pytest.fixture
def script(tmp_path, monkeypatch):
  monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
  return Kubectl(tmp_path)


def get_pods(script, answer):
  script.answers("get pods", answer)
  return gke.run_kubectl([*gke.build_base_command("ctx", "team"), "get", "pods"])


def test_command_names_its_context_namespace_and_timeout(script):
  assert get_pods(script, Answer("{}")) == "{}"
  assert script.calls == [["--request-timeout=20s", "--context=ctx", "--namespace=team", "get", "pods"]]


@pytest.mark.parametrize(("text", "code", "remedy"), FINAL)
def test_permanent_error_names_a_fix(script, text, code, remedy):
  with pytest.raises(LaunchError) as caught:
    get_pods(script, complaint(text))
  assert caught.value.code == code
  assert remedy in str(caught.value)


def test_quota_error_is_recognised(script):
  # A deleted attempt may still use the quota, so the launcher must recognise the error.
  with pytest.raises(QuotaError):
    get_pods(script, complaint('Error from server (Forbidden): pods "x" is forbidden: exceeded quota: tpus'))


@pytest.mark.parametrize("text", PASSING)
def test_other_errors_are_unknown_and_never_absent(script, text):
  with pytest.raises(UnknownError, match=r"kubectl: ."):
    get_pods(script, complaint(text))


def test_only_a_resource_that_is_not_found_is_absent(script):
  for kind in ("jobsets.jobset.x-k8s.io", "configmaps", "pods"):
    script.answers(f"get {kind}", complaint(f'Error from server (NotFound): {kind} "vit-a1" not found'))
    with pytest.raises(LookupError):
      gke.run_kubectl(["kubectl", "get", kind])


def test_existing_resource_is_recognised(script):
  text = 'Error from server (AlreadyExists): error when creating "STDIN": jobsets.jobset.x-k8s.io "a" already exists'
  with pytest.raises(FileExistsError):
    get_pods(script, complaint(text))


def test_warnings_and_logs_are_removed_from_errors(script):
  noise = 'E1123 10:00:00.1 1 memcache.go:265] "Unhandled Error" err="couldn\'t get current server API group list"'
  with pytest.raises(UnknownError) as caught:
    get_pods(script, complaint(f"Warning: old\n{noise}\n{noise}\n{REFUSED}"))
  assert str(caught.value) == f"kubectl: {REFUSED}"


def test_hanging_kubectl_is_unknown(script, monkeypatch):
  monkeypatch.setattr(gke, "TIMEOUT", 0.1)
  with pytest.raises(UnknownError, match="did not answer within"):
    get_pods(script, Answer("{}", sleep=1))


def test_missing_kubectl_is_reported_with_the_installation_command(tmp_path, monkeypatch):
  monkeypatch.setenv("PATH", str(tmp_path))
  with pytest.raises(LaunchError, match="gcloud components install kubectl") as caught:
    gke.get_default_context()
  assert caught.value.code == DENIED


def test_current_context_is_read(script):
  script.answers("config current-context", Answer("gke_p_z_c\n"))
  assert gke.get_default_context() == "gke_p_z_c"


def test_names_that_look_like_options_stay_values():
  assert gke.build_base_command("-x", "-y") == ["kubectl", "--context=-x", "--namespace=-y"]
  assert gke.build_base_command("", "") == ["kubectl"]
