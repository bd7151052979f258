"""Tests that unusable settings of JAX and flags of XLA are refused in one line."""

import ast
import contextlib
import json
import os
import subprocess
import sys

import jax
import pytest

from tests import runs
from vit_jax import cli
from vit_jax.__main__ import VERBS
from vit_jax.runtime import settings
from vit_jax.schema import ConfigError


@pytest.fixture(autouse=True)
def unset(monkeypatch):
  """Removes the variables that set the number of devices or flags of XLA."""
  for name in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES"):
    monkeypatch.delenv(name, raising=False)


def get_refused_value(name):
  """Returns a refused value of a setting."""
  text = {
    "jax_default_device": "gpu",
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_transfer_guard": "disallow_explicit",
  }
  generic = (value for part, value in (("guard", "disallow"), ("checking", "raise")) if part in name)
  return text.get(name, next(generic, True))


@pytest.mark.parametrize("name", settings.REFUSED)
def test_unusable_setting_is_refused_in_one_line(name, capsys):
  before = getattr(jax.config, name)
  settings.check_settings()
  jax.config.update(name, get_refused_value(name))
  try:
    with pytest.raises(SystemExit) as ended:
      cli.run_verb(lambda: pytest.fail("the verb was called"))
  finally:
    jax.config.update(name, before)
  (line,) = capsys.readouterr().err.splitlines()
  assert ended.value.code == 2
  assert line.startswith(f"error: {name.upper()}={get_refused_value(name)}: ") and line.endswith(
    f". Unset {name.upper()}."
  )


def test_invalid_regular_expression_is_refused():
  name = "jax_hlo_source_file_canonicalization_regex"
  for pattern, wrong in ((".*/", False), ("[", True)):
    jax.config.update(name, pattern)
    try:
      with pytest.raises(ConfigError, match="not a regular expression") if wrong else contextlib.nullcontext():
        settings.check_settings()
    finally:
      jax.config.update(name, None)


def test_guards_that_only_log_are_allowed():
  with jax.transfer_guard("log"):
    settings.check_settings()


@pytest.mark.parametrize(
  ("variable", "value"),
  [
    ("JAX_NUM_CPU_DEVICES", "0"),
    ("JAX_NUM_CPU_DEVICES", "-5"),
    ("XLA_FLAGS", "--xla_force_host_platform_device_count=0"),
    ("XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_force_host_platform_device_count=-1"),
  ],
)
def test_number_of_devices_below_one_names_its_variable(variable, value, monkeypatch):
  monkeypatch.setenv(variable, value)
  with pytest.raises(ConfigError, match=r"is not a number of devices. Set it to 1 or more") as error:
    settings.check_settings()
  assert str(error.value).startswith(f"{variable}={value!r}: ")


@pytest.mark.parametrize(
  ("variable", "value"),
  [
    ("JAX_NUM_CPU_DEVICES", "-1"),  # the same as unset
    ("JAX_NUM_CPU_DEVICES", "10"),
    ("XLA_FLAGS", "--xla_force_host_platform_device_count=0 --xla_force_host_platform_device_count=8"),
    ("XLA_FLAGS", "--xla_force_host_platform_device_count=10 --xla_dump_to=0"),
  ],
)
def test_valid_numbers_of_devices_are_accepted(variable, value, monkeypatch):
  monkeypatch.setenv(variable, value)
  settings.check_settings()


FLAGS = {
  "--xla_nonsense=1": "Unknown flag in XLA_FLAGS: --xla_nonsense=1",
  "--xla_backend_optimization_level=0 --xla_a=1 --xla_b=2": "--xla_a=1 --xla_b=2",
  "--xla_cpu_enable_fast_math=maybe": "Couldn't interpret value maybe for flag xla_cpu_enable_fast_math",
  "nofile": 'Could not open file "nofile"',
  "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=2": None,
  "": None,
}
PROGRAM = """
import json, os, sys
from vit_jax.runtime import settings
for flags in json.loads(sys.argv[1]):
  os.environ["XLA_FLAGS"] = flags
  try:
    settings.check_settings()
    print(json.dumps(None))
  except ValueError as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.long
def test_flags_that_xla_refuses_are_reported_in_one_line_each():
  """Runs in a process in which JAX has not started, because XLA parses its flags once."""
  words = [sys.executable, "-W", "error", "-c", PROGRAM, json.dumps(list(FLAGS))]
  ended = subprocess.run(
    words, env=os.environ | {"XLA_FLAGS": "", "TF_CPP_MIN_LOG_LEVEL": "0"}, capture_output=True, text=True, check=True
  )
  output = [json.loads(line) for line in ended.stdout.splitlines()]
  assert ended.stderr == "" and len(output) == len(FLAGS)
  for (flags, reason), line in zip(FLAGS.items(), output, strict=True):
    if reason is None:
      assert line is None
    else:
      assert line.startswith(f"XLA_FLAGS={flags!r}: ") and reason in line and "\n" not in line
      assert line.endswith(". Correct XLA_FLAGS, or unset it.")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_runs_through_the_check(verb):
  last = ast.parse((runs.ROOT / f"vit_jax/{verb}.py").read_text()).body[-1]
  assert ast.unparse(last).splitlines() == ["if __name__ == '__main__':", "    cli.run_verb(main)"]


@pytest.mark.long
def test_unknown_xla_flag_prints_one_line():
  flags, name = os.environ | {"XLA_FLAGS": "--xla_nonsense=1"}, "Unknown flag in XLA_FLAGS: --xla_nonsense=1"
  processes = [
    subprocess.Popen([sys.executable, *words], cwd=runs.ROOT, env=flags, stderr=subprocess.PIPE, text=True)
    for words in (["-m", "vit_jax.predict"], ["-m", "vit_jax.plan"], ["-c", "import jax, vit_jax; jax.devices()"])
  ]
  *commands, program = [(process.communicate()[1], process.returncode) for process in processes]
  assert commands == [(f"error: XLA_FLAGS='--xla_nonsense=1': {name}. Correct XLA_FLAGS, or unset it.\n", 2)] * 2
  text, code = program
  assert code == 1 and name in text
