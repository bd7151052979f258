"""Tests of the checks of a run before its first cost."""

import dataclasses
import os
import pathlib
import tempfile

import pytest

from launch import checks, storage
from launch.errors import DENIED, USAGE
from launch.preflight import Finding
from tests.launch import launches, repositories

# The fields of `vit_jax.plan --json` that the checks read. The heavy tests read its present output.
PLAN = dict(
  rented="v3-32", problem=None, mesh="data=32", hbm_bytes=2**30, hbm_limit=2**34, steps=112_603, step_seconds=0.038,
  hours=1.2, device_hours=1.2, core_days=1.6, cost=None, input_bound=False, images_per_second_per_host=6699.0,
  host_rate=25_007.0, host_rate_method="measured", data_path="gs://bkt/data",
)  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
  """Makes the current folder a repository. An unreachable bucket does not cause delays."""
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
    ({}, "note", ["1.0 of 16.0 GiB", "1.2 hours", "1.6 core-days", "112,603 steps"]),
    ({"cost": 1234.5}, "note", ["cost: 1,234"]),
    ({"input_bound": True}, "warn", ["6,699 images/s", "25,007 (measured)", "--host-rate"]),
    ({"hours": 30.0}, "warn", ["--max-hours: 24", "30.0", "--max-hours=40", "spot"]),
  ],
)
def test_plan_becomes_findings(changes, kind, words):
  found = list(checks.judge_plan(launches.run("qr"), PLAN | changes))
  assert any(all(word in text for word in words) for text in texts(found, kind))
  assert not any(finding.is_refusal for finding in found)
  assert bool(texts(found, "warn")) == (kind == "warn")


def test_valid_plan_has_only_notes():
  found = list(checks.judge_plan(launches.run("qr", max_hours=2.0), PLAN))
  assert {finding.kind for finding in found} == {"note"}


@pytest.mark.parametrize(("codes", "code"), [((), 0), ((DENIED,), DENIED), ((USAGE, DENIED), USAGE)])
def test_exit_code_is_the_code_of_the_first_refusal(codes, code):
  assert checks.get_refusal_code([Finding("warn", ""), *(Finding("refuse", "", each) for each in codes)]) == code


@pytest.mark.parametrize(
  ("backend", "args", "word"),
  [
    ("qr", ["--config=configs/b.py"], "--config: the file configs/b.py does not exist in "),
    ("qr", ["--config=configs/b.py"], "Did you mean configs/a.py?"),
    ("qr", ["--config=aa:B/16"], "the file aa does not exist in"),
    ("qr", ["--config=aa:B/16"], "Did you mean a?"),
    ("qr", ["--config=/etc/hosts:B/16"], "--config: /etc/hosts exists, but is not sent to the workers"),
    ("local", ["--config=configs/b.py"], "--config: the file configs/b.py does not exist"),
    ("qr", ["--config=data/new.py"], "--config: data/new.py exists, but is not sent to the workers"),
    ("qr", ["--config=configs/a.py", "--config.init.from=B_16.npz"], "--config.init.from: B_16.npz"),
    ("gke", ["--weights", "/home/me/B_16.npz"], "--weights: /home/me/B_16.npz"),
    (
      "qr",
      ["--weights=hf:a/b"],
      "--weights: hf:a/b needs huggingface_hub, which the launcher does not install on TPU VM",
    ),
    (
      "hosts",
      ["--weights=hf:a/b"],
      "install on hosts. Set --python to an interpreter that has it, or write",
    ),
    ("hosts", ["--config.init.from=hf:a/b"], "vit_jax.convert hf:a/b gs://BUCKET/weights.safetensors"),
    (
      "qr",
      ["--config.log.tracker=wandb"],
      "--config.log.tracker needs wandb, which the launcher does not install",
    ),
    ("qr", ["--config.data.path=/data/imagenet"], "data: /data/imagenet is on this machine"),
    ("qr", ["--config.data.path=~/data"], "data: ~/data is on this machine"),
  ],
)
def test_files_that_workers_lack_are_refused(here, backend, args, word):
  repositories.write(here, {"data/new.py": "# ignored\n"})
  run = launches.run(backend, module="my.own", args=tuple(args))
  (refused,) = texts(checks.check_run(run), "refuse")
  assert word in refused


@pytest.mark.parametrize(
  ("backend", "args"),
  [
    ("qr", ["--config=configs/a.py:B/16", "--config.init.from=gs://bkt/B_16.npz", "--config.data.path=small"]),
    ("qr", ["--config=./configs/a.py", "--config.init.from=none"]),
    ("qr", ["--config=a:B/16"]),
    ("local", ["--config=configs/a.py", "--weights=hf:a/b", "--config.log.tracker=wandb"]),
    ("gke", ["--config=configs/a.py", "--config.log.tracker=wandb"]),
    ("hosts", ["--config=/shared/a.py", "--weights=/shared/B_16.npz", "--config.data.path=/shared/data"]),
  ],
)
def test_files_that_workers_have_are_accepted(here, backend, args):
  assert texts(checks.check_run(launches.run(backend, module="my.own", args=tuple(args))), "refuse") == []


def test_missing_package_on_gke_is_a_warning_about_the_image(here):
  words = ("--config=configs/a.py", "--weights=hf:a/b", "--config.log.tracker=mlflow")
  warnings = texts(checks.check_run(launches.run("gke", module="my.own", args=words)), "warn")
  for package in ("huggingface_hub", "mlflow"):
    (warning,) = [text for text in warnings if f"RUN pip install {package} to its stage tpu, or " in text]
    assert f"the image must contain {package}, which the image of the Dockerfile lacks" in warning
    assert "--python" not in warning


def test_untracked_config_is_accepted_only_from_the_root(here, monkeypatch):
  repositories.write(here, {"configs/new.py": ""})
  run = launches.run(module="my.own", args=("--config=configs/new.py",))
  assert texts(checks.check_run(run), "refuse") == []
  monkeypatch.chdir(here / "configs")
  run = launches.run(module="my.own", args=("--config=new.py",))
  assert "root of the repository" in texts(checks.check_run(run), "refuse")[0]


def test_missing_repository_is_a_refusal_and_not_an_error(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (found,) = checks.check_run(launches.run())
  assert found.is_refusal and "git" in found.text


NO_CREDENTIALS = """ERROR: (gcloud.auth.print-access-token) You do not currently have an active account selected.
Please run:

  $ gcloud auth login
"""


def test_run_without_credentials_is_refused_at_once(here, tmp_path, monkeypatch):
  monkeypatch.setattr(checks, "read_config", None)  # slow checks are not called
  monkeypatch.setattr(checks, "check_plan", None)
  monkeypatch.delenv("STORAGE_EMULATOR_HOST")
  monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
  gcloud = tmp_path / "bin/gcloud"
  repositories.write(tmp_path, {"bin/gcloud": f"#!/bin/sh\ncat >&2 <<'EOF'\n{NO_CREDENTIALS}EOF\nexit 1\n"})
  gcloud.chmod(0o755)
  monkeypatch.setenv("PATH", f"{gcloud.parent}:{os.environ['PATH']}")
  found = checks.check_run(launches.run("qr", module="my.own", args=("--config.data.path=gs://other/data",)))
  (refused,) = texts(found, "refuse")
  assert "(You do not currently have an active account selected.); run: gcloud auth login" in refused
  assert checks.get_refusal_code(found) == DENIED
  assert found[-1].text == refused


def test_refused_run_is_not_planned(here, monkeypatch):
  monkeypatch.setattr(checks, "check_plan", None)  # a call would raise a TypeError
  found = checks.check_run(launches.run("qr", module="my.own", args=("--config.data.path=/data/imagenet",)))
  assert found[-1].is_refusal and "/data/imagenet" in found[-1].text


def test_unreachable_bucket_is_unknown_and_not_a_refusal(here):
  found = checks.check_run(launches.run("qr", module="my.own"))
  assert any("does not answer" in text for text in texts(found, "unknown")) and not texts(found, "refuse")
  assert "my.own" in texts(found, "note")[-1]


def test_other_checks_run_without_jax(here, monkeypatch):
  monkeypatch.setattr(checks, "NEEDED", ("vit_jax", "no_such_jax", "libtpu"))
  found = checks.check_run(launches.run("qr", args=("--config=configs/a.py", "--config.data.path=/data")))
  assert "lacks no_such_jax" in texts(found, "warn")[-1]
  assert "/data" in texts(found, "refuse")[0]


@pytest.mark.heavy
def test_region_of_a_bucket_is_read_from_the_server(here, bucket_server, monkeypatch):
  monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket_server.address)
  run = launches.run("qr", module="my.own", zones=("europe-west4-a",), args=("--config.data.path=gs://bkt/data",))
  location = storage.Bucket("gs://bkt").read_region()
  (refused,) = texts(checks.check_run(run), "refuse")
  assert f"--workdir: gs://bkt is in {location}" in refused
  other = launches.run("qr", module="my.own", args=("--config.data.path=gs://none/data",))
  assert "gs://none: there is no such bucket" in texts(checks.check_run(other), "refuse")[-1]


SMALL = {
    "data.image_size": "32", "model.depth": "1", "model.width": "128", "model.hidden": "128", "model.heads": "2",
    "batch": "64",
}  # fmt: skip


@pytest.mark.long
def test_vit_jax_checks_the_config_on_its_slice(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
  monkeypatch.setattr(storage, "TRIES", 1)
  source = pathlib.Path(checks.__file__).parents[1]
  files = {"configs/a.py": (source / "configs/vit_s16_i1k.py").read_text()}
  monkeypatch.chdir(repositories.made(tmp_path, repositories.FILES | files))
  monkeypatch.setenv("PYTHONPATH", str(source))
  words = ["--config=configs/a.py", *(f"--config.{key}={text}" for key, text in SMALL.items())]
  (refused,) = texts(checks.check_run(launches.run("local", args=(*words, "--config.bacth=64"))), "refuse")
  assert "config.bacth" in refused and "'batch'" in refused
  monkeypatch.setattr(checks, "NEWS", 0.5)
  there = launches.run("qr", tpu="v3-8", args=(*words, "--config.data.path=gs://bkt/data"))
  found = checks.check_run(there, price=1.5, host_rate=1e4)
  assert "v3-8: fits" in texts(found, "note")[-2] and "cost: " in texts(found, "note")[-1]
  output = capsys.readouterr()
  assert texts(found, "note")[-1] in output.out and " 1 s" in output.err and "planning" in output.err
  odd = dataclasses.replace(there, args=(*there.args, "--config.batch=63"))
  (refused,) = texts(checks.check_run(odd), "refuse")
  assert refused.startswith("plan: v3-8: ") and "63" in refused


@pytest.mark.parametrize("text", ["", "x", "[1]", "{}", "[" * 10**5, "5"])
def test_output_in_another_form_is_unknown(here, monkeypatch, text):
  """Replaces vit_jax with a program that prints this text and writes it as the plan."""
  (here / "answer").write_text(text)
  program = here / "interpreter"
  program.write_text(f'#!/bin/sh\ncat "{here}/answer"\nfor word; do case $word in --json=*) cp "{here}/answer" '
                     '"${word#--json=}";; esac; done\n')  # fmt: skip
  program.chmod(0o755)
  monkeypatch.setattr(checks.sys, "executable", str(program))
  monkeypatch.setattr(checks, "NEEDED", ())
  run = launches.run("qr", args=("--config=configs/a.py", "--config.data.path=gs://bkt/data"))
  _, (config,) = checks.read_config(run, here)
  (plan,) = checks.check_plan(run, here, None, None)
  assert config.kind in ("unknown", "note") and plan.kind == "unknown" and "plan: " in plan.text


@pytest.mark.parametrize("folder", ["/no/such/directory", "/dev/null", "/proc"])
def test_check_without_a_temporary_directory_is_unknown(here, monkeypatch, folder):
  monkeypatch.setattr(tempfile, "tempdir", folder)
  monkeypatch.setattr(checks, "NEEDED", ())
  run = launches.run("qr", args=("--config=configs/a.py", "--config.data.path=gs://bkt/data"))
  assert [each.kind for each in (*checks.read_config(run, here)[1], *checks.check_plan(run, here, None, None))] == [
    "unknown"
  ] * 2
