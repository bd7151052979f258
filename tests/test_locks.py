"""Tests of the lock files: they agree with setup.py, contain hashes, and name no server."""

import itertools
import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.documentation.checks import packaging
from tests.runs import ROOT

LOCKS = {"cpu": (), "gcs": ("gcs",), "tpu": ("tpu", "gcs"), "gpu": ("gpu",)}
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"}
PYTHONS = [LINUX | {"python_version": f"3.{minor}", "python_full_version": f"3.{minor}.1"} for minor in (11, 12, 13)]


def read_pins(lock):
  """Returns [(requirement, hashes)] of a lock."""
  text = (ROOT / f"requirements/{lock}.txt").read_text().replace(" \\\n", " ")
  lines = [re.split(r"\s+--hash=", line) for line in text.splitlines()]
  return [(Requirement(line), hashes) for line, *hashes in lines]


def applies(requirement, environment):
  return requirement.marker is None or requirement.marker.evaluate(environment | {"extra": ""})


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_has_one_version_and_hashes_and_no_server(lock):
  text = (ROOT / f"requirements/{lock}.txt").read_text()
  assert "://" not in text and "index" not in text
  for requirement, hashes in read_pins(lock):
    assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), requirement
    assert hashes and all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes), requirement


@pytest.mark.parametrize(("lock", "environment"), [*itertools.product(LOCKS, PYTHONS)], ids=str)
def test_lock_has_one_allowed_version_of_each_requirement(lock, environment):
  setup = packaging()
  lines = [*setup["install_requires"], *(line for extra in LOCKS[lock] for line in setup["extras_require"][extra])]
  pins = [pin for pin, _ in read_pins(lock) if applies(pin, environment)]
  names = [canonicalize_name(pin.name) for pin in pins]
  assert len(names) == len(set(names))
  for requirement in map(Requirement, lines):
    if applies(requirement, environment):
      (pin,) = [each for each in pins if canonicalize_name(each.name) == canonicalize_name(requirement.name)]
      assert requirement.specifier.contains(str(pin.specifier).removeprefix("==")), f"{requirement}. Run: make lock"


def test_locks_of_accelerators_have_the_versions_of_the_cpu():
  pins = {lock: {str(pin) for pin, _ in read_pins(lock)} for lock in LOCKS}
  assert pins["cpu"] < pins["gcs"] < pins["tpu"] and pins["cpu"] < pins["gpu"]


def test_makefile_writes_and_installs_the_locks():
  text = (ROOT / "Makefile").read_text()
  written = re.findall(r"--output-file requirements/(\w+)\.txt(.*)$", text, re.MULTILINE)
  assert {lock: tuple(extras.replace("--extra", "").split()) for lock, extras in written} == LOCKS
  assert {file.stem for file in (ROOT / "requirements").iterdir()} == LOCKS.keys()
  assert "\nLOCK ?= requirements/cpu.txt\n" in text and "--require-hashes --requirement $(call quote,$(LOCK))" in text
