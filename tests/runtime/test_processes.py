"""Tests of placements from the environment, and of checks of slices, devices and ports before the start."""

import json
import os
import socket
import subprocess
import sys

import jax
import pytest

from vit_jax import runtime
from vit_jax.runtime import processes
from vit_jax.schema import ConfigError
from vit_jax.sweeps import pool


@pytest.mark.parametrize("value", ["2", "x", "-1", None])
def test_incomplete_placement_is_refused(monkeypatch, value):
  monkeypatch.setenv("VITJAX_COORDINATOR", "127.0.0.1:1")
  monkeypatch.setenv("VITJAX_PROCESSES", "2")
  if value:
    monkeypatch.setenv("VITJAX_PROCESS", value)
  with pytest.raises(ConfigError, match="VITJAX_PROCESS"):
    processes.read_placement()


def test_coordinator_needs_a_port(monkeypatch):
  for name, value in zip(processes.NAMES, ("host", "2", "0"), strict=True):
    monkeypatch.setenv(name, value)
  with pytest.raises(ConfigError, match="VITJAX_COORDINATOR: 'host' is not host:port"):
    processes.read_placement()
  monkeypatch.setenv("VITJAX_COORDINATOR", "host:80")
  assert processes.read_placement() == ("host:80", 2, 0)


def test_variables_of_former_slices_are_removed(monkeypatch):
  monkeypatch.setenv("MEGASCALE_COORDINATOR_ADDRESS", "10.0.0.9:8080")
  monkeypatch.setenv("MEGASCALE_SLICE_ID", "1")
  processes.check_slices()
  assert not [name for name in os.environ if name.startswith("MEGASCALE_")]


def test_incomplete_variables_of_slices_are_refused(monkeypatch):
  monkeypatch.setenv("MEGASCALE_NUM_SLICES", "2")
  monkeypatch.setenv("MEGASCALE_SLICE_ID", "0")
  with pytest.raises(ConfigError, match="MEGASCALE_COORDINATOR_ADDRESS: missing"):
    processes.check_slices()
  monkeypatch.setenv("MEGASCALE_COORDINATOR_ADDRESS", "10.0.0.9:8080")
  processes.check_slices()
  assert os.environ["MEGASCALE_NUM_SLICES"] == "2"


@pytest.fixture
def held(monkeypatch, tmp_path):
  """The root of a host with one TPU chip, which process 77 holds."""
  monkeypatch.delenv("JAX_PLATFORMS")
  (tmp_path / "dev").mkdir()
  (tmp_path / "dev/accel0").touch()
  (tmp_path / "proc/77/fd").mkdir(parents=True)
  (tmp_path / "proc/77/cmdline").write_bytes(b"python\0-m\0train\0")
  (tmp_path / "proc/77/fd/3").symlink_to(tmp_path / "dev/accel0")
  return tmp_path


def test_device_held_by_another_program_is_named_with_its_process(held):
  with pytest.raises(runtime.Stop, match=r"dev/accel0 is held by process 77 \(python -m train\).*kill 77") as stop:
    processes.check_devices_free(str(held))
  assert stop.value.code == runtime.EXIT_HANG
  (held / "proc/77/fd/3").unlink()
  processes.check_devices_free(str(held))


def test_holder_that_ends_during_the_check_is_ignored(held):
  (held / "proc/77/cmdline").unlink()
  processes.check_devices_free(str(held))


def test_trials_on_separate_chips_pass_the_device_check(held, monkeypatch):
  monkeypatch.setattr(pool, "_count_devices", lambda: ("tpu", 2))
  for group in pool.divide_devices(2):
    with monkeypatch.context() as trial:
      for name, value in group.environment.items():
        trial.setenv(name, value)
      processes.check_devices_free(str(held))


def test_unexpected_number_of_devices_is_reported(monkeypatch):
  runtime.check_devices()
  monkeypatch.setenv("VITJAX_DEVICES", "9")
  with pytest.raises(ConfigError, match="VITJAX_DEVICES: expected 9, found 8 devices"):
    runtime.check_devices()


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="Linux says who is connected")
@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_port_in_use_is_an_error(host):
  with socket.socket() as taken:
    taken.bind((host, 0))
    taken.listen()
    address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(ConfigError, match="another program may use the port"):
      processes.check_port_free(address)
  processes.check_port_free(address)


def test_invalid_port_is_an_error():
  with pytest.raises(ConfigError, match=r"10\.0\.0\.2:99999"):
    processes.check_port_free("10.0.0.2:99999")


def test_clients_of_a_port_are_listed():
  with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
    assert processes.list_clients(port) == []
    with socket.create_connection(("127.0.0.1", port)) as client:
      assert processes.list_clients(port) == [f"127.0.0.1:{client.getsockname()[1]}"]


def test_compilation_cache_uses_the_folder_of_the_user_or_system(monkeypatch, tmp_path):
  kept = jax.config.jax_compilation_cache_dir
  try:
    processes.enable_compilation_cache()
    assert jax.config.jax_compilation_cache_dir == kept  # JAX_COMPILATION_CACHE_DIR of these tests has priority
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    processes.enable_compilation_cache()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "vit_jax" / "programs")
  finally:
    jax.config.update("jax_compilation_cache_dir", kept)


@pytest.mark.heavy
def test_unused_packages_are_not_imported():
  program = "import json, sys, vit_jax.train, vit_jax.evaluate; print(json.dumps(sorted(sys.modules)))"
  loaded = json.loads(subprocess.check_output([sys.executable, "-c", program], text=True))
  assert "jax" in loaded
  assert not {"tensorflow", "torch", "sklearn", "matplotlib", "tensorflow_datasets"} & set(loaded)


@pytest.mark.long
def test_printing_a_line_does_not_initialise_devices():
  environment = os.environ | {"JAX_PLATFORMS": "none_of_this_name"}  # a call that initialises devices fails
  program = [sys.executable, "-c", "from vit_jax import runtime; runtime.print_line('here')"]
  assert subprocess.check_output(program, text=True, env=environment) == "here\n"
