"""What is said of a run before anything is paid for."""

import argparse
import pathlib

import pytest
from hypothesis import given, strategies

from launch import check, storage
from tests.launch import launches, repositories

# What `vit_jax.plan --json` writes, as far as it is read here; the heavy tests read what it writes now.
PLAN = dict(
  rented="v3-32", problem=None, mesh="data=32", hbm_bytes=2**30, hbm_limit=2**34, steps=112_603, step_seconds=0.038,
  hours=1.2, device_hours=1.2, core_days=1.6, cost=None, input_bound=False, images_per_second_per_host=6699.0,
  host_rate=25_007.0, host_rate_method="measured", data_path="gs://bkt/data",
)  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
  """The current folder is a repository, and a bucket that is away does not cost time."""
  root = repositories.made(tmp_path / "clone", repositories.FILES | {"data/.gitignore": "*", "small/a.npz": "1"})
  monkeypatch.chdir(root)
  monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
  monkeypatch.setattr(storage, "TRIES", 1)
  return root


def texts(findings, kind):
  return [finding.text for finding in findings if finding.kind == kind]


@pytest.mark.parametrize(
  ("changes", "kind", "words"),
  [
    ({"problem": "batch: 1023 does not divide"}, "refuse", ["v3-32: batch: 1023"]),
    ({}, "note", ["1.0 of 16.0 GiB", "1.2 hours", "1.6 core-days", "112,603 steps"]),
    ({"cost": 1234.5}, "note", ["cost: 1,234"]),
    ({"input_bound": True}, "warn", ["6,699 images/s", "25,007 (measured)", "--host-rate"]),
    ({"hours": 30.0}, "warn", ["--max-hours: 24", "30.0", "--max-hours=40", "spot"]),
  ],
)
def test_a_plan_becomes_findings(changes, kind, words):
  found = check.judged(launches.run("qr"), PLAN | changes)
  assert any(all(word in text for word in words) for text in texts(found, kind))
  assert any(finding.refuses for finding in found) == (kind == "refuse")
  assert bool(texts(found, "warn")) == (kind == "warn")


def test_a_run_as_it_should_be_has_notes_only_and_they_are_printed_first(capsys):
  found = check.judged(launches.run("qr", max_hours=2.0), PLAN)
  assert {finding.kind for finding in found} == {"note"}
  check.show([check.Finding("refuse", "r"), check.Finding("warn", "w"), check.Finding("note", "n")])
  assert capsys.readouterr().out == "n\nwarning: w\nrefused: r\n"


WORDS = ["--config=a", "--config=b:c", "--config", "d", "--configs=x", "--weights=w", "-v"]


@given(words=strategies.lists(strategies.sampled_from(WORDS)))
def test_a_flag_has_the_value_that_the_program_takes(words):
  parser = argparse.ArgumentParser(allow_abbrev=False)
  parser.add_argument("--config", default="")
  try:
    expected = parser.parse_known_args(words)[0].config
  except SystemExit:  # --config without a value
    return
  assert check.value(tuple(words), "--config") == expected


@pytest.mark.parametrize(
  ("backend", "args", "word"),
  [
    ("qr", ["--config=configs/b.py"], "--config: configs/b.py"),
    ("qr", ["--config=/etc/a.py:B/16"], "--config: /etc/a.py"),
    ("local", ["--config=configs/b.py"], "--config: configs/b.py"),
    ("qr", ["--config=data/new.py"], "--config: data/new.py"),
    ("qr", ["--config=configs/a.py", "--config.init.from=B_16.npz"], "--config.init.from: B_16.npz"),
    ("gke", ["--weights", "/home/me/B_16.npz"], "--weights: /home/me/B_16.npz"),
    ("qr", ["--config.data.path=/data/imagenet"], "data: /data/imagenet is on this machine"),
    ("qr", ["--config.data.path=~/data"], "data: ~/data is on this machine"),
  ],
)
def test_what_workers_do_not_have_is_refused(here, backend, args, word):
  repositories.write(here, {"data/new.py": "# ignored\n"})
  run = launches.run(backend, module="my.own", args=tuple(args))
  (refused,) = texts(check.check(run), "refuse")
  assert word in refused


@pytest.mark.parametrize(
  ("backend", "args"),
  [
    ("qr", ["--config=configs/a.py:B/16", "--config.init.from=gs://bkt/B_16.npz", "--config.data.path=small"]),
    ("qr", ["--config=./configs/a.py", "--config.init.from=none"]),
    ("hosts", ["--config=/shared/a.py", "--weights=/shared/B_16.npz", "--config.data.path=/shared/data"]),
  ],
)
def test_what_workers_have_is_fine(here, backend, args):
  assert texts(check.check(launches.run(backend, module="my.own", args=tuple(args))), "refuse") == []


def test_a_config_that_was_not_added_yet_is_fine_from_the_root_only(here, monkeypatch):
  repositories.write(here, {"configs/new.py": ""})
  run = launches.run(module="my.own", args=("--config=configs/new.py",))
  assert texts(check.check(run), "refuse") == []
  monkeypatch.chdir(here / "configs")
  run = launches.run(module="my.own", args=("--config=new.py",))
  assert "root of the repository" in texts(check.check(run), "refuse")[0]


def test_no_repository_is_a_refusal_and_not_an_error(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (found,) = check.check(launches.run())
  assert found.refuses and "git" in found.text


def test_a_bucket_that_does_not_answer_is_a_warning(here):
  found = check.check(launches.run("qr", module="my.own"))
  assert "does not answer" in texts(found, "warn")[0] and not texts(found, "refuse")
  assert "my.own" in texts(found, "note")[-1]


def test_without_jax_the_rest_is_checked_and_a_line_says_so(here, monkeypatch):
  monkeypatch.setattr(check, "NEEDED", ("vit_jax", "no_such_jax"))
  found = check.check(launches.run("qr", args=("--config=configs/a.py", "--config.data.path=/data")))
  assert "has no no_such_jax" in texts(found, "warn")[-1]
  assert "/data" in texts(found, "refuse")[0]


@pytest.mark.parametrize(
  ("backend", "place", "location", "kind"),
  [
    ("qr", {"zones": ("europe-west4-a",)}, "europe-west4", None),
    ("qr", {"zones": ("europe-west4-a",)}, "us-central1", "refuse"),
    ("qr", {"zones": ("europe-west4-a", "us-central1-a")}, "europe-west4", "refuse"),
    ("qr", {"zones": ("europe-west4-a",)}, "eu", "warn"),
    ("qr", {"zones": ("europe-west4-a",)}, "eur4", "warn"),
    ("gke", {"cluster": "gke_my-project_us-west4-a_tpus"}, "us-west4", None),
    ("gke", {"cluster": "gke_my-project_us-west4_tpus"}, "us-west1", "refuse"),
    ("gke", {"cluster": "kind-tpus"}, "us-west1", None),
    ("gke", {}, "us-west1", None),
  ],
)
def test_a_bucket_is_in_the_region_of_the_machines(backend, place, location, kind):
  run = launches.run(backend, **place)
  found = check._regions(run, "--workdir", run.workdir, location, "refuse")
  assert [finding.kind for finding in found] == [kind] * (kind is not None)
  assert all("gs://bkt is in" in finding.text for finding in found)


@pytest.mark.heavy
def test_a_real_bucket_is_asked_for_its_region(here, bucket_server, monkeypatch):
  monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket_server.address)
  run = launches.run("qr", module="my.own", zones=("europe-west4-a",), args=("--config.data.path=gs://bkt/data",))
  location = storage.Bucket("gs://bkt").location()
  (refused,) = texts(check.check(run), "refuse")
  assert f"--workdir: gs://bkt is in {location}" in refused
  near = launches.run("qr", module="my.own", zones=(f"{location}-a",), args=("--config.data.path=gs://none/data",))
  assert "gs://none: there is no such bucket" in texts(check.check(near), "refuse")[0]


SMALL = {
    "data.image_size": "32", "model.depth": "1", "model.width": "128", "model.hidden": "128", "model.heads": "2",
    "batch": "64",
}  # fmt: skip


@pytest.mark.heavy
def test_vit_jax_itself_judges_the_config_on_its_slice(tmp_path, monkeypatch):
  monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
  monkeypatch.setattr(storage, "TRIES", 1)
  source = pathlib.Path(check.__file__).parents[1]
  files = {"configs/a.py": (source / "configs/vit_s16_i1k.py").read_text()}
  monkeypatch.chdir(repositories.made(tmp_path, repositories.FILES | files))
  monkeypatch.setenv("PYTHONPATH", str(source))
  words = ["--config=configs/a.py", *(f"--config.{key}={text}" for key, text in SMALL.items())]
  (refused,) = texts(check.check(launches.run("qr", tpu="v3-8", args=(*words, "--config.bacth=64"))), "refuse")
  assert "config.bacth" in refused and "'batch'" in refused
  found = check.check(launches.run("qr", tpu="v3-8", args=tuple(words)), price=1.5, host_rate=1e4)
  assert "v3-8: fits" in texts(found, "note")[1] and "cost: " in texts(found, "note")[2]
  assert "data: the config names no place" in texts(found, "refuse")[0]  # it is on no worker
