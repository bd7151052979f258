"""The page as a whole: of runs, sweeps and weights; what hinders it is said."""

import json

import pytest

from tests.reports import workdirs
from vit_jax.reports import report
from vit_jax.schema import ConfigError


def sweep(folder):
  """A sweep of which two trials have begun, one has failed and one is done elsewhere."""
  names = {"a1": 0.5, "b2": 0.75, "c3": None}
  for name, top1 in names.items():
    if top1:
      workdirs.run(folder / "trials" / name, top1=top1)
  trials = [{"name": name, "changes": {"optim.lr": i}, "status": "failed", "error": "<out of memory>", "figures": {}}
            for i, name in enumerate(names)]  # fmt: skip
  (folder / "sweep.json").write_text(json.dumps({"trials": trials, "final": [{**trials[0], "status": "done"}]}))
  return folder


def test_trials_of_a_sweep_are_runs_called_by_their_changes_the_best_first(tmp_path):
  about = report.subjects([sweep(tmp_path)])
  assert [run.name for run in about.runs] == ["optim.lr=1", "optim.lr=0"]
  assert about.waiting == ["optim.lr=2: failed <out of memory>"]


def test_names_of_a_sweep_lead_nowhere_else(tmp_path):
  workdirs.run(tmp_path / "other")
  folder = sweep(tmp_path / "sweep")
  record = json.loads((folder / "sweep.json").read_text())
  record["trials"][2]["name"] = "../../other"
  (folder / "sweep.json").write_text(json.dumps(record))
  assert len(report.subjects([folder]).runs) == 2


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
  places = [workdirs.run(tmp_path / name / "run") for name in ("a", "b")]
  assert [run.name for run in report.subjects([*places, workdirs.run(tmp_path / "c")]).runs] == ["a/run", "b/run", "c"]


def test_the_page_has_the_figures_and_texts_as_texts(tmp_path):
  report.make([sweep(tmp_path)], tmp_path / "page.html", limit=0)
  text = (tmp_path / "page.html").read_text()
  assert "75.00 %" in text and "50.00 %" in text
  assert "failed &lt;out of memory&gt;" in text and "<out of memory>" not in text
  assert "http://" not in text.replace("http://www.w3.org/", "").partition("<script")[0]


@pytest.mark.parametrize("what", ["nothing", "an empty folder", "a sweep that has not begun"])
def test_what_cannot_be_shown_is_named(what, tmp_path):
  place = tmp_path / "x"
  if what != "nothing":
    place.mkdir()
  if what.startswith("a sweep"):
    (place / "sweep.json").write_text('{"trials": []}')
  with pytest.raises(ConfigError, match="x"):
    report.make([place], tmp_path / "page.html")
  assert not (tmp_path / "page.html").exists()


def test_at_the_end_of_a_run_what_hinders_the_page_is_said_and_undoes_nothing(tmp_path, capsys):
  report.make_at_end(tmp_path)
  assert "report    not made: " in capsys.readouterr().out
