"""Tests of the sweep command: errors, rendered commands, and a sweep that is killed, stopped and resumed."""

import json
import pathlib
import shlex
import signal
import time

import pytest

from tests import runs
from tests.sweeps import studies
from vit_jax import config, sweep
from vit_jax.config import flags
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.schema import ConfigError
from vit_jax.training import build

SWEEP = """
def sweep():
  return Sweep(
    [{"optim.lr": 1e38}, *product({"optim.lr": (0.001, 0.1)}), {"batch": 100}, {"optim.lr": 0.1}, {"sead": 1}],
    final=[{"data.train": "train[:160]", "seed": 4}],
  )
"""


@pytest.mark.parametrize(
  ("body", "flags", "place", "word"),
  [
    ("", [], "--config", "sweep()"),
    ("def sweep():\n  return [dict(sead=1)]", [], "config.sead", "seed"),
    ("def sweep():\n  return [dict(seed=1)]", ["--config.seed=3"], "--config.seed", "sweep()"),
    ("def sweep():\n  return [{'init.from': '/nope'}]", [], "config.init.from", "/nope"),
    ("def sweep():\n  return [{}]", ["--parallel=0"], "--parallel", "1 and more"),
    ("def sweep():\n  return [{}]", ["--parralel=2"], "--parralel", "--parallel"),
    ("def sweep():\n  return [{}]", ["--launch=--tpu=v3-8"], "--launch", "launch sweep"),
  ],
)
def test_invalid_sweep_is_an_error_before_a_trial_starts(tmp_path, body, flags, place, word):
  prepare_dataset("digits")
  file = studies.sweep_file(tmp_path, body)
  with pytest.raises(ConfigError) as error:
    sweep.main([f"--config={file}", f"--workdir={tmp_path / 'w'}", *flags])
  assert place in str(error.value) and word in str(error.value)
  assert "\n" not in str(error.value)
  assert not (tmp_path / "w").exists()


def test_workdir_that_is_a_file_is_an_error(tmp_path):
  file = studies.sweep_file(tmp_path, SWEEP)
  with pytest.raises(ConfigError, match=r"--workdir: .*it.py is a file"):
    sweep.main([f"--config={file}", f"--workdir={file}"])


def test_render_prints_a_command_for_each_trial(tmp_path, capsys):
  file = studies.sweep_file(tmp_path, SWEEP)
  sweep.main([f"--config={file}", f"--workdir={tmp_path / 'w'}", "--render"])
  *commands, comment = capsys.readouterr().out.splitlines()
  assert [shlex.split(line)[-1] for line in commands[1:]] == [
    "--config.evals.test=default",
  ] * 3
  assert ["--config.optim.lr=0.1" in line for line in commands] == [False, False, True, False]
  assert comment.startswith("#") and "sead=1" in comment
  assert not (tmp_path / "w").exists()


def test_render_for_launch_names_each_trial(tmp_path, capsys):
  file, flags = studies.sweep_file(tmp_path, SWEEP), "--backend=qr --tpu=v3-8 --env='A=b c'"
  words = [f"--config={file}", f"--workdir={tmp_path / 'My_W'}", "--render", f"--launch={flags}"]
  sweep.main(words)
  for i, line in enumerate(capsys.readouterr().out.splitlines()[:4]):
    head, _, program = " ".join(shlex.split(line)).partition(" -- ")
    assert head == f"python -m launch run my-w-t{i:02d} --backend=qr --tpu=v3-8 --env=A=b c"
    assert program.startswith(f"vit_jax.train --config={file} --workdir={tmp_path / 'My_W'}/trials/")


def test_collected_results_allow_rendering_the_final_run(tmp_path, capsys):
  body = 'def sweep():\n  return Sweep(product({"optim.lr": (0.1, 0.2)}), final=[{"seed": 4}])\n'
  study = [f"--config={studies.sweep_file(tmp_path, body)}", f"--workdir={tmp_path / 'w'}"]

  def run(*words):
    capsys.readouterr()
    sweep.main([*study, *words])
    return capsys.readouterr().out.splitlines()

  def finish(line, top1):
    words = shlex.split(line)
    workdir = pathlib.Path(words[4].partition("=")[2])
    workdir.mkdir(parents=True)
    overrides = flags.split_overrides(words[5:])[0]
    run = build.complete(config.resolve(flags.load_config(words[3].partition("=")[2], overrides)))
    (workdir / "config.json").write_text(config.dumps(run))
    (workdir / "result.json").write_text(json.dumps({"val/top1": top1, "top1": top1, "train_seconds": 1.0}))

  first, second = run("--render")
  with pytest.raises(ConfigError, match="no trial is done"):
    run("--collect")
  finish(first, 0.5)
  assert len(run("--render")) == 2  # no decision before all trials have ended, unless --decide is given
  assert "--config.optim.lr=0.1" in run("--render", "--decide")[2]
  run("--collect")
  assert [t["status"] for t in json.loads((tmp_path / "w/sweep.json").read_text())["trials"]] == ["done", "waiting"]
  finish(second, 0.6)
  *_, last = run("--render")
  assert "--config.optim.lr=0.2" in last and "/final/" in last
  finish(last, 0.7)
  run("--collect")
  record = json.loads((tmp_path / "w/sweep.json").read_text())
  assert record["best"] == {"optim.lr": 0.2} and record["final"][0]["figures"]["top1"] == 0.7


@pytest.mark.long
def test_killed_and_stopped_sweep_resumes_to_its_end(tmp_path):
  prepare_dataset("digits")
  workdir = tmp_path / "w"
  flags = [f"--config={studies.sweep_file(tmp_path, SWEEP)}", f"--workdir={workdir}", "--parallel=2"]

  def read_trials(kind="trials"):
    record = workdir / "sweep.json"
    return {str(t["changes"]): t for t in json.loads(record.read_text())[kind]} if record.exists() else {}

  def list_ended():
    return {name: t for name, t in read_trials().items() if t["status"] in ("done", "diverged")}

  def wait_until(condition, seconds=150):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
      time.sleep(0.1)

  # The first process is killed as soon as a trial has ended, while other trials run.
  first = runs.command("sweep", *flags)
  wait_until(list_ended)
  first.kill()
  first.communicate()
  before = list_ended()
  # The second process is stopped when all trials have ended and the final run has started.
  second = runs.command("sweep", *flags)
  wait_until(lambda: read_trials("final"))
  second.send_signal(signal.SIGTERM)
  assert "the same command continues" in runs.finish(second, 42)
  printed = runs.finish(runs.command("sweep", *flags))

  record, trials = json.loads((workdir / "sweep.json").read_text()), read_trials()
  slow, fast, infinite, large, typo = (
    trials[str(changes)]
    for changes in ({"optim.lr": 0.001}, {"optim.lr": 0.1}, {"optim.lr": 1e38}, {"batch": 100}, {"sead": 1})
  )
  assert [t["status"] for t in (slow, fast, infinite, large, typo)] == ["done", "done", "diverged", "failed", "failed"]
  assert before and before.items() <= trials.items()
  assert "batch: 100" in large["error"] and "96 images" in large["error"]
  assert "config.sead" in typo["error"] and typo["attempts"] == 0
  assert record["best"] == max((slow, fast), key=lambda t: t["figures"]["val/top1"])["changes"]
  assert all("top1" not in t["figures"] for t in record["trials"])
  (last,) = record["final"]
  assert (last["status"], last["figures"]["images"]) == ("done", 64)
  assert f"{100 * last['figures']['top1']:.2f} (1)" in printed
  for name in ("sweep.md", "sweep.png", f"logs/final-{last['name']}.log"):
    assert (workdir / name).stat().st_size
