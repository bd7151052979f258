"""The exit codes: one contract in code and documentation, and which error has which."""

import pathlib
import re

import jax
import pytest

from vit_jax import runtime
from vit_jax.schema import ConfigError
from vit_jax.schema.errors import AbsentError

PAGE = (pathlib.Path(__file__).parents[2] / "docs/guides/resume.md").read_text()


def test_the_table_of_the_page_has_codes_of_the_contract():
  codes = [int(code) for code in re.findall(r"^\| (\d+) \| .+ \|$", PAGE, re.MULTILINE)]
  assert len(codes) > 5 and {*codes} <= runtime.EXITS.keys()


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
def test_an_error_ends_with_its_code_and_a_line(error, code):
  found, message = runtime.describe_exit(error, alone=False)
  assert found == code
  assert message
  assert "\n" not in message


@pytest.mark.parametrize(
  "error", [KeyError("x"), RuntimeError("x"), jax.errors.JaxRuntimeError("INTERNAL: our fault"), ValueError("x")]
)
def test_a_bug_keeps_its_traceback(error):
  assert runtime.describe_exit(error) == (1, "")


def test_a_process_alone_has_no_peer_that_died():
  assert runtime.describe_exit(jax.errors.JaxRuntimeError("Gloo: closed by peer"))[0] == 1
