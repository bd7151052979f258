"""The baseline of AlgoPerf: the published hyper-parameters of its trials."""

import json
import math

import pytest

from tests import recipes, runs

CURVES = runs.ROOT.parent / "shared/reference/curves/algoperf_vit_s16_nadamw.json"
# Rate, decay, b1, b2, label smoothing and warm-up of two trials, as in the tables of the benchmark's results.
PUBLISHED = {
  "1": (1.308e-3, 0.1638, 0.9731, 0.99812, 0.1, 0.1),
  "2": (8.445e-4, 0.0814, 0.8896, 0.99785, 0.2, 0.05),
}


@pytest.mark.parametrize("trial", PUBLISHED)
def test_a_trial_has_the_published_values(trial):
  lr, decay, b1, b2, smoothing, warmup = PUBLISHED[trial]
  run = recipes.run(f"algoperf_vit:{trial}")
  args = run.optim.args
  assert (args["lr"], args["weight_decay"], args["b1"], args["b2"]) == pytest.approx((lr, decay, b1, b2), rel=1e-3)
  assert (run.task.args["label_smoothing"], args["warmup"]) == (smoothing, f"{100 * warmup:g}%")
  assert (args["clip"], args["decay_on"]) == (None, ((".*", 1.0),))


@pytest.mark.skipif(not CURVES.exists(), reason="needs the published trials in ../shared/reference/curves")
def test_all_trials_are_those_of_the_published_file():
  for name, values in json.loads(CURVES.read_text()).items():
    if not values:  # self-tuning runs have no hyper-parameters
      continue
    run = recipes.run(f"algoperf_vit:{name[-1]}")
    args = run.optim.args
    assert {
      "dropout_rate": run.model.args["dropout"],
      "label_smoothing": run.task.args["label_smoothing"],
      "learning_rate": args["lr"],
      "one_minus_beta1": pytest.approx(1 - args["b1"]),
      "beta2": args["b2"],
      "weight_decay": args["weight_decay"],
      "warmup_factor": float(args["warmup"].removesuffix("%")) / 100,
    } == values


@pytest.mark.heavy
def test_the_rate_and_the_size_are_those_of_the_workload():
  parts = recipes.known("algoperf_vit:2", model__scan=True)
  assert (parts.total, parts.run.batch) == (186_666, 1024)
  assert float(parts.schedule(9_333)) == pytest.approx(8.445074561975979e-4, rel=1e-3)
  assert float(parts.schedule(parts.total)) == pytest.approx(0, abs=1e-9)
  middle = 9_333 + (parts.total - 9_333) / 2
  assert float(parts.schedule(middle)) == pytest.approx(8.445074561975979e-4 / 2, rel=1e-3)
  assert sum(math.prod(leaf.shape) for leaf in parts.state_shapes.params.values()) == 22_122_472
