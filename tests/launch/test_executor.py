"""Tests of real workers with small programs: common start, orders, stops, hangs and ends."""

import json
import os
import signal
import time

import pytest

from launch import mailbox, spec
from tests.launch.workers import LIMITS, Lab, kill, zombies

pytestmark = pytest.mark.heavy
WAIT = "import threading\nthreading.Event().wait(60)\n"
# Prints a line for each SIGTERM and ends with exit code 42.
POLITE = """
def asked(number, _):
  print("asked", flush=True)
  time.sleep(0.3)
  sys.exit(42)
signal.signal(signal.SIGTERM, asked)
print("waits", flush=True)
time.sleep(60)
"""


@pytest.mark.long
def test_first_try_starts_without_an_order_with_one_coordinator(tmp_path):
  with Lab(tmp_path, processes=3, env={"JOB_A": "b c"}) as lab:
    lab.environment |= {"MEGASCALE_SLICE_ID": "7", "VITJAX_DEVICES": "9", "http_proxy": "x", "TPU_NAME": "old",
                        "JAX_COORDINATOR_PORT": "1"}  # fmt: skip
    lab.starts()
    reports = [lab.wait(mailbox.EXITED, number) for number in range(3)]
    assert [report.exit for report in reports] == [0, 0, 0]
    assert {report.code for report in reports} == {lab.digest}
    assert all(abs(report.clock - time.time()) < 20 and report.host for report in reports)
    variables = [json.loads(lab.output("variables", number)[0]) for number in range(3)]
    assert {each["VITJAX_COORDINATOR"] for each in variables} == {reports[0].address}
    assert [each["VITJAX_PROCESS"] for each in variables] == ["0", "1", "2"]
    kept = {"VITJAX_COORDINATOR", "VITJAX_PROCESSES", "VITJAX_PROCESS", "VITJAX_STATUS", "PYTHONUNBUFFERED", "HOME"}
    assert set(variables[0]) == kept | {"JOB_A"}
    assert variables[0]["JOB_A"] == "b c"


def test_programs_start_if_all_workers_are_ready_and_restart_on_an_order(tmp_path):
  with Lab(tmp_path, "sys.exit(3)", processes=2) as lab:
    lab.start(worker=0)
    lab.wait(mailbox.READY)
    time.sleep(0.5)
    assert lab.report().phase == mailbox.READY and "argv" not in lab.text()
    lab.start(worker=1)
    first = lab.wait(mailbox.EXITED)
    assert (first.exit, first.try_) == (3, 1)
    lab.wait(mailbox.EXITED, 1)
    time.sleep(0.4)
    assert lab.report() == lab.report() and lab.report().phase == mailbox.EXITED  # it stays without an order
    lab.mailbox.write_order(mailbox.Order(3))
    second, _ = (
      lab.wait(lambda report: (report.phase, report.try_) == (mailbox.EXITED, 3), number) for number in (0, 1)
    )
    assert second.address != first.address
    assert len(lab.output("argv", count=2)) == 2
    assert not zombies()


@pytest.mark.long
def test_higher_try_stops_the_program_with_one_sigterm(tmp_path):
  with Lab(tmp_path, "if os.path.exists(sys.argv[1]): sys.exit(0)\n" + POLITE, args=(str(tmp_path / "a"),)) as lab:
    lab.start()
    lab.wait(lambda _: "waits" in lab.text())
    (tmp_path / "a").touch()
    lab.mailbox.write_order(mailbox.Order(2))
    lab.wait(lambda report: (report.phase, report.try_, report.exit) == (mailbox.EXITED, 2, 0))
    lab.wait(lambda _: "try 2 ended" in lab.text())
    assert lab.text().count("asked") == 1
    assert "try 1 ended with 42: try 2 is ordered" in lab.text()


def test_stop_sends_sigterm_and_then_kills_the_whole_group(tmp_path):
  code = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["sleep", "600"], start_new_session=True)
subprocess.Popen(["env", "-i", "setsid", "sh", "-c", f"echo $$ > {sys.argv[1]}; exec sleep 600"])
print("waits", flush=True)
time.sleep(60)
"""
  limits = spec.Limits(**vars(LIMITS) | {"grace": 0.5})
  with Lab(tmp_path, code, limits=limits, args=(str(tmp_path / "away"),)) as lab:
    worker = lab.start()
    lab.wait(lambda _: "waits" in lab.text())
    assert len(lab.programs()) == 4 - 1  # the worker itself has no status file
    lab.wait(lambda _: (tmp_path / "away").exists() and (tmp_path / "away").read_text())
    lab.mailbox.write_order(mailbox.Order(1, stop=True))
    report = lab.wait(mailbox.EXITED)
    assert report.exit == 137 and "stopped on request" in report.detail and "limits.grace" in report.detail
    assert not lab.programs() and not zombies()
    assert not os.path.exists(
      f"/proc/{(tmp_path / 'away').read_text().strip()}"
    )  # a process without the variables of the worker, which also ended
    time.sleep(0.3)
    assert worker.poll() is None and lab.report().phase == mailbox.EXITED  # until the next order, or limits.idle
    lab.mailbox.write_order(mailbox.Order(2))
    lab.wait(lambda report: (report.phase, report.try_) == (mailbox.RUNNING, 2))


@pytest.mark.long
def test_sigterm_to_the_worker_reaches_the_program_once(tmp_path):
  with Lab(tmp_path, POLITE) as lab:
    worker = lab.start()
    lab.wait(lambda _: "waits" in lab.text())
    for _ in range(3):
      worker.send_signal(signal.SIGTERM)
      time.sleep(0.02)
    assert worker.wait(10) == 42
    report = lab.report()
    assert (report.phase, report.exit, report.asked) == (mailbox.EXITED, 42, True)
    assert "SIGTERM to the worker" in report.detail
    assert lab.text().count("asked") == 1
    lab.start()  # the machine has returned
    again = lab.wait(mailbox.READY)
    assert again.try_ == 2 and not again.asked
    time.sleep(0.5)
    assert lab.report().phase == mailbox.READY
    lab.mailbox.write_order(mailbox.Order(2))
    lab.wait(mailbox.RUNNING)
    lab.wait(lambda _: lab.text().count("waits\n") == 2)


@pytest.mark.long
def test_program_of_a_killed_worker_ends(tmp_path):
  with Lab(tmp_path, "subprocess.Popen(['sleep', '600']); print('waits', flush=True)\n" + WAIT) as lab:
    worker = lab.start()
    lab.wait(lambda _: "waits" in lab.text())
    assert len(lab.programs()) == 2
    unit = lab.state / "vit_jax/launch/units/vit-a1-w00"
    lab.wait(lambda _: int((unit / "log.sent").read_text() or 0) == (unit / "log").stat().st_size)
    kill(worker)
    lab.wait(lambda _: len(lab.programs()) == 1)
    lab.storage.delete("a1/w00.json")  # the local record of the machine is enough
    lab.start()
    assert lab.wait(mailbox.READY).try_ == 2
    assert not lab.programs()
    assert lab.text().count("try 1 of vit-a1") == 1  # pieces are not sent twice


def test_hanging_program_ends_with_its_stack_and_exit_code_43(tmp_path):
  code = """
import faulthandler
faulthandler.register(signal.SIGUSR2)
def stuck(): time.sleep(60)
for step in range(4):
  json.dump({"step": step, "began": 0, "doing": "step", "polls": step}, open(os.environ["VITJAX_STATUS"], "w"))
  time.sleep(0.3)
stuck()
"""
  limits = spec.Limits(**vars(LIMITS) | {"stall": 1.0, "grace": 0.5})
  with Lab(tmp_path, code, limits=limits) as lab:
    lab.start()
    lab.wait(lambda report: report.step == 2)
    report = lab.wait(mailbox.EXITED)
    assert (report.exit, report.step, report.began, report.doing) == (43, 3, 0, "step")
    assert "limits.stall" in report.detail
    assert "in stuck" in report.tail


@pytest.mark.long
def test_held_device_is_named(tmp_path):
  with Lab(tmp_path, "print('/dev/accel0 is held by process 77 (python x)', flush=True); sys.exit(43)") as lab:
    lab.start()
    report = lab.wait(mailbox.EXITED)
    assert (report.exit, report.detail) == (43, "/dev/accel0 is held by process 77 (python x)")


def test_arguments_arrive_unchanged(tmp_path):
  args = ("--x=$(touch /tmp/no)", "'; rm -rf ~", '"', "a\nb\r\tc", "", "-", "--", "ä→\U0001f600", "\udcff", "\\", "*")
  with Lab(tmp_path, args=args) as lab:
    lab.start(LC_ALL="C", LANG=None)
    lab.wait(mailbox.EXITED)
    assert json.loads(lab.output("argv")[0]) == [*args]


def test_secrets_reach_only_the_program(tmp_path):
  secret, short = "hunter2-and-more", "abc"
  (tmp_path / "secret").write_text(f"{secret}\n")
  (tmp_path / "short").write_text(short)
  code = f"""
text = os.environ["JOB_KEY"]
assert text == {secret[::-1]!r}[::-1]
for _ in range(3000): print(text, end="", flush=_ % 100 == 0)
print()
for letter in text: print(letter, end="", flush=True); time.sleep(0.05)
print("\\nheld by", text, "is held by process 1", text, os.environ["JOB_SHORT"], flush=True)
sys.exit(43)
"""
  secrets = {"JOB_KEY": f"file:{tmp_path}/secret", "JOB_SHORT": f"file:{tmp_path}/short"}
  with Lab(tmp_path, code, secrets=secrets) as lab:
    lab.start()
    report = lab.wait(mailbox.EXITED)
    lab.wait(lambda _: "try 1 ended" in lab.text())
    assert report.exit == 43
    for each in (lab.text(), report.tail, report.detail):
      assert secret not in each and "***" in each and "abc" in each
    assert lab.text().count("***") > 3000
    written = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file() and path.suffix != ".tgz"]
    assert not any(secret.encode() in content for content in written)


@pytest.mark.long
def test_worker_ends_at_its_time_limit_and_idle_limit(tmp_path):
  with Lab(tmp_path, POLITE, expires=4) as lab:
    worker = lab.start()
    report = lab.wait(mailbox.ENDED)
    assert (report.exit, report.detail) == (42, "its time has ended")
    assert worker.wait(10) == 0
  limits = spec.Limits(**vars(LIMITS) | {"idle": 0.5})
  with Lab(tmp_path / "b", limits=limits) as lab:
    worker = lab.start()
    assert "limits.idle" in lab.wait(mailbox.ENDED).detail
    assert worker.wait(10) == 0


@pytest.mark.long
def test_worker_of_a_jobset_ends_with_the_code_of_its_program(tmp_path):
  image = "h/p/r/v@sha256:" + "0" * 64
  values = {"backend": "gke", "tpu": "v6e-8", "image": image, "workdir": "gs://bkt/x"}
  run = spec.check_and_complete(spec.Run("vit", module="job", args=("4",), limits=LIMITS, **values))
  code = f"sys.exit(42 if os.path.exists('{tmp_path}/by-itself') else int(sys.argv[1]))"
  with Lab(tmp_path, code, python=os.sys.executable) as lab:
    values = json.loads(run.dumps()) | {"python": os.sys.executable}
    attempt = mailbox.Attempt(spec.loads(json.dumps(values)), 1, lab.digest, int(time.time() + 99))
    lab.mailbox.publish(attempt)
    lab.environment |= {"TPU_WORKER_ID": "0", "LAUNCH_INDEX": "0", "LAUNCH_SLICE": "0", "LAUNCH_RESTART": "2"}
    worker = lab.start(engine="gke", worker=None)
    assert worker.wait(20) == 4
    report = lab.report()
    assert (report.try_, report.exit, report.phase) == (3, 4, mailbox.EXITED)
    variables = json.loads(lab.output("variables")[0])
    assert variables["TPU_WORKER_ID"] == "0" and variables["VITJAX_DEVICES"] == "8"
    assert variables["VITJAX_COORDINATOR"].rpartition(":")[2] in map(str, range(8476, 8483))
    (tmp_path / "by-itself").touch()
    assert lab.start("--restart=3", engine="gke").wait(20) == 1  # 42 would restart the JobSet without end
    assert (lab.report().exit, lab.report().asked) == (42, False)
    lab.mailbox.write_order(mailbox.Order(1, stop=True))
    assert lab.start("--restart=4", engine="gke").wait(20) == 2  # after exit code 2, the JobSet does not restart
