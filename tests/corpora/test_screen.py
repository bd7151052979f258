"""Tests of the progress display of a corpus."""

import re

from vit_jax.corpora import screen


def test_progress_without_a_terminal_is_a_line(capsys, monkeypatch):
  monkeypatch.setattr(screen, "EVERY", 0.0)
  with screen.ProgressScreen("photos", 100, 20, 1) as shown:
    shown.add(30, 2, 1)
    assert shown.rejected == 3
  line = capsys.readouterr().out
  assert re.fullmatch(r"photos  50/100 images  [\d,]+ images/s  3 rejected  1 duplicates  \d+ min left\n", line)


def test_progress_on_a_terminal_is_a_bar(monkeypatch):
  monkeypatch.setattr(screen.sys.stdout, "isatty", lambda: True, raising=False)
  with screen.ProgressScreen("photos", 100) as shown:
    shown.add(40, 1)
    (task,) = shown._bar.tasks
    assert (task.completed, task.total) == (40, 100) and "1 rejected" in task.fields["words"]
