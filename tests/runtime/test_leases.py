"""Tests of the lease on a workdir in a bucket."""

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
  """A list for the (code, message) of each program that the lease would have ended."""
  return []


def hold_lease(bucket, ends):
  return contextlib.closing(leases.Lease(bucket / "lock", lambda *end: ends.append(end)))


def test_second_run_is_refused_while_the_first_run_is_alive(bucket, short, ends, capfd):
  with hold_lease(bucket, ends):
    assert leases.describe_holder(bucket / "lock").startswith(f"{os.getpid()} on ")
    assert (bucket / "lock").read_text().startswith(f"{os.getpid()} on ")
    with pytest.raises(ConfigError, match=rf"is in use by process {os.getpid()} on .*its workdir is free after 3 s"):
      leases.Lease(bucket / "lock", print)
  assert "Checking for up to 3 s" in capfd.readouterr().err
  assert not (bucket / "lock").exists()
  assert leases.describe_holder(bucket / "lock") is None
  assert not ends


def test_lease_without_renewal_is_free_after_its_duration(bucket, short, ends):
  leases.LeaseObject(bucket / "lock").write(ELSEWHERE, "0")
  assert leases.describe_holder(bucket / "lock") == "7 on elsewhere"
  start_time = time.monotonic()
  with hold_lease(bucket, ends):
    assert 1.5 < time.monotonic() - start_time < 10
    assert leases.describe_holder(bucket / "lock") != "7 on elsewhere"


def test_lease_of_an_ended_local_process_is_free_at_once(bucket, monkeypatch, ends):
  process = subprocess.Popen(["sleep", "60"])
  identity = leases.identify_process(process.pid)
  leases.LeaseObject(bucket / "lock").write(ELSEWHERE | {"process": identity}, "0")
  assert leases.describe_holder(bucket / "lock") == "7 on elsewhere"
  process.kill()
  while leases.identify_process(process.pid):
    time.sleep(0.01)  # no call of wait(): a zombie has ended too
  assert leases.describe_holder(bucket / "lock") is None
  start_time = time.monotonic()
  with hold_lease(bucket, ends):
    assert time.monotonic() - start_time < 5  # instead of 60 s
  process.wait()


@pytest.mark.long
@pytest.mark.parametrize("lost", [False, True])
def test_writes_wait_for_the_lease_while_the_bucket_is_unreachable(bucket, bucket_server, short, ends, tmp_path, lost):
  late = [bucket / f"late-{i}" for i in range(20)]
  with hold_lease(bucket, ends):
    with bucket_server.troubled(away=True):
      time.sleep(2)  # more than half of its duration
      for path in late:
        threading.Thread(target=path.write_text, args=("stale",), daemon=True).start()
        time.sleep(0.1)
      if lost:
        (tmp_path / "lock").write_text(json.dumps(ELSEWHERE))
        bucket_server.fill(tmp_path, bucket.name)  # bypasses the proxy
    deadline = time.monotonic() + 60
    while not (all(path.exists() for path in late) or ends) and time.monotonic() < deadline:
      time.sleep(0.1)
    assert [path.exists() for path in late] == [not lost] * 20
    assert [code for code, _ in ends][:1] == [runtime.EXIT_CONFIG] * lost


@pytest.mark.parametrize("text", ["0", "-1", "nan", "soon"])
def test_invalid_duration_is_refused_before_the_lease_is_taken(bucket, ends, monkeypatch, text):
  monkeypatch.setenv("VITJAX_LEASE", text)
  with pytest.raises(ConfigError, match=f"VITJAX_LEASE: expected a number of seconds, got '{text}'"):
    leases.Lease(bucket / "lock", print)
  assert not (bucket / "lock").exists()


def test_unknown_identity_is_treated_as_of_another_machine():
  boot, space, *_ = leases.identify_process(os.getpid()).split()
  for text in ("", "x", f"{boot} {space} notanumber 12", f"{boot} {space} ../1 12", f"{boot} {space} -1 12"):
    assert not leases.has_ended(text)
  assert leases.has_ended(f"{boot} {space} {os.getpid()} 12")


def test_run_that_lost_its_lease_ends_with_exit_code_2(bucket, short, ends):
  with hold_lease(bucket, ends) as lease:
    leases.LeaseObject(bucket / "lock").write(ELSEWHERE, lease._generation)
    lease.renew()
  ((code, message),) = ends
  assert code == runtime.EXIT_CONFIG
  assert f"{bucket} was taken over by process 7 on elsewhere" in message


def test_removed_workdir_ends_the_run(bucket, short, ends):
  with hold_lease(bucket, ends) as lease:
    (bucket / "lock").unlink()
    lease.renew()
  assert f"{bucket}/lock no longer exists: " in ends[0][1]
  assert not bucket.exists()


@pytest.mark.parametrize(
  ("trouble", "expected_message"), [({"refused": True}, "denied access"), ({"away": True}, "has not responded")]
)
def test_lease_thread_ends_the_run_if_the_bucket_is_unavailable(
  bucket_server, bucket, short, ends, monkeypatch, trouble, expected_message
):
  monkeypatch.setenv("VITJAX_PATIENCE", "1")
  with hold_lease(bucket, ends):
    with bucket_server.troubled(**trouble):
      deadline = time.monotonic() + 20
      while not ends and time.monotonic() < deadline:
        time.sleep(0.05)
    ((code, message),) = ends
  assert code == runtime.EXIT_CONFIG
  assert (
    message.startswith("error: gs://bkt")
    and expected_message in message
    and "The last complete checkpoint is unchanged" in message
  )


@pytest.mark.long
def test_lost_responses_do_not_lose_the_lease(bucket_server, bucket, short, ends):
  with bucket_server.troubled(busy=0.3, resets=0.2):
    for _ in range(3):
      with hold_lease(bucket, ends):
        time.sleep(1.2)
  assert not ends


def test_claimed_workdir_in_a_bucket_is_refused_until_it_is_released(bucket, short):
  with runtime.claim_workdir(bucket):
    assert runtime.describe_holder(bucket).startswith(f"{os.getpid()} on ")
    with pytest.raises(ConfigError, match="is in use by process"), runtime.lock_workdir(bucket):
      pass
  assert runtime.describe_holder(bucket) is None
  with runtime.lock_workdir(bucket):
    pass
