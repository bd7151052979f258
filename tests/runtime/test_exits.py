"""Tests of the exit codes: code and documentation agree, and each error has its code."""

import pathlib
import re

import jax
import pytest

from vit_jax import runtime
from vit_jax.schema import ConfigError
from vit_jax.schema.errors import AbsentError

PAGE = (pathlib.Path(__file__).parents[2] / "docs/commands.md").read_text()


def test_documented_exit_codes_are_those_of_a_program():
  chapter = PAGE.partition("\n## Exit codes\n")[2].partition("\n## ")[0]
  codes = [int(code) for code in re.findall(r"^\| (\d+) \| .+ \|$", chapter, re.MULTILINE)]
  assert codes == sorted(runtime.EXITS.keys() - {137, 143})  # a shell reports these codes, not the program


@pytest.mark.parametrize(
  ("error", "code"),
  [
    (ConfigError("a typo"), 2),
    (AbsentError("no data"), 45),
    (OSError(28, "No space left on device"), 2),
    (runtime.Stop(44, "not finite"), 44),
    (KeyboardInterrupt(), 130),
    (MemoryError(), 2),
    (RuntimeError("can't start new thread"), 2),
    (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"), 2),
    (jax.errors.JaxRuntimeError("UNKNOWN: Gloo AllGather failed: Connection reset by peer"), 134),
  ],
)
def test_error_has_its_exit_code_and_a_one_line_message(error, code):
  found, message = runtime.describe_exit(error, alone=False)
  assert found == code
  assert message
  assert "\n" not in message


@pytest.mark.parametrize(
  "error", [KeyError("x"), RuntimeError("x"), jax.errors.JaxRuntimeError("INTERNAL: our fault"), ValueError("x")]
)
def test_bug_has_exit_code_1_and_keeps_its_traceback(error):
  assert runtime.describe_exit(error) == (1, "")


def test_message_names_the_process_that_died_if_it_is_known():
  error = jax.errors.JaxRuntimeError("UNKNOWN: Gloo AllGather failed: Connection reset by peer")
  for names, start in (
    ({}, "another process of this run died (UNKNOWN: Gloo"),
    ({"gone": "process 1"}, "process 1 died ("),
  ):
    assert runtime.describe_exit(error, alone=False, **names)[1].startswith(start)


def test_lost_peer_is_a_bug_in_a_single_process():
  assert runtime.describe_exit(jax.errors.JaxRuntimeError("Gloo: closed by peer"))[0] == 1
