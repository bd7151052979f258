"""Tests of the progress of a sweep: a table on a terminal, and lines in other outputs."""

import io
import os
import pathlib
import pty
import sys

import pytest
import rich.console

from vit_jax.sweeps import screen
from vit_jax.sweeps.screen import TrialScreen
from vit_jax.sweeps.trials import Trial


@pytest.fixture
def trials():
  """A running trial, a finished trial and a failed trial."""
  some = [Trial(f"t{lr}", {"optim.lr": lr}, {}, pathlib.Path("x"), "{}") for lr in (0.1, 0.2, 9.0)]
  some[0].status = "running"
  some[1].status, some[1].figures = "done", {"val/top1": 0.8, "top1": 0.3}
  some[2].fail("too | large")
  return some


def test_table_on_a_terminal_has_the_last_line_of_each_log(tmp_path, trials):
  log = tmp_path / "log"
  log.write_bytes(b"first\n" + b"x" * 3000 + b"\n  12/40  30%  loss 1.5\n\n")
  console = rich.console.Console(width=100, record=True, file=io.StringIO())
  console.print(TrialScreen(trials, "val/top1", lambda trial: log).make_table())
  text = console.export_text()
  assert "1 done, 1 running, 1 failed" in text
  assert "12/40  30%  loss 1.5" in text
  assert "val/top1 80.00 %" in text and "too | large" in text


def test_each_change_is_a_line_without_a_terminal(capsys, monkeypatch, trials):
  monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
  with TrialScreen(trials, "val/top1", lambda trial: pathlib.Path("none")) as shown:
    shown.report_change(trials[1])
    shown.report_change(trials[2])
    shown.refresh()
  first, second = capsys.readouterr().out.splitlines()
  assert first.endswith("done      2/3  optim.lr=0.2  val/top1 80.00 %")
  assert second.endswith("failed    3/3  optim.lr=9.0  too | large")


@pytest.mark.parametrize(
  ("figures", "expected"),
  [({"top1": 0.3}, "test/top1 30.00 %"), ({"top1": 0.9, "val/top1": 0.3, "val/loss": 1.0}, "val/top1 30.00 %")],
)
def test_val_metric_is_shown_before_test_without_a_decision(trials, figures, expected):
  trials[1].figures = figures
  console = rich.console.Console(width=100, record=True, file=io.StringIO())
  console.print(TrialScreen(trials, None, lambda trial: pathlib.Path("none")).make_table())
  assert expected in console.export_text()


def test_last_line_of_a_log_starts_after_a_carriage_return(tmp_path):
  (tmp_path / "log").write_bytes(b"10%\r20%\r30% \xff\n\n")
  assert screen.read_last_line(tmp_path / "log") == "30% �"
  assert screen.read_last_line(tmp_path / "nothing") == ""


def test_closed_terminal_does_not_stop_the_sweep(monkeypatch, trials):
  here, there = pty.openpty()
  with os.fdopen(there, "w") as terminal, monkeypatch.context() as patched:
    patched.setattr(sys, "stdout", terminal)
    with TrialScreen(trials, None, lambda trial: pathlib.Path("none")) as shown:
      shown.refresh()
      os.close(here)
      for _ in range(2):
        shown.refresh()
