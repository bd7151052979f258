"""Tests of the commands of a worker: start as a single unit, look and stop."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from launch import mailbox, service, spec
from tests.launch import google, workers
from tests.launch.workers import LIMITS, Lab, zombies

pytestmark = pytest.mark.heavy
WAIT = "print('waits', flush=True); time.sleep(60)"


def wait_for_end(process):
  """Waits for a process and returns (exit code, output)."""
  text = process.communicate(timeout=30)[0]
  return process.returncode, text


def run_look(lab):
  """Returns the output of `look`."""
  code, text = wait_for_end(lab.start(verb="look"))
  assert code == 0
  return json.loads(text)


def test_unit_starts_once_and_outlives_its_parent(tmp_path):
  with Lab(tmp_path, WAIT) as lab:
    assert run_look(lab) == []
    starts = [wait_for_end(process) for process in [lab.start(verb="start") for _ in range(4)]]
    assert [code for code, _ in starts] == [0] * 4, starts
    assert sum("is running as process" in text for _, text in starts) == 1
    assert sum("is already running as process" in text for _, text in starts) == 3
    lab.wait(mailbox.RUNNING)
    (one,) = run_look(lab)
    assert (one["run"], one["attempt"], one["worker"], one["alive"]) == ("vit", 1, 0, True)
    assert one["expires"] == lab.attempt.expires and one["folder"] == lab.folder
    lab.wait(lambda _: "waits" in lab.text())
    (program,) = lab.programs()
    code, text = wait_for_end(lab.start(verb="run"))
    assert code == 1 and "is already running on this host as process" in text
    assert lab.programs() == [program]
    code, text = wait_for_end(lab.start("--name=vit", "--grace=5", verb="stop"))
    assert code == 0, text
    assert not lab.programs() and run_look(lab) == [] and not zombies()
    report = lab.report()
    assert (report.phase, report.exit) == (mailbox.EXITED, 143)
    assert wait_for_end(lab.start("--name=vit", verb="stop"))[0] == 0  # a repeated stop


@pytest.mark.long
def test_killed_unit_is_listed_and_restarted(tmp_path):
  with Lab(tmp_path, WAIT) as lab:
    wait_for_end(lab.start(verb="start"))
    lab.wait(lambda _: "waits" in lab.text())
    process = service.Service("vit-a1-w00", lab.state / "vit_jax/launch").process()
    os.kill(process, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while run_look(lab)[0]["alive"]:
      assert time.monotonic() < deadline
    lab.wait(lambda _: not lab.programs())
    code, text = wait_for_end(lab.start(verb="start"))
    assert code == 0 and "is running as process" in text
    assert lab.wait(lambda report: report.phase == mailbox.READY).try_ == 2
    os.kill(service.Service("vit-a1-w00", lab.state / "vit_jax/launch").process(), signal.SIGKILL)
    assert wait_for_end(lab.start("--name=vit", verb="stop"))[0] == 0


@pytest.mark.long
def test_name_in_use_for_another_folder_is_refused(tmp_path):
  with Lab(tmp_path, WAIT) as lab, Lab(tmp_path, WAIT, workdir=tmp_path / "other") as other:
    assert wait_for_end(lab.start(verb="start"))[0] == 0
    code, text = wait_for_end(other.start(verb="start"))
    assert code == 2 and str(lab.folder) in text
    assert wait_for_end(lab.start("--name=vit", "--grace=5", verb="stop"))[0] == 0


@pytest.mark.long
def test_start_reports_why_a_worker_cannot_start(tmp_path):
  with Lab(tmp_path) as lab:
    (tmp_path / "state").write_text("")
    code, text = wait_for_end(lab.start(verb="start"))
    assert code == 2 and "XDG_STATE_HOME" in text
    (tmp_path / "state").unlink()
    lab.storage.delete("a1/spec.json")
    code, text = wait_for_end(lab.start(verb="start"))
    assert code == 2 and "there is no attempt 1" in text
    code, text = wait_for_end(lab.start("--folder=", verb="start"))
    assert code == 2 and "--folder: missing" in text


# A TPU VM with a local metadata server.


@pytest.fixture
def server():
  with google.Server() as server:
    server.answers |= {
      "instance/attributes/agent-worker-number": "0",
      "instance/network-interfaces/0/ip": "127.0.0.1",
      "instance/zone": "projects/7/zones/us-east1-d",
      "project/project-id": "my-project",
      "/v2/projects/my-project/locations/us-east1-d/queuedResources/vit-a1?force=true": [503, "{}"],
    }
    yield server
    server.shutdown()


def use_tpu(lab, server, **limits):
  """Changes the attempt to a queued resource with one host."""
  values = {"tpu": "v3-8", "project": "my-project", "python": sys.executable, "limits": spec.Limits(**limits)}
  run = spec.check_and_complete(spec.Run("vit", "qr", "job", (), "gs://bkt/x", **values))
  lab.mailbox.publish(mailbox.Attempt(run, 1, lab.digest, lab.attempt.expires))
  lab.environment |= server.environment()


def list_deletions(server):
  return [path for method, path, _ in server.asked if method == "DELETE"]


def test_idle_tpu_vm_deletes_itself(tmp_path, server):
  with Lab(tmp_path) as lab:
    use_tpu(lab, server, **vars(LIMITS) | {"idle": 0.3})
    process = lab.start(engine="qr", worker=None)
    assert process.wait(20) == 0
    report = lab.report()
    assert (report.phase, report.exit) == (mailbox.ENDED, 0)
    assert "limits.idle" in report.detail and "the machine is deleted" in report.detail
    assert len(list_deletions(server)) == 2
    variables = json.loads(lab.output("variables")[0])
    assert variables["VITJAX_DEVICES"] == "8"
    assert variables["VITJAX_COORDINATOR"].partition(":")[0] == "127.0.0.1"


@pytest.mark.long
def test_tpu_vm_that_cannot_be_deleted_reports_its_cost(tmp_path, server):
  for name in list(server.answers):
    if "queuedResources" in name:
      server.answers[name] = 403
  with Lab(tmp_path) as lab:
    use_tpu(lab, server, **vars(LIMITS) | {"idle": 0.3})
    lab.start(engine="qr", worker=None).wait(20)
    assert "is still billed" in lab.report().detail
    assert "gcloud compute tpus queued-resources delete vit-a1 --force --project=my-project" in lab.report().detail


@pytest.mark.long
def test_terminated_tpu_vm_keeps_its_last_report(tmp_path, server):
  with Lab(tmp_path, WAIT) as lab:
    use_tpu(lab, server, **vars(LIMITS))
    process = lab.start(engine="qr", worker=None)
    lab.wait(lambda _: "waits" in lab.text())
    process.terminate()
    assert process.wait(10) == 143
    assert lab.report().phase == mailbox.EXITED and not list_deletions(server)


# systemd with replacements of its commands.

RUN = """#!{python}
import json, os, subprocess, sys
json.dump(sys.argv, open("{folder}/asked.json", "w"))
name = next(word for word in sys.argv if word.startswith("--unit="))[7:]
if os.path.exists("{folder}/" + name):
  sys.exit("Failed to start transient service unit: Unit " + name + ".service was already loaded.")
words = sys.argv[next(i for i, word in enumerate(sys.argv) if i and not word.startswith("-")):]
folder = next(word for word in sys.argv if word.startswith("--working-directory="))[20:]
process = subprocess.Popen(words, cwd=folder, start_new_session=True, stdout=-3, stderr=-3)  # DEVNULL
open("{folder}/" + name, "w").write(str(process.pid))
"""
CONTROL = """#!{python}
import os, signal, sys
verb, name = sys.argv[1], sys.argv[-1]
try:
  pid = int(open("{folder}/" + name).read())
  os.kill(pid, 0)
except (OSError, ValueError):
  sys.exit(3)
if verb == "stop":
  os.kill(pid, signal.SIGTERM)
"""


@pytest.mark.long
def test_worker_is_a_systemd_unit_if_systemd_runs(tmp_path):
  (tmp_path / "bin").mkdir()
  for name, text in (("systemd-run", RUN), ("systemctl", CONTROL)):
    (tmp_path / "bin" / name).write_text(text.replace("{python}", sys.executable).replace("{folder}", str(tmp_path)))
    (tmp_path / "bin" / name).chmod(0o755)
  command = (
    f"from launch import service, worker; import pathlib, sys; service.SYSTEMD = pathlib.Path({str(tmp_path)!r}); "
  )
  command += "sys.exit(worker.main(sys.argv[1:]))"
  with Lab(tmp_path, WAIT) as lab:
    lab.environment |= {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "JOB_SECRET": "not-in-argv"}

    def do(verb, *words):
      line = [sys.executable, "-c", command, verb, "--engine=hosts", *words]
      return subprocess.run(line, env=lab.environment, cwd=workers.ROOT, capture_output=True, text=True, timeout=30)

    start = ("start", f"--folder={lab.folder}", "--worker=0", "--grace=7")
    lab.mailbox.publish(
      mailbox.Attempt(
        spec.check_and_complete(
          spec.Run("vit", "hosts", "job", (), str(tmp_path / "run"), hosts=("h",), limits=LIMITS, python=sys.executable)
        ),
        1,
        lab.digest,
        lab.attempt.expires,
      )
    )
    assert "is running as process" in do(*start).stdout
    assert "is already running" in do(*start).stdout
    asked = json.loads((tmp_path / "asked.json").read_text())
    assert {"--unit=vitjax-vit-a1", "--collect", "--property=KillMode=mixed", "--property=TimeoutStopSec=37",
            "--property=OOMPolicy=continue", f"--working-directory={workers.ROOT}"} <= set(asked)  # fmt: skip
    assert not any("not-in-argv" in word for word in asked)
    lab.wait(lambda _: "waits" in lab.text())
    result = do("stop", "--name=vit", "--grace=5")
    assert result.returncode == 0, result
    assert not lab.programs()
    assert pathlib.Path(tmp_path / "vitjax-vit-a1").exists()
