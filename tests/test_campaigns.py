"""Tests that campaigns run the selected cases, reject words without a case, and pass with few cases."""

import argparse
import math
import os
import pathlib
import subprocess
import sys

import pytest

from tests.campaigns import choice, quick

NAMES = ["png cut", "jpeg cut", "text"]


def choose(*words):
  return choice.choose(argparse.ArgumentParser("campaign"), NAMES, words)


def test_words_select_the_cases_that_contain_them():
  assert choose() == NAMES
  assert choose("jpeg") == ["jpeg cut"]
  assert choose("text", "cut") == NAMES
  assert choose("png") == ["png cut"]


@pytest.mark.parametrize("words", [("truncated",), ("png", "truncated")])
def test_unknown_word_exits_with_2_and_lists_all_cases(words, capsys):
  with pytest.raises(SystemExit) as caught:
    choose(*words)
  assert caught.value.code == 2
  text = capsys.readouterr().err
  assert "no case contains 'truncated'" in text
  assert all(f"\n  {name}" in text for name in NAMES)


# Campaigns set environment variables when they are imported, so they need their own process.
EACH = """
import importlib, sys
sys.argv = ["campaign", "no such case"]
for name in ("buckets", "disk", "files", "images", "processes"):
  try:
    importlib.import_module(f"tests.campaigns.{name}").main()
  except SystemExit as ended:
    print(name, ended.code)
"""


@pytest.mark.long
def test_every_campaign_rejects_words_without_a_case():
  done = subprocess.run([sys.executable, "-c", EACH], capture_output=True, text=True, check=True)
  assert done.stdout.split("\n")[:-1] == [f"{name} 2" for name in ("buckets", "disk", "files", "images", "processes")]
  assert done.stderr.count("no case contains 'no such case'") == 5


# Campaigns with words that select a short run of at most a minute on an idle core. tests/test_train.py kills a run of
# digits like `kills` does.
SHORT = [
  pytest.param(("kills", "1", "--recipe=dinov2"), marks=pytest.mark.full),
  pytest.param(("processes", "--two-processes", "sigkill_of_process"), marks=pytest.mark.full),
  pytest.param(("prepare", "1"), marks=pytest.mark.full),
  ("disk", "full at the result"),
  ("buckets", "forbidden from the start"),
  ("images", "png"),
  ("files", "sweep:"),
  ("configs", "40"),
  ("launcher", "1000", "--seed=0"),
]


@pytest.mark.long
@pytest.mark.sample(math.inf)
@pytest.mark.parametrize("words", SHORT, ids=" ".join)
def test_short_campaign_passes(words):
  name, *rest = words
  command = [sys.executable, "-m", f"tests.campaigns.{name}", *rest]
  shared = pathlib.Path(os.environ["TFDS_DATA_DIR"]).parent
  environment = os.environ | {quick.SHARED: str(shared)}
  done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
  assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
