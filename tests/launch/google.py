"""A local metadata server of a machine, which also serves two of Google's APIs."""

import http.server
import json
import threading


class Server(http.server.ThreadingHTTPServer):
  """The metadata server and two APIs, with responses by path in their order, and the requests so far."""

  def __init__(self):
    token = json.dumps({"access_token": "abc", "expires_in": 3600})
    self.answers = {"instance/service-accounts/default/token": token}
    self.asked = []
    super().__init__(("127.0.0.1", 0), _Handler)
    self.address = f"127.0.0.1:{self.server_port}"
    threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

  def environment(self):
    """Returns the environment that connects programs to the server."""
    url = f"http://{self.address}/"
    names = ("TPU", "SECRETMANAGER")
    return {"GCE_METADATA_HOST": self.address} | {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": url for name in names}


class _Handler(http.server.BaseHTTPRequestHandler):
  def do_GET(self):
    path = self.path.removeprefix("/computeMetadata/v1/")
    self.server.asked.append((self.command, self.path, dict(self.headers)))
    answer = self.server.answers.get(path, 404)
    if isinstance(answer, list):
      answer = answer.pop(0) if len(answer) > 1 else answer[0]
    code, text = (answer, "no") if isinstance(answer, int) else (200, answer)
    self.send_response(code)
    self.end_headers()
    self.wfile.write(text.encode())

  do_DELETE = do_GET

  def log_message(self, *_):
    pass
