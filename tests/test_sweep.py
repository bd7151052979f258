"""Sweeps: which runs they are, what exit codes mean, and one that is killed, with trials that fail and diverge."""

import json
import pathlib
import shlex
import signal
import sys
import time

import pytest

from tests import runs
from vit_jax import config, flags, runtime, sweep
from vit_jax.config import Sweep
from vit_jax.prepare import prepare
from vit_jax.schema import ConfigError
from vit_jax.sweeps import pool, record
from vit_jax.sweeps.results import Trial

CONFIG = """
from vit_jax.config import Sweep, product, recipe

def get_config(lr="0.003"):
  return recipe(
    model=dict(name="vit_2_4_32", depth=1, width=16, heads=2, hidden=16),
    data=dict(name="digits", image_size=32, crop=dict(name="resize"), flip=False, train="train[:96]",
              val="train[96:160]", test="test[:64]"),
    optim=dict(name="sgd", lr=float(lr)),
    total=6,
    batch=16,
    checkpoint=dict(every=1),
    log=dict(every=1),
    evals=dict(val=dict(name="accuracy", split="val", every=3), test=dict(name="accuracy", every="100%")),
  )

def sweep():
  return Sweep(
    product({"optim.lr": (0.001, 0.1)}) + [{"optim.lr": 1e38}, {"batch": 100}, {"optim.lr": 0.1}, {"model.heads": 3}],
    final=FINAL,
  )
"""


@pytest.fixture
def file(tmp_path):
  """A config with four different runs, two of which are impossible and one of which diverges."""
  (tmp_path / "it.py").write_text(CONFIG.replace("FINAL", '[{"data.train": "train[:160]", "seed": 4}]'))
  return str(tmp_path / "it.py")


def planned(file, tmp_path, rows, decide="val/top1", **overrides):
  texts = {key.replace("__", "."): text for key, text in overrides.items()}
  return sweep.planned(file, rows, texts, tmp_path / "trials", decide)


# Which runs.


def test_trials_do_not_see_test_and_the_same_run_is_there_once(file, tmp_path):
  given = sweep.of_config(file)
  found = planned(file, tmp_path, given.trials)
  assert [str(trial) for trial in found] == [
    "optim.lr=0.001",
    "optim.lr=0.1",
    "optim.lr=1e+38",
    "batch=100",
    "model.heads=3",
  ]
  for trial in found[:3]:
    run = json.loads(trial.config)
    assert list(run["evals"]) == ["val"]
    assert trial.workdir == tmp_path / "trials" / trial.name


def test_without_a_decision_every_evaluation_is_measured(file, tmp_path):
  (trial,) = planned(file, tmp_path, [{"seed": 1}], None)
  assert set(json.loads(trial.config)["evals"]) == {"val", "test"}


def test_the_last_runs_see_test_and_not_what_they_are_trained_on(file, tmp_path):
  found = planned(file, tmp_path, [{"optim.lr": 0.1, "seed": 3}])
  best = sweep.results.settings(found)[0]
  (last,) = sweep.last_runs(file, tmp_path, sweep.of_config(file), {}, best)
  run = json.loads(last.config)
  assert (list(run["evals"]), run["data"]["train"], run["seed"], run["optim"]["lr"]) == (
    ["test"],
    "train[:160]",
    4,
    0.1,
  )
  assert run["evals"]["test"]["every"] == "100%"
  # Without `final` it is the best setting's own trials that are measured.
  (scored,) = sweep.last_runs(file, tmp_path, Sweep([{}]), {}, best)
  words = sweep.scored(scored)
  assert f"--workdir={tmp_path / 'trials' / found[0].name}" in words and "--split=test" in words


def test_deciding_by_test_is_refused(file, tmp_path):
  for decide, says in (
    ("test/top1", "decides by test images"),
    ("top1", "allowed: <evaluation>/<figure>"),
    ("vla/top1", "the evaluations being test, val"),
    ("val/top_1", "'val' has no such figure. Did you mean 'top1'"),
    ("val/ema_top1", "'val' has no such figure"),
  ):
    (trial,) = planned(file, tmp_path, [{}], decide)
    assert trial.status == "failed" and says in trial.error


def test_a_command_is_what_a_shell_understands_and_makes_the_same_run(file, tmp_path):
  changes = {"optim.lr": 0.5, "data.warp": {"name": "affine", "degrees": 3.0}, "data.mean": (0.1, 0.2, 0.3)}
  (trial,) = planned(file, tmp_path, [changes], data__split_seed="7")
  words = shlex.split(shlex.join(sweep.command(file, trial)))
  assert words[:3] == ["python", "-m", "vit_jax.train"]
  edited = flags.load(file)
  for key, text in flags.overrides(words[5:]).items():
    flags.edit(edited, key, text)
  assert config.dumps(sweep.build.complete(config.resolve(edited))) == trial.config
  assert json.loads(trial.config)["data"]["split_seed"] == 7


@pytest.mark.parametrize(
  ("body", "says"),
  [
    ("", "defines no sweep()"),
    ("def sweep():\n  return 3", "sweep() of"),
    ("def sweep():\n  return 1 / 0", "ZeroDivisionError"),
    ("def sweep(a):\n  return [{}]", "TypeError"),
    ("def sweep():\n  return [dict(sead=1)]", "config.sead: unknown key"),
    (
      "def sweep():\n  return [dict(sead=1), dict(tead=1)]",
      "no trial is possible; the first: config.sead: unknown key",
    ),
    ("def sweep():\n  return Sweep([{}], final=[dict(sead=1)])", "sweep: final: sead=1: config.sead: unknown key"),
    ("def sweep():\n  return [{'init.from': '/nope'}]", "config.init.from: no file '/nope'"),
    ("def sweep():\n  return Sweep([{'data.val': 'test'}])", "decides by images of the test split"),
    ("def sweep():\n  return Sweep([{'evals.val.split': 'test[:50%]'}])", "decides by images of the test split"),
    ("def sweep():\n  return Sweep([{'data.val': 'train[90:120]'}])", "decides by images of the train split"),
    ("def sweep():\n  return [{'data.train': 'train[9000:]'}]", "reaches outside of the split"),
    ("def sweep():\n  return [dict(seed=1)]", "--config.seed: the sweep itself gives this value"),
  ],
)
def test_a_mistake_is_one_line_before_anything_is_started(tmp_path, monkeypatch, capsys, body, says):
  prepare("digits")
  (tmp_path / "it.py").write_text(CONFIG.split("def sweep")[0] + body)
  flag = ["--config.seed=3"] if "itself" in says else []
  monkeypatch.setattr(sys, "argv", ["sweep", f"--config={tmp_path / 'it.py'}", f"--workdir={tmp_path / 'w'}", *flag])
  with pytest.raises(ConfigError) as error:
    sweep.main()
  assert says in str(error.value)
  assert not (tmp_path / "w").exists()


# Running them, with stand-ins for training.


def made(tmp_path, count=3):
  return [Trial(f"t{i}", {"seed": i}, {}, tmp_path / "trials" / f"t{i}", "{}\n") for i in range(count)]


def record_of(tmp_path, listed, decide=None):
  return record.Record(tmp_path, "it.py", {}, Sweep([{}], decide=decide), listed)


def stand_in(trial, exits=0):
  """Writes what training leaves, or ends otherwise."""
  result = json.dumps({"top1": 0.5, "loss": 1.0, "train_seconds": 2.0, "packages": {}})
  text = (
    "import os, pathlib, sys\n"
    f"workdir = pathlib.Path({str(trial.workdir)!r})\n"
    "workdir.mkdir(parents=True, exist_ok=True)\n"
    "with (workdir / 'starts').open('a') as file: file.write('.')\n"
    f"exits = {exits!r}\n"
    "if exits < 0: os.kill(os.getpid(), -exits)\n"
    "if exits: print('some page'); print('error: the reason'); sys.exit(exits)\n"
    "(workdir / 'config.json').write_text('{}\\n')\n"
    f"(workdir / 'result.json').write_text({result!r})\n"
  )
  return ["python", "-c", text]


def test_each_trial_is_run_once_and_its_figures_are_kept(tmp_path, capsys):
  listed = made(tmp_path)
  record = record_of(tmp_path, listed)
  sweep.work(record, listed, [pool.Group()] * 2, stand_in)
  assert [(t.status, t.figures["top1"], t.seconds) for t in listed] == [("done", 0.5, 2.0)] * 3
  record.close(None, [])
  assert "| setting" in (tmp_path / "sweep.md").read_text()
  told = json.loads((tmp_path / "sweep.json").read_text())
  assert told["settings"][0]["figures"]["top1"] == [0.5] * 3
  assert (tmp_path / "sweep.png").exists()
  # Another session has nothing left to do.
  again = made(tmp_path)
  record = record_of(tmp_path, again)
  record.recall(again, False)
  sweep.work(record, again, [pool.Group()], lambda trial: pytest.fail("started again"))
  assert [t.figures for t in again] == [t.figures for t in listed]


@pytest.mark.parametrize(
  ("code", "status", "starts"),
  [(2, "failed", 1), (44, "diverged", 1), (1, "failed", 1), (42, "failed", 3), (-9, "failed", 3)],
)
def test_a_trial_that_ends_badly_is_written_down_and_stops_no_other(tmp_path, capsys, code, status, starts):
  listed = made(tmp_path, 2)
  record = record_of(tmp_path, listed)
  sweep.work(record, listed, [pool.Group()], lambda trial: stand_in(trial, code if trial.name == "t0" else 0))
  assert [t.status for t in listed] == [status, "done"]
  assert ("out of memory" if code < 0 else "the reason") in listed[0].error
  assert len((listed[0].workdir / "starts").read_text()) == starts
  # It is not tried again, unless that is asked for.
  for retry, expected in ((False, status), (True, "waiting")):
    again = made(tmp_path, 2)
    record_of(tmp_path, again).recall(again, retry)
    assert again[0].status == expected
    assert again[1].status == "done"


def test_a_result_made_elsewhere_is_taken_and_one_of_another_config_is_not(tmp_path, capsys):
  listed = made(tmp_path, 2)
  for trial, text in zip(listed, ("{}\n", '{"seed": 9}\n'), strict=True):
    trial.workdir.mkdir(parents=True)
    (trial.workdir / "config.json").write_text(text)
    (trial.workdir / "result.json").write_text('{"top1": 0.25, "train_seconds": 1.0}')
  sweep.work(record_of(tmp_path, listed), listed, [pool.Group()], lambda trial: pytest.fail("started"))
  assert (listed[0].status, listed[0].figures) == ("done", {"top1": 0.25, "train_seconds": 1.0})
  assert listed[1].status == "failed" and "holds a run with another config" in listed[1].error


def test_a_trial_that_another_process_holds_is_waited_for(tmp_path, capsys):
  (trial,) = made(tmp_path, 1)
  with record.Screen(record_of(tmp_path, [trial]), [trial]) as screen:
    with runtime.locked(trial.workdir):
      assert sweep.held(trial, screen)
      assert sweep.held(trial, screen)
      assert capsys.readouterr().out.count("held by process") == 1
    assert not sweep.held(trial, screen)
    assert trial.error == ""


def test_a_workdir_of_another_sweep_is_refused(tmp_path):
  record_of(tmp_path, []).write()
  for file, texts in (("other.py", {}), ("it.py", {"batch": "9"})):
    with pytest.raises(ConfigError, match=r"holds the sweep of .*it.py.*; take another, or the same flags"):
      record.Record(tmp_path, file, texts, Sweep([{}]), [])


def test_nothing_to_choose_from_is_said(tmp_path, file, monkeypatch, capsys):
  listed = made(tmp_path, 1)
  (tmp_path / "w").mkdir()
  monkeypatch.setattr(sweep, "command", lambda file, trial: stand_in(trial, 44))
  with pytest.raises(ConfigError, match="nothing was chosen"):
    sweep.search(file, tmp_path / "w", Sweep([{}]), {}, listed, [pool.Group()], False)
  assert "diverged" in (tmp_path / "w" / "sweep.md").read_text()


# The whole of it.


def test_a_sweep_that_is_killed_and_stopped_continues_to_its_end(file, tmp_path):
  prepare("digits")
  words = [f"--config={file}", f"--workdir={tmp_path / 'w'}", "--parallel=2"]
  record = tmp_path / "w" / "sweep.json"

  def told(kind="trials"):
    return {t["changes"].get("optim.lr"): t for t in json.loads(record.read_text())[kind]} if record.exists() else {}

  first = runs.command("sweep", *words)
  deadline = time.monotonic() + 120
  while sum(t["status"] in ("done", "diverged") for t in told().values()) < 1 and time.monotonic() < deadline:
    time.sleep(0.1)
  first.kill()
  first.communicate()
  before = told()
  second = runs.command("sweep", *words)
  while len(told("final")) < 1 and time.monotonic() < deadline + 60:
    time.sleep(0.1)
  second.send_signal(signal.SIGTERM)
  assert "the same command continues" in runs.finish(second, 42)
  said = runs.finish(runs.command("sweep", *words))

  found = told()
  assert {lr: t["status"] for lr, t in found.items()} == {0.001: "done", 0.1: "done", 1e38: "diverged", None: "failed"}
  for lr, trial in before.items():
    if trial["status"] == "done":
      assert found[lr] == trial
  whole = json.loads(record.read_text())
  errors = {t["error"] for t in whole["trials"] if t["status"] == "failed"}
  assert any("batch: 100 is more than the 96 images" in error for error in errors)
  assert any("multiple of heads 3" in error for error in errors)
  figures = {lr: found[lr]["figures"]["val/top1"] for lr in (0.001, 0.1)}
  assert whole["best"] == {"optim.lr": max(figures, key=figures.get)}
  assert all("top1" not in t["figures"] for t in whole["trials"])
  (last,) = whole["final"]
  assert (last["status"], last["figures"]["images"]) == ("done", 64)
  assert f"{100 * last['figures']['top1']:.2f} (1)" in said
  for name in ("sweep.md", "sweep.png", f"logs/final-{last['name']}.log"):
    assert (pathlib.Path(tmp_path) / "w" / name).stat().st_size
