"""A local server with Google's APIs for a project. It has responses by path and records all requests."""

import contextlib
import http.server
import json
import threading

from launch import preflight

PROJECT = "projects/my-project"
POLICY = {
  "bindings": [
    {"role": f"{PROJECT}/roles/vitjaxEnd", "members": ["serviceAccount:vit@my-project.iam.gserviceaccount.com"]}
  ]
}
RULE = {
  "name": "inside", "network": f"https://www.googleapis.com/compute/v1/{PROJECT}/global/networks/default",
  "direction": "INGRESS", "sourceRanges": ["10.128.0.0/9"], "allowed": [{"IPProtocol": "tcp", "ports": ["0-65535"]}],
}  # fmt: skip
GRANT = object()  # a response that grants all requested permissions
GOOD = {
  f"/v1/{PROJECT}:testIamPermissions": GRANT,
  "/v1/projects/-/serviceAccounts/vit@my-project.iam.gserviceaccount.com:testIamPermissions": GRANT,
  f"/v1/{PROJECT}:getIamPolicy": POLICY,
  f"/v1/{PROJECT}/roles/vitjaxEnd": {"includedPermissions": [*preflight.END]},
  f"/v1/{PROJECT}/services:batchGet": {
    "services": [{"name": f"projects/1/services/{each}.googleapis.com", "state": "ENABLED"}
                 for each in ("tpu", "compute", "storage", "secretmanager")]
  },
  f"/v1beta1/{PROJECT}/services/tpu.googleapis.com/consumerQuotaMetrics": {
    "metrics": [
      {"metric": "tpu.googleapis.com/tpu_v3_pod", "displayName": f"{kind}TPU v3 pod cores",
       "consumerQuotaLimits": [{"name": f"{kind}TPUV3sPodPerProjectPerZoneForTPUAPI", "metric": "m", "quotaBuckets": [
         {"effectiveLimit": "0"}, {"effectiveLimit": limit, "dimensions": {"zone": "europe-west4-a"}}]}]}
      for kind, limit in (("Preemptible", "128"), ("", "8"))
    ]
  },
  f"/compute/v1/{PROJECT}/global/networks/default": {"name": "default"},
  f"/compute/v1/{PROJECT}/global/firewalls": {"items": [RULE]},
  f"/compute/v1/{PROJECT}/regions/europe-west4/subnetworks/default": {"privateIpGoogleAccess": True},
  f"/compute/v1/{PROJECT}/regions/europe-west4/routers": {
    "items": [{"network": f"x/{PROJECT}/global/networks/default", "nats": [{"name": "vitjax"}]}]
  },
  "/storage/v1/b/bkt/iam/testPermissions": {"permissions": [*preflight.OBJECTS]},
}  # fmt: skip


class Server(http.server.ThreadingHTTPServer):
  """One server for all APIs. It is a context manager.

  Attributes:
    answers: {path: a JSON value, bytes, an HTTP status, GRANT or None for a broken connection}.
    requests: (method, path, Authorization, body) of each request.
  """

  def __init__(self):
    self.answers, self.requests = dict(GOOD), []
    super().__init__(("127.0.0.1", 0), _Handler)
    self.daemon_threads = True
    address = f"http://127.0.0.1:{self.server_port}"
    self.environment = {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": f"{address}/" for name in preflight.SERVERS}
    self.environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"] = f"{address}/compute/v1/"
    self.environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE"] = f"{address}/storage/v1/"

  def __enter__(self):
    threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
    return self

  def __exit__(self, *_):
    self.shutdown()
    self.server_close()

  def handle_error(self, request, client_address):
    """Does not print errors, because tests break connections on purpose."""


class _Handler(http.server.BaseHTTPRequestHandler):
  def _do(self):
    content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
    self.server.requests.append((self.command, self.path, self.headers.get("Authorization", ""), content))
    answer = self.server.answers.get(self.path.partition("?")[0], 404)
    if answer is GRANT:
      answer = {"permissions": json.loads(content)["permissions"]}
    if answer is None:
      self.connection.close()
      return
    status, text = (answer, json.dumps({"error": {"message": "no"}})) if type(answer) is int else (200, answer)
    body = text if isinstance(text, bytes) else text.encode() if status != 200 else json.dumps(text).encode()
    with contextlib.suppress(OSError):
      self.send_response(status)
      self.send_header("Content-Length", str(len(body)))
      self.end_headers()
      self.wfile.write(body)

  do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _do

  def log_message(self, *_):
    """Does not print requests."""
