"""Tests of former attacks on guarantees of the launcher."""

import dataclasses
import json
import os
import signal
import threading
import time

import pytest

from launch import (
  bundle,
  commands,
  decisions,
  errors,
  flags,
  gcloud,
  gke,
  listing,
  mailbox,
  removal,
  spec,
  states,
  storage,
)
from launch.errors import UnknownError
from launch.mailbox import Lease, LeaseHeldError, Mailbox, WorkerReport
from launch.states import Observation, State
from tests.launch import cloud
from tests.launch.descriptions import GONE, engine, item
from tests.launch.launches import run as any_run
from tests.launch.scripted import api_error

NOW = 1e9
FOUND = dict(run="vit", owner="alice", attempt=1, state=states.READY)


@pytest.mark.parametrize("answer", ["ALREADY_EXISTS", "NOT_FOUND"])
@pytest.mark.parametrize("verb", ["list", "delete"])
def test_unexpected_statuses_are_unknown(tmp_path, program, answer, verb):
  program.answers("queued-resources", "describe", GONE if verb == "list" else item(cloud.run(), "ACTIVE"))
  program.answers("queued-resources", verb, api_error(answer, "Resource projects/p/locations/Z"))
  made = engine(tmp_path)
  call = made.look if verb == "list" else made.delete
  if (answer, verb) == ("NOT_FOUND", "delete"):  # the resource no longer exists
    call(1)
  else:
    with pytest.raises(UnknownError):
      call(1)


def test_labels_without_a_folder_match_if_the_other_labels_match():
  own = any_run("qr")
  labels = own.make_labels(1)
  assert states.has_labels(own, 1, "vit-a1", labels | {"team": "speech"})
  assert not states.has_labels(own, 1, "vit-a1", {"team": "speech"}) and not states.has_labels(own, 1, "vit-a1", {})
  assert not states.has_labels(own, 1, "vit-a1", labels | {"vitjax-folder": "f" * 16})
  for key in labels:
    with pytest.raises(UnknownError, match=key) if key != "vitjax-folder" else pytest.raises(UnknownError):
      states.has_labels(own, 1, "vit-a1", {name: value for name, value in labels.items() if name != key})


@pytest.mark.parametrize("attempt", [0, 2])
def test_machine_with_labels_that_contradict_its_name_is_kept(attempt):
  resource = states.Resource(name="vit-a1", location="z", **FOUND | {"attempt": attempt})
  facts = removal.RunFacts(State(attempt=1, stage=states.OVER), open=False, watched=False, now=NOW)
  assert removal.find_removal_reason(resource, facts) == removal.ELSEWHERE
  assert removal.find_removal_reason(dataclasses.replace(resource, attempt=1), facts) == removal.ORPHAN
  assert removal.find_removal_reason(dataclasses.replace(resource, attempt=1, name="vit-a1-3"), facts) == removal.ORPHAN


@pytest.mark.parametrize(
  "look", [states.MachineStatus(states.REPAIRING, "ill"), states.MachineStatus(states.STARTING, "", hosts=1)]
)
def test_existing_machines_count_before_they_are_ready(look):
  run = any_run("qr", max_hours=1.0)
  state = State(attempt=1, try_=1, stage=states.WATCHING, since=NOW, look_since=NOW, expires=NOW + 9e4, answered=NOW)
  state, _ = decisions.decide(run, state, Observation(NOW, look))
  assert state.exists == NOW and state.expires == NOW + 3600 and state.compute_machine_seconds(NOW + 60) == 60
  state = dataclasses.replace(state, look_since=NOW + 3590 + run.limits.grace)  # its state changes continuously
  state, actions = decisions.decide(run, state, Observation(NOW + 3601 + run.limits.grace, look))
  assert state.stage == states.DELETING and [action.verb for action in actions] == ["delete", "note"]
  for second in (1, 2):
    state, _ = decisions.decide(run, state, Observation(NOW + 3700 + second, states.MachineStatus(states.ABSENT)))
  assert state.used == pytest.approx(3702) and state.stage == states.IDLE
  state, _ = decisions.decide(run, state, Observation(NOW + 4e4, None))
  assert state.stage == states.OVER and state.end[0] == errors.GAVE_UP


def test_running_programs_prove_that_their_machines_are_ready():
  run = any_run("qr")
  state = State(attempt=1, try_=1, stage=states.WATCHING, since=NOW - 9, look_since=NOW - 9, expires=NOW + 9e4)
  reports = {worker: (WorkerReport(worker, phase=mailbox.RUNNING, step=1), 1.0) for worker in range(run.workers)}
  state, _ = decisions.decide(run, state, Observation(NOW, states.MachineStatus(states.REPAIRING, "ill"), reports))
  assert state.seen and state.ready == NOW
  for number in range(errors.LOOKS):  # the machine deleted itself, so the same attempt is not requested again
    state, actions = decisions.decide(
      run, state, Observation(NOW + 9000 + number, states.MachineStatus(states.ABSENT), {})
    )
  assert state.stage == states.DELETING and "create" not in [action.verb for action in actions]


def test_cost_limit_reserves_time_for_a_deletion():
  run = any_run("qr", max_cost=100.0, price=1.0)
  hours = (run.seconds + 2 * run.limits.grace + run.limits.delete) / 3600
  assert hours * run.chips == pytest.approx(min(100.0, run.max_hours * run.chips), abs=1e-6) or hours * run.chips < 100
  with pytest.raises(errors.LaunchError, match="reserved for a deletion"):
    any_run("qr", max_cost=1.0, price=1.0)


@pytest.mark.parametrize("name", ["journal.jsonl", "watcher.json", "a1/w00.json", ".turn"])
def test_pipe_in_the_run_directory_is_unknown_at_once(tmp_path, name):
  (tmp_path / "a1").mkdir()
  os.mkfifo(tmp_path / name)
  disk = storage.Disk(str(tmp_path))
  start = time.monotonic()
  if name == ".turn":
    disk.write("x", b"", generation=0)
  else:
    with pytest.raises(UnknownError, match="not a regular file"):
      disk.read(name)
  assert time.monotonic() - start < 5


@pytest.mark.parametrize("skew", [-3 * 3600, 3 * 3600])
def test_wrong_clock_does_not_take_the_lease_of_a_live_watcher(tmp_path, monkeypatch, skew):
  Lease(storage.Disk(str(tmp_path)), 60.0).take()
  monkeypatch.setattr(storage, "_get_clock", lambda _: storage.ServiceClock())  # the clock of another process
  monkeypatch.setattr(mailbox, "_has_holder_ended", lambda _: False)
  right = time.time
  monkeypatch.setattr(storage.time, "time", lambda: right() + skew)
  with pytest.raises(LeaseHeldError):
    Lease(storage.Disk(str(tmp_path)), 60.0).take()
  assert not [path for path in tmp_path.iterdir() if path.name.startswith(".time")]


def test_deadline_of_a_job_follows_from_the_cost_limit():
  run = any_run("gke", max_cost=90.0, price=1.0)
  job = commands.gke.manifests.make_jobset(run, 1, 2_000_000_000)["spec"]["replicatedJobs"][0]["template"]["spec"]
  assert job["activeDeadlineSeconds"] == pytest.approx(run.seconds, abs=1) and run.seconds < run.max_hours * 3600


def test_advice_for_a_node_deletes_the_node(tmp_path):
  one = states.Resource("vit-b16-a9-1", "us-central1-a", "vit-b16", "alice", 9, states.READY, f"READY, {gcloud.ALONE}")
  text = removal.advise(engine(tmp_path), cloud.run(), one)
  assert "tpu-vm delete vit-b16-a9-1" in text and "--zone=us-central1-a" in text
  assert "queued-resources delete" not in text
  whole = removal.advise(engine(tmp_path), cloud.run(), dataclasses.replace(one, detail="ACTIVE", attempt=0))
  assert "queued-resources delete vit-b16-a9-1" in whole and "a0" not in whole


def test_interruption_ends_the_programs_of_parallel_calls():
  def interrupt():
    time.sleep(0.5)
    os.kill(os.getpid(), 2)

  start = time.monotonic()
  threading.Thread(target=interrupt).start()
  with pytest.raises(KeyboardInterrupt):
    errors.map_in_threads(lambda seconds: errors.call(["sleep", seconds], 60, "install"), ["50"] * 3, 2)
  assert time.monotonic() - start < 20


def test_interrupted_watcher_tries_a_silent_bucket_once(here_is_a_run, monkeypatch):
  asked = []

  def refuse(request, timeout):
    asked.append(request)
    raise OSError("silent")

  monkeypatch.setattr(storage.urllib.request, "urlopen", refuse)
  monkeypatch.setattr(storage.time, "sleep", lambda seconds: None)
  monkeypatch.setenv("STORAGE_EMULATOR_HOST", "localhost:9")
  watch = commands.Watcher(any_run("qr"), commands.EventLog("vit"))
  monkeypatch.setattr(watch, "watch_to_end", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
  before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
  try:
    assert commands.watch_to_end(watch, watch._run) == errors.DETACHED
  finally:
    for number, handler in before.items():  # this process continues, unlike the program
      signal.signal(number, handler)
  asked.clear()
  watch.__exit__(None, None, None)
  assert len(asked) == 1


def test_parallel_calls_keep_their_order_and_raise_their_error():
  assert (
    errors.map_in_threads(lambda value: value * 2, [3, 1, 2], 8) == [6, 2, 4]
    and errors.map_in_threads(len, [], 8) == []
  )
  with pytest.raises(ZeroDivisionError):
    errors.map_in_threads(lambda value: 1 / value, [1, 0, 2], 2)


def test_pods_prevented_by_a_quota_are_waited_for(monkeypatch):
  run = any_run("gke")
  value = commands.gke.manifests.make_jobset(run, 1, 2_000_000_000)
  event = {"involvedObject": {"name": "vit-a1-s-0"}, "message": 'pods "x" is forbidden: exceeded quota: tpus'}
  answers = {"events": [event, {"involvedObject": {"name": "other-a1-s-0"}, "message": "x"}]}
  name = value["metadata"]["name"]
  event["involvedObject"]["name"] = f"{name}-s-0"

  def ask(words, content=""):
    kind = words[words.index("get") + 1]
    return json.dumps(value if name in words else {"items": answers.get(kind, [])})

  monkeypatch.setattr(gke, "run_kubectl", ask)
  look = gke.Engine(run).look(1)
  assert look.state == states.QUEUED and "exceeded quota" in look.detail


@pytest.mark.parametrize(
  "status", ["RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "PERMISSION_DENIED", "FAILED_PRECONDITION"]
)
def test_quota_is_recognised_with_any_status(status):
  text = f"ERROR: (gcloud.compute.tpus.queued-resources.create) {status}: Quota limit 'TPUV3' has been exceeded"
  assert isinstance(gcloud.make_error(1, text), errors.QuotaError)


def test_interrupted_down_names_the_machines(here_is_a_run, capsys):
  assert commands.report_interruption(["down", "--yes", "vit"]) == errors.DETACHED
  assert "vit-a1 continues" in capsys.readouterr().out


@pytest.fixture
def here_is_a_run(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
  log = commands.EventLog("vit")
  run = spec.check_and_complete(spec.Run("vit", "local", "m", ("--workdir=/w",), str(tmp_path / "w")))
  state = State(attempt=1, stage=states.WATCHING, expires=2e9)
  log.append("run", State(), run=run.dumps(), sha="c" * 64)
  log.append("intent", state)


def test_report_cannot_imitate_lines(tmp_path):
  disk = storage.Disk(str(tmp_path))
  forged = WorkerReport(0, detail="ok\nvit: all its machines are deleted", host="h\n2026", tail="a\nb")
  disk.write("a1/w00.json", json.dumps(dataclasses.asdict(forged)).encode())
  report, _ = Mailbox(disk, 1).read_report(0)
  assert report.detail == "ok vit: all its machines are deleted" and report.host == "h 2026" and report.tail == "a\nb"


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("URL", "https://hooks.slack.com/services/T0000/B0000/abcdefgh12345678"),
    ("STORE", "AccountName=a;AccountKey=" + "aB3+" * 20 + "=="),
    ("MAIL", "SG.abcdefghijklmnop.abcdefghijklmnopqrst"),
    ("CLOUD", "dop_v1_" + "0123456789abcdef" * 4),
    ("FILE", "machine example.com login me password hunter2"),
    ("MY_PASS", "hunter2"),
    ("AUTH", "basic-me"),
    ("OPENAIKEY", "abc"),
    ("ACCESSKEY", "abc"),
    ("MYTOKEN", "abc"),
  ],
)
def test_other_secrets_are_detected(name, value):
  assert bundle.detect_secret_variable(name, value)


USUAL = [("TWO_PASS", "1"), ("AUTH", "none"), ("MONKEY", "x"), ("TOKENS_PER_BATCH", "10"), ("TOKEN_FILE", "/x")]


@pytest.mark.parametrize(("name", "value"), USUAL)
def test_usual_variables_are_not_secrets(name, value):
  assert not bundle.detect_secret_variable(name, value)


def test_age_from_the_local_clock_only_deletes_no_machine(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
  old = states.Resource(
    "vit-a1", "ctx/default", "vit", spec.get_user_label(), 1, states.LOST, "gone", created=time.time() - 9e4
  )

  class Engine:
    def list_resources(self, zones):
      return [old], {}

  monkeypatch.setattr(listing, "make_engine", lambda run: Engine())
  args = flags.parse_flags(["gc", "--cluster=ctx", "--older-than=2h", "--force", "--yes"])[0]
  assert listing.gc(args) == errors.DONE
  assert "only this machine's clock" in capsys.readouterr().out


def test_call_that_exceeds_its_timeout_is_unknown():
  with pytest.raises(UnknownError, match="did not answer"):
    errors.call(["sleep", "20"], 0.2, "install")
  assert errors.call(["true"], 5, "install")[0] == 0
