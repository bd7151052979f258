"""Tests of the whole page about runs, sweeps and weights. Problems are reported."""

import dataclasses
import json

import pytest

from tests.reports import workdirs
from vit_jax.reports import page, report
from vit_jax.schema import ConfigError


def sweep(folder):
  """Writes a sweep with three failed trials, two with a workdir, and a final run that is done elsewhere."""
  names = {"a1": 0.5, "b2": 0.75, "c3": None}
  for name, top1 in names.items():
    if top1:
      workdirs.run(folder / "trials" / name, top1=top1)
  trials = [{"name": name, "changes": {"optim.lr": i}, "status": "failed", "error": "<out of memory>", "figures": {}}
            for i, name in enumerate(names)]  # fmt: skip
  (folder / "sweep.json").write_text(json.dumps({"trials": trials, "final": [{**trials[0], "status": "done"}]}))
  return folder


def test_trials_of_a_sweep_are_named_by_their_changes_best_first(tmp_path):
  about = report.read_contents([sweep(tmp_path)])
  assert [run.name for run in about.runs] == ["optim.lr=1", "optim.lr=0"]
  assert about.waiting == ["optim.lr=2: failed <out of memory>"]


def test_names_of_trials_cannot_leave_the_sweep(tmp_path):
  workdirs.run(tmp_path / "other")
  folder = sweep(tmp_path / "sweep")
  record = json.loads((folder / "sweep.json").read_text())
  record["trials"][2]["name"] = "../../other"
  (folder / "sweep.json").write_text(json.dumps(record))
  assert len(report.read_contents([folder]).runs) == 2


def test_runs_with_equal_names_are_distinguished_by_their_folders(tmp_path):
  places = [workdirs.run(tmp_path / name / "run") for name in ("a", "b")]
  assert [run.name for run in report.read_contents([*places, workdirs.run(tmp_path / "c")]).runs] == [
    "a/run",
    "b/run",
    "c",
  ]


def test_page_contains_the_figures_and_escaped_texts(tmp_path):
  report.make_report([sweep(tmp_path)], tmp_path / "page.html", limit=0)
  text = (tmp_path / "page.html").read_text()
  assert "75.00 %" in text and "50.00 %" in text
  assert "failed &lt;out of memory&gt;" in text and "<out of memory>" not in text
  assert "http://" not in text.replace("http://www.w3.org/", "").partition("<script")[0]


@pytest.mark.parametrize("what", ["nothing", "an empty folder", "a sweep that has not begun"])
def test_path_without_a_run_is_named(what, tmp_path):
  place = tmp_path / "x"
  if what != "nothing":
    place.mkdir()
  if what.startswith("a sweep"):
    (place / "sweep.json").write_text('{"trials": []}')
  with pytest.raises(ConfigError, match="x"):
    report.make_report([place], tmp_path / "page.html")
  assert not (tmp_path / "page.html").exists()


def test_problem_of_the_final_page_is_printed_without_an_error(tmp_path, capsys):
  report.make_final_report(tmp_path)
  first, second = capsys.readouterr().out.splitlines()
  assert first == "writing the report" and second.startswith("  report    not made: ")


def test_bug_in_the_page_is_printed_without_an_error(tmp_path, monkeypatch, capsys):
  workdirs.run(tmp_path)
  monkeypatch.setattr(report.verdict, "make_chapter", lambda runs: runs["x"])
  report.make_final_report(tmp_path)
  printed = capsys.readouterr()
  assert "report    not made: a bug in vit_jax" in printed.out and "Traceback" in printed.err


def test_runs_of_two_sweeps_have_distinct_names(tmp_path):
  about = report.read_contents([sweep(tmp_path / "s1"), sweep(tmp_path / "s2")])
  assert sorted(run.name for run in about.runs) == [f"s{i}: optim.lr={j}" for i in (1, 2) for j in (0, 1)]


def test_selection_of_a_sweep_and_its_test_figures_come_first(tmp_path):
  folder = sweep(tmp_path / "s")
  record = json.loads((folder / "sweep.json").read_text())
  final = [{"name": name, "status": "done", "figures": {"top1": top1}} for name, top1 in (("f1", 0.9), ("f2", 1.0))]
  chosen = {"best": {"optim.lr": 1}, "decide": "val/top1", "final": final,
            "ranked_by": {"metric": "val/top1", "split": "val"}}  # fmt: skip
  (folder / "sweep.json").write_text(json.dumps(record | chosen))
  first = report.make_chapters(report.read_contents([folder]), limit=0)[0]
  assert first.parts[0].text == "s selected optim.lr=1 by val/top1 (split 'val')."
  assert first.parts[1].rows == [["test/top1", "95.00 ± 7.07 (2)"]]


@pytest.mark.parametrize("odd", [{"trials": None}, {"trials": 3}, {"trials": [{}, 1, {"status": "failed"}]}])
def test_invalid_record_of_a_sweep_counts_as_not_started(odd, tmp_path):
  (tmp_path / "sweep.json").write_text(json.dumps(odd))
  with pytest.raises(ConfigError, match="has started"):
    report.read_contents([tmp_path])


def test_page_of_60_long_runs_is_below_five_megabytes(tmp_path):
  about = report.read_contents([workdirs.run(tmp_path / "a")])
  rows = [{"step": step, "train/loss": 1 / step, "train/top1": step / 500, "images_per_second": 9.0 + step % 7,
           "images_per_second_per_chip": 4.5, "data_wait": step % 3 / 3, "train/learning_rate": 1e-3}
          for step in range(1, 501)]  # fmt: skip
  runs = [dataclasses.replace(about.runs[0], name=f"run {i}", rows=rows) for i in range(60)]
  page.write_page(tmp_path / "page.html", "many", "", report.make_chapters(about._replace(runs=runs), limit=0))
  assert (tmp_path / "page.html").stat().st_size < 5e6
