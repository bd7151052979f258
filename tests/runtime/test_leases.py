"""The lease on a workdir in a bucket."""

import contextlib
import json
import os
import subprocess
import threading
import time

import pytest

from vit_jax import runtime
from vit_jax.runtime import leases
from vit_jax.schema import ConfigError

pytestmark = pytest.mark.heavy
ELSEWHERE = {"holder": "7 on elsewhere", "token": "x", "process": "another boot 7 1"}


@pytest.fixture
def short(monkeypatch):
  monkeypatch.setenv("VITJAX_LEASE", "3")


@pytest.fixture
def ends():
  """(code, message) of a program that would have ended."""
  return []


def taken(bucket, ends):
  return contextlib.closing(leases.Lease(bucket / "lock", lambda *end: ends.append(end)))


def test_a_second_run_is_refused_while_the_first_one_lives(bucket, short, ends, capfd):
  with taken(bucket, ends):
    assert leases.describe_holder(bucket / "lock").startswith(f"{os.getpid()} on ")
    assert (bucket / "lock").read_text().startswith(f"{os.getpid()} on ")
    with pytest.raises(ConfigError, match=rf"is in use by process {os.getpid()} on .*its workdir is free after 3 s"):
      leases.Lease(bucket / "lock", print)
  assert "Checking for up to 3 s" in capfd.readouterr().err
  assert not (bucket / "lock").exists()
  assert leases.describe_holder(bucket / "lock") is None
  assert not ends


def test_a_lease_that_nobody_renews_is_free_after_its_duration(bucket, short, ends):
  leases.LeaseObject(bucket / "lock").write(ELSEWHERE, "0")
  assert leases.describe_holder(bucket / "lock") == "7 on elsewhere"
  began = time.monotonic()
  with taken(bucket, ends):
    assert 1.5 < time.monotonic() - began < 10
    assert leases.describe_holder(bucket / "lock") != "7 on elsewhere"


def test_that_of_a_process_of_this_machine_that_has_ended_is_free_at_once(bucket, monkeypatch, ends):
  process = subprocess.Popen(["sleep", "60"])
  identity = leases.identify_process(process.pid)
  leases.LeaseObject(bucket / "lock").write(ELSEWHERE | {"process": identity}, "0")
  assert leases.describe_holder(bucket / "lock") == "7 on elsewhere"
  process.kill()
  while leases.identify_process(process.pid):
    time.sleep(0.01)  # it is not waited for: a zombie has ended too
  assert leases.describe_holder(bucket / "lock") is None
  began = time.monotonic()
  with taken(bucket, ends):
    assert time.monotonic() - began < 5  # and not 60 s
  process.wait()


@pytest.mark.long
@pytest.mark.parametrize("lost", [False, True])
def test_what_is_written_while_nothing_is_heard_waits_for_the_lease(bucket, bucket_server, short, ends, tmp_path, lost):
  late = [bucket / f"late-{i}" for i in range(20)]
  with taken(bucket, ends):
    with bucket_server.troubled(away=True):
      time.sleep(2)  # more than half of its duration
      for path in late:
        threading.Thread(target=path.write_text, args=("stale",), daemon=True).start()
        time.sleep(0.1)
      if lost:
        (tmp_path / "lock").write_text(json.dumps(ELSEWHERE))
        bucket_server.fill(tmp_path, bucket.name)  # past the proxy
    deadline = time.monotonic() + 60
    while not (all(path.exists() for path in late) or ends) and time.monotonic() < deadline:
      time.sleep(0.1)
    assert [path.exists() for path in late] == [not lost] * 20
    assert [code for code, _ in ends][:1] == [runtime.EXIT_CONFIG] * lost


@pytest.mark.parametrize("text", ["0", "-1", "nan", "soon"])
def test_a_duration_that_is_none_is_refused_before_the_lease_is_taken(bucket, ends, monkeypatch, text):
  monkeypatch.setenv("VITJAX_LEASE", text)
  with pytest.raises(ConfigError, match=f"VITJAX_LEASE: expected a number of seconds, got '{text}'"):
    leases.Lease(bucket / "lock", print)
  assert not (bucket / "lock").exists()


def test_an_identity_that_is_none_of_ours_is_one_of_another_machine():
  boot, space, *_ = leases.identify_process(os.getpid()).split()
  for text in ("", "x", f"{boot} {space} notanumber 12", f"{boot} {space} ../1 12", f"{boot} {space} -1 12"):
    assert not leases.has_ended(text)
  assert leases.has_ended(f"{boot} {space} {os.getpid()} 12")


def test_who_has_lost_the_lease_ends_with_2_and_touches_it_no_more(bucket, short, ends):
  with taken(bucket, ends) as lease:
    leases.LeaseObject(bucket / "lock").write(ELSEWHERE, lease._generation)
    lease.renew()
  ((code, message),) = ends
  assert code == runtime.EXIT_CONFIG
  assert f"{bucket} was taken over by process 7 on elsewhere" in message


def test_a_workdir_that_is_removed_ends_the_run(bucket, short, ends):
  with taken(bucket, ends) as lease:
    (bucket / "lock").unlink()
    lease.renew()
  assert f"{bucket}/lock no longer exists: " in ends[0][1]
  assert not bucket.exists()


@pytest.mark.parametrize(
  ("trouble", "says"), [({"refused": True}, "denied access"), ({"away": True}, "has not responded")]
)
def test_a_bucket_that_is_gone_ends_the_run_from_the_thread_of_the_lease(
  bucket_server, bucket, short, ends, monkeypatch, trouble, says
):
  monkeypatch.setenv("VITJAX_PATIENCE", "1")
  with taken(bucket, ends):
    with bucket_server.troubled(**trouble):
      deadline = time.monotonic() + 20
      while not ends and time.monotonic() < deadline:
        time.sleep(0.05)
    ((code, message),) = ends
  assert code == runtime.EXIT_CONFIG
  assert (
    message.startswith("error: gs://bkt") and says in message and "The last complete checkpoint is unchanged" in message
  )


@pytest.mark.long
def test_answers_that_are_lost_lose_no_lease(bucket_server, bucket, short, ends):
  with bucket_server.troubled(busy=0.3, resets=0.2):
    for _ in range(3):
      with taken(bucket, ends):
        time.sleep(1.2)
  assert not ends


def test_a_claimed_workdir_in_a_bucket_is_refused_and_then_free(bucket, short):
  with runtime.claim_workdir(bucket):
    assert runtime.describe_holder(bucket).startswith(f"{os.getpid()} on ")
    with pytest.raises(ConfigError, match="is in use by process"), runtime.lock_workdir(bucket):
      pass
  assert runtime.describe_holder(bucket) is None
  with runtime.lock_workdir(bucket):
    pass
