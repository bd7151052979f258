"""The record of a sweep and its screen: what is written, recalled and shown. Whole sweeps are in test_sweep."""

import json
import statistics
import sys

import pytest
import rich.console

from vit_jax import schema
from vit_jax.config import Sweep
from vit_jax.sweeps import record, results
from vit_jax.sweeps.results import Trial


def trials(folder):
  """Two settings of two seeds each, and one that has failed."""
  found = []
  for lr, values in ((0.1, (0.5, 0.7)), (0.2, (0.8, 0.9))):
    for seed, value in enumerate(values):
      changes = {"optim.lr": lr, "seed": seed}
      figures = {"val/top1": value, "val/loss": 1 - value}
      found.append(Trial(f"{lr}-{seed}", changes, {}, folder / f"{lr}-{seed}", "{}", "done", "", figures, 3.0))
  return [
    *found,
    Trial("bad", {"optim.lr": 9.0, "seed": 0}, {}, folder / "bad", "{}", "failed", "too | large", attempts=1),
  ]


def recorded(workdir, listed, decide="val/top1", **sweep):
  return record.Record(workdir, "it.py", {"batch": "8"}, Sweep([{}], decide=decide, **sweep), listed)


def test_the_table_has_the_means_of_the_settings_and_the_figures_of_the_last_runs(tmp_path, capsys):
  listed = trials(tmp_path / "trials")
  best = results.ranked(results.settings(listed), "val/top1")[0]
  finals = [
    Trial(
      f"f{seed}", {**best.changes, "seed": seed}, {}, tmp_path / "final" / f"f{seed}", "{}", "done", figures=figures
    )
    for seed, figures in enumerate(({"top1": 0.91, "loss": 0.2}, {"top1": 0.93, "loss": 0.4}))
  ]
  it = recorded(tmp_path, listed, final=[{"seed": 0}, {"seed": 1}])
  it.best, it.finals = best, finals
  it.close(best, finals)
  text = (tmp_path / "sweep.md").read_text()
  assert text.strip() in capsys.readouterr().out
  assert f"85.00 ± {100 * statistics.stdev([0.8, 0.9]):.2f} (2)" in text
  assert f"92.00 ± {100 * statistics.stdev([0.91, 0.93]):.2f} (2)" in text
  assert "- failed: optim.lr=9.0 seed=0: too | large" in text
  told = json.loads((tmp_path / "sweep.json").read_text())
  assert told["best"] == {"optim.lr": 0.2}
  assert (told["flags"], told["decide"]) == ({"batch": "8"}, "val/top1")
  assert [trial["figures"]["top1"] for trial in told["final"]] == [0.91, 0.93]
  assert (tmp_path / "sweep.png").stat().st_size > 1000


def test_what_is_done_or_has_failed_is_recalled_and_what_was_running_is_not(tmp_path):
  listed = trials(tmp_path)
  listed[1].status = "running"
  recorded(tmp_path, listed).write()
  again = [Trial(t.name, t.changes, {}, t.workdir, "{}") for t in listed]
  recorded(tmp_path, again).recall(again, retry=False)
  assert [t.status for t in again] == ["done", "waiting", "done", "done", "failed"]
  assert again[0].figures == listed[0].figures
  assert again[4].error == "too | large"
  # And by the session after that.
  third = [Trial(t.name, t.changes, {}, t.workdir, "{}") for t in listed]
  recorded(tmp_path, third).recall(third, retry=False)
  assert [t.status for t in third] == [t.status for t in again]
  listed[4].attempts = 0  # its data were not there
  recorded(tmp_path, listed).write()
  fresh = [Trial(t.name, t.changes, {}, t.workdir, "{}") for t in listed]
  recorded(tmp_path, fresh).recall(fresh, retry=False)
  assert fresh[4].status == "waiting"
  more = [Trial(t.name, t.changes, {}, t.workdir, "{}") for t in listed]
  recorded(tmp_path, more).recall(more, retry=True)
  assert [t.status for t in more] == ["done", "waiting", "done", "done", "waiting"]


def test_a_record_that_is_no_json_is_said(tmp_path):
  (tmp_path / "sweep.json").write_text("{")
  with pytest.raises(schema.ConfigError, match=r"sweep.json cannot be read as JSON .* mend or remove it"):
    recorded(tmp_path, [])


def test_a_terminal_gets_a_table_with_what_each_trial_said_last(tmp_path, monkeypatch):
  listed = trials(tmp_path / "trials")
  it = recorded(tmp_path, listed)
  listed[0].status = "running"
  log = it.log(listed[0])
  log.parent.mkdir()
  log.write_bytes(b"first\n" + b"x" * 3000 + b"\n  12/40  30%  loss 1.5\n\n")
  console = rich.console.Console(width=100, record=True, file=open("/dev/null", "w"))
  console.print(record.Screen(it, listed)._table())
  text = console.export_text()
  assert "3 done, 1 running, 1 failed" in text
  assert "12/40  30%  loss 1.5" in text
  assert "0.9000" in text and "too | large" in text
  assert record.progress(tmp_path / "nothing") == ""


def test_without_a_terminal_each_change_is_a_line(tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
  listed = trials(tmp_path)
  with record.Screen(recorded(tmp_path, listed), listed) as screen:
    screen.tell(listed[2])
    screen.tell(listed[4])
    screen.refresh()
  first, second = capsys.readouterr().out.splitlines()
  assert first.endswith("done      3/5  optim.lr=0.2 seed=0  0.8000")
  assert second.endswith("failed    5/5  optim.lr=9.0 seed=0  too | large")
