"""Campaigns run the cases that their words choose, and refuse words that choose none."""

import argparse
import sys

import pytest

from tests.campaigns import buckets, choice, disk, files, images, processes

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


@pytest.mark.parametrize("campaign", [buckets, disk, files, images, processes], ids=lambda module: module.__name__)
def test_d9_each_campaign_that_takes_words_refuses_those_without_a_case(campaign, monkeypatch, capsys):
  monkeypatch.setattr(sys, "argv", ["campaign", "no such case"])
  with pytest.raises(SystemExit) as caught:
    campaign.main()
  assert caught.value.code == 2
  assert "no case contains 'no such case'" in capsys.readouterr().err
