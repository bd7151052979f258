"""Tests of the startup script of a TPU VM, with the real bash, curl and tar in a separate folder."""

import calendar
import contextlib
import hashlib
import http.server
import io
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import threading
import time
import urllib.parse

import pytest

from launch import qr, service
from tests.launch import cloud
from tests.launch.systemd import expanded

TOKEN = "ya29.not-to-be-seen"
HOSTILE = "gs://bkt/a b/'$(touch oops)' @CODE@ \"`x`\"/ü;&"
WORKER = "import sys, os; open(os.environ['STARTED'], 'a').write('\\0'.join([os.getcwd(), *sys.argv[1:]]) + '\\n')"
# A wrapper that records its arguments and then runs the wrapped command.
RECORD = '#!/bin/sh\nprintf "%s\\0" "$@" >> "{log}"\nprintf "\\n" >> "{log}"\n{then}\n'


def make_script(workdir="gs://bkt/runs/a", code=cloud.CODE, expires=1_795_300_000, seconds=0, **changes):
  """Returns the script of the second attempt of a run."""
  return qr.make_startup_script(cloud.run(workdir=workdir, **changes), 2, code, expires, seconds)


def make_bundle():
  """Returns a bundle of code and its hash."""
  content = io.BytesIO()
  with tarfile.open(fileobj=content, mode="w:gz") as file:
    for name, text in (("launch/__init__.py", ""), ("launch/worker.py", WORKER)):
      member = tarfile.TarInfo(name)
      member.size = len(text)
      file.addfile(member, io.BytesIO(text.encode()))
  return content.getvalue(), hashlib.sha256(content.getvalue()).hexdigest()


class Machine:
  """A simulated VM: its metadata server, a bucket with one object, and its systemd."""

  def __init__(self, folder, name, content, failures=0, resources=()):
    self.folder, self.name, self.content, self.failures, self.asked = folder, name, content, failures, []
    self.resources, self.statuses, self.deleted = [*resources], [], []

  @contextlib.contextmanager
  def on(self):
    """Runs the servers of the VM during the context."""
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
      "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{address}/",
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
    """Runs the startup script and returns the finished process."""
    file = self.folder / "startup.sh"
    file.write_text(text)
    return self.run(["bash", file])

  def run(self, words):
    """Runs a command on this machine."""
    return subprocess.run(
      words, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )

  def ring(self):
    """Runs the command of the timer that was set last."""
    return self.run(expanded(find_command(self.words("systemd-run")[-1])))

  def words(self, program):
    """Returns the argument lists of all calls of a program."""
    file = self.folder / program
    lines = file.read_bytes().decode().split("\n")[:-1] if file.exists() else []
    return [line.strip("\0").split("\0") for line in lines]

  def _handler(machine):
    class Handler(http.server.BaseHTTPRequestHandler):
      def log_message(self, *_):
        """Does not print requests."""

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

      def do_DELETE(self):
        machine.deleted.append((self.path, self.headers.get("Authorization", "")))
        name = self.path.partition("?")[0].removeprefix("/v2/projects/proj-x/locations/europe-west4-a/")
        status = machine.statuses.pop(0) if machine.statuses else 200 if name in machine.resources else 404
        if status == 200:
          machine.resources.remove(name)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    return Handler


def find_command(timer):
  """Returns the command of a call of systemd-run, after its flags."""
  first = next(i for i, word in enumerate(timer) if not word.startswith("-"))
  return timer[first:]


def find_time(timer):
  """Returns the time of a timer, in seconds since the epoch."""
  text = next(word.partition("=")[2] for word in timer if word.startswith("--on-calendar="))
  return calendar.timegm(time.strptime(text, "%Y-%m-%d %H:%M:%S UTC"))


needs_curl = pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")


@pytest.mark.parametrize("workdir", ["gs://bkt/runs/a", HOSTILE])
def test_values_are_quoted_correctly(workdir):
  head = make_script(workdir).partition("# Only tests")[0]
  words = 'printf "%s\\0" "$folder" "$object" "$code" "$expires" "${worker[@]}" "${nodes[@]}"'
  out = subprocess.run(["bash", "-c", f"{head}\n{words}"], capture_output=True, check=True).stdout.decode()
  folder = cloud.run(workdir=workdir).folder
  bucket, _, name = f"{folder}/code/{cloud.CODE}.tgz".removeprefix("gs://").partition("/")
  quoted = urllib.parse.quote(name, safe="")
  assert out.split("\0")[:-1] == [folder, f"{bucket}/o/{quoted}", cloud.CODE, "1795300000",
                                  f"--folder={folder}", "--attempt=2", "--engine=qr", "vit-b16-a2"]  # fmt: skip


@pytest.mark.parametrize("workdir", ["gs://bkt/runs/a", HOSTILE])
def test_script_passes_bash_and_shellcheck(workdir, tmp_path):
  file = tmp_path / "startup.sh"
  file.write_text(make_script(workdir))
  assert subprocess.run(["bash", "-n", file], capture_output=True).stderr == b""
  assert len(file.read_text().splitlines()) < 80
  if not shutil.which("shellcheck"):
    pytest.skip("shellcheck is not installed: apt-get install shellcheck")
  # HOSTILE contains names that look like commands, which SC2016 would report.
  result = subprocess.run(["shellcheck", "--exclude=SC2016", file], capture_output=True, text=True)
  assert result.returncode == 0, result.stdout


@needs_curl
@pytest.mark.heavy
@pytest.mark.parametrize(("workdir", "failures"), [("gs://bkt/runs/a", 0), ("gs://bkt/runs/a", 2), (HOSTILE, 0)])
def test_machine_fetches_the_code_and_starts_the_worker_at_each_boot(tmp_path, workdir, failures):
  content, code = make_bundle()
  folder = cloud.run(workdir=workdir).folder
  bucket, _, name = folder.removeprefix("gs://").partition("/")
  machine = Machine(tmp_path, f"{bucket}/o/{name}/code/{code}.tgz", content, failures)
  expires = int(time.time()) + 5000
  (tmp_path / "opt/draft/launch").mkdir(parents=True)
  (tmp_path / "opt/draft/launch/stale.py").touch()  # from an interrupted boot
  with machine.on():
    first = machine.boot(make_script(workdir, code, expires))
    assert first.returncode == 0, first.stderr
    asked = len(machine.asked)
    second = machine.boot(make_script(workdir, code, expires))
  assert second.returncode == 0 and len(machine.asked) == asked == 2 * (1 + failures)

  # The worker starts in its code both times. The timer that deletes the machine is set once.
  own = [f"--folder={folder}", "--attempt=2", "--engine=qr"]
  home = str(tmp_path / "opt" / code)
  assert (tmp_path / "started").read_text().split("\n")[:-1] == ["\0".join([home, "start", *own])] * 2
  (timer,) = machine.words("systemd-run")
  assert "--property=Restart=on-failure" in timer and find_time(timer) == expires
  assert not (tmp_path / "oops").exists() and not (tmp_path / "opt" / code / "launch/stale.py").exists()

  # The token goes to the bucket, and is not in an argument list.
  assert machine.asked[-1][1] == f"Bearer {TOKEN}" and machine.asked[0][2] == "Google"
  assert not [word for call in machine.words("curl") for word in call if TOKEN in word]


@needs_curl
@pytest.mark.heavy
def test_wrong_code_does_not_start_a_worker(tmp_path):
  content, code = make_bundle()
  machine = Machine(tmp_path, f"bkt/o/runs/a/launch/code/{code}.tgz", content[:-1] + b"?")
  with machine.on():
    result = machine.boot(make_script(code=code, expires=int(time.time()) + 5000))
  assert result.returncode == 1 and f"no code {code}" in result.stderr and "gs://bkt/runs/a" in result.stderr
  assert not (tmp_path / "started").exists()
  assert not (tmp_path / "opt" / code).exists() and len(machine.asked) == 6
  first, second = machine.words("systemd-run")  # set at once, and set to `limits.idle` after the failure
  assert "--unit=vitjax-end" in first and abs(find_time(first) - time.time() - 5000) < 30
  assert "--unit=vitjax-idle" in second and abs(find_time(second) - time.time() - 1200) < 30


@needs_curl
@pytest.mark.long
@pytest.mark.parametrize("workdir", ["gs://bkt/runs/a", HOSTILE])
@pytest.mark.parametrize("slices", [1, 2])
def test_machine_without_code_deletes_itself_with_curl(tmp_path, workdir, slices):
  nodes = ["nodes/vit-b16-a2-0", "nodes/vit-b16-a2-1"] if slices == 2 else ["nodes/vit-b16-a2"]
  machine = Machine(tmp_path, "none", b"", resources=["queuedResources/vit-b16-a2", *nodes, "nodes/other"])
  machine.statuses = [503, 403]  # the service is unavailable, and then refuses a request
  text = make_script(
    workdir, "f" * 64, int(time.time()) + 5000, tpu="v5e-16" if slices == 2 else "v3-32", slices=slices
  )
  with machine.on():
    booted = machine.boot(text)
    assert booted.returncode == 1 and "nothing starts" in booted.stderr
    assert not (tmp_path / "opt" / ("f" * 64)).exists()
    before = machine.words("systemctl")
    done = machine.ring()
  assert done.returncode == 0, done.stderr
  assert machine.resources == ["nodes/other"]
  assert before[0] == ["is-active", "--quiet", "vitjax-end.timer"]
  assert machine.words("systemctl")[len(before)] == ["stop", service.Service("vit-b16-a2", tmp_path).name]
  assert {header for _, header in machine.deleted} == {f"Bearer {TOKEN}"}
  assert machine.deleted[0][0].endswith("/queuedResources/vit-b16-a2?force=true")
  assert not [word for call in machine.words("curl") for word in call if TOKEN in word]
  assert "HTTP status 503" in done.stderr and "HTTP status 403" in done.stderr


@needs_curl
@pytest.mark.long
def test_timer_is_set_before_any_download_and_on_a_full_disk(tmp_path):
  machine = Machine(tmp_path, "none", b"", resources=["queuedResources/vit-b16-a2", "nodes/vit-b16-a2"])
  with machine.on():
    (tmp_path / "bin/curl").write_text(f'#!/bin/sh\ntouch -r "{tmp_path}/timer" "{tmp_path}/timer.seen" && exit 7\n')
    (tmp_path / "bin/mkdir").write_text("#!/bin/sh\necho 'No space left on device' >&2\nexit 1\n")
    (tmp_path / "bin/mkdir").chmod(0o755)
    (tmp_path / "opt").mkdir()  # the folder replaces /run for the copy
    assert machine.boot(make_script(expires=int(time.time()) + 5000)).returncode == 1
    assert (tmp_path / "timer.seen").exists()
    (tmp_path / "bin/curl").write_text(f'#!/bin/sh\nexec {shutil.which("curl")} "$@"\n')
    assert machine.ring().returncode == 0
  assert machine.resources == []


def list_commands():
  """Returns the command lines of all processes."""
  lines = []
  for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    with contextlib.suppress(OSError):  # the process has ended
      lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
  return lines


@needs_curl
@pytest.mark.long
def test_machine_without_systemd_deletes_itself_from_a_process(tmp_path):
  machine = Machine(tmp_path, "none", b"", resources=["queuedResources/vit-b16-a2", "nodes/vit-b16-a2"])
  with machine.on():
    for name in ("systemd-run", "systemctl"):
      (tmp_path / "bin" / name).write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin/sleep").write_text('#!/bin/sh\n[ "$1" -lt 50 ] || : > slept\n')
    (tmp_path / "bin/sleep").chmod(0o755)
    assert machine.boot(make_script(expires=int(time.time()) + 5000)).returncode == 1
    deadline = time.monotonic() + 60
    while ending := [line for line in list_commands() if str(tmp_path) in line and " end" in line]:
      assert time.monotonic() < deadline, ending  # the process ends after it has confirmed the deletion
      time.sleep(0.05)
  assert machine.resources == [] and (tmp_path / "slept").exists()


@needs_curl
@pytest.mark.long
def test_time_of_a_machine_counts_from_its_first_boot(tmp_path):
  content, code = make_bundle()
  machine = Machine(tmp_path, f"bkt/o/runs/a/launch/code/{code}.tgz", content)
  now = int(time.time())
  text = make_script(code=code, expires=now + 90_000, seconds=4000)
  with machine.on():
    machine.boot(text)
    (tmp_path / "timer").unlink()  # the machine was restarted 1000 s later
    booted = tmp_path / "opt/first_boot"
    booted.write_text(f"{int(booted.read_text()) - 1000}\n")
    machine.boot(text)
    (tmp_path / "timer").unlink()
    booted.write_text("garbage\n")
    machine.boot(text)
  first, second, third = map(find_time, machine.words("systemd-run"))
  assert abs(first - now - 4000) < 30 and abs(second - now - 3000) < 30 and abs(third - now - 4000) < 30


@needs_curl
@pytest.mark.long
def test_machine_that_wakes_after_its_expiry_ends_at_once(tmp_path):
  content, code = make_bundle()
  machine = Machine(tmp_path, f"bkt/o/runs/a/launch/code/{code}.tgz", content)
  with machine.on():
    machine.boot(make_script(code=code, expires=int(time.time()) - 5000))
  (timer,) = machine.words("systemd-run")
  assert 0 < find_time(timer) - time.time() <= 61
