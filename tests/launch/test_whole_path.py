"""Test of the whole path: a cloud, booting machines, workers, two JAX processes, a bucket and a preemption."""

import contextlib
import json
import os
import pathlib
import sys
import threading
import time

import pytest

from launch import bundle, errors, spec
from launch.event_log import EventLog
from launch.mailbox import Mailbox
from launch.storage import open_storage
from launch.watch import Watcher
from tests import runs
from tests.launch import cloud, quick_gcloud
from tests.launch.vms import Machines
from vit_jax.corpora.builders import prepare_dataset

pytestmark = pytest.mark.heavy
ROOT = pathlib.Path(__file__).parent.parent.parent
LIMITS = spec.Limits(beat=0.5, poll=0.5, silence=120.0, grace=60.0, pause=0.1, delete=60.0, idle=300.0)
SAME = ("weights_sha256", "loss", "top1", "images", "steps")
VARIABLES = ("TFDS_DATA_DIR", "XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR", "JAX_PLATFORMS", "TF_CPP_MIN_LOG_LEVEL")


def make_run(workdir, **changes):
  """Returns a small run of digits on two processes with four devices each."""
  flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=4")
  environment = {name: os.environ[name] for name in VARIABLES if name in os.environ} | {"XLA_FLAGS": flags}
  words = tuple(runs.words(workdir, total="14", checkpoint__every="2", log__every="1", evals__test__every="100%"))
  common = {"module": "vit_jax.train", "args": words, "workdir": workdir, "limits": LIMITS, "env": environment}
  return spec.check_and_complete(spec.Run("vit", python=sys.executable, **common | changes))


def watch_run(run, code, disturb=lambda: None):
  """Watches a run while `disturb` runs in a thread, and returns the exit code."""
  with Watcher(run, EventLog(run.name, open_storage(run.folder))) as watch:
    watch.begin(code)
    thread = threading.Thread(target=disturb)
    thread.start()
    try:
      return watch.watch_to_end()
    finally:
      thread.join()


def read_result(workdir):
  return json.loads(open_storage(workdir).read("result.json").content)


@pytest.fixture
def queued(bucket_server, tmp_path, monkeypatch):
  """A cloud server for gcloud, and its machines."""
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
  with contextlib.ExitStack() as stack:
    server = stack.enter_context(cloud.Server())
    for name, value in server.environment.items():
      monkeypatch.setenv(name, value)
    if not os.environ.get("VITJAX_REAL_GCLOUD"):
      monkeypatch.setenv("PATH", f"{quick_gcloud.install(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}")
    address = bucket_server.environment["STORAGE_EMULATOR_HOST"]
    yield server, stack.enter_context(Machines(server, tmp_path / "vms", address))


@pytest.mark.long
def test_preempted_run_reaches_the_undisturbed_result_bit_for_bit(queued, tmp_path, monkeypatch):
  server, machines = queued
  prepare_dataset("digits")
  code = bundle.make_bundle(ROOT)
  run = make_run("gs://bkt/whole/a", backend="qr", tpu="v4-16", project="proj-x", zones=("us-central2-b",))

  def preempt():
    mailbox, deadline = Mailbox(open_storage(run.folder), 1), time.monotonic() + 300
    while time.monotonic() < deadline:
      reports = mailbox.read_reports(2)
      if len(reports) == 2 and all(3 <= report.step < 14 for report, _ in reports.values()):
        break
      time.sleep(0.1)
    machines.power_off("vit-a1", 60.0)
    server.set_state("vit-a1", "SUSPENDED")

  server.zones = ("us-central2-b",)
  assert watch_run(run, code, preempt) == errors.DONE, machines.troubles
  assert not machines.troubles and not server.live()
  names = [request.query["queuedResourceId"] for request in server.requests if request.verb == "create"]
  assert names == ["vit-a1", "vit-a2"]
  exits = {report.exit for report, _ in Mailbox(open_storage(run.folder), 1).read_reports(2).values()}
  assert exits == {42}
  codes = {report.code for report, _ in Mailbox(open_storage(run.folder), 2).read_reports(2).values()}
  assert codes == {code.sha}

  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "undisturbed"))
  still = make_run(str(tmp_path / "b"), backend="local", processes=2)
  assert watch_run(still, code) == errors.DONE
  disturbed, undisturbed = read_result("gs://bkt/whole/a"), read_result(str(tmp_path / "b"))
  assert {key: disturbed[key] for key in SAME} == {key: undisturbed[key] for key in SAME}
