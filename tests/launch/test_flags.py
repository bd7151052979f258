"""Tests of the command line: valid words become a run without changes, and mistakes are reported in one line."""

import dataclasses
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch import flags, spec
from launch.errors import LaunchError
from vit_jax.schema import extras

QR = ["run", "vit", "--backend=qr", "--tpu=v3-32", "--project=my-project"]
TRAIN = ["--", "vit_jax.train", "--config=c.py", "--workdir=gs://bkt/a"]


def build_run(*words):
  return flags.build_run(*flags.parse_flags(words))


def test_documented_command_is_accepted():
  run = build_run(*QR, "--zone=europe-west4-a", "--reserved", "--max-hours=3", "--queue-timeout=90m", *TRAIN)
  assert (run.module, run.args) == ("vit_jax.train", ("--config=c.py", "--workdir=gs://bkt/a"))
  assert (run.workdir, run.capacity, run.max_hours, run.limits.queue) == ("gs://bkt/a", "reserved", 3.0, 5400.0)
  assert run.workers == 4 and run.devices == 32


@pytest.mark.parametrize("verb", flags.SPECIFIED)
def test_cost_limit_is_stored_in_the_run(verb):
  run = build_run(verb, *QR[1:], "--max-cost=96.5", "--price=2.5", *TRAIN)
  assert (run.max_cost, run.price) == (96.5, 2.5) and spec.loads(run.dumps()) == run
  plain = build_run(verb, *QR[1:], *TRAIN)
  assert (plain.max_cost, plain.price) == (0.0, 0.0)


def test_defaults_follow_from_the_slice_and_the_run():
  run = build_run(*QR, *TRAIN)
  assert (run.capacity, run.zones, run.max_hours, run.max_failures) == ("spot", ("europe-west4-a",), 24.0, 3)
  assert run == spec.check_and_complete(run)
  assert build_run("run", "a", "--backend=local", "--workdir=/w", "--", "m").max_hours == spec.YEAR


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=5))
def test_program_arguments_are_kept_unchanged(words):
  run = build_run("run", "a", "--backend=local", "--workdir=/w", "--", "m", *words, "--workdir=/w")
  assert run.args == (*words, "--workdir=/w") and spec.loads(run.dumps()) == run


@pytest.mark.parametrize("form", [["--workdir=runs/try"], ["--workdir", "runs/try"]])
def test_local_run_has_an_absolute_workdir(form, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  run = build_run("run", "try", "--backend=local", "--", "vit_jax.train", "--config=c.py", *form)
  assert run.workdir == spec.find_flag_value(run.args, "--workdir") == f"{tmp_path}/runs/try"
  assert run.args[0] == "--config=c.py" and len(run.args) == 1 + len(form)
  assert build_run("run", "try", "--backend=local", "--workdir=runs/try", "--", "m").workdir == f"{tmp_path}/runs/try"
  assert build_run("run", "try", "--backend=local", "--workdir=gs://bkt/a", "--", "m").workdir == "gs://bkt/a"
  assert build_run("run", "try", "--backend=hosts", "--hosts=a", "--workdir=runs/try", "--", "m").workdir == "runs/try"


@pytest.mark.parametrize(
  "words, message",
  [
    ([], "VERB"),
    (["fly"], "unknown verb 'fly'. Allowed: run, check, ls, "),
    (["list"], "unknown verb 'list'. Did you mean ls? Allowed: run, "),
    (["statsu", "vit"], "unknown verb 'statsu'. Did you mean status? Allowed: run, "),
    (["run", "vit"], "--backend: missing; allowed: local"),
    (["run", "vit", "--backnd=qr", *TRAIN], "unknown flag --backnd; did you mean --backend?"),
    (["run", "vit", "--backnd", "qr", *TRAIN], "did you mean --backend?"),
    (["status", "vit", "--wach"], "did you mean --watch?"),
    (["status", "vit", "more"], "'more' is not expected"),
    ([*QR, "--config=c.py"], "flags of the program go after --"),
    ([*QR, "--env=WANDB_API_KEY=abc", *TRAIN], "--secret WANDB_API_KEY=projects/"),
    (["run", "a", "--backend=gke", "--env=HF_TOKEN=abc", *TRAIN], "HF_TOKEN=k8s:NAME/KEY"),
    ([*QR, "--max-cost=100", *TRAIN], "--max-cost: "),
    ([*QR, "--max-cost=100", "--price=0", *TRAIN], "--price"),
    ([*QR, "--max-cost=nan", "--price=1", *TRAIN], "--max-cost: nan; allowed: 0 to"),
    ([*QR, "--price=-1", *TRAIN], "--price: -1.0; allowed: 0 to"),
    (["run", "a", "--backend=local", "--max-cost=1", "--price=1", *TRAIN], "--max-cost: "),
    (["run", "vit", "--spec=/no/such.json"], "/no/such.json cannot be read"),
    ([*QR], "no program to run"),
    ([*QR, "--tpus=v3-8", *TRAIN], "--tpus"),
    ([*QR, "--workdir=gs://bkt/b", *TRAIN], "Remove one of them"),
    ([*QR, "--env=A", *TRAIN], "NAME=VALUE"),
    ([*QR, "--env=A=1", "--env=A=2", *TRAIN], "twice"),
    ([*QR, "--limit=silense=5m", *TRAIN], "silense"),
    ([*QR, "--queue-timeout=soon", *TRAIN], "90s, 30m, 6h or 2d"),
    ([*QR, "--max-hours=none", *TRAIN], "max-hours"),
    ([*QR, "--", "vit_jax.train"], "--workdir: missing"),
    (["run", "A;rm -rf ~", *QR[2:], *TRAIN], "A;rm -rf ~"),
    (["run", "--proj", *QR[1:], *TRAIN], "--proj"),
    (["down", "vit", "--", "x"], "runs no program"),
    (["status"], "NAME"),
  ],
)
def test_mistake_is_reported_in_one_line(words, message):
  with pytest.raises(LaunchError) as error:
    build_run(*words)
  assert message in str(error.value) and "\n" not in str(error.value) and error.value.code == 2


def write_spec(path, text, mode=0o600):
  path.write_text(text)
  path.chmod(mode)
  return f"--spec={path}"


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"env": {"WANDB_API_KEY": "sekret-key-123"}}, "--env: WANDB_API_KEY looks like a secret"),
    ({"args": ["--workdir=gs://other/x"]}, "--workdir=gs://other/x among its arguments"),
  ],
)
def test_spec_file_is_checked_like_flags(tmp_path, changes, message):
  good = json.loads(build_run(*QR, *TRAIN).dumps())
  with pytest.raises(LaunchError, match=message) as error:
    build_run("run", "vit", write_spec(tmp_path / "run.json", json.dumps(good | changes)))
  assert "sekret" not in str(error.value)


@pytest.mark.parametrize("mode", [0o640, 0o602, 0o604, 0o660])
def test_spec_file_that_other_users_may_access_is_refused(tmp_path, mode):
  with pytest.raises(LaunchError, match="chmod 600"):
    build_run("run", "vit", write_spec(tmp_path / "run.json", build_run(*QR, *TRAIN).dumps(), mode))


def test_spec_that_is_not_a_regular_file_is_refused_without_waiting(tmp_path):
  os.mkfifo(tmp_path / "pipe", 0o600)
  for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
    with pytest.raises(LaunchError, match="cannot be read: it is not a regular file"):
      build_run("run", "vit", f"--spec={path}")
  with pytest.raises(LaunchError, match="more than 8,388,608 bytes"):
    build_run("run", "vit", write_spec(tmp_path / "long.json", build_run(*QR, *TRAIN).dumps() + " " * 2**23))


def test_spec_file_excludes_other_flags_of_a_run(tmp_path):
  run = build_run(*QR, *TRAIN)
  write_spec(tmp_path / "run.json", run.dumps())
  words = ["run", "vit", f"--spec={tmp_path}/run.json", "--force", "--detach"]
  assert build_run(*words) == run
  for more in (["--tpu=v3-8"], ["--limit=beat=1s"], ["--queue-timeout=1h"], TRAIN, ["--spot"]):
    with pytest.raises(LaunchError, match="describes the complete run vit"):
      build_run(*words, *more)
  with pytest.raises(LaunchError, match="describes the complete run vit"):
    build_run("run", "other", *words[2:])


def test_program_without_separator_is_shown_with_it():
  with pytest.raises(LaunchError) as error:
    build_run(*QR, "vit_jax.train", "--config=a b.py")
  shown = str(error.value).splitlines()[-1].strip()
  assert shown.startswith("python -m launch run vit --backend=qr") and shown.endswith(
    "-- vit_jax.train '--config=a b.py'"
  )


@pytest.mark.parametrize(
  "name", ["TOKENIZERS_PARALLELISM", "KEYBOARD", "SSH_KEY_FILE", "GOOGLE_APPLICATION_CREDENTIALS"]
)
def test_variable_with_a_name_similar_to_a_secret_is_accepted(name):
  assert build_run(*QR, f"--env={name}=/a", *TRAIN).env == {name: "/a"}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(spec.Run)])
def test_flag_names_in_messages_are_in_the_help(field, capsys):
  """Checks that the help contains the flag of every field."""
  with pytest.raises(SystemExit):
    flags.parse_flags(["run", "--help"])
  assert spec.format_flag(field) in " ".join(capsys.readouterr().out.split())


def test_help_shows_the_program_and_the_default_zones(capsys):
  with pytest.raises(SystemExit):
    flags.parse_flags(["run", "--help"])
  output = " ".join(capsys.readouterr().out.split())
  assert "run NAME [FLAGS] -- PROGRAM" in output and "europe-west4-a for v3" in output


def test_two_capacities_are_refused():
  with pytest.raises(LaunchError, match="--on-demand: not allowed with argument --spot"):
    build_run(*QR, "--spot", "--on-demand", *TRAIN)


def test_misspelt_workdir_flag_has_a_suggestion():
  with pytest.raises(LaunchError, match=r"vit_jax.train has no flag --workdr, did you mean --workdir"):
    build_run(*QR, "--", "vit_jax.train", "--workdr=gs://bkt/a")


def test_version_is_that_of_the_package(capsys):
  with pytest.raises(SystemExit) as end:
    flags.parse_flags(["--version"])
  assert end.value.code == 0 and capsys.readouterr().out == f"{extras.VERSION}\n"


def test_every_verb_has_help(capsys):
  for verb in flags.VERBS:
    with pytest.raises(SystemExit) as end:
      flags.parse_flags([verb, "--help"])
    assert end.value.code == 0 and flags.VERBS[verb].split(",")[0][:40] in " ".join(capsys.readouterr().out.split())
