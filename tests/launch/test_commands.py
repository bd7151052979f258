"""Tests of `python -m launch` with real workers of small programs on this machine."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from launch import errors, program
from launch.event_log import EventLog
from tests.launch import repositories

pytestmark = pytest.mark.heavy
ROOT = pathlib.Path(__file__).parent.parent.parent
FAST = {
  "beat": "0.1s",
  "poll": "0.1s",
  "silence": "20s",
  "grace": "3s",
  "pause": "0.1s",
  "delete": "20s",
  "idle": "60s",
}
LIMITS = [f"--limit={key}={value}" for key, value in FAST.items()]
JOB = """
import json, os, pathlib, signal, sys, time
words = dict(word.split("=", 1) for word in sys.argv[1:])
folder, first = pathlib.Path(words["--workdir"]), os.environ["VITJAX_PROCESS"] == "0"
folder.mkdir(parents=True, exist_ok=True)
count = folder / "count"
begun = int(count.read_text()) if count.exists() else 0
if first:
  count.write_text(str(begun + 1))
status = pathlib.Path(os.environ["VITJAX_STATUS"])
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
for step in range(int(words.get("--steps", 5))):
  draft = status.with_name("draft")
  draft.write_text(json.dumps({"step": step, "began": 0, "doing": "step"}))
  os.replace(draft, status)
  print("step", step, os.environ.get("COLOUR"), flush=True)
  time.sleep(0.1)
  if stopped:
    sys.exit(42)
sys.exit(int(words.get("--code", 0)))
"""


@pytest.fixture
def home(tmp_path):
  """A repository with `launch` and a program, a state folder and a workdir. All processes end with the test."""
  files = {str(file.relative_to(ROOT)): file.read_bytes() for file in (ROOT / "launch").rglob("*") if file.is_file()}
  files = {name: content for name, content in files.items() if "__pycache__" not in name}
  made = Home(
    repositories.made(tmp_path / "code", {**files, "job.py": JOB, "setup.py": "", ".gitignore": ""}), tmp_path
  )
  yield made
  for process in made.processes:
    process.kill()
    process.wait()
  made.launch("down", "vit", "--yes")
  assert not program.kill_all(str(tmp_path / "state"))


class Home:
  """The repository, folders and environment of a user."""

  def __init__(self, code, folder):
    self.code, self.folder, self.workdir, self.processes = code, folder, folder / "run", []
    self.environment = {
      **os.environ,
      "XDG_STATE_HOME": str(folder / "state"),
      "PYTHONPATH": str(code),
      "MEGASCALE_X": "1",
    }

  def words(self, *words, name="vit", job=(), processes=2):
    where = ["--backend=local", f"--processes={processes}", *LIMITS]
    return ["run", name, *where, *words, "--", "job", f"--workdir={self.workdir}", *job]

  def launch(self, *words, **changes):
    """Runs a command and returns (exit code, output)."""
    result = subprocess.run(
      [sys.executable, "-m", "launch", *words], cwd=self.code, env=self.environment | changes, text=True,
      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=90,
    )  # fmt: skip
    return result.returncode, result.stdout

  def begin(self, *words):
    """Starts a command, waits until its program runs, and returns the process."""
    process = subprocess.Popen(
      [sys.executable, "-m", "launch", *words], cwd=self.code, env=self.environment, text=True,
      stdin=subprocess.DEVNULL, stdout=open(self.folder / "said", "a"), stderr=subprocess.STDOUT,
    )  # fmt: skip
    self.processes.append(process)
    self.until(lambda: (self.workdir / "count").exists())
    return process

  def until(self, condition, seconds=40):
    deadline = time.monotonic() + seconds
    while not condition():
      assert time.monotonic() < deadline, self.output()
      time.sleep(0.05)

  def output(self):
    file = self.folder / "said"
    return file.read_text() if file.exists() else ""

  def count(self):
    return int((self.workdir / "count").read_text() or 0)  # the file may be empty during a write

  def events(self, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(self.folder / "state"))
    return [event["event"] for event in EventLog("vit").events]


def test_same_command_restarts_an_ended_run(home, monkeypatch):
  code, output = home.launch(*home.words("--env=COLOUR=red blue"))
  assert code == errors.DONE and "vit: done" in output and home.count() == 1, output
  assert home.events(monkeypatch)[-3:] == ["done", "deleted", "end"]
  code, output = home.launch("logs", "vit")
  assert {f"[w0{w}] step {s} red blue" for w in (0, 1) for s in range(5)} <= set(output.splitlines())
  code, output = home.launch("status", "vit")
  assert code == 0 and "ended with 0: done" in output
  code, output = home.launch(*home.words())
  assert code == errors.DONE and "vit-a2" in output and home.count() == 2


@pytest.mark.long
def test_failing_program_ends_the_run_with_its_log_and_code(home):
  code, output = home.launch(*home.words("--max-failures=2", job=["--code=1", "--steps=2"]))
  assert code == errors.GAVE_UP and "ended with 1" in output and "    step 1" in output and home.count() == 2
  code, output = home.launch(*home.words(job=["--code=44", "--steps=1"]))
  assert code == 44 and home.count() == 3


@pytest.mark.long
def test_another_watcher_continues_a_run_without_restarting_it(home, monkeypatch):
  first = home.begin(*home.words(job=["--steps=40"]))
  first.send_signal(signal.SIGKILL)
  first.wait()
  code, output = home.launch("adopt", "vit")
  assert code == errors.DONE and home.count() == 1, output
  code, output = home.launch("adopt", "vit")
  assert code == errors.USAGE and "has ended (done), and has no machines. The same command continues" in output


@pytest.mark.long
def test_ctrl_c_keeps_the_run_and_names_the_commands_to_end_it(home):
  first = home.begin(*home.words(job=["--steps=200"]))
  first.send_signal(signal.SIGINT)
  assert first.wait(30) == errors.DETACHED
  assert "launch adopt vit" in home.output() and "launch down vit" in home.output()
  code, output = home.launch("ls")
  assert code == 0 and "vit-a1" in output
  assert home.launch("down", "vit")[0] == errors.USAGE  # it asks for confirmation, and standard input is empty
  code, output = home.launch("down", "vit", "--yes")
  assert code == 0 and "all its machines are deleted" in output
  assert "vit-a1" not in home.launch("ls")[1]


@pytest.mark.long
def test_second_watcher_is_refused_and_down_ends_the_first(home):
  first = home.begin(*home.words(job=["--steps=400"]))
  code, output = home.launch("adopt", "vit")
  assert code == errors.USAGE and "the run is watched by process" in output
  code, output = home.launch(*home.words(job=["--steps=9"]))
  assert code == errors.USAGE
  assert home.launch("down", "vit", "--yes")[0] == 0
  assert first.wait(30) == errors.USAGE and home.count() == 1


@pytest.mark.long
def test_stopped_run_keeps_its_machines_for_a_restart(home):
  first = home.begin(*home.words(job=["--steps=300"]))
  code, output = home.launch("stop", "vit")
  assert code == 0 and "w00: 42" in output, output
  assert first.wait(30) == errors.DETACHED
  assert "vit-a1 is kept; delete it with" in home.output() and "billed" not in home.output()
  code, output = home.launch("adopt", "vit")
  assert code == errors.USAGE and "launch restart vit continues with its machines" in output
  process = home.begin("restart", "vit")
  home.until(lambda: home.count() == 2)
  assert home.launch("restart", "vit")[0] == 0  # during a watch
  home.until(lambda: home.count() == 3)
  assert home.launch("restart", "vit", "--fresh-vm")[0] == 0
  home.until(lambda: home.count() == 4)
  assert home.launch("down", "vit", "--yes")[0] == 0 and process.wait(30) != 0
  assert "vit-a2" in home.output()


@pytest.mark.long
def test_other_arguments_do_not_change_an_active_run(home):
  first = home.begin(*home.words(job=["--steps=400"]))
  first.send_signal(signal.SIGKILL)
  first.wait()
  code, output = home.launch(*home.words(job=["--steps=9"]))
  assert code == errors.USAGE and "running with other arguments" in output
  (home.code / "job.py").write_text(JOB + "\n")
  code, output = home.launch(*home.words(job=["--steps=400"]))
  assert code == errors.USAGE and "other code" in output


@pytest.mark.long
def test_dry_run_writes_no_files(home):
  code, output = home.launch(*home.words("--dry-run"))
  assert code == 0 and output.count("launch.worker start") == 2
  assert not home.workdir.exists() and not (home.folder / "state").exists()


@pytest.mark.long
def test_ssh_returns_the_exit_code_and_report_has_a_total_time(home):
  home.launch(*home.words())
  assert home.launch("ssh", "vit", "-w", "1", "--", "sh", "-c", "exit 7")[0] == 7
  code, output = home.launch("report", "vit", "--json")
  table = json.loads(output)
  assert code == 0 and table["total"] > 0


@pytest.mark.long
def test_detached_run_is_watched_by_another_process(home):
  code, output = home.launch(*home.words("--detach", job=["--steps=30"]))
  assert code == 0 and "watched by process" in output
  home.until(lambda: "ended with 0: done" in home.launch("status", "vit")[1])
  assert home.count() == 1


@pytest.mark.long
def test_remaining_machines_block_a_run_with_another_workdir(home, monkeypatch):
  monkeypatch.setenv("XDG_STATE_HOME", str(home.folder / "state"))
  home.launch(*home.words())
  book = EventLog("vit")
  book.append("intent", dataclasses.replace(book.state, attempt=2), location="here")
  book.append("created", dataclasses.replace(book.state, attempt=2))
  book.append("end", book.state, code=13, text="")
  words = home.words()
  other = [word.replace(str(home.workdir), f"{home.workdir}-b") for word in words]
  code, output = home.launch(*other)
  assert code == errors.USAGE and "vit-a2 may still exist with another workdir" in output


@pytest.mark.long
def test_machine_without_an_event_log_blocks_another_run(home):
  first = home.begin(*home.words(job=["--steps=400"]))
  first.send_signal(signal.SIGKILL)
  first.wait()
  event_log = home.folder / "state/vit_jax/launch/vit.jsonl"
  kept = event_log.read_bytes()
  event_log.unlink()
  words = [word.replace(str(home.workdir), f"{home.workdir}-b") for word in home.words()]
  code, output = home.launch(*words)
  assert code == errors.USAGE and "vit-a1 exists" in output and "no event log here contains it" in output
  event_log.write_bytes(kept)
