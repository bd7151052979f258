"""Tests of vit_jax/reports/model_card.py: header, results, loading, and no private paths."""

import dataclasses
import re
import types

import pytest
import yaml

from tests import runs, small_weights
from vit_jax import config
from vit_jax.inference import stored
from vit_jax.reports import model_card
from vit_jax.schema import ConfigError

COMMIT = "a" * 40


def make(tmp_path, sidecar=None, run=None, **metadata):
  use = stored.read(small_weights.file(tmp_path, **metadata))
  return model_card.make_card("me/cats", "apache-2.0", use, sidecar or {}, run)


def header(card):
  return yaml.safe_load(re.match(r"---\n(.*?)\n---\n", card, re.S)[1])


@pytest.fixture
def run():
  """A finished run with the attributes that a card reads."""
  bound = dataclasses.replace(runs.run(), init=config.Init(f"hf:timm/vit@main:{COMMIT}"))
  result = {"steps": 12}
  recipe = {
    "config": "/home/me/secret/digits.py:small,ViT-S/16",
    "about": "Digits with a compact model.\n\nCommand: x",
    "changes": ["model.depth: 7 -> 1", "data.path: None -> '/home/me/secret'", "log.dir: 'a' -> '~/secret'"],
  }
  figures = {"top1": 0.625, "loss": 1.5, "images": 360}
  return types.SimpleNamespace(run=bound, result=result, recipe=recipe, figures=figures, records=1437, steps=12)


def test_card_of_a_run_contains_results_with_intervals_and_the_recipe(tmp_path, run):
  card = make(tmp_path, run=run)
  assert "| top1 | 62.50% | 57.39% to 67.34% |\n| loss | 1.5000 |  |" in card
  assert "95 % intervals: Wilson" in card and "| images" not in card
  assert "- recipe: digits.py:small,ViT-S/16\n- data: digits, 1,437 training images\n" in card
  assert f"- initial weights: hf:timm/vit@main:{COMMIT}" in card
  assert "Digits with a compact model.\n" in card and "    model.depth: 7 -> 1\n" in card
  assert header(card) == {
    "license": "apache-2.0",
    "library_name": "vit_jax",
    "pipeline_tag": "image-classification",
    "tags": ["vit_jax", "vision"],
    "base_model": "timm/vit",
  }


def test_card_contains_no_paths(tmp_path, run):
  assert "secret" not in make(tmp_path, run=run) and str(tmp_path) not in make(tmp_path, run=run)


def test_card_of_an_unfinished_run_names_the_step(tmp_path, run):
  run.result, run.steps = {}, 7
  assert "The run has not finished: the weights are those of step 7." in make(tmp_path, run=run)


@pytest.mark.parametrize(
  ("sidecar", "library", "code"),
  [
    ({}, "vit_jax", 'vit_jax.load("hf:me/cats")'),
    ({"architecture": "vit_tiny"}, "timm", 'timm.create_model("hf-hub:me/cats", pretrained=True)'),
    ({"architectures": ["ViTModel"]}, "transformers", 'ViTModel.from_pretrained("me/cats")'),
  ],
)
def test_only_loaders_of_the_uploaded_form_are_named(tmp_path, sidecar, library, code):
  card = make(tmp_path, sidecar)
  assert header(card)["library_name"] == library and code in card
  assert ("import timm" in card, "transformers import" in card) == (library == "timm", library == "transformers")
  for block in re.findall(r"```python\n(.*?)```", card, re.S):
    compile(block, "card", "exec")


def test_licence_is_required_and_checked():
  assert model_card.check_licence("cc-by-4.0") == "cc-by-4.0"
  with pytest.raises(ConfigError, match=r"licence: missing. An upload requires a licence. Write the name of a licence"):
    model_card.check_licence(None)
  for text in ("", "Apache 2", "mit\nx: y", "../x"):
    with pytest.raises(ConfigError, match=r"is not a name. Write the name of a licence on the Hub, such as apache-2.0"):
      model_card.check_licence(text)
