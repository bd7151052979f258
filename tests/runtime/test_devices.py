"""Tests of JAX_PLATFORMS with unknown names and with devices that this machine does not have."""

import glob

import jax
import pytest

from vit_jax.runtime import devices
from vit_jax.schema import ConfigError


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("CPU", "JAX_PLATFORMS='CPU': unknown platform 'CPU'. Did you mean 'cpu'?"),
    ("cpu,TPU", "unknown platform 'TPU'. Did you mean 'tpu'?"),
    ("nvidia", "unknown platform 'nvidia'. Known platforms: cpu, "),
    ("cpu, tpu", "unknown platform ' tpu'. Did you mean 'tpu'?"),
  ],
)
def test_unknown_platform_is_reported_in_one_line(text, message, monkeypatch):
  monkeypatch.setenv("JAX_PLATFORMS", text)
  with pytest.raises(ConfigError) as error:
    devices.check_names()
  assert message in str(error.value) and "\n" not in str(error.value)
  assert "unset JAX_PLATFORMS" in str(error.value)


@pytest.mark.skipif(bool(glob.glob("/dev/nvidia*")), reason="this machine has an NVIDIA GPU")
def test_cuda_without_a_gpu_is_reported(monkeypatch):
  monkeypatch.setenv("JAX_PLATFORMS", "cuda")
  with pytest.raises(ConfigError, match=r"JAX_PLATFORMS='cuda': no NVIDIA GPU is visible\. Set JAX_PLATFORMS=cpu"):
    devices.check_names()


@pytest.mark.parametrize("text", ["", "cpu", "cuda,cpu", "tpu,cpu"])
def test_known_platforms_are_accepted(text, monkeypatch):
  monkeypatch.setenv("JAX_PLATFORMS", text)
  devices.check_names()


@pytest.mark.parametrize("error", [RuntimeError("Unable to initialize backend 'tpu': none\nmore"), AssertionError()])
def test_platform_that_does_not_start_is_reported_in_one_line(error, monkeypatch):
  def fail():
    raise error

  monkeypatch.setenv("JAX_PLATFORMS", "tpu")
  monkeypatch.setattr(jax, "local_devices", fail)
  with pytest.raises(ConfigError, match=r"JAX_PLATFORMS='tpu': JAX cannot start \((Unable|no device)") as caught:
    devices.open_devices()
  assert "\n" not in str(caught.value)


def test_deprecated_variable_of_an_absent_platform_is_named(monkeypatch):
  def fail():
    raise RuntimeError("Unknown backend: 'gpu' requested")

  monkeypatch.setenv("JAX_PLATFORMS", "cpu")
  monkeypatch.setenv("JAX_PLATFORM_NAME", "gpu")
  monkeypatch.setattr(jax, "local_devices", fail)
  with pytest.raises(ConfigError, match=r"^JAX_PLATFORM_NAME='gpu': JAX cannot start .*\. Unset JAX_PLATFORM_NAME\.$"):
    devices.open_devices()
