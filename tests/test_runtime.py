"""The lock on a workdir, how processes find each other, and how they are asked to stop."""

import json
import os
import signal
import subprocess
import sys

import jax
import pytest

from vit_jax import runtime
from vit_jax.schema import ConfigError


@pytest.mark.heavy
def test_a_claimed_workdir_is_refused_to_another_process_and_free_after_a_kill(tmp_path):
  program = (
    "import sys, time, pathlib, jax\njax.config.update('jax_platforms', 'cpu')\nfrom vit_jax import cli, runtime\n"
    "def verb():\n  with runtime.claim(pathlib.Path(sys.argv[1])):\n    print('mine', flush=True)\n    time.sleep(60)\n"
    "cli.main(verb)"
  )
  start = [sys.executable, "-c", program, str(tmp_path / "new")]
  first = subprocess.Popen(start, stdout=subprocess.PIPE, text=True)
  assert first.stdout.readline() == "mine\n"
  second = subprocess.run(start, capture_output=True, text=True, timeout=60)
  assert second.returncode == 2
  assert f"in use by process {first.pid} on" in second.stderr
  first.kill()
  first.wait()
  with runtime.claim(tmp_path / "new"):
    assert (tmp_path / "new/lock").read_text().startswith(f"{os.getpid()} on")


@pytest.mark.parametrize("value", ["2", "x", "-1", None])
def test_half_a_placement_is_refused(monkeypatch, value):
  monkeypatch.setattr(runtime.jax.distributed, "is_initialized", lambda: False)
  monkeypatch.setenv("VITJAX_COORDINATOR", "127.0.0.1:1")
  monkeypatch.setenv("VITJAX_PROCESSES", "2")
  if value:
    monkeypatch.setenv("VITJAX_PROCESS", value)
  with pytest.raises(ConfigError, match="VITJAX_PROCESS"):
    runtime.start()


@pytest.mark.heavy
def test_nothing_is_imported_that_a_run_does_not_use():
  program = "import json, sys, vit_jax.train, vit_jax.evaluate; print(json.dumps(sorted(sys.modules)))"
  loaded = json.loads(subprocess.check_output([sys.executable, "-c", program], text=True))
  assert "jax" in loaded
  assert not {"tensorflow", "torch", "sklearn", "matplotlib", "tensorflow_datasets"} & set(loaded)


def test_compiled_programs_are_kept_where_the_user_or_the_system_says(monkeypatch, tmp_path):
  kept = jax.config.jax_compilation_cache_dir
  try:
    runtime._keep_programs()
    assert jax.config.jax_compilation_cache_dir == kept  # JAX_COMPILATION_CACHE_DIR of these tests goes first
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    runtime._keep_programs()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "vit_jax" / "programs")
  finally:
    jax.config.update("jax_compilation_cache_dir", kept)


@pytest.mark.heavy
def test_a_line_is_said_without_taking_the_devices():
  environment = os.environ | {"JAX_PLATFORMS": "none_of_this_name"}  # whoever asks for devices, fails
  program = [sys.executable, "-c", "from vit_jax import runtime; runtime.say('here')"]
  assert subprocess.check_output(program, text=True, env=environment) == "here\n"


def test_a_sigterm_is_seen_at_the_next_question():
  before = signal.getsignal(signal.SIGTERM)
  try:
    preemption = runtime.Preemption()
    preemption.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(runtime.Preempted):
      preemption.poll()
  finally:
    signal.signal(signal.SIGTERM, before)
