"""Tests of the available slices, compared with the table of vit_jax, the TPU compiler and GKE's documentation."""

import re

import pytest

from launch import manifests, tpus
from launch.errors import USAGE, LaunchError
from tests.launch import launches
from vit_jax.parallel import hardware
from vit_jax.planning import estimate

SLICES = tpus.list_slices()


def test_names_match_the_table_of_vit_jax():
  rented = {slice_.rented for generation in hardware.GENERATIONS for slice_ in hardware.list_slices(generation)}
  assert set(SLICES) == rented


@pytest.mark.parametrize("name", SLICES)
def test_slices_match_the_table_of_vit_jax(name):
  slice_, other = tpus.find_slice(name), hardware.parse_slice(name)
  assert (slice_.name, slice_.hosts, slice_.chips) == (other.rented, other.hosts, other.chips)
  assert slice_.devices == other.chips * hardware.GENERATIONS[other.generation].devices
  assert f"{slice_.generation}:{slice_.grid}" == other.name
  assert tpus.find_slice(slice_.rented) == slice_ and tpus.normalise_name(slice_.rented) == slice_.name == name


# From developers.google.com's page of TPUs in GKE: the names of node pools of one host and of several hosts.
@pytest.mark.parametrize(
  ("name", "accelerator", "grid"),
  [
    ("v3-8", "tpu-v3-device", "2x2"),
    ("v3-32", "tpu-v3-slice", "4x4"),
    ("v4-8", "tpu-v4-podslice", "2x2x1"),
    ("v4-32", "tpu-v4-podslice", "2x2x4"),
    ("v5e-8", "tpu-v5-lite-podslice", "2x4"),
    ("v5p-16", "tpu-v5p-slice", "2x2x2"),
    ("v6e-256", "tpu-v6e-slice", "16x16"),
    ("tpu7x-8", "tpu7x", "2x2x1"),
    ("tpu7x-16", "tpu7x", "2x2x2"),
    ("tpu7x-256", "tpu7x", "4x4x8"),
  ],
)
def test_gke_names_match_its_documentation(name, accelerator, grid):
  assert (tpus.find_slice(name).accelerator, tpus.find_slice(name).grid) == (accelerator, grid)


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ("v3-33", ["Did you mean 'v3-32'", "v3-64"]),
    ("v5litepod-17", ["Did you mean 'v5e-16'", "v5e-16"]),
    ("tpu7x-13", ["Did you mean 'tpu7x-16'", "tpu7x-8"]),
    ("v7-8", ["Allowed: "]),
    ("", ["Allowed: "]),
    ("v3-32;rm", ["v3-32"]),
    ("V3-32", ["v3-32"]),
    ("2xv3-32", ["v3-32"]),
  ],
)
def test_unknown_slice_is_refused_with_alternatives(text, words):
  with pytest.raises(LaunchError, match=re.escape(f"--tpu: {text!r}")) as error:
    tpus.find_slice(text)
  assert error.value.code == USAGE
  assert all(word in str(error.value) for word in words)


def test_unknown_name_is_not_changed():
  assert tpus.normalise_name("tpu9-16") == "tpu9-16"


def test_zones_have_a_region():
  for kind in tpus.GENERATIONS.values():
    assert all(re.fullmatch(r"[a-z]+-[a-z]+\d-[a-f]", zone) for zone in kind.zones)
    assert bool(kind.zones) == bool(kind.runtime)  # TPU VMs


def test_tpu7x_is_for_gke_only():
  with pytest.raises(LaunchError, match=r"does not offer tpu7x\. Use --backend=gke") as error:
    launches.run("qr", tpu="tpu7x-16")
  assert error.value.code == USAGE
  run = launches.run("gke", tpu="tpu7x-16", slices=2)
  assert (run.workers, run.devices) == (4, 32)
  assert "--tpu-type=tpu7x-16" in manifests.build_xpk_command(run)
  with pytest.raises(LaunchError, match="Cloud TPU's API does not offer tpu7x; use --xpk"):
    manifests.build_skypilot_task(launches.run("gke", tpu="tpu7x-16"))


@pytest.mark.heavy
def test_compiler_has_the_same_numbers_of_devices_and_hosts():
  """Checks the smallest, a middle and the largest slice of each generation."""
  with estimate.use_tpu_compiler(kernels=True):  # other tests of the same process need the kernels
    for generation, kind in tpus.GENERATIONS.items():
      every = [slice_ for slice_ in SLICES.values() if slice_.generation == generation]
      for slice_ in (every[0], every[len(every) // 2], every[-1]):
        devices = estimate.make_topology_devices(hardware.parse_slice(f"{generation}:{slice_.grid}"))
        assert len(devices) == slice_.devices == slice_.chips * kind.devices
        if slice_.chips > 8:  # the compiler divides smaller slices differently from Cloud TPU
          assert len({device.process_index for device in devices}) == slice_.hosts
