"""Tests of the table of evaluations: each gives the figures that it lists.

test_accuracy.py and test_fewshot.py test the values.
"""

import jax
import pytest

from tests import runs
from vit_jax import evals
from vit_jax.data import scenes
from vit_jax.schema import Choice
from vit_jax.training import build

pytestmark = pytest.mark.heavy

SMALL = {
  "accuracy": {"split": "test[:16]"},
  "dense": {"train": "train", "test": "test"},
  "fewshot": {"train": "train[:200]", "test": "test[:16]", "shots": (1, 2), "probes": {"a": {"name": "knn"}}},
}


@pytest.fixture(scope="module", autouse=True)
def masks(tmp_path_factory):
  """Writes a few scenes for the dense probe."""
  root = tmp_path_factory.mktemp("scenes")
  for split, numbers in (("train", range(16)), ("test", range(16, 24))):
    for number in numbers:
      for folder, pixels in zip(("images", "masks"), scenes.draw_scene(number), strict=True):
        file = root / folder / split / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(scenes.encode_png(pixels).getvalue())
  SMALL["dense"]["data"] = Choice("segmentation", {"path": str(root), "classes": 8})


@pytest.mark.parametrize("name", [name for name in evals.EVALS if name != "masked"])
def test_evaluation_gives_its_listed_figures(name):
  parts = runs.parts(1)
  run = build.complete(runs.changed(parts.run, evals={"it": Choice(name, SMALL[name])}))
  found = (
    build.build(run, jax.devices()[:1]).evals["it"].measure(parts.create_initial_state().params, lambda: None).figures
  )
  named = evals.list_figure_names(run.evals["it"])
  assert [key for key in named if key != "average_precision"] == list(found)
