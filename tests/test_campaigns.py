"""Campaigns run the cases that their words choose, refuse words that choose none, and pass with few cases."""

import argparse
import subprocess
import sys

import pytest

from tests.campaigns import choice

NAMES = ["png cut", "jpeg cut", "text"]


def choose(*words):
  return choice.choose(argparse.ArgumentParser("campaign"), NAMES, words)


def test_words_choose_the_names_that_contain_them():
  assert choose() == NAMES
  assert choose("jpeg") == ["jpeg cut"]
  assert choose("text", "cut") == NAMES
  assert choose("png") == ["png cut"]


@pytest.mark.parametrize("words", [("truncated",), ("png", "truncated")])
def test_d9_a_word_that_is_in_no_name_ends_with_2_and_all_names(words, capsys):
  with pytest.raises(SystemExit) as caught:
    choose(*words)
  assert caught.value.code == 2
  text = capsys.readouterr().err
  assert "no case contains 'truncated'" in text
  assert all(f"\n  {name}" in text for name in NAMES)


# Campaigns set variables of the environment when they are imported, and so need a process of their own.
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
def test_d9_each_campaign_that_takes_words_refuses_those_without_a_case():
  done = subprocess.run([sys.executable, "-c", EACH], capture_output=True, text=True, check=True)
  assert done.stdout.split("\n")[:-1] == [f"{name} 2" for name in ("buckets", "disk", "files", "images", "processes")]
  assert done.stderr.count("no case contains 'no such case'") == 5


# Campaign -> the words of a short one, of a minute or less on an idle core.
SHORT = {
  "kills": ("1",),
  "processes": ("sigkill_of_process_0",),
  "disk": ("full at the result", "removed"),
  "buckets": ("forbidden from the start",),
  "images": ("png",),
  "files": ("sweep:",),
  "configs": ("40",),
  "prepare": ("1",),
  "launcher": ("1000",),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SHORT)
def test_a_short_campaign_passes(name):
  words = [sys.executable, "-m", f"tests.campaigns.{name}", *SHORT[name]]
  done = subprocess.run(words, capture_output=True, text=True, timeout=600)
  assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
