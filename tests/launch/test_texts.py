"""Tests of texts for other launchers with independent parsers: PyYAML, xpk and SkyPilot."""

import importlib.util
import json
import os
import shlex
import subprocess
import sys

import hypothesis
import pytest
import yaml
from hypothesis import strategies

from launch import manifests, spec, tpus
from launch.errors import LaunchError
from tests.launch import launches

ODD = ("a b", "$(id)", "`id`", "it's", '"', "-x", "--y=z", "ä", "#", "{}", "$HOME", "\\", "*", "&& true", "!x")


def find_interpreter(package):
  """Returns an interpreter with a package.

  xpk and SkyPilot require other versions of packages than this project, so they may have separate interpreters.
  """
  own = os.environ.get(f"LAUNCH_{package.upper()}_PYTHON")
  if not own and importlib.util.find_spec(package) is None:
    pytest.skip(f"{package} is not installed; LAUNCH_{package.upper()}_PYTHON may name an interpreter that has it")
  return own or sys.executable


def parse_text(package, program, text, folder):
  """Runs a program in another interpreter with the text as input, and returns the JSON on its last line."""
  environment = {"HOME": str(folder), "PATH": os.environ["PATH"], "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
  words = [find_interpreter(package), "-c", program]
  result = subprocess.run(
    words, input=text, capture_output=True, text=True, env=environment, cwd=folder, timeout=120, check=False
  )
  assert result.returncode == 0, result.stderr[-2000:]
  return json.loads(result.stdout.splitlines()[-1])


def test_rendered_jobset_equals_the_created_jobset():
  run = launches.run("gke", queue="q", slices=2, service_account="vit")
  text = manifests.format_jobset(run, 3, 1_795_300_000)
  assert yaml.safe_load(text) == manifests.make_jobset(run, 3, 1_795_300_000)
  assert text.startswith("# ") and "a3/spec.json" in text


@pytest.mark.parametrize("form", [manifests.build_xpk_command, manifests.build_skypilot_task])
def test_unsupported_settings_of_another_launcher_are_listed(form):
  run = launches.run("qr", tpu="v5e-16", network="n", internal_ips=True, limits=spec.Limits(queue=60.0))
  (line,) = [line for line in form(run).splitlines() if "does not support:" in line]
  assert line.startswith("#") and "Nothing ends at --max-hours" in line
  assert all(flag in line for flag in ("--network", "--internal-ips", "--limit", "--max-hours"))
  assert "--runtime-version" not in line and "--tpu" not in line  # the slice determines it


def test_xpk_supports_only_one_zone_and_no_reservation():
  run = launches.run("qr", zones=("us-central1-a", "us-central1-b"), capacity="reserved", runtime_version="other")
  output = manifests.build_xpk_command(run).splitlines()[0]
  assert all(word in output for word in ("--zone (except the first zone)", "--reserved", "--runtime-version"))


letters = strategies.text(strategies.characters(codec="utf-8"), max_size=8)
leaves = strategies.one_of(
  strategies.none(),
  strategies.booleans(),
  strategies.integers(-9, 10**12),
  letters,
  strategies.sampled_from(
    ["no", "Yes", "null", "~", "1e3", "0x1", "- a", "a: b", "a\nb\n", " a\nb\n", "a\n\n", "=", "<<"]
  ),
  strategies.lists(letters, max_size=3).map(lambda lines: "\n".join(["x", *lines, ""])),
)
nested = strategies.recursive(
  leaves,
  lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(letters, inner, max_size=3),
  max_leaves=12,
)


@hypothesis.given(
  strategies.lists(nested, min_size=1, max_size=3) | strategies.dictionaries(letters, nested, min_size=1)
)
def test_any_value_is_parsed_back_by_pyyaml(value):
  assert yaml.safe_load(manifests.format_yaml(value)) == value


@pytest.mark.parametrize("backend", ["qr", "gke"])
@pytest.mark.parametrize("capacity", spec.CAPACITIES)
def test_words_of_the_xpk_command_are_quoted_for_bash(backend, capacity):
  run = launches.run(backend, args=ODD, capacity=capacity, env={"A": "b c$d"})
  *_, line = manifests.build_xpk_command(run).splitlines()
  words = shlex.split(line)
  assert words[:3] == ["xpk", "workload", "create"]
  (command,) = (word.removeprefix("--command=") for word in words if word.startswith("--command="))
  assert shlex.split(command) == ["exec", "python3", "-u", "-m", "vit_jax.train", *ODD]
  assert "--env=A=b c$d" in words
  assert f"--tpu-type={tpus.find_slice(run.tpu).rented}" in words
  flags = {"spot": "--spot", "on-demand": "--on-demand", "flex-start": "--flex"}
  assert {"--spot", "--on-demand", "--flex"} & set(words) == ({flags[capacity]} if capacity in flags else set())


def test_xpk_cluster_is_taken_from_the_context():
  line = manifests.build_xpk_command(launches.run("gke", cluster="gke_my-project_us-east5-b_tpus"))
  assert {"--cluster=tpus", "--project=my-project", "--zone=us-east5-b"} <= set(shlex.split(line))
  assert f"--cluster={manifests.CLUSTER}" in shlex.split(
    manifests.build_xpk_command(launches.run("gke", cluster="mine"))
  )


def test_values_that_xpk_does_not_support_are_refused():
  with pytest.raises(LaunchError, match="line break"):
    manifests.build_xpk_command(launches.run("gke", args=("a\nb",)))
  with pytest.raises(LaunchError, match="line break"):
    manifests.build_xpk_command(launches.run("gke", env={"A": "a\nb"}))
  with pytest.raises(LaunchError, match="41 characters; allowed: 40"):
    manifests.build_xpk_command(launches.run("gke", name="n" * 41))


_XPK = """
import argparse, json, shlex, sys
from xpk.parser.core import set_parser
parser = argparse.ArgumentParser(prog="xpk")
set_parser(parser=parser)
values = vars(parser.parse_args(shlex.split(sys.stdin.read(), comments=True)[1:]))
print(json.dumps({key: value for key, value in values.items() if isinstance(value, (str, int, bool, list))}))
"""


@pytest.mark.long
@pytest.mark.parametrize(("backend", "tpu"), [("gke", "v6e-16"), ("qr", "v5e-16")])
def test_xpk_accepts_the_command(backend, tpu, tmp_path):
  run = launches.run(
    backend, tpu=tpu, slices=2, args=ODD, env={"A": "b c"}, secrets={"W": "projects/p/secrets/w/versions/1"}
  )
  values = parse_text("xpk", _XPK, manifests.build_xpk_command(run), tmp_path)
  assert values["command"] == "exec " + shlex.join(["python3", "-u", "-m", "vit_jax.train", *ODD])
  expected = {
    "workload": "vit-b16",
    "tpu_type": tpus.find_slice(tpu).rented,
    "num_slices": 2,
    "spot": True,
    "env": ["A=b c"],
    "restart_on_exit_codes": "42",
    "docker_image": run.image or manifests.IMAGE,
  }
  assert {key: values[key] for key in expected} == expected


def test_skypilot_task_runs_the_program_with_its_words():
  run = launches.run("qr", args=(*ODD, "a\nb"), python="/opt/my/bin/python")
  task = yaml.safe_load(manifests.build_skypilot_task(run))
  result = subprocess.run(["bash", "-n", "-c", task["setup"] + task["run"]], capture_output=True, check=False)
  assert result.returncode == 0, result.stderr
  assert shlex.split(task["run"]) == ["exec", run.python, "-u", "-m", "vit_jax.train", *run.args]


def test_skypilot_task_describes_the_run():
  secrets = {"WANDB": "projects/p/secrets/w/versions/1"}
  run = launches.run("qr", zones=("us-central2-b", "europe-west4-a"), env={"A": "yes"}, secrets=secrets)
  task = yaml.safe_load(manifests.build_skypilot_task(run))
  assert task["resources"]["accelerators"] == "tpu-v3-32:1"
  assert task["resources"]["accelerator_args"] == {"tpu_vm": True, "runtime_version": run.runtime_version}
  zones = [{"infra": "gcp/us-central2/us-central2-b"}, {"infra": "gcp/europe-west4/europe-west4-a"}]
  assert task["resources"]["any_of"] == zones
  assert task["envs"] == {"A": "yes"}
  assert task["secrets"] == {"WANDB": None}  # only the name of the secret
  assert "projects/p" not in manifests.build_skypilot_task(run)


def test_settings_that_skypilot_does_not_support_are_refused():
  with pytest.raises(LaunchError, match="one slice; --slices is 2"):
    manifests.build_skypilot_task(launches.run("qr", slices=2))
  with pytest.raises(LaunchError, match="--flex-start is for"):
    manifests.build_skypilot_task(launches.run("gke", capacity="flex-start"))


_SKY = """
import json, sys, yaml
import sky
task = sky.Task.from_yaml_config(yaml.safe_load(sys.stdin.read()))
found = [resources.to_yaml_config() for resources in task.resources]
print(json.dumps({"name": task.name, "run": task.run, "envs": dict(task.envs), "found": found}))
"""


@pytest.mark.long
@pytest.mark.parametrize(
  ("backend", "tpu", "changes"),
  [
    ("qr", "v3-32", {"zones": ("europe-west4-a",)}),
    ("qr", "v5e-16", {"zones": ("us-central1-a", "us-west4-a"), "capacity": "on-demand"}),
    ("gke", "v6e-8", {}),
  ],
)
def test_skypilot_accepts_the_task(backend, tpu, changes, tmp_path):
  run = launches.run(backend, tpu=tpu, args=ODD, env={"A": "b c"}, **changes)
  task = parse_text("sky", _SKY, manifests.build_skypilot_task(run), tmp_path)
  start = shlex.join(["-u", "-m", "vit_jax.train", *ODD])
  assert task["run"].strip() == f"exec {manifests.PYTHON} {start}"
  assert task["name"] == "vit-b16" and task["envs"]["A"] == "b c"
  assert len(task["found"]) == max(1, len(run.zones))
  for found in task["found"]:
    assert f"tpu-{tpus.find_slice(tpu).rented}" in str(found["accelerators"])
    assert found.get("use_spot", False) == (run.capacity == "spot")
