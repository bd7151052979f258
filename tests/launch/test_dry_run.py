"""Tests that a dry run prints the commands of the engine as a shell script."""

import contextlib
import json
import os
import subprocess
import sys

import pytest

from launch import qr
from launch.errors import LaunchError, UnknownError
from launch.states import make_engine
from tests.launch import cloud, launches, repositories

RECORD = """#!/bin/sh
printf '%s\\0' "$@" "$(printf '\\001')" >> "{folder}/{name}.calls" # one write, as calls may be parallel
[ "$1" = --stdin ] || cat > /dev/null
case "$*" in {cases} *) echo "{{}}";; esac
"""
NOT_FOUND = "echo \"ERROR: (gcloud.x) NOT_FOUND: Resource 'vit-b16-a1' was not found\" >&2; exit 1;;"
ABSENT = {
  "gcloud": f'*" describe "*) {NOT_FOUND} *" list "*) echo "[]";;',
  "kubectl": '*" create "*) cat "{folder}/item";; *pods*) echo \'{{"items": []}}\';; *" get "*) echo \'Error from '
             'server (NotFound): jobsets.jobset.x-k8s.io "vit-b16-a1" not found\' >&2; exit 1;;',
  "ssh": "*) echo; echo vitjax-answer; echo '[]';;",
}  # fmt: skip
PRESENT = {key: f'*" describe "*|*" get "*) cat "{{folder}}/item";; {text}' for key, text in ABSENT.items()}


class Recorder:
  """Programs that record their arguments, and report that the attempt is absent or present."""

  def __init__(self, folder, monkeypatch):
    self.folder = folder
    (folder / "bin").mkdir()
    self.answer(ABSENT)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")

  def answer(self, cases):
    """Sets the next responses of the programs."""
    for name, text in cases.items():
      file = self.folder / "bin" / name
      file.write_text(RECORD.format(folder=self.folder, name=name, cases=text.format(folder=self.folder)))
      file.chmod(0o755)

  def calls(self):
    """Returns the calls since the last use as a set of argument lists."""
    found = set()
    for log in self.folder.glob("*.calls"):
      found |= {(log.stem, *call.split("\0")[:-1]) for call in log.read_text().split("\1\0")[:-1]}
      log.unlink()
    return found


def item(run):
  """Returns an attempt as the service describes it, with the labels of the run."""
  if run.backend == "gke":
    metadata = {"name": "vit-b16-a1", "uid": "u", "labels": run.make_labels(1) | {"vitjax-expires": "9"}}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata}
  node = {"labels": {"vitjax-expires": "9", **run.make_labels(1)}}
  name = f"projects/p/locations/{run.zones[0]}/queuedResources/vit-b16-a1" if run.zones else ""
  return {"name": name, "state": {"state": "WAITING_FOR_RESOURCES"}, "tpu": {"nodeSpec": [{"node": node}]}}


RUNS = {
  "qr": dict(zones=("europe-west4-a",), args=("--a=b 'c' $HOME",)),
  "two slices": dict(backend="qr", tpu="v5e-16", zones=("us-central1-a",), slices=2, internal_ips=True),
  "gke": dict(cluster="loopback"),
  "hosts": dict(workdir="/shared/a b/'c'$(touch oops)"),
}
VERBS = {"qr": {"create", "describe", "delete"}, "gke": {"create", "get", "delete"}, "hosts": {"ssh"}}


@pytest.mark.parametrize("name", RUNS)
def test_printed_commands_include_the_executed_commands(name, tmp_path, monkeypatch):
  recorder, changes = Recorder(tmp_path, monkeypatch), dict(RUNS[name])
  run = launches.run(changes.pop("backend", name), **changes)
  (tmp_path / "item").write_text(json.dumps(item(run)))
  (tmp_path / "script.sh").write_text(make_engine(run).build_commands(1, 1_795_300_000).script)
  assert subprocess.run(["bash", "-n", tmp_path / "script.sh"], capture_output=True).stderr == b""
  words = ["bash", str(tmp_path / "script.sh")]
  subprocess.run(words, cwd=tmp_path, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
  printed = recorder.calls()
  assert not (tmp_path / "oops").exists()

  made = qr.Engine(run, cloud.store(tmp_path / "store", run)) if run.backend == "qr" else make_engine(run)
  for answers in (ABSENT, PRESENT):
    recorder.answer(answers)
    for call in (lambda: made.create(1, 1_795_300_000), lambda: made.look(1), lambda: made.delete(1)):
      with contextlib.suppress(UnknownError, LaunchError):
        call()
  executed = recorder.calls()
  assert executed <= printed, executed - printed
  assert VERBS[run.backend] <= {word for call in executed for word in call}
  assert [call for call in printed - executed if "ssh" in call or "exec" in call or "-t" in call]
  if run.backend == "qr":
    assert (tmp_path / "startup.sh").read_text() == qr.make_startup_script(run, 1, "0" * 64, 1_795_300_000)


def test_local_dry_run_starts_looks_and_stops(tmp_path, monkeypatch):
  run = launches.run(workdir=f"{tmp_path}/a b/$HOME")
  monkeypatch.setenv("SHELL", "/bin/true")
  script = make_engine(run).build_commands(2, 1_795_300_000).script
  repositories.write(tmp_path, {"python": RECORD.format(folder=tmp_path, name="python", cases="")})
  (tmp_path / "python").chmod(0o755)
  subprocess.run(["bash", "-c", script.replace(sys.executable, str(tmp_path / "python"))], check=True, timeout=60)
  calls = [call.split("\0") for call in (tmp_path / "python.calls").read_text().split("\1\0")[:-1]]
  assert [call[2] for call in calls] == ["start", "start", "look", "stop"]
  assert all(f"--folder={run.folder}" in call for call in calls if call[2] != "look")
