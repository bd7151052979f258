"""Tests that JAX starts on the CPU, without errors of libtpu, if no TPU or other accelerator is present."""

import importlib.machinery
import importlib.metadata
import importlib.util
import os
import subprocess
import sys

import pytest

from vit_jax import platforms


@pytest.fixture
def installed(monkeypatch):
  """The names of installed modules, which a test may change."""
  names = {"libtpu"}
  spec = importlib.machinery.ModuleSpec("x", None)
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name in names else None)
  monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: ())
  return names


def select(root, **environment):
  platforms.select_platform(environment, str(root))
  return environment.get("JAX_PLATFORMS")


def device(root, vendor, number):
  folder = root / "sys/bus/pci/devices/0000:00:05.0"
  folder.mkdir(parents=True)
  (folder / "vendor").write_text(f"{vendor}\n")
  (folder / "device").write_text(f"{number}\n")


def test_cpu_is_selected_without_a_tpu(installed, tmp_path):
  assert select(tmp_path) == "cpu"
  device(tmp_path, "0x1ae0", "0x0042")  # the network card of Google's machines
  assert select(tmp_path) == "cpu"


def test_user_setting_and_other_accelerators_are_kept(installed, tmp_path):
  assert select(tmp_path, JAX_PLATFORMS="tpu") == "tpu"
  assert select(tmp_path, JAX_PLATFORMS="") == ""
  installed.add("jax_plugins")
  assert select(tmp_path) is None


def test_platform_is_not_set_without_libtpu(installed, tmp_path):
  installed.clear()
  assert select(tmp_path) is None


@pytest.mark.parametrize("name", ["dev/accel0", "dev/vfio/0"])
def test_attached_tpu_is_used(installed, tmp_path, name):
  (tmp_path / name).parent.mkdir(parents=True)
  (tmp_path / name).touch()
  assert select(tmp_path) is None


def test_tpu_on_the_bus_or_in_the_environment_is_used(installed, tmp_path):
  assert select(tmp_path, TPU_WORKER_ID="0") is None
  device(tmp_path, "0x1ae0", "0x0063")
  assert select(tmp_path) is None


@pytest.mark.parametrize(
  ("error", "message"),
  [
    ("invalid truth value 'maybe' for environment 'JAX_ENABLE_X64'", "error: JAX_ENABLE_X64='maybe': JAX refuses it"),
    ('Invalid value "maybe" for JAX flag jax_enable_x64', "error: JAX_ENABLE_X64='maybe': JAX refuses it"),
    ("invalid literal", "error: JAX_ENABLE_X64='maybe', JAX_LOG_COMPILES='1': JAX refuses it (invalid literal)"),
  ],
)
def test_value_that_jax_rejects_is_an_error_of_one_line(error, message, monkeypatch, capsys):
  def fail(name):
    raise ValueError(error)

  monkeypatch.setattr(importlib, "import_module", fail)
  with pytest.raises(SystemExit) as ended:
    platforms.import_jax({"JAX_ENABLE_X64": "maybe", "JAX_LOG_COMPILES": "1", "HOME": "/"})
  (line,) = capsys.readouterr().err.splitlines()
  assert ended.value.code == 2 and line.startswith(message) and line.endswith("Correct the value, or unset it.")


@pytest.mark.long
def test_verb_exits_before_its_imports_if_jax_rejects_a_variable():
  ended = subprocess.run(
    [sys.executable, "-m", "vit_jax.train", "--config=configs/digits.py"],
    env=os.environ | {"JAX_NUM_CPU_DEVICES": "abc"},
    capture_output=True,
    text=True,
  )
  assert ended.returncode == 2 and ended.stdout == ""
  assert ended.stderr.startswith("error: JAX_NUM_CPU_DEVICES='abc': JAX refuses it (") and ended.stderr.count("\n") == 1
