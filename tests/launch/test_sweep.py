"""Tests of a sweep in which trials are runs: each trial has the settings of the sweep and runs once."""

import argparse
import dataclasses
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import threading
import time

import pytest
from hypothesis import given, strategies

from launch import flags, spec, sweep
from launch.errors import BILLING, DETACHED, GAVE_UP, LaunchError
from launch.mailbox import Lease
from launch.spec import Limits
from launch.states import State
from launch.storage import open_storage
from tests.launch import launches
from tests.sweeps import studies
from vit_jax import config
from vit_jax.config import flags as config_flags
from vit_jax.training import build

SWEEP = 'def sweep():\n  return Sweep(product({"optim.lr": (0.1, 0.2, 0.3)}), final=[{"seed": 4}])\n'


def args(**changes):
  return argparse.Namespace(**{"parallel": 2, "retry": False, "force": True} | changes)


@pytest.mark.parametrize("backend", spec.BACKENDS)
@given(
  variable=strategies.text(strategies.characters(exclude_characters="\0", codec="utf-8")),
  hours=strategies.floats(0.5, 100),
  grace=strategies.integers(1, 10_000),
  kept=strategies.booleans(),
)
def test_command_of_a_trial_describes_its_run_in_a_private_file(backend, variable, hours, grace, kept):
  changes = {
    "local": {"processes": 3},
    "hosts": {},
    "qr": {"zones": ("us-central1-a", "us-central1-b"), "slices": 2, "internal_ips": True, "capacity": "on-demand"},
    "gke": {"queue": "tpus", "namespace": "ml", "secrets": {"KEY": "k8s:wandb/key"}},
  }[backend]
  run = launches.run(
    backend, args=("--workdir=" + launches.words(backend)["workdir"], "--a=b c"), env={"A": variable}, max_hours=hours,
    keep_on_fail=kept, limits=Limits(grace=float(grace), beat=0.25), **changes,
  )  # fmt: skip
  with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
    patch.setenv("XDG_STATE_HOME", folder)
    patch.setattr(sweep, "_read_last_event", lambda _: {})  # avoids a request to the bucket
    words = sweep.build_command(run)[3:]
    assert flags.build_run(*flags.parse_flags(words)) == run
    (file,) = pathlib.Path(folder).rglob("*.json")
    assert file.stat().st_mode & 0o777 == 0o600
  assert words == ["run", run.name, f"--spec={file}", "--force"]


@pytest.mark.parametrize(
  ("changes", "given_", "word"),
  [
    ({"module": "vit_jax.train"}, {}, "vit_jax.sweep"),
    ({}, {"parallel": 0}, "--parallel"),
    ({"module": "vit_jax.sweep"}, {"parallel": 0}, "1 and more"),
  ],
)
def test_mistake_is_reported(changes, given_, word):
  with pytest.raises(LaunchError, match=word):
    sweep.sweep(launches.run(**{"module": "vit_jax.sweep"} | changes), args(**given_))


def test_missing_packages_are_reported(monkeypatch):
  monkeypatch.setattr(sweep, "REQUIRED", ("no_such_jax",))
  with pytest.raises(LaunchError, match="lacks no_such_jax"):
    sweep.sweep(launches.run(module="vit_jax.sweep"), args())


def make_line(event, unverified=(), **facts):
  """Returns a line of an event log."""
  state = dataclasses.asdict(State(unverified=unverified))
  return json.dumps({"event": event, "time": 1e9, "attempt": 1, "try": 1, "state": state} | facts) + "\n"


def write(folder, text):
  (folder / "launch").mkdir(parents=True, exist_ok=True)
  (folder / "launch/journal.jsonl").write_text(text)


def test_active_run_is_adopted_and_an_ended_run_is_started(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
  run = launches.run(workdir=str(tmp_path))
  assert sweep.build_command(run)[3:5] == ["run", "vit-b16"]
  for event, verb in (("ready", "adopt"), ("end", "run")):
    write(tmp_path, make_line("run") + make_line(event))
    assert sweep.build_command(run)[3:5] == [verb, "vit-b16"]


@pytest.mark.parametrize(("event", "unverified", "verb"), [("ready", (), "adopt"), ("end", (1,), "down")])
def test_trial_with_a_result_is_open_while_machines_may_remain(tmp_path, event, unverified, verb):
  run = launches.run(workdir=str(tmp_path))
  write(tmp_path, make_line(event, unverified, code=0))
  (tmp_path / "result.json").write_text("{}")
  assert sweep.get_state(run) == "open" and sweep.build_command(run)[3:5] == [verb, "vit-b16"]
  assert ("--yes" in sweep.build_command(run)) == (verb == "down")
  write(tmp_path, make_line(event, unverified, code=0) + make_line("end", code=0))
  assert sweep.get_state(run) == "done"


@pytest.mark.parametrize(
  "text", ["[1]\n", "[" * 10**5, "9" * 5000, "\0\n", "{}\n", make_line("end", state=[1], code=[])]
)
def test_invalid_event_log_raises_no_error(tmp_path, text):
  write(tmp_path, text)
  assert sweep.get_state(launches.run(workdir=str(tmp_path))) == "open"


def test_trial_with_unconfirmed_deletions_has_failed(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
  trial = sweep.TrialRun(launches.run(name="s-t00", workdir=str(tmp_path / "t")))
  write(tmp_path / "t", make_line("ready"))
  (tmp_path / "t/result.json").write_text("{}")
  assert sweep.run_trials([trial], args(), lambda run: ["sh", "-c", "exit 13"], set()) == [trial]
  output = capsys.readouterr().out
  assert (
    "s-t00: running already, and watched again" in output and "started" not in output and "failed with 13" in output
  )


@pytest.mark.parametrize(("code", "kept"), [(13, False), (0, False), (0, True)])
def test_sweep_reports_machines_that_may_remain(tmp_path, monkeypatch, capsys, code, kept):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
  monkeypatch.setattr(sweep, "REQUIRED", ())
  monkeypatch.setattr(sweep, "_call_sweep", lambda *_, **__: f"python -m vit_jax.train --workdir={tmp_path}/t\n")
  if not code:  # an event log of an earlier sweep
    state = dataclasses.asdict(State(unverified=(1,), kept=kept))
    write(tmp_path / "t", make_line("end", code=12, state=state))
  ended = sweep.sweep(launches.run(name="s", module="vit_jax.sweep"), args(), lambda run: ["sh", "-c", f"exit {code}"])
  assert ended == (GAVE_UP if kept else BILLING)
  output = capsys.readouterr().out
  assert (f"launch down s-t00 --workdir={tmp_path}/t" in output) != kept


@pytest.mark.parametrize(
  ("code", "state"), [(0, "open"), (10, "open"), (42, "open"), (2, "failed"), (12, "failed"), (44, "failed")]
)
def test_event_log_decides_if_a_trial_is_started_again(tmp_path, code, state):
  run = launches.run(workdir=str(tmp_path))
  assert sweep.get_state(run) == "open"
  write(tmp_path, make_line("end", code=code))
  assert sweep.get_state(run) == state
  (tmp_path / "result.json").write_text("{}")
  assert sweep.get_state(run) == "done"


class Watchers:
  """Replacements of `launch run`, which write the same files as a run."""

  def __init__(self, folder):
    self.folder, self.started, self.codes = folder, [], {}

  def __call__(self, run):
    self.started.append(run.name)
    overrides = dict(word.removeprefix("--config.").split("=") for word in run.args if word.startswith("--config."))
    resolved = build.complete(config.resolve(config_flags.load_config(self._config(run), overrides)))
    lr, code = float(overrides["optim.lr"]), self.codes.get(run.name, 0)
    result = {"val/top1": lr, "top1": lr, "train_seconds": 1.0} if code == 0 else None
    files = {"config.json": config.dumps(resolved), "result.json": result and json.dumps(result)}
    files["launch/journal.jsonl"] = make_line("end", code=code)
    made = self.folder / "made" / run.name
    for name, text in files.items():
      if text:
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    words = shlex.join(["cp", "-r", f"{made}/.", run.workdir])
    return ["sh", "-c", f"mkdir -p {shlex.quote(run.workdir)} && sleep 0.2 && {words}; echo error: nan; exit {code}"]

  @staticmethod
  def _config(run):
    return next(word.partition("=")[2] for word in run.args if word.startswith("--config="))


@pytest.mark.long
def test_sweep_runs_each_trial_once_and_then_the_final_run(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
  workdir = tmp_path / "w"
  words = (f"--config={studies.sweep_file(tmp_path, SWEEP)}", f"--workdir={workdir}")
  run = launches.run(name="s", module="vit_jax.sweep", args=words, workdir=str(workdir))
  watchers = Watchers(tmp_path)
  watchers.codes["s-t02"] = 44  # the best trial without this failure
  assert sweep.sweep(run, args(), watchers) == GAVE_UP
  assert sorted(watchers.started) == ["s-f00", "s-t00", "s-t01", "s-t02"]
  printed = capsys.readouterr().out
  assert "s-t02: failed with 44: error: nan" in printed and "--retry" in printed
  record = json.loads((workdir / "sweep.json").read_text())
  assert record["best"] == {"optim.lr": 0.2} and record["final"][0]["status"] == "done"
  watchers.started.clear()
  watchers.codes.clear()
  trials, retried = sweep.list_trials(run), set()
  assert sweep.run_trials(trials, args(), watchers, retried) == trials[2:3]
  assert sweep.run_trials(trials, args(retry=True), watchers, retried) == []
  assert watchers.started == ["s-t02"]


def test_number_of_concurrent_trials_is_limited(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
  monkeypatch.setattr(sweep, "PAUSE", 0.1)
  trials = [sweep.TrialRun(launches.run(name=f"s-t0{i}", workdir=str(tmp_path / f"t{i}"))) for i in range(4)]
  running, tries = tmp_path / "running", []

  def command(run):
    tries.append(run.name)
    held = tries.count("s-t01") == 1 and run.name == "s-t01"  # another process watches it and has written an event log
    text = shlex.quote(make_line("ready") if held else make_line("end", code=0))
    done = f"mkdir -p {run.workdir}/launch; echo {text} > {run.workdir}/launch/journal.jsonl; "
    done += "exit 2" if held else f"touch {run.workdir}/result.json"
    return ["sh", "-c", f"echo + >> {running}; sleep 0.3; echo - >> {running}; {done}"]

  assert sweep.run_trials(trials, args(), command, set()) == []
  assert sorted(tries) == ["s-t00", "s-t01", "s-t01", "s-t02", "s-t03"]
  depth = [0]
  for sign in running.read_text().split():
    depth.append(depth[-1] + (1 if sign == "+" else -1))
  assert max(depth) == 2


def test_trial_with_another_watcher_counts_and_is_not_started(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
  monkeypatch.setattr(sweep, "LOOK", 0.1)
  trials = [sweep.TrialRun(launches.run(name=f"s-t0{i}", workdir=str(tmp_path / f"t{i}"))) for i in range(3)]
  for trial in trials[:2]:
    write(tmp_path / trial.run.name.replace("s-t0", "t"), make_line("ready"))
  leases = [Lease(open_storage(trial.run.folder), 60.0) for trial in trials[:2]]
  started = []

  def command(run):
    started.append(run.name)
    assert not leases[0].describe_holder() and leases[1].describe_holder()
    write(tmp_path / "t2", make_line("end", code=0))
    return ["touch", f"{run.workdir}/result.json"]

  def end():
    """Ends the watchers one after the other."""
    for number, lease in enumerate(leases):
      time.sleep(0.5)
      assert started == ["s-t02"] * number
      (tmp_path / f"t{number}/result.json").write_text("{}")
      write(tmp_path / f"t{number}", make_line("end", code=0))
      lease.give_back()

  for lease in leases:
    lease.take()
  ending = threading.Thread(target=end)
  ending.start()
  assert sweep.run_trials(trials, args(), command, set()) == []
  ending.join()
  assert started == ["s-t02"] and capsys.readouterr().out.count("watched by process") == 2


@pytest.mark.long
def test_ctrl_c_detaches_every_process_from_its_run(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
  program = "import signal, time, pathlib; signal.signal(signal.SIGINT, lambda *_: exit(42)); "
  program += f"pathlib.Path({str(tmp_path / 'up')!r}).touch(); time.sleep(60)"
  trial = sweep.TrialRun(launches.run(name="s-t00", workdir=str(tmp_path / "t")))
  trial.process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
  deadline = time.monotonic() + 30
  while not (tmp_path / "up").exists() and time.monotonic() < deadline:
    time.sleep(0.05)
  assert sweep.end_watchers(launches.run(name="s"), [trial]) == DETACHED
  assert trial.process.returncode == 42
  assert "launch adopt s-t00" in capsys.readouterr().out
