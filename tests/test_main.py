"""Tests of the list of verbs, and of importing the package."""

import os
import signal
import subprocess
import sys

import pytest

from tests.test_house import FLOORS
from vit_jax import __main__ as listing


def test_list_has_a_line_for_every_verb(capsys):
  assert listing.main([]) == 0
  output = capsys.readouterr().out
  assert set(listing.VERBS) == FLOORS[-1] - {"cli", "__main__"}
  for verb in listing.VERBS:
    assert f"python -m vit_jax.{verb}" in output and len(listing.summarise_verb(verb)) > 10
  assert "train     Trains a model\n" in output


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (["train", "--config=a b.py"], "verbs are written with a dot. Run: python -m vit_jax.train '--config=a b.py'"),
    (["plan"], "python -m vit_jax.plan --help"),
    (["tarin"], "unknown verb 'tarin'. Did you mean 'train'?"),
  ],
)
def test_verb_after_a_space_is_an_error_with_the_dotted_form(words, message, capsys):
  assert listing.main(words) == 2
  assert message in capsys.readouterr().err


@pytest.mark.heavy
def test_importing_the_package_imports_no_large_modules():
  code = (
    "import sys, vit_jax; print([name for name in ('jax', 'numpy', 'flax', 'vit_jax.models') if name in sys.modules])"
  )
  assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
  code = "import vit_jax; print(vit_jax.models.names('*cct_2*')[0], hasattr(vit_jax, 'modles'))"
  output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
  assert output == "cct_2_3x2_32 False\n"


@pytest.mark.long
def test_ctrl_c_during_imports_ends_a_verb_without_a_traceback(tmp_path):
  (tmp_path / "jax.py").write_text("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")
  environment = os.environ | {"PYTHONPATH": str(tmp_path)}
  ended = subprocess.run(
    [sys.executable, "-m", "vit_jax.train", "--help"], env=environment, capture_output=True, text=True
  )
  assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")
