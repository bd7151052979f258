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
  figures = {"top1": 0.625, "loss": 1.5, "images": 360, "ema_top1": 0.75, "ema_images": 360, "val/ema_top1": 0.5}
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


@pytest.mark.parametrize(
  "change",
  [
    "data.classes: None -> '/home/secret.txt'",
    "data.classes: None -> 'secret'",
    "data.index: None -> 'secret'",
    "data.image_folder: 'a' -> 'secret'",
    "data.mixed: [] -> [{'name': 'folder', 'path': 'secret'}]",
    r"data.other: None -> 'C:\\Users\\secret'",
    "data.other: None -> 'C:/secret'",
    r"data.other: None -> '\\server\secret'",
    "data.other: None -> 'photos/secret'",
    "data.other: None -> '../secret'",
    "data.other: None -> '~/secret'",
    "data.other: None -> 'gs://secret/a'",
    "data.other: None -> 'secret.csv'",
    "data.other: None -> 'secret.JPG'",
    "data.other: None -> 'secret/ViT-S/16'",
    "data.other: None -> './hf:a/secret'",
    "data.other: None -> 'hf:a/b/secret'",
  ],
)
def test_changes_that_may_contain_a_path_are_left_out(tmp_path, run, change):
  run.recipe["changes"] = [change, "model.name: 'ViT-S/16' -> 'ViT-B/32'", "optim.lr: 1e-3 -> 0.01"]
  card = make(tmp_path, run=run)
  assert "secret" not in card
  assert "    model.name: 'ViT-S/16' -> 'ViT-B/32'\n    optim.lr: 1e-3 -> 0.01\n" in card


@pytest.mark.parametrize(
  ("config", "shown"),
  [
    ("digits", "digits"),
    ("/home/secret/digits.py", "digits.py"),
    ("secret/digits.py:small,ViT-S/16", "digits.py:small,ViT-S/16"),
    ("C:\\secret\\digits.py:ViT-S/16", "digits.py:ViT-S/16"),
    ("C:\\secret\\digits.py:D:\\secret", "digits.py"),
    ("digits:photos/secret", "digits"),
    ("gs://secret/digits.py", "digits.py"),
    ("a|`<b>.py", r"a\|\`\<b\>.py"),
  ],
)
def test_recipe_is_named_without_its_folder(tmp_path, run, config, shown):
  run.recipe["config"] = config
  card = make(tmp_path, run=run)
  assert f"\n- recipe: {shown}\n" in card and "secret" not in card


@pytest.mark.parametrize(
  "about", ["Reads /home/secret.", "Photos of secret/cats.", r"From D:\secret.", "See secret.csv."]
)
def test_description_with_a_path_is_left_out(tmp_path, run, about):
  run.recipe["about"] = about
  assert "secret" not in make(tmp_path, run=run)


def test_names_cannot_change_the_form_of_the_card(tmp_path, run):
  run.figures = {"a|b/<img src=x>`top1`\n| x": 0.5}
  run.recipe |= {"about": "A <b>bold</b> `code` [link](x)", "changes": "none"}
  card = make(tmp_path, run=run)
  assert r"| a\|b/\<img src=x\>\`top1\` \| x | 50.00% |  |" in card.splitlines()
  assert r"A \<b\>bold\</b\>" not in card  # the slash of a tag looks like a path
  run.recipe["about"] = "Uses `mixup` <now>"
  assert r"Uses \`mixup\` \<now\>" in make(tmp_path, run=run)


def test_card_contains_the_figures_of_the_uploaded_weights(tmp_path, run):
  raw = make(tmp_path, run=run)
  assert "| top1 | 62.50% |" in raw and "75.00%" not in raw and "ema" not in raw and "val/" not in raw
  averaged = model_card.make_card("me/cats", "mit", stored.read(small_weights.file(tmp_path)), {}, run, averaged=True)
  assert "| top1 | 75.00% | 70.28% to 79.19% |\n| val/top1 | 50.00% |" in averaged and "62.50%" not in averaged
  assert "The weights are the moving average of the trained weights." in averaged and "| loss" not in averaged


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
  with pytest.raises(
    ConfigError, match=r"^licence: missing. An upload requires a licence \(--licence=NAME or licence=NAME\). Write"
  ):
    model_card.check_licence(None)
  for text in ("", "Apache 2", "mit\nx: y", "../x"):
    with pytest.raises(ConfigError, match=r"is not a name. Write the name of a licence on the Hub, such as apache-2.0"):
      model_card.check_licence(text)
