"""Tests of the specification of a run: any input gives a valid run or an error in one line."""

import argparse
import dataclasses
import json
import re
import time

import pytest
from hypothesis import given, strategies

from launch import spec
from launch.errors import LaunchError
from launch.spec import Limits
from tests.launch import launches

# Words of a command line as Python decodes them: invalid UTF-8 has a surrogate for each byte.
TEXT = strategies.binary().map(lambda word: word.replace(b"\0", b"").decode("utf-8", "surrogateescape"))
JSON = strategies.recursive(
  strategies.none() | strategies.booleans() | strategies.floats() | strategies.integers() | strategies.text(),
  lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(strategies.text(), inner, max_size=3),
  max_leaves=5,
)


@pytest.mark.parametrize("backend", spec.BACKENDS)
@given(args=strategies.lists(TEXT, max_size=4), value=TEXT)
def test_stored_run_is_read_back_unchanged(backend, args, value):
  run = launches.run(backend, args=tuple(args), env={"A": value})
  assert spec.loads(run.dumps().encode().decode()) == run


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(spec.Run)])
@given(value=JSON)
def test_changed_file_is_a_run_or_an_error_in_one_line(field, value):
  values = json.loads(launches.run("qr").dumps()) | {field: value}
  try:
    run = spec.loads(json.dumps(values))
  except LaunchError as error:
    assert "\n" not in str(error)
  else:
    assert spec.loads(run.dumps()) == run


@pytest.mark.parametrize(
  "text", ["", "[]", "5", "{", "{}", '{"limits": {"beat": 1}}', "[" * 100_000, '{"args": "abc"}']
)
def test_text_that_is_not_a_run_is_refused(text):
  with pytest.raises(LaunchError, match="not a run that `launch` wrote"):
    spec.loads(text)


def test_text_instead_of_a_list_of_words_is_refused():
  values = json.loads(launches.run().dumps()) | {"args": "abc"}
  with pytest.raises(LaunchError, match="ARGUMENTS"):
    spec.loads(json.dumps(values))


@pytest.mark.parametrize("text", launches.HOSTILE)
@pytest.mark.parametrize(
  ("field", "backend"),
  [
    ("name", "qr"), ("module", "qr"), ("owner", "qr"), ("project", "qr"), ("runtime_version", "qr"), ("network", "qr"),
    ("subnetwork", "qr"), ("service_account", "qr"), ("python", "qr"), ("tpu", "qr"), ("capacity", "qr"),
    ("zones", "qr"), ("hosts", "hosts"), ("image", "gke"), ("queue", "gke"), ("namespace", "gke"),
    ("cluster", "gke"),
  ],
)  # fmt: skip
def test_field_on_a_command_line_is_a_single_word(field, backend, text):
  value = (text,) if field in ("zones", "hosts") else text
  try:
    run = launches.run(backend, **{field: value})
  except LaunchError as error:
    assert "\n" not in str(error) and len(str(error)) < 1000
  else:
    left = getattr(run, field)
    assert text == "" and re.fullmatch(r"[\w./:@-]*", "".join(left), re.ASCII)


@pytest.mark.parametrize("text", launches.HOSTILE)
def test_arguments_and_variables_may_have_any_text(text):
  run = launches.run(args=(text,), env={"A": text})
  assert spec.loads(run.dumps()).args == (text,)


@given(name=strategies.from_regex(spec.NAME, fullmatch=True) | strategies.text(max_size=50))
def test_valid_run_names_give_valid_labels_and_node_names(name):
  """Resources and labels have at most 63 lower-case letters, digits and dashes, without a dash at the ends."""
  try:
    run = launches.run(name=name)
  except LaunchError:
    return
  attempt = run.get_attempt_name(999_999)
  assert len(attempt) <= 63 and attempt.isascii() and attempt == attempt.lower()
  assert attempt.replace("-", "").isalnum() and attempt[0].isalpha() and attempt[-1] != "-"


@given(
  words=strategies.lists(
    strategies.sampled_from(["--workdir=a", "--workdir=", "--workdir=b=c", "--total=5", "x", "--workdirs=d", "-w"])
  )
)
def test_workdir_matches_argparse(words):
  parser = argparse.ArgumentParser(allow_abbrev=False)
  parser.add_argument("--workdir", default="")
  assert spec.find_flag_value(words, "--workdir") == parser.parse_known_args(words)[0].workdir


@pytest.mark.parametrize(
  ("words", "workdir"), [(["--workdir", "a"], "a"), (["--workdir"], ""), (["--workdir", "a", "--workdir=b"], "b")]
)
def test_workdir_may_be_a_separate_word(words, workdir):
  assert spec.find_flag_value(words, "--workdir") == workdir


@pytest.mark.parametrize(
  ("backend", "changes", "place", "word"),
  [
    ("qr", {"workdir": "/tmp/a"}, "--workdir", "gs://BUCKET/NAME"),
    ("qr", {"workdir": ""}, "--workdir", "missing"),
    ("qr", {"workdir": "gs:/bkt/a"}, "--workdir", "gs://BUCKET/NAME"),
    ("qr", {"workdir": "gs://bkt"}, "--workdir", "gs://BUCKET/NAME"),
    ("qr", {"workdir": "gs://bkt/../a"}, "--workdir", "gs://BUCKET/NAME"),
    ("qr", {"workdir": "gs://bkt/a#b"}, "--workdir", "gs://BUCKET/NAME"),
    ("local", {"workdir": "s3://bkt/a"}, "--workdir", "gs://BUCKET/NAME"),
    ("qr", {"project": ""}, "--project", "--backend=qr"),
    ("qr", {"tpu": ""}, "--tpu", "missing"),
    ("gke", {"image": ""}, "--image", "missing"),
    ("gke", {"image": "vit:latest"}, "--image", "digest"),
    ("gke", {"project": "my-project"}, "--project", "not support"),
    ("hosts", {"hosts": ()}, "--hosts", "missing"),
    ("local", {"tpu": "v3-8"}, "--tpu", "Remove it"),
    ("local", {"slices": 2}, "--slices", "not support"),
    ("qr", {"processes": 2}, "--processes", "not support"),
    ("qr", {"max_hours": float("nan")}, "--max-hours", "allowed"),
    ("qr", {"slices": 0}, "--slices", "allowed"),
    ("qr", {"secrets": {"KEY": "hunter2"}}, "--secret", "projects/P/secrets/NAME"),
    ("qr", {"secrets": {"KEY": "k8s:wandb/key"}}, "--secret", "gke"),
    ("gke", {"secrets": {"KEY": "file:/etc/key"}}, "--secret", "k8s:"),
    ("qr", {"env": {"A B": "1"}}, "--env", "letters"),
    ("qr", {"env": {"A": "\0"}}, "--env", "zero byte"),
    ("qr", {"args": ("\0",)}, "zero byte", "argument"),
    ("qr", {"args": ("ä" * 2**16,)}, "131,072", "131,071"),
    ("qr", {"args": ("a" * 2**16,) * 17}, "1,114,112 bytes", "1,048,576"),
    ("qr", {"args": ("\ud800",)}, "no encoding", "argument"),
    ("qr", {"env": {"A": "\ud800"}}, "no encoding", "--env"),
    ("qr", {"backend": "slurm"}, "--backend", "hosts"),
    ("qr", {"limits": Limits(beat=0)}, "limits.beat", "above 0"),
  ],
)  # fmt: skip
def test_invalid_field_is_reported_in_one_line_with_allowed_values(backend, changes, place, word):
  with pytest.raises(LaunchError) as error:
    spec.check_and_complete(spec.Run(**launches.words(backend) | changes))
  assert place in str(error.value) and word in str(error.value) and "hunter2" not in str(error.value)


def test_long_path_is_checked_quickly():
  start_time = time.monotonic()
  with pytest.raises(LaunchError):
    launches.run("qr", workdir=f"gs://bkt{'/a' * 200}#")
  assert time.monotonic() - start_time < 1


def test_zone_and_runtime_follow_from_the_slice():
  run = launches.run("qr", tpu="v5litepod-16")
  assert (run.tpu, run.workers, run.devices) == ("v5e-16", 4, 16)
  assert run.zones == ("us-central1-a",) and run.runtime_version == "v2-alpha-tpuv5-lite"
  assert launches.run("qr", tpu="v3-32", slices=2).workers == 8
  assert launches.run("hosts").workers == 2 and launches.run("local").workers == 2
  assert spec.check_and_complete(run) == run


def test_owner_is_a_valid_label():
  assert re.fullmatch(r"[a-z0-9_-]{1,63}", spec.get_user_label())
