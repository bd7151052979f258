"""Tests of a run that is evaluated again for its page: its final figures, the evaluated images, and limits."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from tests import runs
from tests.reports import reading
from vit_jax import config
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.data import catalog
from vit_jax.evals import metrics
from vit_jax.evals.subject import EvalContext
from vit_jax.reports import mistakes, outcomes, page, seen
from vit_jax.schema import ConfigError
from vit_jax.training import loop

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  """Trains a short run with averaged weights and two evaluations, on another mesh than the one that evaluates it."""
  workdir = tmp_path_factory.mktemp("run") / "run"
  changes = {"optim__ema": "0.5", "total": "4", "evals__later__name": "accuracy", "evals__later__split": "test[:10]"}
  loop.train(runs.parts(2, mesh__fsdp="2", batch="20", **changes), workdir)
  return workdir


@pytest.mark.long
def test_figures_match_the_end_of_training_on_all_test_images(workdir):
  chapters, measured = outcomes.make_chapters(workdir)
  result = json.loads((workdir / "result.json").read_text())
  assert list(measured.outcomes) == ["", "ema_"] == list(measured.intervals)
  for prefix, outcome in measured.outcomes.items():
    assert outcome.figures["images"] == 360 == measured.split_size
    for name, value in outcome.figures.items():
      assert value == pytest.approx(result[prefix + name], abs=1e-5), prefix + name
    low, high = measured.intervals[prefix]["top1"]
    assert low <= outcome.figures["top1"] <= high
  assert [chapter.title for chapter in chapters] == [seen.TITLE, mistakes.TITLE]
  details = measured.outcomes[""].details
  figures = {row["figure"]: row["value"] for row in reading.table(chapters[1], "Figures")}
  assert figures["top1"] == f"{100 * metrics.compute_metrics(details.predictions, 10)['top1']:.2f} %"
  assert "weights of step 4 of 4, not their average" in chapters[1].about
  assert len(page.render_page("Run", "", chapters)) < 1_500_000

  picture = reading.named(chapters[1], "Worst mistakes").pictures[0]
  names = [details.source.display_name(i) for i in details.predictions.position]
  number = names.index(picture.lines[-1])
  assert picture.lines[0] == f"label {details.source.classes[details.predictions.label[number]]}"
  subject = EvalContext(
    measured.experiment.model, measured.experiment.mesh, measured.experiment.run.data, 40, catalog.open_split
  )
  batches = subject.open_batches(None, details.source, 40)
  images = np.concatenate([np.asarray(batch["image"]) for batch in batches])
  batches.close()
  np.testing.assert_array_equal(picture.pixels, images[number])


@pytest.mark.long
def test_sample_of_a_large_split_is_fixed_and_evenly_spaced(workdir):
  one, other = (outcomes.measure_workdir(workdir, limit=50) for _ in range(2))
  details = one.outcomes[""].details
  assert one.split_size == 360 and len(details.predictions.best) == 50
  names = [details.source.display_name(i) for i in details.predictions.position]
  assert names == [other.outcomes[""].details.source.display_name(i) for i in range(50)]
  whole = outcomes.measure_workdir(workdir).outcomes[""].details
  everyone = [whole.source.display_name(i) for i in range(360)]
  positions = [everyone.index(name) for name in names]
  assert [position // 72 for position in positions] == [i // 10 for i in range(50)]
  np.testing.assert_array_equal(details.predictions.label, whole.predictions.label[positions])
  np.testing.assert_array_equal(details.predictions.best[:, 0], whole.predictions.best[positions, 0])
  chapter = outcomes.make_chapter(one)
  assert "50 of 360 images" in chapter.about
  (first, *_) = outcomes.prepare_images(details.source, one.data, [7])
  (same, *_) = outcomes.prepare_images(whole.source, one.data, [positions[7]])
  np.testing.assert_array_equal(first, same)


@pytest.mark.long
def test_run_without_its_data_or_checkpoints_has_explanations(workdir, tmp_path):
  moved = tmp_path / "run"
  shutil.copytree(workdir, moved)
  shutil.rmtree(moved / "checkpoints")
  (seen_, wrong), measured = outcomes.make_chapters(moved)
  assert measured is None and len(seen_.parts) == 3
  assert "no checkpoint yet" in wrong.parts[0].text

  run = runs.run(data__path=str(tmp_path / "nowhere"))
  (moved / "config.json").write_text(config.dumps(run))
  chapters, measured = outcomes.make_chapters(moved)
  assert measured is None and [chapter.title for chapter in chapters] == [seen.TITLE, mistakes.TITLE]
  assert all("cannot be read on this machine. config.data" in chapter.parts[0].text for chapter in chapters)

  run = dataclasses.replace(runs.run(), evals=runs.run(evals__test__split="tset").evals)
  (moved / "config.json").write_text(config.dumps(run))
  (_, wrong), _ = outcomes.make_chapters(moved)
  assert "config.evals.test.split" in wrong.parts[0].text and "tset" in wrong.parts[0].text
  with pytest.raises(ConfigError, match="contains no run"):
    outcomes.make_chapters(tmp_path)


def test_missing_image_is_none(tmp_path):
  prepare_dataset("digits")
  run = runs.run()
  source = catalog.open_split(run.data, "test")

  def read(record):
    if record == 3:
      raise FileNotFoundError(2, "gone")
    return source.read(record)

  there, gone = outcomes.prepare_images(dataclasses.replace(source, read=read), run.data, [2, 3])
  assert there.shape == (32, 32, 3) and gone is None
