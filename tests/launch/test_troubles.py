"""Tests of real workers with faults of the run's directory, its code or the machine."""

import hashlib
import json
import os
import time

import pytest

from launch import mailbox, program
from tests.launch import workers
from tests.launch.workers import Lab

pytestmark = pytest.mark.heavy


def test_changed_bundle_does_not_start_a_program(tmp_path):
  with Lab(tmp_path, processes=2) as lab:
    name = f"code/{lab.digest}.tgz"
    lab.storage.write(name, lab.storage.read(name).content + b"x")
    for number, process in enumerate(lab.starts()):
      report = lab.wait(mailbox.ENDED, number)
      assert "it was changed" in report.detail and report.code == ""
      assert process.wait(10) == 2
    assert "argv" not in lab.text()


@pytest.mark.long
def test_different_code_of_workers_does_not_start_a_program(tmp_path):
  with Lab(tmp_path, processes=2) as lab:
    lab.mailbox.write_report(mailbox.WorkerReport(1, 1, mailbox.READY, code="0" * 64, address="h:1"))
    lab.start(worker=0)
    assert "worker 1 uses the bundle 000000000000" in lab.wait(mailbox.ENDED).detail
    assert "argv" not in lab.text()


@pytest.mark.long
def test_invalid_files_do_not_stop_a_worker(tmp_path):
  with Lab(tmp_path, processes=2) as lab:
    lab.storage.write("a1/order.json", b"{")
    lab.storage.write("a1/w01.json", b"[1, 2]")
    lab.start(worker=0)
    lab.wait(mailbox.READY)
    time.sleep(0.3)
    lab.start(worker=1)
    assert lab.wait(mailbox.EXITED).exit == 0
    lab.mailbox.write_order(mailbox.Order(2))
    lab.wait(lambda report: (report.phase, report.try_) == (mailbox.EXITED, 2))


@pytest.mark.long
def test_invalid_spec_is_reported(tmp_path):
  with Lab(tmp_path) as lab:
    lab.storage.write("a1/spec.json", b"garbage")
    worker = lab.start("--patience=0.3", "--name=vit")
    assert worker.wait(20) == 3
    assert "not in the format of `launch`" in lab.report().detail
    text = lab.attempt.dumps().replace('\\"vit\\"', '\\"a;b\\"')
    lab.storage.write("a1/spec.json", text.encode())
    worker = lab.start("--name=vit")
    assert worker.wait(20) == 2
    assert "'a;b' is not allowed" in lab.report().detail
    lab.storage.delete("a1/spec.json")
    assert lab.start("--name=vit").wait(20) == 2
    assert "no attempt 1" in lab.report().detail


@pytest.mark.long
def test_unreachable_folder_does_not_stop_a_program(tmp_path):
  """Replaces the run's directory with a file for a while. The program continues, and its end is reported later."""
  with Lab(tmp_path, "time.sleep(1); print('through', flush=True); sys.exit(5)") as lab:
    lab.start()
    lab.wait(mailbox.RUNNING)
    os.rename(tmp_path / "run", tmp_path / "away")
    (tmp_path / "run").write_text("")
    time.sleep(1.5)
    (tmp_path / "run").unlink()
    os.rename(tmp_path / "away", tmp_path / "run")
    assert lab.wait(mailbox.EXITED).exit == 5
    lab.wait(lambda _: "through" in lab.text())


def test_run_completes_on_an_unreliable_bucket(tmp_path, bucket_server):
  with Lab(tmp_path, "print('x' * 600_000, flush=True)", workdir="gs://bkt/worker", processes=2) as lab:
    lab.environment |= bucket_server.environment
    with bucket_server.troubled(busy=0.1, resets=0.05):
      lab.starts()
      assert [lab.wait(mailbox.EXITED, number, 60).exit for number in range(2)] == [0, 0]
      lab.wait(lambda _: "try 1 ended" in lab.text(), seconds=60)
    assert lab.output("variables")
    pieces = lab.mailbox.list_pieces(0)
    assert len(pieces) > 2
    assert lab.text().count("x" * 600_000) == 1


@pytest.mark.long
def test_program_has_a_home_even_if_the_worker_has_none(tmp_path):
  with Lab(tmp_path) as lab:
    lab.start(HOME=None)
    lab.wait(mailbox.EXITED)
    assert os.path.isdir(json.loads(lab.output("variables")[0])["HOME"])


@pytest.mark.long
def test_full_disk_is_reported(tmp_path):
  big = {"job.py": "", "big": "x" * 3_000_000}
  with Lab(tmp_path) as lab:
    content = workers.bundle(big)
    digest = hashlib.sha256(content).hexdigest()
    lab.storage.write(f"code/{digest}.tgz", content)
    lab.mailbox.publish(mailbox.Attempt(lab.run, 1, digest, int(time.time() + 99)))
    command = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6)); "
    command += "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    command += "sys.argv = ['w', *sys.argv[1:]]; runpy.run_module('launch.worker', run_name='__main__')"
    words = [os.sys.executable, "-c", command, "run", f"--folder={lab.folder}", "--engine=local", "--worker=0"]
    result = workers.subprocess.run(words, env=lab.environment, cwd=workers.ROOT, capture_output=True, timeout=30)
    assert result.returncode == 2
    report = lab.wait(mailbox.ENDED)
    assert "File too large" in report.detail
    assert not any((lab.state / "vit_jax/launch/code").iterdir())
    assert not program.find_marked(str(lab.state))
