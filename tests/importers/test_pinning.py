"""Tests of vit_jax/importers/pinning.py: a run records the commit of its weights, and a restart uses this commit."""

import pytest

from tests import hub_server
from vit_jax import config
from vit_jax.config import flags
from vit_jax.importers import pinning
from vit_jax.schema import ConfigError, to_plain

A, B = "a" * 40, "b" * 40


def resolve(**changes):
  overrides = {"data.path": "x", "init.from": "none"} | {key.replace("__", "."): text for key, text in changes.items()}
  return config.resolve(flags.load_config("configs/finetune.py:folder,ViT-Ti/16,96", overrides))


@pytest.mark.parametrize("text", ["B_16.npz", "none", "./hf:a/b"])
def test_other_weights_are_not_pinned(text):
  run = resolve(init__from=text)
  assert pinning.find_addresses(run) == {} and pinning.pin_weights(run, {}) == {}


@pytest.mark.parametrize("text", [f"hf:a/b@{A}", f"hf:a/b@main:{A}"])
def test_addresses_with_a_commit_do_not_change(text):
  assert pinning.pin_weights(resolve(init__from=text), {}) == {"init.from": text}


def test_teacher_of_gram_anchoring_is_pinned(hub, tmp_path):
  commit = hub_server.add_model(hub, "a/b", tmp_path)
  run = config.resolve(flags.load_config("configs/dinov2.py:glyphs", {
    "task.gram.name": "anchor", "task.gram.teacher": "hf:a/b"}))  # fmt: skip
  pinned = {"task.gram.teacher": f"hf:a/b@main:{commit}"}
  assert pinning.pin_weights(run, {}) == pinned
  hub.requests.clear()
  assert pinning.pin_weights(run, {"task": {"gram": {"teacher": f"hf:a/b@main:{A}"}}}) == {
    "task.gram.teacher": f"hf:a/b@main:{A}"
  }
  assert not hub.requests


def test_initial_weights_and_teachers_are_pinned(hub, tmp_path):
  commit = hub_server.add_model(hub, "a/b", tmp_path)
  run = resolve(init__from="hf:a/b", task__name="distill", task__teacher="hf:a/b@main")
  assert pinning.find_addresses(run) == {"init.from": "hf:a/b", "task.teacher": "hf:a/b@main"}
  pinned = f"hf:a/b@main:{commit}"
  assert pinning.pin_weights(run, {}) == {"init.from": pinned, "task.teacher": pinned}


def test_recorded_commit_is_used_for_the_same_revision_without_a_request(hub, tmp_path):
  hub_server.add_model(hub, "a/b", tmp_path)
  stored = to_plain(resolve(init__from=f"hf:a/b@main:{A}"))
  for text in ("hf:a/b", "hf:a/b@main"):
    assert pinning.pin_weights(resolve(init__from=text), stored) == {"init.from": f"hf:a/b@main:{A}"}
  assert not hub.requests
  hub.repositories["a/b"].refs["v2"] = hub.repositories["a/b"].refs["main"]
  pinned = pinning.pin_weights(resolve(init__from="hf:a/b@v2"), stored)
  assert pinned == {"init.from": f"hf:a/b@v2:{hub.repositories['a/b'].refs['v2']}"}


def test_runs_that_share_pins_use_the_same_commits(hub, tmp_path):
  first = f"hf:a/b@main:{hub_server.add_model(hub, 'a/b', tmp_path)}"
  pins = []
  assert pinning.pin_shared_weights(resolve(init__from="hf:a/b"), pins) == {"init.from": first}
  hub.repositories["a/b"].commit({"model.safetensors": b"other"})
  hub_server.forget_commits()
  assert pinning.pin_shared_weights(resolve(init__from="hf:a/b@main"), pins) == {"init.from": first}
  assert pinning.pin_shared_weights(resolve(init__from=f"hf:a/b@main:{B}"), pins) == {"init.from": f"hf:a/b@main:{B}"}
  assert pins == [first]


def test_flag_is_pinned_and_its_weights_are_downloaded(hub, tmp_path):
  commit = hub_server.add_model(hub, "a/b", tmp_path)
  assert pinning.pin_flag("--weights", "hf:a/b") == f"hf:a/b@main:{commit}"
  hub.requests.clear()
  assert pinning.pin_flag("--weights", f"hf:a/b@main:{commit}") == f"hf:a/b@main:{commit}" and not hub.requests
  assert pinning.pin_flag("--weights", "B_16.npz") == "B_16.npz"
  hub.repositories["a/none"].commit({"model.bin": b"x"})
  with pytest.raises(
    ConfigError, match=r"^--weights: hf:a/none@main:\w+: the repository contains no model.safetensors"
  ):
    pinning.pin_flag("--weights", "hf:a/none")
  with pytest.raises(ConfigError, match=r"^--weights: hf:a/c: this repository does not exist"):
    pinning.pin_flag("--weights", "hf:a/c")


@pytest.mark.parametrize(
  ("pinned", "text", "same"),
  [
    (f"hf:a/b@main:{A}", "hf:a/b", True),
    (f"hf:a/b@main:{A}", "hf:a/b@main", True),
    (f"hf:a/b@v1:{A}", "hf:a/b@v1", True),
    (f"hf:a/b@v1:{A}", "hf:a/b", False),
    (f"hf:a/b@main:{A}", "hf:a/c", False),
    ("hf:a/b@main", "hf:a/b", False),
    (f"hf:a/b@{A}", "hf:a/b", False),
    ("B_16.npz", "hf:a/b", False),
    (None, "hf:a/b", False),
  ],
)
def test_pins_belong_to_a_repository_and_a_revision(pinned, text, same):
  assert pinning.is_pin(pinned, text) == same


def test_errors_start_with_the_key(hub):
  with pytest.raises(ConfigError, match=r"^config.init.from: 'hf:a/b/c': expected the name of a repository"):
    pinning.find_addresses(resolve(init__from="hf:a/b/c"))
  with pytest.raises(ConfigError, match=r"^config.init.from: hf:a/b: this repository does not exist"):
    pinning.pin_weights(resolve(init__from="hf:a/b"), {})


def test_problem_of_a_download_is_returned(hub, tmp_path):
  hub_server.add_model(hub, "a/b", tmp_path)
  hub.repositories["a/none"].commit({"model.bin": b"x"})
  pins = {"init.from": "hf:a/b", "task.teacher": "hf:a/none"}
  assert pinning.download(pins, lambda key: key == "init.from") is None
  problem = pinning.download(pins)
  assert problem.startswith("config.task.teacher: hf:a/none: the repository contains no model.safetensors")
