"""What a person types becomes a run, byte for byte, or one line that says what is wrong."""

import dataclasses
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch import flags, spec
from launch.errors import LaunchError

QR = ["run", "vit", "--backend=qr", "--tpu=v3-32", "--project=my-project"]
TRAIN = ["--", "vit_jax.train", "--config=c.py", "--workdir=gs://bkt/a"]


def asked(*words):
  return flags.build_run(*flags.parse_flags(words))


def test_the_command_of_the_documentation_is_understood():
  run = asked(*QR, "--zone=europe-west4-a", "--reserved", "--max-hours=3", "--queue-timeout=90m", *TRAIN)
  assert (run.module, run.args) == ("vit_jax.train", ("--config=c.py", "--workdir=gs://bkt/a"))
  assert (run.workdir, run.capacity, run.max_hours, run.limits.queue) == ("gs://bkt/a", "reserved", 3.0, 5400.0)
  assert run.workers == 4 and run.devices == 32


@pytest.mark.parametrize("verb", flags.SPECIFIED)
def test_the_most_that_a_run_may_cost_is_a_part_of_the_run(verb):
  run = asked(verb, *QR[1:], "--max-cost=96.5", "--price=2.5", *TRAIN)
  assert (run.max_cost, run.price) == (96.5, 2.5) and spec.loads(run.dumps()) == run
  plain = asked(verb, *QR[1:], *TRAIN)
  assert (plain.max_cost, plain.price) == (0.0, 0.0)


def test_what_is_not_said_follows_from_the_slice_and_the_run():
  run = asked(*QR, *TRAIN)
  assert (run.capacity, run.zones, run.max_hours, run.max_failures) == ("spot", ("europe-west4-a",), 24.0, 3)
  assert run == spec.check_and_complete(run)
  assert asked("run", "a", "--backend=local", "--workdir=/w", "--", "m").max_hours == spec.YEAR


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=5))
def test_the_programs_words_are_kept_byte_for_byte(words):
  run = asked("run", "a", "--backend=local", "--workdir=/w", "--", "m", *words, "--workdir=/w")
  assert run.args == (*words, "--workdir=/w") and spec.loads(run.dumps()) == run


@pytest.mark.parametrize("form", [["--workdir=runs/try"], ["--workdir", "runs/try"]])
def test_d4_a_local_run_has_an_absolute_workdir(form, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  run = asked("run", "try", "--backend=local", "--", "vit_jax.train", "--config=c.py", *form)
  assert run.workdir == spec.find_flag_value(run.args, "--workdir") == f"{tmp_path}/runs/try"
  assert run.args[0] == "--config=c.py" and len(run.args) == 1 + len(form)
  assert asked("run", "try", "--backend=local", "--workdir=runs/try", "--", "m").workdir == f"{tmp_path}/runs/try"
  assert asked("run", "try", "--backend=local", "--workdir=gs://bkt/a", "--", "m").workdir == "gs://bkt/a"
  assert asked("run", "try", "--backend=hosts", "--hosts=a", "--workdir=runs/try", "--", "m").workdir == "runs/try"


@pytest.mark.parametrize(
  "words, message",
  [
    ([], "VERB"),
    (["fly"], "fly"),
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
def test_a_mistake_is_one_line_that_names_it(words, message):
  with pytest.raises(LaunchError) as error:
    asked(*words)
  assert message in str(error.value) and "\n" not in str(error.value) and error.value.code == 2


def written(path, text, mode=0o600):
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
def test_a_file_is_checked_as_flags_are(tmp_path, changes, message):
  good = json.loads(asked(*QR, *TRAIN).dumps())
  with pytest.raises(LaunchError, match=message) as error:
    asked("run", "vit", written(tmp_path / "run.json", json.dumps(good | changes)))
  assert "sekret" not in str(error.value)


@pytest.mark.parametrize("mode", [0o640, 0o602, 0o604, 0o660])
def test_a_file_that_others_may_read_or_change_is_no_run(tmp_path, mode):
  with pytest.raises(LaunchError, match="chmod 600"):
    asked("run", "vit", written(tmp_path / "run.json", asked(*QR, *TRAIN).dumps(), mode))


def test_what_is_no_regular_file_is_no_run_and_not_waited_for(tmp_path):
  os.mkfifo(tmp_path / "pipe", 0o600)
  for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
    with pytest.raises(LaunchError, match="cannot be read: it is not a regular file"):
      asked("run", "vit", f"--spec={path}")
  with pytest.raises(LaunchError, match="more than 8,388,608 bytes"):
    asked("run", "vit", written(tmp_path / "long.json", asked(*QR, *TRAIN).dumps() + " " * 2**23))


def test_a_run_of_a_file_takes_nothing_else_of_a_run(tmp_path):
  run = asked(*QR, *TRAIN)
  written(tmp_path / "run.json", run.dumps())
  words = ["run", "vit", f"--spec={tmp_path}/run.json", "--force", "--detach"]
  assert asked(*words) == run
  for more in (["--tpu=v3-8"], ["--limit=beat=1s"], ["--queue-timeout=1h"], TRAIN, ["--spot"]):
    with pytest.raises(LaunchError, match="describes the complete run vit"):
      asked(*words, *more)
  with pytest.raises(LaunchError, match="describes the complete run vit"):
    asked("run", "other", *words[2:])


def test_a_program_without_dashes_is_shown_with_them():
  with pytest.raises(LaunchError) as error:
    asked(*QR, "vit_jax.train", "--config=a b.py")
  shown = str(error.value).splitlines()[-1].strip()
  assert shown.startswith("python -m launch run vit --backend=qr") and shown.endswith(
    "-- vit_jax.train '--config=a b.py'"
  )


@pytest.mark.parametrize(
  "name", ["TOKENIZERS_PARALLELISM", "KEYBOARD", "SSH_KEY_FILE", "GOOGLE_APPLICATION_CREDENTIALS"]
)
def test_what_only_sounds_like_a_secret_is_a_variable(name):
  assert asked(*QR, f"--env={name}=/a", *TRAIN).env == {name: "/a"}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(spec.Run)])
def test_a_mistake_is_named_as_it_is_typed(field, capsys):
  """Every name of a message is one of the help's."""
  with pytest.raises(SystemExit):
    flags.parse_flags(["run", "--help"])
  assert spec.format_flag(field) in " ".join(capsys.readouterr().out.split())


def test_usage_has_the_program_and_help_the_default_zones(capsys):
  with pytest.raises(SystemExit):
    flags.parse_flags(["run", "--help"])
  said = " ".join(capsys.readouterr().out.split())
  assert "run NAME [FLAGS] -- PROGRAM" in said and "europe-west4-a for v3" in said


def test_two_kinds_of_capacity_are_refused():
  with pytest.raises(LaunchError, match="--on-demand: not allowed with argument --spot"):
    asked(*QR, "--spot", "--on-demand", *TRAIN)


def test_a_misspelt_workdir_is_shown_what_was_meant():
  with pytest.raises(LaunchError, match=r"vit_jax.train has no flag --workdr, did you mean --workdir"):
    asked(*QR, "--", "vit_jax.train", "--workdr=gs://bkt/a")


def test_every_verb_has_help(capsys):
  for verb in flags.VERBS:
    with pytest.raises(SystemExit) as end:
      flags.parse_flags([verb, "--help"])
    assert end.value.code == 0 and flags.VERBS[verb].split(",")[0][:40] in " ".join(capsys.readouterr().out.split())
