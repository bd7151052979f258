"""Signatures as schemas: their keywords, and what an unknown key was meant for."""

from typing import Literal

from vit_jax.schema import signatures


def adamw(params, *, b1=0.9, pool: Literal["cls", "gap"] | None = "cls"): ...


def sgd(params, *, momentum=0.9): ...


def lion(params, *, momentum=0.9): ...


ENTRIES = {"b1": (float, 0.9), "pool": (Literal["cls", "gap"] | None, "cls"), "mode": (Literal["batch"], "batch")}


def test_only_keywords_count():
  assert signatures.read_keywords(sgd) == {"momentum": 0.9}


def test_a_key_of_another_choice_names_it():
  advice = signatures.suggest_fix("momentum", 0.9, ENTRIES, {"adamw": adamw, "sgd": (sgd, adamw)})
  assert advice == " sgd takes it. Allowed: b1, pool, mode."
  assert "sgd, lion take it." in signatures.suggest_fix("momentum", 0.9, ENTRIES, {"sgd": sgd, "lion": lion})


def test_a_value_of_one_key_alone_names_that_key():
  assert signatures.suggest_fix("head", "gap", ENTRIES, {}).startswith(" Did you mean 'pool'?")
  assert signatures.suggest_fix("b2", 0.9, ENTRIES, {}).startswith(" Did you mean 'b1'?")
