"""The reference defines every metric of the code, and the code has every metric that the reference defines."""

import ast
import inspect
import re
import textwrap

import pytest

from docs.generated import docstrings, metrics_page
from tests.documentation import extraction
from tests.documentation.test_site import generate
from vit_jax import evals, evaluate, fewshot, tasks
from vit_jax.schema import Choice
from vit_jax.tasks import dinov2, masked_patches, self_distillation
from vit_jax.training import goodput, loop, steps, training_log

METRICS = [metric for chapter in metrics_page.read_chapters() for metric in chapter["metrics"]]
FIGURES = {
  "accuracy": {"data": None, "classes": "all"},
  "fewshot": {"shots": (1, 10), "seeds": (0, 1), "probes": {"ridge": Choice("ridge"), "knn20": Choice("knn")}},
  "dense": {},
  "masked": {},
}
PLACES = ("metrics.jsonl", "TensorBoard", "result.json", "figures.json", "screen", "--json of fewshot")


def find(name):
  """Returns the definition of a name in metrics.jsonl or result.json, or None."""
  names = [name]
  if not name.startswith("train/"):
    figure = name.rpartition("/")[2]
    names += [figure, figure.removeprefix("ema_")]
  return next((each for name in names for each in METRICS if re.fullmatch(each["pattern"], name)), None)


def undefined(names):
  """Returns the names without a definition."""
  return [name for name in names if find(name) is None]


def keys_in(function, prefix=""):
  """Returns the constant keys of the dictionaries that a function writes, from its source."""
  tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
  keys = [key for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys]
  return {prefix + key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def names_of_training():
  """Returns the names of the lines of a training."""
  names = keys_in(steps.make_train_step, "train/") | {"train/loss"}
  for task in tasks.TASKS.values():
    names |= keys_in(task.objective, "train/")
  names |= keys_in(self_distillation.measure_collapse, "train/") | keys_in(dinov2.Dinov2._compute_losses, "train/")
  names |= {f"train/{make(8).metric}" for make in masked_patches.TARGETS.values()}
  names.remove("train/shard_rows")  # an argument of update rules
  return (
    names
    | keys_in(training_log.TrainingLog.write)
    | keys_in(training_log.TrainingLog._add_chip_rates)
    | keys_in(goodput.GoodputTracker.measure_lap)
    | {"train/epoch_birds"}
  )


def names_of_results():
  """Returns the keys of result.json that are not figures, those of figures.json, and those of fewshot's JSON."""
  accounted = {*goodput.PHASES.values(), goodput.LOST, goodput.BETWEEN, *keys_in(goodput.GoodputTracker.goodput)}
  result = keys_in(loop.collect_metadata) | keys_in(loop.describe_ranking) | {"skipped_images", "certificate"}
  result |= keys_in(training_log.TrainingLog.describe_target)
  written = keys_in(fewshot.write_outputs) - {"evals"}  # contains the entries of each evaluation
  return accounted | result | keys_in(evaluate.write_outputs) | keys_in(fewshot.outcome_to_json) | written


def names_of_evaluations():
  """Returns the names of the figures of all shipped evaluations."""
  shipped = {name for name, kind in evals.KINDS.items() if docstrings.is_shipped(kind.measure)}
  assert shipped == FIGURES.keys()
  return {figure for name, arguments in FIGURES.items() for figure in evals.KINDS[name].figures(arguments)}


@pytest.mark.parametrize("names", [names_of_training, names_of_results, names_of_evaluations])
def test_every_metric_of_the_code_is_defined(names):
  assert len(names()) >= 8 and undefined(sorted(names())) == []


def test_every_definition_is_that_of_a_metric():
  names = names_of_training() | names_of_results() | names_of_evaluations() | {"1000_way_top1", "ridge_all"}
  known = [metric["name"] for metric in METRICS if any(re.fullmatch(metric["pattern"], name) for name in names)]
  assert [metric["name"] for metric in METRICS if metric["name"] not in known] == []
  assert len({metric["name"] for metric in METRICS}) == len(METRICS)


def test_names_that_are_not_metrics_are_not_defined():
  assert undefined(["test/top1", "val/ema_top1", "imagenet_a/1000_way_top1", "pets/ridge_10shot_std"]) == []
  assert len(undefined(["train/top5", "test/top3", "ridge_0shot", "train/ema_top1", "val/unknown"])) == 5


def test_a_definition_has_a_unit_a_sentence_and_places():
  for metric in METRICS:
    text = metric["text"].strip()
    assert metric["unit"] and text.endswith(".") and text[0].isupper(), metric["name"]
    assert any(place in metric["places"] for place in PLACES), metric["name"]


def test_words_of_the_screen_are_those_of_the_code():
  source = "".join(inspect.getsource(module) for module in (training_log, goodput, loop))
  for chapter in metrics_page.read_chapters():
    for metric in chapter["metrics"]:
      words = metric.get("screen", "loss")
      assert words in source or words in {each.headline for each in tasks.TASKS.values()} | {"accuracy"}, words
      assert "screen" not in metric or "screen" in metric["places"], metric["name"]


def test_the_page_contains_every_definition():
  page = generate.make_pages()["reference/metrics.md"]
  assert all(f"- `{metric['name']}` (" in page for metric in METRICS)
  assert "reference/metrics.md" in (extraction.ROOT / "mkdocs.yml").read_text()
