"""Chips: memory and peak of a device by its kind."""

import types

import jax

from vit_jax import hardware


def test_the_table_is_per_jax_device():
  core = types.SimpleNamespace(device_kind="TPU v3", platform="tpu")
  assert hardware.peak(core) == 61.5e12
  assert hardware.memory(core) == 16 * 2**30


def test_an_unknown_chip_has_no_peak():
  assert hardware.peak(types.SimpleNamespace(device_kind="TPU v99", platform="tpu")) is None
  assert hardware.memory(types.SimpleNamespace(device_kind="TPU v99", platform="tpu")) is None


def test_cpu_devices_share_the_machine():
  cpu = jax.devices()[0]
  assert hardware.peak(cpu) is None
  total = 8 * hardware.memory(cpu)
  with open("/proc/meminfo") as file:
    assert abs(total - int(file.readline().split()[1]) * 1024) < 2**24
