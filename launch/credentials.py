"""Recognises secrets by the names of variables and files, and by their values.

A run is stored in its bucket, and everybody who may read the bucket reads its variables and its code. Secrets are
therefore refused there and belong to --secret, which names the place where a worker reads the value.
"""

import collections
import itertools
import math
import re

# Words of the name of a variable with a secret. A path to a secret is not secret itself.
_WORDS = {"KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "APIKEY"}
_PATHS = {"FILE", "PATH", "DIR"}
# Names of files with secrets; templates of an .env file have none.
_FILES = re.compile(
  r"\.env(\.(?!example$|sample$|template$|dist$).*)?|\.netrc|_netrc|\.pypirc|\.git-credentials|id_(rsa|dsa|ecdsa|ed25519)"
  r"|.*\.(pem|key|p12|pfx|jks|keystore|kdbx)|(application_default_)?credentials\.(json|db)|kubeconfig",
  re.IGNORECASE,
)
# Files are code, which may contain examples: only the exact lengths of real secrets count.
_CONTENT = re.compile(
  rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bAIza[0-9A-Za-z_-]{35}\b|\bgh[pousr]_[0-9A-Za-z]{36}\b"
  rb"|\bgithub_pat_[0-9A-Za-z]{22}_[0-9A-Za-z]{59}\b|\bglpat-[0-9A-Za-z_-]{20}\b|\bhf_[0-9A-Za-z]{34}\b"
  rb"|\bya29\.[0-9A-Za-z_-]{50}"
)
_VALUES = (
  ("a Hugging Face token", r"\bhf_[0-9A-Za-z]{16,}"),
  ("a GitHub token", r"\bgh[pousr]_[0-9A-Za-z]{16,}|\bgithub_pat_\w{16,}"),
  ("a GitLab token", r"\bgl(pat|dt|rt|cbt|ptt)-[\w-]{16,}"),
  ("an AWS access key", r"\b(AKIA|ASIA)[0-9A-Z]{16}\b"),
  ("a Google API key", r"\bAIza[\w-]{30,}"),
  ("a Google access token", r"\bya29\.[\w-]{8,}|\b1//0[\w-]{20,}|\bGOCSPX-[\w-]{16,}"),
  ("a Slack token", r"\bxox[a-z]-[\w-]{8,}|\bxapp-[\w-]{16,}"),
  ("an API key", r"\bsk-([a-z]{2,8}\d*-){0,2}(?=[A-Za-z_]*\d)\w{16,}|\b[sr]k_(live|test)_\w{16,}"),
  ("a Weights & Biases key", r"\bwandb_v\d+_\w{16,}"),
  ("a package registry token", r"\bnpm_[0-9A-Za-z]{30,}|\bpypi-[\w-]{50,}"),
  ("a private key", r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----"),
  ("a JSON Web Token", r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
  ("a service account key", r'"type"\s*:\s*"(service_account|authorized_user|external_account)"|"private_key"\s*:'),
  ("a URL with a password", r"\b[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s:@]+@"),
  ("a signed URL", r"[?&](X-Goog-Signature|X-Amz-Signature|sig)=[\w%+/=-]{16,}"),
)  # fmt: skip
LENGTH, BITS, CHANGES, SEPARATORS = 24, 3.5, 0.3, 0.1


def of_variable(name: str, value: str) -> str:
  """Returns what kind of secret a variable seems to hold, or "" for none.

  Args:
    name: of the variable.
    value: of the variable.
  """
  words = name.upper().split("_")
  if _WORDS & {*words} and words[-1] not in _PATHS and name != "GOOGLE_APPLICATION_CREDENTIALS":
    return "a secret, by its name"
  return of_value(value)


def of_value(value: str) -> str:
  """Returns what kind of secret a value seems to be, or "" for none."""
  kind = next((kind for kind, pattern in _VALUES if re.search(pattern, value)), "")
  return kind or ("a random key" if is_random(value) else "")


def is_random(value: str) -> bool:
  """Returns whether a value looks like a random key in base 62 or base 64.

  A random key is one word of at least 24 letters, digits and `+/_-=` in which all of these hold:

  - Upper case, lower case and digits occur.
  - At least 30% of neighbouring letters and digits differ in that class, without a capital before a small letter.
    Random keys have about 45%, words in CamelCase and numbers about 25%.
  - At most 10% of the characters are `+/_-`. Random keys have 3%, names of experiments more than 10%.
  - The Shannon entropy of its characters is at least 3.5 bits.

  Hexadecimal numbers, such as SHA-256 sums, commits and UUIDs, are not random in this sense, because hashes of data are
  usual values. Paths and URLs are not random either.
  """
  if re.match(r"[~./]|[a-z][a-z0-9+.-]*://", value) or not re.fullmatch(
    rf"[A-Za-z0-9+/_-]{{{LENGTH},}}={{0,2}}", value
  ):
    return False
  letters = re.sub("[^A-Za-z0-9]", "", value)
  if re.fullmatch("[0-9A-Fa-f]+", letters) or not all(re.search(each, letters) for each in ("[A-Z]", "[a-z]", "[0-9]")):
    return False
  kinds = [1 if each.isdigit() else 2 if each.islower() else 3 for each in letters]
  changes = sum(a != b and (a, b) != (3, 2) for a, b in itertools.pairwise(kinds)) / (len(kinds) - 1)
  separators = len(re.findall("[+/_-]", value)) / len(value)
  counts = collections.Counter(letters).values()
  bits = -sum(count / len(letters) * math.log2(count / len(letters)) for count in counts)
  return changes >= CHANGES and separators <= SEPARATORS and bits >= BITS


def is_secret_file(name: str, content: bytes) -> bool:
  """Returns whether a file has the name or the content of a secret.

  Args:
    name: of the file, without its directory.
    content: of the file.
  """
  return _FILES.fullmatch(name) is not None or in_content(content)


def in_content(content: bytes) -> bool:
  """Returns whether code or a diff contains a secret of a known form."""
  return _CONTENT.search(content) is not None
