"""The table of evaluations: what each says that it gives; test_accuracy and test_fewshot have the rest."""

import jax
import pytest

from tests import runs
from vit_jax import build, evals
from vit_jax.schema import Choice

pytestmark = pytest.mark.heavy

SMALL = {
  "accuracy": {"split": "test[:16]"},
  "fewshot": {"train": "train[:200]", "test": "test[:16]", "shots": (1, 2), "probes": {"a": {"name": "knn"}}},
}


@pytest.mark.parametrize("name", [name for name in evals.EVALS if name != "masked"])
def test_an_evaluation_gives_the_figures_that_it_names(name):
  parts = runs.parts(1)
  run = build.complete(runs.changed(parts.run, evals={"it": Choice(name, SMALL[name])}))
  found = build.build(run, jax.devices()[:1]).evals["it"].measure(parts.init().params, lambda: None).figures
  named = evals.figure_names(run.evals["it"])
  assert [key for key in named if key != "average_precision"] == list(found)
