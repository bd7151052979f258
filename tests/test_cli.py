"""Tests of flags, errors and figures that all verbs have in common."""

import argparse
import importlib
import logging
import os
import re
import shlex
import subprocess
import sys

import jax
import pytest

from tests.runs import ROOT
from vit_jax import cli, runtime
from vit_jax.__main__ import VERBS
from vit_jax.schema import ConfigError, Fraction, aliases


@pytest.fixture
def parser():
  parser = cli.Parser("train", "Trains.")
  parser.add_argument("--config", required=True)
  parser.add_argument("--workdir", required=True, type=cli.parse_directory)
  parser.add_argument("--profile", type=int, default=0)
  return parser


def test_flags_and_config_overrides_are_parsed_together(parser):
  arguments = parser.parse(["--config=a.py", "--config.optim.lr=1", "--workdir", "runs/x", "--config.data.path", "--a"])
  assert (arguments.config, str(arguments.workdir), arguments.profile) == ("a.py", "runs/x", 0)
  assert arguments.overrides == {"optim.lr": "1", "data.path": "--a"}


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (["--workdri=x"], "unknown flag '--workdri'. Did you mean --workdir=x?"),
    (["--workdri", "a b"], "unknown flag '--workdri'. Did you mean --workdir='a b'?"),
    (
      ["--batch-size", "32", "--lr", "5e-4", "--workdir=b"],
      "unknown flags '--batch-size', '--lr'. Did you mean --config.batch=32 --config.optim.lr=5e-4? Allowed: ",
    ),
    (
      ["--batch-size=32", "--no-such", "--amp", "--lr"],
      "unknown flags '--batch-size', '--no-such', '--amp', '--lr'. "
      "Did you mean --config.batch=32 --config.model.dtype=bfloat16 --config.optim.lr=1e-3? Allowed: ",
    ),
    (
      ["--config=a", "--workdir=b", "-lr", "1e-4", "-x"],
      "unknown flags '-lr', '-x'. Did you mean --config.optim.lr=1e-4?",
    ),
    (["--min-lr", "-1", "--profile=1"], "unknown flag '--min-lr'. Did you mean --config.optim.schedule.end=-1?"),
    (["--work=x"], "unknown flag '--work'"),  # never abbreviated
    (["--config=a", "--workdir=b", "config.data.path=/a b"], "Did you mean --config.data.path='/a b'?"),
    (["--config=a", "--workdir=b", "config.batch", "64"], "Did you mean --config.batch=64?"),
    (["--config=a", "--workdir=b", "config.optim.lr", "-1"], "Did you mean --config.optim.lr=-1?"),
    (["--config=a", "--workdir=b", "config.data.flip", "config.batch=64"], "Did you mean --config.data.flip=VALUE?"),
    (["--config=a", "--workdir=b", "config.batch\n"], r"unexpected 'config.batch\n'. Quote a value"),
    (["--config=a", "--workdir=b", "config.batch"], "Did you mean --config.batch=VALUE?"),
    (["--config=a", "--workdir=b", "config.$(x)=1"], "unexpected 'config.$(x)=1'. Quote a value"),
    (["--config=a", "--workdir=b", "stray"], "unexpected 'stray'. Quote a value that contains spaces: --flag='a b'"),
    (["--config=a", "--workdir=b", "--profile=x"], "--profile: invalid int value: 'x'"),
    (["--config=a", "--workdir=b", "--profile"], "--profile: expected one argument"),
    (["--config=a", "--workdir= "], "--workdir: is empty"),
    (["--config=a"], "--workdir: missing"),
    (["--config=a", "--config.seed"], "--config.seed: no value"),
  ],
)
def test_invalid_flags_are_an_error_of_one_line(parser, words, message):
  with pytest.raises(ConfigError, match=re.escape(message)) as caught:
    parser.parse(words)
  assert "\n" not in str(caught.value)


def test_verb_without_a_config_rejects_config_overrides():
  with pytest.raises(ConfigError, match=r"unknown flag '--config\.seed'"):
    cli.Parser("convert", "Converts.").parse(["--config.seed=1"])


def test_warnings_have_no_control_characters():
  record = logging.makeLogRecord({"levelname": "WARNING", "msg": "a\x1b[31m %s\nb", "args": ("\x07ö",)})
  text = cli.PrintableFormatter("%(levelname)s: %(message)s").format(record)
  assert text == "WARNING: a\\x1b[31m \\x07ö\nb"
  cli.configure_logging()
  handlers = [handler for handler in logging.root.handlers if type(handler) is logging.StreamHandler]
  assert handlers and all(isinstance(handler.formatter, cli.PrintableFormatter) for handler in handlers)


def get_error(verb, *words):
  """Returns the error message of a verb for a command line."""
  with pytest.raises(ConfigError) as caught:
    importlib.import_module(f"vit_jax.{verb}").main(words)
  return str(caught.value)


# Names of other frameworks with values that their keys here accept.
FOREIGN = {
  **dict.fromkeys(aliases.KEYS, "3"),
  **dict.fromkeys(("resume", "checkpoint", "model", "output_dir", "profile", "num_classes", "device"), "3"),
  "data_dir": "{}/data",
}
FORMS = [
  ("evaluate", "--workdir={}/none"),
  ("prepare", "no-such-dataset --data_dir={}"),
  ("prepare", "photos --data.name=folder --data.path={}/none"),
  ("prepare", "--check={}/none"),
  ("fewshot", "--config=configs/fewshot.py --weights={}/none.npz"),
  ("fewshot", "--config=configs/probes.py --weights={}/none.npz"),
]


@pytest.mark.parametrize(("verb", "words"), FORMS)
def test_suggested_flags_are_accepted_by_the_same_command(verb, words, tmp_path, monkeypatch):
  monkeypatch.chdir(ROOT)
  words = words.format(tmp_path).split()
  suggested = set()
  for name, value in FOREIGN.items():
    message = get_error(verb, *words, f"--{name.replace('_', '-')}={value.format(tmp_path)}")
    if match := re.search(r"unknown flag .* Did you mean (--.*?)\? Allowed", message):
      again = get_error(verb, *words, *shlex.split(match[1]))
      suggested.add(match[1])
      wrong = (
        "unknown flag",
        "unknown key",
        "only for",
        "takes",
        "with another config",
        "either",
        "evaluates existing weights",
      )
      assert not any(text in again for text in wrong), f"{match[1]}: {again}"
  assert suggested or "--check" in words[0]


def test_suggestions_for_a_workdir_exclude_flags_that_it_rejects():
  message = get_error("evaluate", "--workdir=runs/a", "--batch-size=32")
  assert message == (
    "unknown flag '--batch-size'. Allowed: --help, --import, --workdir, --image-size, --split, --write-predictions, "
    "--logits, --report, --write-labels, --labels. --workdir cannot be combined with --config.KEY=VALUE."
  )
  message = get_error("evaluate", "--weights=a.npz", "--batch-size=32")
  assert "Did you mean --config.batch=32? Allowed:" in message
  message = get_error("evaluate", "--workdir=runs/a", "--config.batch=32")
  assert message == (
    "--config.batch: --workdir uses the config of its run. Leave it out, or measure the run with another config: "
    "--weights=runs/a --config=FILE"
  )


def test_flag_of_another_framework_suggests_the_flag_of_the_verb():
  assert "Did you mean --batch=32? Allowed:" in get_error("predict", "--weights=a.npz", "--batch-size=32")
  assert "Did you mean --image-size=96? Allowed:" in get_error("predict", "--weights=a.npz", "--img_size", "96")
  assert "Did you mean --data_dir=/x? Allowed:" in get_error("prepare", "digits", "--data-dir=/x")
  assert "Did you mean" not in get_error("predict", "--weights=a.npz", "--lr=1")


def test_numeric_flags_are_checked_by_the_schema(parser):
  parser.add_argument("--share", type=cli.make_number_parser(Fraction))
  words = ["--config=a", "--workdir=b"]
  assert parser.parse([*words, "--share=0.25"]).share == 0.25
  for text, message in (("2", "--share: 2.* out of range"), ("much", "--share: .*much")):
    with pytest.raises(ConfigError, match=message):
      parser.parse([*words, f"--share={text}"])


def test_lists_of_names_are_checked_and_each_name_occurs_once(parser):
  parser.add_argument(
    "--sets", type=cli.make_names_parser("dataset", {"digits": 1, "glyphs": 2}), default="digits,glyphs"
  )
  words = ["--config=a", "--workdir=b"]
  assert parser.parse(words).sets == ["digits", "glyphs"]
  assert parser.parse([*words, "--sets=glyphs,digits,glyphs"]).sets == ["glyphs", "digits"]
  message = "--sets: unknown dataset 'glyph'. Did you mean 'glyphs'? Allowed: digits, glyphs."
  with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
    parser.parse([*words, "--sets=digits,glyph"])


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb_describes_it(verb, capsys):
  module = importlib.import_module(f"vit_jax.{verb}")
  with pytest.raises(SystemExit) as ended:
    module.main(["--help"])
  assert ended.value.code == 0
  output = capsys.readouterr().out
  assert f"python -m vit_jax.{verb}" in output
  assert module.__doc__.splitlines()[0] in output


def make_failing(error):
  def verb():
    raise error

  return verb


@pytest.mark.parametrize(
  ("error", "code", "message"),
  [
    (ConfigError("batch: 3"), 2, "error: batch: 3\n"),
    (runtime.Stop(44, "not finite"), 44, "not finite\n"),
    (KeyboardInterrupt(), 130, "continues"),
    (OSError("disk full"), 2, "disk full. Fix it"),
    (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 3 GiB"), 2, "out of device memory"),
  ],
)
def test_exit_codes_and_messages_of_errors(error, code, message, capsys):
  with pytest.raises(SystemExit) as ended:
    cli.run_verb(make_failing(error))
  assert ended.value.code == code
  assert message in capsys.readouterr().err


@pytest.mark.parametrize(
  ("error", "message"),
  [
    (MemoryError(), "error: out of memory. Free memory of this machine, or raise the limit (ulimit -v)\n"),
    (RuntimeError("can't start new thread"), "error: no further thread can be started. Raise the limit of processes"),
  ],
)
def test_program_exits_at_once_without_memory_or_threads(error, message, monkeypatch, capsys):
  def leave(code):
    raise SystemExit(f"at once with {code}")

  monkeypatch.setattr(os, "_exit", leave)
  with pytest.raises(SystemExit, match="at once with 2"):
    cli.run_verb(make_failing(error))
  assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize("error", [ZeroDivisionError(), jax.errors.JaxRuntimeError("INTERNAL")])
def test_unexpected_error_keeps_its_traceback(error):
  with pytest.raises(type(error)):
    cli.run_verb(make_failing(error))


def test_table_shows_shares_losses_counts_and_intervals(capsys):
  cli.format_figures(
    {"top1": 0.5, "loss": 1.23456, "images": 1437, "train_seconds": 3.0, "seed": 0}, {"top1": (0.4, 0.6)}
  )
  lines = capsys.readouterr().out.splitlines()
  assert [line.split() for line in lines[1:]] == [
    ["top1", "50.00%", "95", "%", "[40.00%,", "60.00%]"],
    ["loss", "1.2346"],
    ["images", "1,437"],
  ]


def test_workdir_name_that_is_not_unicode_is_an_error():
  with pytest.raises(argparse.ArgumentTypeError, match=r"'runs/caf\\udce9' is not valid Unicode"):
    cli.parse_directory("runs/caf\udce9")


# Errors for a config of another command and a flag of another program name the right one.

TRAIN = ["--workdir=/nowhere/run"]
OF_ANOTHER_COMMAND = {
  "train": ("train", ["--config=configs/fewshot.py", *TRAIN], r"python -m vit_jax\.fewshot"),
  "train, changed": ("train", ["--config=configs/probes.py", "--config.optim.lr=1", *TRAIN], r"vit_jax\.fewshot"),
  "train, with a model": ("train", ["--config=configs/fewshot.py", "--config.model=x", *TRAIN], r"vit_jax\.fewshot"),
  "plan": ("plan", ["--config=configs/probes.py", "--topology=v3-8"], r"python -m vit_jax\.fewshot"),
  "sweep of a measurement": ("sweep", ["--config=configs/fewshot.py", *TRAIN], r"no sweep\(\).*vit_jax\.fewshot"),
  "sweep of one run": ("sweep", ["--config=configs/folder.py", *TRAIN], r"no sweep\(\).*vit_jax\.train"),
  "fewshot": ("fewshot", ["--config=configs/digits.py", "--weights=x"], r"vit_jax\.train .*vit_jax\.evaluate"),
  "fewshot of a sweep": ("fewshot", ["--config=configs/vtab.py", "--weights=x"], r"vit_jax\.train"),
  "evaluate": ("evaluate", ["--config=configs/fewshot.py", "--weights=x"], r"python -m vit_jax\.fewshot"),
}


@pytest.mark.parametrize("case", OF_ANOTHER_COMMAND)
def test_config_of_another_command_is_an_error_that_names_the_command(case, monkeypatch):
  verb, words, message = OF_ANOTHER_COMMAND[case]
  monkeypatch.chdir(ROOT)
  with pytest.raises(ConfigError, match=rf"^--config: .*{message}"):
    importlib.import_module(f"vit_jax.{verb}").main(words)


@pytest.mark.parametrize(
  ("flag", "meant"),
  [
    ("--data.path=/x", "--config.data.path=/x"),
    ("--lr=5e-4", "--config.optim.lr=5e-4"),
    ("--epochs=3", "--config.total=3ep"),
    ("--output-dir=x", "--workdir=x"),
    ("--no_report", "--no-report"),
    ("--work-dri=x", "--workdir=x"),
  ],
)
def test_unknown_flag_suggests_the_intended_flag(flag, meant):
  name = flag.partition("=")[0]
  with pytest.raises(ConfigError, match=rf"^unknown flag '{name}'\. Did you mean {re.escape(meant)}\?"):
    importlib.import_module("vit_jax.train").main(["--config=a", *TRAIN, flag])


@pytest.mark.heavy
def test_warnings_of_a_verb_have_a_short_prefix_even_if_a_library_has_logged_before():
  program = (
    "import logging; logging.basicConfig(); from vit_jax import cli; cli.configure_logging(); logging.warning('a')"
  )
  done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
  assert done.stderr.splitlines()[-1] == "WARNING: a"
