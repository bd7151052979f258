"""kubectl, which talks to a cluster for us, and what its complaints mean."""

import re
import subprocess

from launch import manifests
from launch.assumptions import CLUSTER_CALL
from launch.errors import DENIED, USAGE, LaunchError, UnknownError

TIMEOUT = CLUSTER_CALL  # of which a request may take 20 s
_INSTALL = "https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml"
# Of a network that is away, also for the plugin that gets the token.
_PASSING = (
  r"connection refused|(?<!localhost:8080) was refused|i/o timeout|no such host|TLS handshake|Max retries exceeded"
  r"|Failed to establish a new connection|Unable to find the server|network is unreachable|connection reset"
)
# kubectl exits with 1 whatever happens. What a line means, the first that fits: code, and what to do. The words in
# brackets are the reasons of Kubernetes' API (k8s.io/apimachinery/pkg/apis/meta/v1), the others kubectl's own.
_MEANINGS = (
  (r"namespaces \"[^\"]*\" not found", USAGE, "correct --namespace, or make it: kubectl create namespace NAME"),
  (r"doesn't have a resource type", USAGE, "the cluster does not know it"),
  (r"context \S+ does not exist|context was not found", USAGE, "correct --cluster; see: kubectl config get-contexts"),
  (r"localhost:8080 was refused|no configuration has been provided", USAGE,
   "kubectl knows no cluster; run: gcloud container clusters get-credentials CLUSTER --location=LOCATION"),
  (r"gke-gcloud-auth-plugin", DENIED,
   "run: gcloud components install gke-gcloud-auth-plugin; if it is there: gcloud auth login"),
  (r"\(Unauthorized\)|You must be logged in|getting credentials|provide credentials", DENIED, "run: gcloud auth login"),
  (r"exceeded quota", DENIED, "free some, or ask the administrator of the namespace for more"),
  (r"\(Forbidden\)|is forbidden", DENIED,
   "ask for the rights to make, see and delete JobSets, Jobs, Pods and ConfigMaps in the namespace"),
  (r"\(Invalid\)|\(BadRequest\)|is invalid:|denied the request|ValidationError|unknown field|unknown flag", USAGE,
   "the cluster refuses what it was asked for; its JobSet may be older than v0.12"),
)  # fmt: skip


class NoJobSetError(LaunchError):
  """The cluster does not know JobSets."""


def base(context: str, namespace: str) -> list:
  """The words that all commands begin with."""
  return [
    "kubectl",
    *([f"--context={context}"] if context else []),
    *([f"--namespace={namespace}"] if namespace else []),
  ]


def executed(words: list) -> list:
  """Returns the argument list that `ask` executes for words of `base`."""
  return [words[0], "--request-timeout=20s", *words[1:]]


def ask(words: list, content: str = "") -> str:
  """What a command of `base` prints. LookupError for what is not there, FileExistsError for what is there already.

  Args:
    content: for its standard input.
  """
  words = executed(words)
  try:
    result = subprocess.run(
      words, input=content, capture_output=True, encoding="utf-8", errors="replace", timeout=TIMEOUT
    )
  except FileNotFoundError:
    raise LaunchError(
      "kubectl is not installed; run: gcloud components install kubectl gke-gcloud-auth-plugin", DENIED
    ) from None
  except OSError as error:
    raise UnknownError(f"kubectl cannot be run now: {error.strerror}") from None
  except subprocess.TimeoutExpired:
    raise UnknownError(f"kubectl did not answer within {TIMEOUT:.0f} s") from None
  if result.returncode == 0:
    return result.stdout
  raise _error(result.stderr)


def context() -> str:
  """The context that kubectl uses when it is not told one: a run must name it, for it may change."""
  return ask(["kubectl", "config", "current-context"]).strip()


def _error(text):
  """The exception for a complaint."""
  lines = [line for line in text.splitlines() if line.strip() and not re.match(r"[EIW]\d{4} |Warning:", line)]
  short = " ".join(" ".join(lines or text.splitlines()[-1:]).split())[:300] or "no reason given"
  if re.search(r"\(AlreadyExists\)", text):
    return FileExistsError(short)
  if re.search(rf"\(NotFound\): ({re.escape(manifests.JOBSETS)}|configmaps|pods) \"[^\"]+\" not found", text):
    return LookupError(short)
  if re.search(r"no matches for kind \"JobSet\"|resource type \"jobsets?[.\"]", text):
    return NoJobSetError(f"JobSet is not installed on this cluster; run: kubectl apply --server-side -f {_INSTALL}")
  for pattern, code, remedy in () if re.search(_PASSING, text) else _MEANINGS:
    if re.search(pattern, text):
      return LaunchError(f"kubectl: {short}; {remedy}", code)
  return UnknownError(f"kubectl: {short}")
