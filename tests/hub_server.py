"""A server with the endpoints of the Hugging Face Hub that `vit_jax.storage.hub_files` uses, on the loopback interface.

The endpoints are those that huggingface_hub 2.4 requests for downloads and uploads. Files of .safetensors are in LFS:
their address redirects to another one, which supports ranges. Other files are regular files of a commit.
"""

import base64
import collections
import contextlib
import dataclasses
import hashlib
import http.server
import json
import pathlib
import re
import threading
import urllib.parse
from collections.abc import Iterator

import pytest

from tests import small_weights
from vit_jax.storage import hub_files

LARGE = (".safetensors", ".bin")


@dataclasses.dataclass
class Repository:
  """A model repository.

  Attributes:
    commits: {commit: {path: content}}.
    refs: {branch or tag: commit}.
    token: token that requests need, or None.
    gated: whether requests without a valid token are answered as for a gated repository.
    private: visibility that the creator chose.
  """

  commits: dict[str, dict[str, bytes]] = dataclasses.field(default_factory=dict)
  refs: dict[str, str] = dataclasses.field(default_factory=dict)
  token: str | None = None
  gated: bool = False
  private: bool = False

  def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
    """Adds files to a branch in a new commit, and returns the commit."""
    whole = self.commits.get(self.refs.get(branch, ""), {}) | files
    sha = hashlib.sha1(repr((branch, len(self.commits), sorted(whole))).encode()).hexdigest()
    self.commits[sha], self.refs[branch] = whole, sha
    return sha


@dataclasses.dataclass
class Hub:
  """The state of the server.

  Attributes:
    repositories: repositories by name.
    requests: number of requests by method and kind of endpoint, such as "GET model".
    tokens: tokens of the requests by kind of endpoint.
    ranges: values of the header Range of downloads.
    uploads: uploaded large files by SHA-256.
    answers: contents of answers that replace those of the server, by method and kind of endpoint.
    damaged: path of a file whose last byte is wrong in downloads, or None.
    cut: number of bytes after which the next download is cut off, or None.
    status: status of every answer, or None.
    writers: tokens that may create repositories and upload.
    address: address of the server.
    contents: its address for the contents of large files. The host has another name, as on the Hub.
  """

  repositories: dict[str, Repository] = dataclasses.field(default_factory=lambda: collections.defaultdict(Repository))
  requests: collections.Counter = dataclasses.field(default_factory=collections.Counter)
  tokens: dict[str, set[str]] = dataclasses.field(default_factory=lambda: collections.defaultdict(set))
  ranges: list[str] = dataclasses.field(default_factory=list)
  uploads: dict[str, bytes] = dataclasses.field(default_factory=dict)
  answers: dict[str, bytes] = dataclasses.field(default_factory=dict)
  damaged: str | None = None
  cut: int | None = None
  status: int | None = None
  writers: tuple[str, ...] = ("hf_writer",)
  address: str = ""
  contents: str = ""


ROUTES = (
  ("GET", "model", r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?"),
  ("GET", "whoami", r"/api/whoami-v2"),
  ("HEAD", "resolve", r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)"),
  ("GET", "resolve", r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)"),
  ("GET", "content", r"/content/(.+)"),
  ("POST", "create", r"/api/repos/create"),
  ("POST", "validate", r"/api/validate-yaml"),
  ("POST", "preupload", r"/api/models/([^/]+/[^/]+)/preupload/([^/]+)"),
  ("POST", "batch", r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch"),
  ("PUT", "upload", r"/upload/([0-9a-f]{64})"),
  ("POST", "commit", r"/api/models/([^/]+/[^/]+)/commit/([^/]+)"),
)


class Refusal(Exception):
  """An answer with an error: the status and the headers of the Hub."""

  def __init__(self, status: int, code: str = "", message: str = "") -> None:
    super().__init__(message)
    self.status, self.headers = status, {"X-Error-Code": code, "X-Error-Message": message}


class Handler(http.server.BaseHTTPRequestHandler):
  """Answers the requests of one connection."""

  protocol_version = "HTTP/1.1"
  hub: Hub

  def log_message(self, *arguments: object) -> None:
    """Prints nothing."""

  def _answer(self) -> None:
    path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
    self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
    try:
      if self.hub.status:
        raise Refusal(self.hub.status)
      for method, name, pattern in ROUTES:
        if method == self.command and (match := re.fullmatch(pattern, path)):
          self.hub.requests[f"{method} {name}"] += 1
          self.hub.tokens[name].add(self._token())
          if f"{method} {name}" in self.hub.answers:
            self._send(200, self.hub.answers[f"{method} {name}"])
            return
          getattr(self, f"_{method.lower()}_{name}")(*match.groups())
          return
      if "agent-harnesses" not in path:  # the library requests this list once in a process
        self.hub.requests[f"unknown {self.command} {path}"] += 1
      raise Refusal(404)
    except Refusal as refusal:
      self._send(refusal.status, b"", refusal.headers)

  do_GET = do_HEAD = do_POST = do_PUT = _answer

  def _send(
    self, status: int, content: bytes, headers: dict[str, str] | None = None, length: int | None = None
  ) -> None:
    self.send_response(status)
    for name, value in ((headers or {}) | {"Content-Length": str(len(content) if length is None else length)}).items():
      if value:
        self.send_header(name, value)
    self.end_headers()
    if self.command != "HEAD":
      self.wfile.write(content)

  def _send_json(self, values: object, status: int = 200) -> None:
    self._send(status, json.dumps(values).encode(), {"Content-Type": "application/json"})

  def _token(self) -> str:
    return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

  def _find(self, name: str) -> Repository:
    repository = self.hub.repositories.get(name)
    if repository is None:
      raise Refusal(401 if not self._token() else 404, "RepoNotFound", "Repository not found")
    if repository.token and self._token() != repository.token:
      if repository.gated:
        raise Refusal(403 if self._token() else 401, "GatedRepo", "Access to model is restricted")
      raise Refusal(401, "RepoNotFound", "Repository not found")
    return repository

  def _find_files(self, name: str, revision: str | None) -> tuple[str, dict[str, bytes]]:
    repository = self._find(name)
    revision = revision or "main"
    sha = revision if revision in repository.commits else repository.refs.get(revision)
    if sha is None:
      raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    return sha, repository.commits[sha]

  def _get_model(self, name: str, revision: str | None) -> None:
    sha, files = self._find_files(name, revision)
    private = self.hub.repositories[name].private
    siblings = [{"rfilename": path} for path in files]
    if "blobs=" in urllib.parse.urlsplit(self.path).query:
      for entry, content in zip(siblings, files.values(), strict=True):
        entry |= {"size": len(content), "blobId": blob_digest(content)}
        if entry["rfilename"].endswith(LARGE):
          entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    self._send_json({"id": name, "sha": sha, "private": private, "siblings": siblings})

  def _get_whoami(self) -> None:
    if not self._token():
      raise Refusal(401, message="Invalid username or password.")
    role = {"hf_writer": "write", "hf_fine": "fineGrained"}.get(self._token(), "read")
    organisations = [{"type": "org", "name": "Lab"}]
    auth = {"type": "access_token", "accessToken": {"displayName": "test", "role": role}}
    self._send_json({"type": "user", "name": "me", "orgs": organisations, "auth": auth})

  def _damage(self, path: str, content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1]) if self.hub.damaged == path else content

  def _head_resolve(self, name: str, revision: str, path: str) -> None:
    sha, files = self._find_files(name, revision)
    if path not in files:
      raise Refusal(404, "EntryNotFound", "Entry not found")
    content, headers = files[path], {"X-Repo-Commit": sha}
    if path.endswith(LARGE):
      digest = hashlib.sha256(content).hexdigest()
      headers |= {"Location": f"{self.hub.contents}/content/{name}/{sha}/{path}", "X-Linked-Etag": f'"{digest}"'}
      self._send(302, b"", headers | {"X-Linked-Size": str(len(content))})
    else:
      self._send(200, self._damage(path, content), headers | {"ETag": f'"{blob_digest(content)}"'}, len(content))

  _get_resolve = _head_resolve

  def _get_content(self, rest: str) -> None:
    owner, name, sha, path = rest.split("/", 3)
    content, start = self.hub.repositories[f"{owner}/{name}"].commits[sha][path], 0
    if wanted := self.headers.get("Range"):
      self.hub.ranges.append(wanted)
      start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
    part, cut, self.hub.cut = self._damage(path, content)[start:], self.hub.cut, None
    headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if wanted else {}
    self._send(206 if wanted else 200, part if cut is None else part[:cut], headers, len(part))
    self.close_connection = cut is not None

  def _check_writer(self) -> None:
    if self._token() not in self.hub.writers:
      raise Refusal(401 if not self._token() else 403, message="You don't have the rights to create a model here")

  def _post_create(self) -> None:
    self._check_writer()
    values = json.loads(self.body)
    name = f"{values['organization']}/{values['name']}"
    existed = name in self.hub.repositories
    if not existed:
      self.hub.repositories[name].private = values.get("visibility") == "private"
      self.hub.repositories[name].commit({".gitattributes": b"*.safetensors filter=lfs"})
    self._send_json({"url": f"{self.hub.address}/{name}"}, 409 if existed else 200)

  def _post_validate(self) -> None:
    self._send_json({"errors": [], "warnings": []})

  def _post_preupload(self, name: str, revision: str) -> None:
    self._check_writer()
    large = [(file["path"], file["path"].endswith(LARGE)) for file in json.loads(self.body)["files"]]
    modes = [{"path": path, "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False} for path, lfs in large]
    self._send_json({"files": modes})

  def _post_batch(self, name: str) -> None:
    self._check_writer()
    objects = json.loads(self.body)["objects"]
    for each in objects:
      each["actions"] = {"upload": {"href": f"{self.hub.address}/upload/{each['oid']}", "header": {}}}
    self._send_json({"transfer": "basic", "objects": objects})

  def _put_upload(self, digest: str) -> None:
    assert hashlib.sha256(self.body).hexdigest() == digest
    self.hub.uploads[digest] = self.body
    self._send(200, b"")

  def _post_commit(self, name: str, revision: str) -> None:
    self._check_writer()
    files = {}
    for line in self.body.splitlines():
      each = json.loads(line)
      if each["key"] == "file":
        files[each["value"]["path"]] = base64.b64decode(each["value"]["content"])
      elif each["key"] == "lfsFile":
        files[each["value"]["path"]] = self.hub.uploads[each["value"]["oid"]]
    sha = self.hub.repositories[name].commit(files, revision)
    self._send_json({"commitUrl": f"{self.hub.address}/{name}/commit/{sha}", "commitOid": sha})


def blob_digest(content: bytes) -> str:
  """Returns the digest of a file in Git."""
  return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextlib.contextmanager
def serve() -> Iterator[Hub]:
  """Runs a server in a thread, and yields its state."""
  hub = Hub()
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
  server.daemon_threads = True
  hub.address, hub.contents = (f"http://{host}:{server.server_port}" for host in ("127.0.0.1", "localhost"))
  thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
  thread.start()
  try:
    yield hub
  finally:
    server.shutdown()
    server.server_close()
    thread.join()


def use(hub: Hub, cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  """Makes huggingface_hub use a server and a cache in this process. The library reads its environment at import."""
  from huggingface_hub import constants

  values = {"ENDPOINT": hub.address, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}
  values["HUGGINGFACE_CO_URL_TEMPLATE"] = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
  for name, value in values.items():
    monkeypatch.setattr(constants, name, value)
  monkeypatch.delenv("HF_TOKEN", raising=False)
  forget_commits()


def forget_commits() -> None:
  """Makes this process ask for the commits of revisions again, like a new process."""
  hub_files._find_commit.cache_clear()


def environment(hub: Hub, home: pathlib.Path) -> dict[str, str]:
  """Returns the environment in which other processes use a server."""
  return {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}


def add_model(hub: Hub, name: str, folder: pathlib.Path, **metadata: object) -> str:
  """Adds a repository with a small ViT in timm's layout, and returns its commit."""
  small_weights.file(folder, **metadata)
  return hub.repositories[name].commit({file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()})
