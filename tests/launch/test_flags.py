"""What a person types becomes a run, byte for byte, or one line that says what is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch import flags, spec
from launch.errors import LaunchError

QR = ["run", "vit", "--backend=qr", "--tpu=v3-32", "--project=my-project"]
TRAIN = ["--", "vit_jax.train", "--config=c.py", "--workdir=gs://bkt/a"]


def asked(*words):
  return flags.run_of(*flags.parse(words))


def test_the_command_of_the_documentation_is_understood():
  run = asked(*QR, "--zone=europe-west4-a", "--reserved", "--max-hours=3", "--queue-timeout=90m", *TRAIN)
  assert (run.module, run.args) == ("vit_jax.train", ("--config=c.py", "--workdir=gs://bkt/a"))
  assert (run.workdir, run.capacity, run.max_hours, run.limits.queue) == ("gs://bkt/a", "reserved", 3.0, 5400.0)
  assert run.workers == 4 and run.devices == 32


def test_what_is_not_said_follows_from_the_slice_and_the_run():
  run = asked(*QR, *TRAIN)
  assert (run.capacity, run.zones, run.max_hours, run.max_failures) == ("spot", ("europe-west4-a",), 24.0, 3)
  assert run == spec.checked(run)
  assert asked("run", "a", "--backend=local", "--workdir=/w", "--", "m").max_hours == spec.YEAR


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=5))
def test_the_programs_words_are_kept_byte_for_byte(words):
  run = asked("run", "a", "--backend=local", "--workdir=/w", "--", "m", *words, "--workdir=/w")
  assert run.args == (*words, "--workdir=/w") and spec.loads(run.dumps()) == run


@pytest.mark.parametrize(
  "words, message",
  [
    ([], "VERB"),
    (["fly"], "fly"),
    (["run", "vit"], "--backend"),
    ([*QR], "nothing to run"),
    ([*QR, "--tpus=v3-8", *TRAIN], "--tpus"),
    ([*QR, "--workdir=gs://bkt/b", *TRAIN], "leave out one"),
    ([*QR, "--env=A", *TRAIN], "NAME=VALUE"),
    ([*QR, "--env=A=1", "--env=A=2", *TRAIN], "twice"),
    ([*QR, "--limit=silense=5m", *TRAIN], "silense"),
    ([*QR, "--queue-timeout=soon", *TRAIN], "90s, 30m, 6h or 2d"),
    ([*QR, "--max-hours=none", *TRAIN], "max-hours"),
    ([*QR, "--", "vit_jax.train"], "--workdir: missing"),
    (["run", "A;rm -rf ~", *QR[2:], *TRAIN], "A;rm -rf ~"),
    (["run", "--proj", *QR[1:], *TRAIN], "--proj"),
    (["down", "vit", "--", "x"], "nothing to run"),
    (["status"], "NAME"),
  ],
)
def test_a_mistake_is_one_line_that_names_it(words, message):
  with pytest.raises(LaunchError) as error:
    asked(*words)
  assert message in str(error.value) and "\n" not in str(error.value) and error.value.code == 2


def test_every_verb_has_help(capsys):
  for verb in flags.VERBS:
    with pytest.raises(SystemExit) as end:
      flags.parse([verb, "--help"])
    assert end.value.code == 0 and flags.VERBS[verb].split(",")[0][:40] in " ".join(capsys.readouterr().out.split())
