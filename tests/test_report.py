"""Tests of the command `report`: the path of its page, and its error messages."""

import pytest

from tests.reports import workdirs
from vit_jax import cli, report


def run_report(capsys, *words):
  """Returns the output of the command and its exit code."""
  try:
    cli.run_verb(lambda: report.main([*map(str, words)]))
    code = 0
  except SystemExit as stop:
    code = stop.code
  return "".join(capsys.readouterr()), code


def test_page_is_in_a_single_workdir_or_in_the_current_folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  first, second = (workdirs.run(tmp_path / name) for name in ("a", "b"))
  assert report.choose_output_path([first]) == first / "report.html"
  assert str(report.choose_output_path([first, second])) == "report.html"
  assert str(report.choose_output_path([tmp_path / "w.safetensors"])) == "report.html"


@pytest.mark.parametrize(
  ("words", "parts"),
  [
    (["a", "--out=page.pdf"], ["page.pdf", ".html"]),
    (["a", "--out=gone/page.html"], ["gone"]),
    (["runs/absent"], ["runs/absent", "does not exist", "workdir of a run"]),
    ([], ["PATH"]),
    (["a", "--outt=x.html"], ["--outt", "--out"]),
    (["a", "--export=wnadb"], ["--export", "'wnadb'", "'wandb'", "'mlflow'", "'trackio'"]),
  ],
)
def test_invalid_command_is_an_error_and_writes_no_page(words, parts, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  workdirs.run(tmp_path / "a")
  output, code = run_report(capsys, *words)
  assert code == 2 and all(part in output for part in parts), output
  assert not list(tmp_path.rglob("*.html")) + list(tmp_path.rglob("*.pdf"))


def test_export_sends_runs_to_a_tracker_without_a_page(tmp_path, monkeypatch, capsys):
  calls = []
  monkeypatch.setattr(report.trackers, "export_metrics", lambda *words: calls.append(words) or f"{words[0].name}: sent")
  paths = [workdirs.run(tmp_path / name) for name in ("a", "b")]
  assert run_report(capsys, *paths, "--export=mlflow", "--project=p") == ("a: sent\nb: sent\n", 0)
  assert calls == [(path, "mlflow", "p") for path in paths]
  assert not list(tmp_path.rglob("*.html"))


def test_export_skips_a_run_without_metrics_and_continues(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(report.trackers, "export_metrics", lambda *words: f"{words[0].name}: sent")
  paths = [workdirs.run(tmp_path / name) for name in ("a", "b")]
  (paths[0] / "metrics.jsonl").write_text("")
  output, code = run_report(capsys, *paths, "--export=mlflow")
  assert (output, code) == (f"{paths[0]}: no measurements yet, skipped\nb: sent\n", 0)
