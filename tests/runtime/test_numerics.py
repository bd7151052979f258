"""Tests of the recorded environment that affects the bits of a run, and of the warning for each difference."""

import os
import pathlib
import re
import subprocess
import sys
import zlib

import jax
import pytest

from vit_jax import config
from vit_jax.parallel import sharding
from vit_jax.runtime import numerics

BEFORE = {
  "packages": {"vit_jax": "a", "jax": "1", "numpy": "2", "pillow": "3"},
  "settings": {"jax_enable_x64": "False", "jax_default_matmul_precision": "None"},
  "flags": {"XLA_FLAGS": "--a=1 --b", "NPROC": ""},
  "devices": {"kind": "cpu", "count": 2, "processes": 1},
  "host": {"cpu": "EPYC", "features": ["avx", "avx2"], "backend": "cpu", "cores": 2},
}


def change(entry, **values):
  return BEFORE | {entry: BEFORE[entry] | values}


CHANGES = [
  (change("packages", vit_jax="b"), f"the code of vit_jax: a at the last checkpoint, b now. {numerics.BOTH}."),
  (change("packages", jax="1.1"), f"package jax: 1 at the last checkpoint, 1.1 now. {numerics.BOTH}."),
  (change("packages", pillow="4"), f"package pillow: 3 at the last checkpoint, 4 now. {numerics.BITS}."),
  (change("packages", libtpu="5"), f"package libtpu: not installed at the last checkpoint, 5 now. {numerics.BITS}."),
  (change("settings", jax_enable_x64="True"),
   f"JAX_ENABLE_X64: False at the last checkpoint, True now. {numerics.DRAWS}."),
  (change("settings", jax_default_matmul_precision="high"),
   f"JAX_DEFAULT_MATMUL_PRECISION: None at the last checkpoint, high now. {numerics.BITS}."),
  (change("flags", XLA_FLAGS="--b --a=2 --xla_dump_to=x"),
   f"XLA_FLAGS '--a': '1' at the last checkpoint, '2' now. {numerics.BITS}."),
  (change("flags", XLA_FLAGS="--a=1"),
   f"XLA_FLAGS '--b': 'set' at the last checkpoint, 'not set' now. {numerics.BITS}."),
  (change("flags", NPROC="1"), f"NPROC: '' at the last checkpoint, '1' now. {numerics.BITS}."),
  (change("devices", count=1),
   f"devices: 2 x cpu in 1 process at the last checkpoint, 1 x cpu in 1 process now. {numerics.BITS}."),
  (change("host", cores=1), f"CPU cores: 2 at the last checkpoint, 1 now. {numerics.BITS}."),
  (change("host", cpu="Xeon"), f"CPU: EPYC at the last checkpoint, Xeon now. {numerics.BITS}."),
  (change("host", features=["avx", "avx512f"]),
   f"vector instructions of the CPU: avx2 at the last checkpoint, avx512f now. {numerics.BITS}."),
  (change("host", backend="cuda 13"),
   f"the version of the backend: cpu at the last checkpoint, cuda 13 now. {numerics.BITS}."),
]  # fmt: skip


@pytest.mark.parametrize(("now", "line"), CHANGES, ids=[line.partition(":")[0] for _, line in CHANGES])
def test_each_difference_is_one_line_with_its_consequence(now, line):
  assert numerics.compare_environments(BEFORE, now) == [line]


def test_order_of_flags_does_not_matter_and_the_last_one_counts():
  assert numerics.compare_environments(BEFORE, change("flags", XLA_FLAGS="--b --a=3  --a=1")) == []


def test_entries_missing_in_an_older_record_are_not_compared():
  older = {key: BEFORE[key] for key in ("packages", "devices")}
  assert numerics.compare_environments(older, change("packages", scipy="1")) == []
  flags = {"XLA_FLAGS": "--a=1 --b", "JAX_DEFAULT_MATMUL_PRECISION": "high"}
  assert numerics.compare_environments(older | {"flags": flags}, BEFORE) == [
    f"JAX_DEFAULT_MATMUL_PRECISION: high at the last checkpoint, None now. {numerics.BITS}."
  ]
  assert numerics.compare_environments(older | {"flags": flags | {"JAX_DEFAULT_MATMUL_PRECISION": ""}}, BEFORE) == []


def test_record_contains_packages_devices_settings_and_flags():
  record = numerics.record_environment(sharding.make_mesh(config.Mesh(), jax.devices()[:4]), "c0de")
  assert record["packages"]["vit_jax"] == "c0de" and record["packages"]["jax"] == jax.__version__
  assert record["devices"] == {"kind": "cpu", "count": 4, "processes": 1}
  assert record["host"]["cores"] == len(os.sched_getaffinity(0))
  assert record["settings"]["jax_enable_x64"] == "False" and record["settings"]["jax_threefry_partitionable"] == "True"
  assert record["flags"]["XLA_FLAGS"] == os.environ["XLA_FLAGS"]


def test_cpu_model_and_features_are_read_from_cpuinfo(tmp_path):
  (tmp_path / "x86").write_text("model name\t: EPYC\nflags\t\t: fpu avx2 avx fma sse4_1 nx\n\nmodel name\t: other\n")
  assert numerics.read_cpu_model(str(tmp_path / "x86")) == "EPYC"
  assert numerics.read_cpu_features(str(tmp_path / "x86")) == ["avx", "avx2", "fma", "fpu", "sse4_1"]
  (tmp_path / "arm").write_text("processor\t: 0\nFeatures\t: fp asimd crc32 sve\nCPU part\t: 0xd40\n\n")
  assert numerics.read_cpu_model(str(tmp_path / "arm")) == "0xd40"
  assert numerics.read_cpu_features(str(tmp_path / "arm")) == ["asimd", "fp", "sve"]
  assert numerics.read_cpu_features(str(tmp_path / "none")) == [] and numerics.read_cpu_model(str(tmp_path / "none"))


PROGRAM = """
import jax
from vit_jax import rng, runtime
from vit_jax.runtime import numerics
runtime.start()
key = rng.derive_key(3, 7, "augment")
print(jax.random.key_data(key).tolist(), jax.random.bits(key, (3,)).tolist(), jax.random.key_impl(key))
print(numerics.read_settings()["jax_threefry_partitionable"])
"""


@pytest.mark.heavy
def test_environment_variables_do_not_change_the_random_generator():
  environment = os.environ | {"JAX_DEFAULT_PRNG_IMPL": "rbg", "JAX_THREEFRY_PARTITIONABLE": "0"}
  printed = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
  key = jax.random.fold_in(jax.random.key(3, impl="threefry2x32"), zlib.crc32(b"augment"))
  key = jax.random.fold_in(key, 7)
  expected = f"{jax.random.key_data(key).tolist()} {jax.random.bits(key, (3,)).tolist()} threefry2x32"
  assert printed.stdout.splitlines() == [expected, "True"]


def test_all_keys_are_made_with_a_named_implementation():
  makers = re.compile(r"random\.(key|PRNGKey|wrap_key_data)\(|nnx\.Rngs\(")
  package = pathlib.Path(numerics.__file__).parents[1]
  lines = [f"{file.name}: {line}" for file in package.rglob("*.py") for line in file.read_text().splitlines()]
  assert [line for line in lines if makers.search(line) and "`" not in line] == [
    "rng.py:   return jax.random.key(seed, impl=_IMPLEMENTATION)"
  ]
