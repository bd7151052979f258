"""The program that a TPU VM runs at each boot, run here: with the real bash, curl and tar, in a folder of its own."""

import calendar
import contextlib
import hashlib
import http.server
import io
import json
import os
import shutil
import subprocess
import tarfile
import threading
import time
import urllib.parse

import pytest

from launch.backends import qr
from tests.launch import cloud

TOKEN = "ya29.not-to-be-seen"
HOSTILE = "gs://bkt/a b/'$(touch oops)' @CODE@ \"`x`\"/ü;&"
WORKER = "import sys, os; open(os.environ['STARTED'], 'a').write('\\0'.join([os.getcwd(), *sys.argv[1:]]) + '\\n')"
# A wrapper that writes its arguments down, and then is what it is called.
RECORD = '#!/bin/sh\nprintf "%s\\0" "$@" >> "{log}"\nprintf "\\n" >> "{log}"\n{then}\n'


def script(workdir="gs://bkt/runs/a", code=cloud.CODE, expires=1_795_300_000):
  """Of the second attempt of a run."""
  return qr.startup(cloud.run(workdir=workdir), 2, code, expires)


def bundle():
  """(A bundle of code, its hash)."""
  content = io.BytesIO()
  with tarfile.open(fileobj=content, mode="w:gz") as file:
    for name, text in (("launch/__init__.py", ""), ("launch/worker.py", WORKER)):
      member = tarfile.TarInfo(name)
      member.size = len(text)
      file.addfile(member, io.BytesIO(text.encode()))
  return content.getvalue(), hashlib.sha256(content.getvalue()).hexdigest()


class Machine:
  """A VM that is not there: its metadata server, a bucket with one object, its systemd."""

  def __init__(self, folder, name, content, failures=0):
    self.folder, self.name, self.content, self.failures, self.asked = folder, name, content, failures, []

  @contextlib.contextmanager
  def on(self):
    """While it is, it answers."""
    (self.folder / "bin").mkdir()
    timer = self.folder / "timer"
    for program, then in (
      ("systemctl", f'test -e "{timer}"'),
      ("systemd-run", f'touch "{timer}"'),
      ("curl", f'exec {shutil.which("curl")} "$@"'),
    ):
      file = self.folder / "bin" / program
      file.write_text(RECORD.format(log=self.folder / program, then=then))
      file.chmod(0o755)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    self.environment = {
      "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
      "VITJAX_STORAGE": address,
      "VITJAX_METADATA": address,
      "VITJAX_HOME": str(self.folder / "opt"),
      "VITJAX_PAUSE": "0.05",
      "VITJAX_TRIES": "3",
      "STARTED": str(self.folder / "started"),
    }
    try:
      yield self
    finally:
      server.shutdown()
      thread.join()
      server.server_close()

  def boot(self, text):
    """Runs the program; returns how it ended."""
    file = self.folder / "startup.sh"
    file.write_text(text)
    return subprocess.run(["bash", file], env=self.environment, cwd=self.folder, capture_output=True, text=True)

  def words(self, program):
    """The argument lists with which a program has been called."""
    file = self.folder / program
    lines = file.read_bytes().decode().split("\n")[:-1] if file.exists() else []
    return [line.strip("\0").split("\0") for line in lines]

  def _handler(machine):
    class Handler(http.server.BaseHTTPRequestHandler):
      def log_message(self, *_):
        """Nothing."""

      def do_GET(self):
        machine.asked.append(
          (self.path, self.headers.get("Authorization", ""), self.headers.get("Metadata-Flavor", ""))
        )
        code, content = 200, json.dumps({"access_token": TOKEN, "expires_in": 3000}).encode()
        if self.path.startswith("/storage/"):
          found = urllib.parse.unquote(self.path) == f"/storage/v1/b/{machine.name}?alt=media"
          code, content = (200, machine.content) if found else (404, b"")
          if machine.failures:
            machine.failures -= 1
            code, content = 503, b"busy"
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    return Handler


needs_curl = pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")


@pytest.mark.parametrize("workdir", ["gs://bkt/runs/a", HOSTILE])
def test_each_value_is_what_it_was(workdir):
  head = script(workdir).partition("# Only tests")[0]
  words = 'printf "%s\\0" "$folder" "$object" "$code" "$expires" "${worker[@]}"'
  out = subprocess.run(["bash", "-c", f"{head}\n{words}"], capture_output=True, check=True).stdout.decode()
  folder = cloud.run(workdir=workdir).folder
  bucket, _, name = f"{folder}/code/{cloud.CODE}.tgz".removeprefix("gs://").partition("/")
  quoted = urllib.parse.quote(name, safe="")
  assert out.split("\0")[:-1] == [folder, f"{bucket}/o/{quoted}", cloud.CODE, "1795300000",
                                  f"--folder={folder}", "--attempt=2", "--engine=qr"]  # fmt: skip


@pytest.mark.parametrize("workdir", ["gs://bkt/runs/a", HOSTILE])
def test_it_is_bash_without_a_flaw(workdir, tmp_path):
  file = tmp_path / "startup.sh"
  file.write_text(script(workdir))
  assert subprocess.run(["bash", "-n", file], capture_output=True).stderr == b""
  assert len(file.read_text().splitlines()) < 40
  if not shutil.which("shellcheck"):
    pytest.skip("shellcheck is not installed: apt-get install shellcheck")
  # Names that look like commands are what HOSTILE is about.
  result = subprocess.run(["shellcheck", "--exclude=SC2016", file], capture_output=True, text=True)
  assert result.returncode == 0, result.stdout


@needs_curl
@pytest.mark.heavy
@pytest.mark.parametrize(("workdir", "failures"), [("gs://bkt/runs/a", 0), ("gs://bkt/runs/a", 2), (HOSTILE, 0)])
def test_a_machine_gets_the_code_and_starts_the_worker_at_each_boot(tmp_path, workdir, failures):
  content, code = bundle()
  folder = cloud.run(workdir=workdir).folder
  bucket, _, name = folder.removeprefix("gs://").partition("/")
  machine = Machine(tmp_path, f"{bucket}/o/{name}/code/{code}.tgz", content, failures)
  expires = int(time.time()) + 5000
  (tmp_path / "opt/draft/launch").mkdir(parents=True)
  (tmp_path / "opt/draft/launch/stale.py").touch()  # of a boot that broke off
  with machine.on():
    first = machine.boot(script(workdir, code, expires))
    assert first.returncode == 0, first.stderr
    asked = len(machine.asked)
    second = machine.boot(script(workdir, code, expires))
  assert second.returncode == 0 and len(machine.asked) == asked == 2 * (1 + failures)

  # The worker, in its code, both times; and what ends the machine, once.
  own = [f"--folder={folder}", "--attempt=2", "--engine=qr"]
  home = str(tmp_path / "opt" / code)
  assert (tmp_path / "started").read_text().split("\n")[:-1] == ["\0".join([home, "start", *own])] * 2
  (timer,) = machine.words("systemd-run")
  assert timer[timer.index("python3") :] == ["python3", "-m", "launch.worker", "end", *own]
  assert f"--working-directory={home}" in timer and "--property=Restart=on-failure" in timer
  when = next(word.partition("=")[2] for word in timer if word.startswith("--on-calendar="))
  assert calendar.timegm(time.strptime(when, "%Y-%m-%d %H:%M:%S UTC")) == expires
  assert not (tmp_path / "oops").exists() and not (tmp_path / "opt" / code / "launch/stale.py").exists()

  # The token goes to the bucket, and through no argument list.
  assert machine.asked[-1][1] == f"Bearer {TOKEN}" and machine.asked[0][2] == "Google"
  assert not [word for call in machine.words("curl") for word in call if TOKEN in word]


@needs_curl
@pytest.mark.heavy
def test_other_code_starts_nothing(tmp_path):
  content, code = bundle()
  machine = Machine(tmp_path, f"bkt/o/runs/a/launch/code/{code}.tgz", content[:-1] + b"?")
  with machine.on():
    result = machine.boot(script(code=code))
  assert result.returncode == 1 and f"no code {code}" in result.stderr and "gs://bkt/runs/a" in result.stderr
  assert not (tmp_path / "started").exists() and not machine.words("systemd-run")
  assert not (tmp_path / "opt" / code).exists() and len(machine.asked) == 6


@needs_curl
@pytest.mark.heavy
def test_a_machine_that_wakes_after_its_end_ends_at_once(tmp_path):
  content, code = bundle()
  machine = Machine(tmp_path, f"bkt/o/runs/a/launch/code/{code}.tgz", content)
  with machine.on():
    machine.boot(script(code=code, expires=int(time.time()) - 5000))
  (timer,) = machine.words("systemd-run")
  when = next(word.partition("=")[2] for word in timer if word.startswith("--on-calendar="))
  assert 0 < calendar.timegm(time.strptime(when, "%Y-%m-%d %H:%M:%S UTC")) - time.time() <= 61
