"""Tests of the checks of a run without requests and without compilation."""

import argparse

import pytest
from hypothesis import given, strategies

from launch import checks, spec
from tests.launch import launches

WORDS = ["--config=a", "--config=b:c", "--config", "d", "--configs=x", "--weights=w", "-v"]


@given(words=strategies.lists(strategies.sampled_from(WORDS)))
def test_flag_value_matches_argparse(words):
  parser = argparse.ArgumentParser(allow_abbrev=False)
  parser.add_argument("--config", default="")
  try:
    expected = parser.parse_known_args(words)[0].config
  except SystemExit:  # --config without a value
    return
  assert spec.find_flag_value(tuple(words), "--config") == expected


@pytest.mark.parametrize(
  ("backend", "place", "location", "kind"),
  [
    ("qr", {"zones": ("europe-west4-a",)}, "europe-west4", "ok"),
    ("qr", {"zones": ("europe-west4-a",)}, "us-central1", "refuse"),
    ("qr", {"zones": ("europe-west4-a", "us-central1-a")}, "europe-west4", "refuse"),
    ("qr", {"zones": ("europe-west4-a",)}, "eu", "warn"),
    ("qr", {"zones": ("europe-west4-a",)}, "eur4", "warn"),
    ("gke", {"cluster": "gke_my-project_us-west4-a_tpus"}, "us-west4", "ok"),
    ("gke", {"cluster": "gke_my-project_us-west4_tpus"}, "us-west1", "refuse"),
    ("gke", {"cluster": "kind-tpus"}, "us-west1", "note"),
    ("gke", {}, "us-west1", "note"),
  ],
)
def test_bucket_must_be_in_the_region_of_the_machines(backend, place, location, kind):
  run = launches.run(backend, **place)
  found = [checks.check_region(run, run.workdir, location, "refuse")]
  assert [finding.kind for finding in found] == [kind]
  assert all("gs://bkt is in" in finding.text for finding in found)


NAMES = (
  "vit_jax/train.py",
  "vit_jax/plan.py",
  "vit_jax/models/__init__.py",
  "tool/__main__.py",
  "a.py",
  "launch/worker.py",
)


@pytest.mark.parametrize(
  ("module", "kind", "words"),
  [
    ("vit_jax.train", None, ""),
    ("tool", None, ""),
    ("a", None, ""),
    ("http.server", None, ""),
    ("vit_jax.trian", "refuse", "-- vit_jax.trian: this program is not in the code that is sent to the workers. "
     "Did you mean vit_jax.train?"),
    ("vit_jax.models", "refuse", "this program is not in the code"),
    ("vitjax.train", "refuse", "Did you mean vit_jax.train?"),
    ("my.own", "warn", "my is neither installed here nor in the code"),
  ],
)  # fmt: skip
def test_program_that_workers_lack_is_named(module, kind, words):
  found = list(checks.check_module(launches.run(module=module), NAMES))
  assert [finding.kind for finding in found] == [kind] * (kind is not None)
  assert all(words in finding.text for finding in found)


def test_program_of_another_interpreter_is_only_a_warning():
  run = launches.run(module="vitjax.train", python="/opt/python")
  assert [finding.kind for finding in checks.check_module(run, NAMES)] == ["warn"]


@pytest.mark.parametrize(
  ("backend", "changes", "words"),
  [
    ("qr", {"zones": ("mars-central1-a",)}, "no v3 is known in mars-central1-a, only in europe-west4-a, us-central1-a"),
    ("qr", {"tpu": "v5e-16", "zones": ("us-west4-a", "europe-west4-a")}, "no v5e is known in europe-west4-a, only"),
    ("qr", {"slices": 2}, "v3-32 does not support several slices"),
    ("gke", {"tpu": "v2-32", "slices": 2}, "v2-32 does not support several slices"),
    ("gke", {"tpu": "v5e-8", "slices": 2}, "v5e-8 has one host"),
  ],
)
def test_unavailable_slices_are_refused(backend, changes, words):
  (refused,) = [each for each in checks.check_slice(launches.run(backend, **changes)) if each.is_refusal]
  assert words in refused.text
  assert ("--force" in refused.text) == ("zones" in changes)  # only if --force can help


@pytest.mark.parametrize(
  ("backend", "changes"),
  [
    ("qr", {}),
    ("qr", {"tpu": "v5litepod-8", "slices": 2}),
    ("gke", {"slices": 2}),
    ("gke", {"tpu": "v3-32"}),
    ("local", {}),
  ],
)
def test_available_slices_are_accepted(backend, changes):
  assert {finding.kind for finding in checks.check_slice(launches.run(backend, **changes))} <= {"note"}


@pytest.mark.parametrize(
  ("backend", "refused"), [("qr", ["data: the config does not name a directory"]), ("local", [])]
)
def test_config_without_data_directory_is_refused_on_new_machines(backend, refused):
  found = checks.check_data(launches.run(backend), "", NAMES)
  assert [finding.text.partition(",")[0] for finding in found if finding.is_refusal] == refused
