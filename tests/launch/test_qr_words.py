"""Tests of words of users in argument lists of the engine of queued resources and of its shells."""

import dataclasses
import re
import shlex

import hypothesis
import pytest
from hypothesis import strategies

from launch import qr, spec, tpus
from launch.errors import LaunchError
from tests.launch import cloud
from tests.launch.descriptions import EXPIRES, MANY, engine, flags, labels

# Shells.


def test_words_reach_the_shell_of_a_worker_unchanged(tmp_path):
  words = ["echo", "a b", "$(id)", "--x=-y", "", "ü'\n"]
  argv = engine(tmp_path).build_shell_command(1, 3, words)
  assert argv[:6] == ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "vit-b16-a1"] and "--worker=3" in argv
  command = next(word for word in argv if word.startswith("--command=")).removeprefix("--command=")
  assert command.endswith("; exit $?") and shlex.split(command.removesuffix("; exit $?")) == words


def test_worker_number_is_mapped_to_its_slice(tmp_path):
  made = engine(tmp_path, **MANY)
  argv = made.build_shell_command(1, 6, ["true"])
  assert "vit-b16-a1-1" in argv and "--worker=2" in argv
  everywhere = made.build_shell_command(1, None, ["true"])
  assert everywhere[3:6] == ["queued-resources", "ssh", "vit-b16-a1"]
  assert {"--node=all", "--worker=all"} <= set(everywhere)


def test_shell_without_external_addresses_uses_a_tunnel(tmp_path):
  argv = engine(tmp_path, internal_ips=True).build_shell_command(1, 0, [])
  assert argv[:2] == ["gcloud", "alpha"] and "--tunnel-through-iap" in argv
  assert not [word for word in argv if word.startswith("--command")]


def test_shell_on_all_workers_is_refused(tmp_path):
  with pytest.raises(LaunchError, match="--worker"):
    engine(tmp_path).build_shell_command(1, None, [])


# Any run.

TEXT = strategies.text(strategies.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
RUNS = strategies.fixed_dictionaries(
  {
    "name": strategies.from_regex(spec.NAME, fullmatch=True),
    "args": strategies.lists(TEXT, max_size=3).map(tuple),
    "env": strategies.dictionaries(strategies.just("KEY"), TEXT),
    "owner": strategies.from_regex(r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?", fullmatch=True),
    "network": strategies.from_regex(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True),
    "service_account": strategies.from_regex(r"[a-z0-9-]{1,63}@[a-z0-9.-]{1,100}", fullmatch=True),
    "capacity": strategies.sampled_from(spec.CAPACITIES),
    "tpu": strategies.sampled_from(sorted(name for name, slice_ in tpus.list_slices().items() if slice_.kind.runtime)),
    "slices": strategies.integers(1, 256),
    "internal_ips": strategies.booleans(),
  }
)


@hypothesis.given(values=RUNS, attempt=strategies.integers(1, 999))
def test_words_of_a_run_do_not_become_flags(values, attempt):
  run = cloud.run(**values)
  argv = qr.Engine(run)._build_create_command(attempt, EXPIRES)
  plain = [word for word in argv if not word.startswith("-")]
  start = ["gcloud", *["alpha"] * (run.capacity == "flex-start"), "compute", "tpus", "queued-resources", "create"]
  assert plain == [*start, run.get_attempt_name(attempt)]
  found = flags(argv)
  assert len(found) == len(argv) - len(plain) and all(re.fullmatch(r"--[a-z-]+", flag) for flag in found)
  assert found["--network"] == run.network and found["--service-account"] == run.service_account
  assert labels(run, attempt) == {
    "vitjax": "1", "vitjax-run": run.name, "vitjax-owner": run.owner, "vitjax-attempt": str(attempt),
    "vitjax-folder": labels(run, attempt)["vitjax-folder"], "vitjax-expires": str(EXPIRES),
  }  # fmt: skip
  assert all(re.fullmatch(r"[a-z0-9_-]{0,63}", value) for value in labels(run, attempt).values())
  # The arguments of the program are only in the run's directory.
  secret = dataclasses.replace(run, args=(), env={})
  assert qr.Engine(secret)._build_create_command(attempt, EXPIRES) == argv


@hypothesis.given(words=strategies.lists(TEXT, min_size=1, max_size=5))
def test_any_words_form_one_command(words):
  argv = qr.Engine(cloud.run()).build_shell_command(1, 0, words)
  command = argv[-1].removeprefix("--command=")
  assert argv[-1] != command and shlex.split(command.removesuffix("; exit $?")) == words
