"""Tests of the list of verbs, and of importing the package."""

import os
import signal
import subprocess
import sys

import pytest

import vit_jax
from tests.test_house import FLOORS
from vit_jax import __main__ as listing


def test_list_has_a_line_for_every_verb(capsys):
  assert listing.main([]) == 0
  output = capsys.readouterr().out
  assert set(listing.VERBS) == FLOORS[-1] - {"cli", "__main__"}
  for verb in listing.VERBS:
    assert f"python -m vit_jax.{verb}" in output and len(listing.summarise_verb(verb)) > 10
  assert "train     Trains a model\n" in output


def test_verb_replaces_the_process_by_its_module(monkeypatch):
  called = []
  monkeypatch.setattr(os, "execv", lambda *words: called.append(words) or sys.exit())
  monkeypatch.setattr(sys, "argv", ["vit-jax", "train", "--config=a b.py"])
  for words in (None, ["train", "--config=a b.py"]):
    with pytest.raises(SystemExit):
      listing.main(words)
  assert called == 2 * [(sys.executable, [sys.executable, "-m", "vit_jax.train", "--config=a b.py"])]


@pytest.mark.heavy
def test_verb_after_a_space_prints_the_help_of_its_module():
  outputs = [
    subprocess.run([sys.executable, "-m", *words, "--help"], capture_output=True, text=True, check=True).stdout
    for words in (["vit_jax", "predict"], ["vit_jax.predict"])
  ]
  assert outputs[0] == outputs[1] and "--weights" in outputs[0]


def test_unknown_verb_is_an_error_and_the_version_is_printed(capsys):
  assert listing.main(["tarin"]) == 2
  assert "unknown verb 'tarin'. Did you mean 'train'?" in capsys.readouterr().err
  assert listing.main(["--version"]) == 0
  assert capsys.readouterr().out == f"{vit_jax.__version__}\n"


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
