"""What kubectl's answers mean."""

import pytest

from launch import gke
from launch.errors import DENIED, USAGE, LaunchError, QuotaError, UnknownError
from tests.launch.scripted_kubectl import Answer, Kubectl, complaint

REFUSED = "The connection to the server 10.0.0.1:443 was refused - did you specify the right host or port?"
# Of kubectl 1.32: what it says, the exit code of launch that it means, and what the person must read.
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


def asked(script, answer):
  script.answers("get pods", answer)
  return gke.run_kubectl([*gke.build_base_command("ctx", "team"), "get", "pods"])


def test_a_command_names_its_context_its_namespace_and_how_long_it_may_take(script):
  assert asked(script, Answer("{}")) == "{}"
  assert script.calls == [["--request-timeout=20s", "--context=ctx", "--namespace=team", "get", "pods"]]


@pytest.mark.parametrize(("text", "code", "remedy"), FINAL)
def test_what_ends_a_run_says_what_to_do(script, text, code, remedy):
  with pytest.raises(LaunchError) as caught:
    asked(script, complaint(text))
  assert caught.value.code == code
  assert remedy in str(caught.value)


def test_a_quota_is_recognised_because_a_deleted_attempt_may_still_hold_it(script):
  with pytest.raises(QuotaError):
    asked(script, complaint('Error from server (Forbidden): pods "x" is forbidden: exceeded quota: tpus'))


@pytest.mark.parametrize("text", PASSING)
def test_anything_else_is_not_known_and_never_absent(script, text):
  with pytest.raises(UnknownError, match=r"kubectl: ."):
    asked(script, complaint(text))


def test_only_a_resource_that_is_not_found_is_absent(script):
  for kind in ("jobsets.jobset.x-k8s.io", "configmaps", "pods"):
    script.answers(f"get {kind}", complaint(f'Error from server (NotFound): {kind} "vit-a1" not found'))
    with pytest.raises(LookupError):
      gke.run_kubectl(["kubectl", "get", kind])


def test_what_is_there_already_is_known(script):
  text = 'Error from server (AlreadyExists): error when creating "STDIN": jobsets.jobset.x-k8s.io "a" already exists'
  with pytest.raises(FileExistsError):
    asked(script, complaint(text))


def test_warnings_and_logs_of_kubectl_are_left_out_of_what_it_says(script):
  noise = 'E1123 10:00:00.1 1 memcache.go:265] "Unhandled Error" err="couldn\'t get current server API group list"'
  with pytest.raises(UnknownError) as caught:
    asked(script, complaint(f"Warning: old\n{noise}\n{noise}\n{REFUSED}"))
  assert str(caught.value) == f"kubectl: {REFUSED}"


def test_a_kubectl_that_stands_still_is_no_answer(script, monkeypatch):
  monkeypatch.setattr(gke, "TIMEOUT", 0.1)
  with pytest.raises(UnknownError, match="did not answer within"):
    asked(script, Answer("{}", sleep=1))


def test_without_kubectl_the_line_that_installs_it_is_said(tmp_path, monkeypatch):
  monkeypatch.setenv("PATH", str(tmp_path))
  with pytest.raises(LaunchError, match="gcloud components install kubectl") as caught:
    gke.get_default_context()
  assert caught.value.code == DENIED


def test_the_context_of_now_is_asked_for(script):
  script.answers("config current-context", Answer("gke_p_z_c\n"))
  assert gke.get_default_context() == "gke_p_z_c"


def test_names_that_look_like_options_stay_values():
  assert gke.build_base_command("-x", "-y") == ["kubectl", "--context=-x", "--namespace=-y"]
  assert gke.build_base_command("", "") == ["kubectl"]
