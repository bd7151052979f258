"""Tests of signatures as schemas: their keywords, and suggestions for unknown keys."""

from typing import Literal

from vit_jax.schema import signatures


def adamw(params, *, b1=0.9, pool: Literal["cls", "gap"] | None = "cls"): ...


def sgd(params, *, momentum=0.9): ...


def lion(params, *, momentum=0.9): ...


ENTRIES = {"b1": (float, 0.9), "pool": (Literal["cls", "gap"] | None, "cls"), "mode": (Literal["batch"], "batch")}


def test_only_keyword_arguments_are_keys():
  assert signatures.read_keywords(sgd) == {"momentum": 0.9}


def test_unknown_key_of_another_choice_names_that_choice():
  advice = signatures.suggest_fix("momentum", 0.9, ENTRIES, {"adamw": adamw, "sgd": (sgd, adamw)})
  assert advice == " It is supported by sgd. Allowed: b1, pool, mode."
  assert "supported by sgd, lion." in signatures.suggest_fix("momentum", 0.9, ENTRIES, {"sgd": sgd, "lion": lion})


def test_value_accepted_by_only_one_key_suggests_that_key():
  assert signatures.suggest_fix("head", "gap", ENTRIES, {}).startswith(" Did you mean 'pool'?")
  assert signatures.suggest_fix("b2", 0.9, ENTRIES, {}).startswith(" Did you mean 'b1'?")
