"""Tests of chips and slices: peak and memory by device kind, names of slices, and the TPU compiler's topologies."""

import platform
import types

import jax
import pytest

from vit_jax.parallel import hardware
from vit_jax.planning import estimate


def test_peak_and_memory_are_per_jax_device():
  core = types.SimpleNamespace(device_kind="TPU v3", platform="tpu")
  assert hardware.get_peak_flops(core) == 61.5e12
  assert hardware.get_memory(core) == int(15.48 * 2**30)


def test_unknown_chip_has_no_peak_and_no_memory():
  assert hardware.get_peak_flops(types.SimpleNamespace(device_kind="TPU v99", platform="tpu")) is None
  assert hardware.get_memory(types.SimpleNamespace(device_kind="TPU v99", platform="tpu")) is None


def test_cpu_devices_share_the_machine():
  cpu = jax.devices()[0]
  assert hardware.get_peak_flops(cpu) is None
  total = 8 * hardware.get_memory(cpu)
  with open("/proc/meminfo") as file:
    assert abs(total - int(file.readline().split()[1]) * 1024) < 2**24


@pytest.mark.parametrize(
  ("text", "name", "rented", "cores", "chips", "hosts"),
  [
    ("v3-8", "v3:2x2", "v3-8", 8, 4, 1),
    ("v3-32", "v3:4x4", "v3-32", 32, 16, 4),
    ("v3:4x8", "v3:4x8", "v3-64", 64, 32, 8),
    ("v3-512", "v3:16x16", "v3-512", 512, 256, 64),
    ("v4-16", "v4:2x2x2", "v4-16", 16, 8, 2),
    ("v5litepod-16", "v5e:4x4", "v5e-16", 16, 16, 4),
    ("v5e-8", "v5e:2x4", "v5e-8", 8, 8, 1),
    ("v6e-16", "v6e:4x4", "v6e-16", 16, 16, 4),
    ("tpu7x-8", "tpu7x:2x2x1", "tpu7x-8", 8, 4, 1),
    ("tpu7x:4x4x4", "tpu7x:4x4x4", "tpu7x-128", 128, 64, 16),
    ("2xtpu7x-32", "tpu7x:2x2x4", "2xtpu7x-32", 64, 32, 8),
    ("2xv5e-256", "v5e:16x16", "2xv5e-256", 512, 512, 128),
  ],
)
def test_slice_is_parsed_from_any_of_its_names(text, name, rented, cores, chips, hosts):
  slice_ = hardware.parse_slice(text)
  assert (slice_.name, slice_.rented, slice_.cores, slice_.chips, slice_.hosts) == (name, rented, cores, chips, hosts)


@pytest.mark.parametrize(
  ("text", "vcpus"),
  [
    *(("v3-8", 96), ("v3-512", 96), ("v4-16", 240), ("v5e-1", 24), ("v5e-8", 224), ("v5e-16", 112)),
    *(("2xv6e-16", 180), ("tpu7x-16", 224)),
  ],
)
def test_vcpus_of_a_host_depend_on_its_chips(text, vcpus):
  assert hardware.parse_slice(text).vcpus == vcpus


def test_host_of_every_slice_has_at_least_24_vcpus():
  slices = [slice_ for generation in hardware.GENERATIONS for slice_ in hardware.list_slices(generation)]
  assert min(slice_.vcpus for slice_ in slices) == 24


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("v3-33", "Did you mean 'v3-32'"),
    ("v3:4y4", "Did you mean 'v3:4x4'"),
    ("w3-32", "Did you mean 'v3-32'"),
    ("v7-8", "Write one such as v3-32"),
    ("", "is not a TPU slice"),
    ("0xv3-32", "is not a TPU slice"),
  ],
)
def test_misspelled_slice_is_an_error_with_a_suggestion(text, message):
  with pytest.raises(ValueError, match=message):
    hardware.parse_slice(text)


def test_compiler_supports_slices_of_every_generation():
  """Compares devices, their kind and hosts of the smallest, a middle and the largest slice of each generation."""
  with estimate.use_tpu_compiler(kernels=True):  # other tests of the same process need the compiler with kernels
    _compare()


def _compare():
  for generation, kind in hardware.GENERATIONS.items():
    slices = hardware.list_slices(generation)
    for slice_ in (slices[0], slices[len(slices) // 2], slices[-1]):
      devices = estimate.make_topology_devices(slice_)
      assert {d.device_kind for d in devices} == {kind.kind}
      assert len(devices) == slice_.chips * kind.devices
      if slice_.chips > 8:  # the compiler splits smaller slices differently from Cloud TPU
        assert len({d.process_index for d in devices}) == slice_.hosts


def test_cpu_name_is_that_of_the_system():
  with open("/proc/cpuinfo") as file:
    named = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
  assert hardware.get_cpu_name() == (named[0] if named else platform.processor())
