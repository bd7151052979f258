"""Tests of tables derived from another table."""

import pytest

from vit_jax.schema import ConfigError, tables


def test_derived_table_follows_its_base():
  base = {"a": 1, "b": 2, "c": 3}
  made = []
  derived = tables.DerivedTable(base, lambda name, entry: made.append(name) or f"{name}{entry}", without=("b",))
  assert dict(derived) == {"a": "a1", "c": "c3"} and len(derived) == 2 and "b" not in derived
  assert derived["a"] == "a1" and made.count("a") == 1
  base["d"] = 4
  base["a"] = 5
  assert dict(derived) == {"a": "a5", "c": "c3", "d": "d4"}
  del base["a"]
  assert "a" not in derived and derived.get("a") is None
  with pytest.raises(KeyError):
    derived["b"]


def test_unknown_name_suggests_the_nearest():
  table = tables.DerivedTable({"adamw": 1, "sgd": 2}, lambda name, entry: (len, entry))
  assert tables.lookup(table, "sgd") == (len, 2)
  with pytest.raises(ConfigError, match=r"name: unknown name 'adamv'. Did you mean 'adamw'\? Allowed: adamw, sgd."):
    tables.lookup(table, "adamv")
