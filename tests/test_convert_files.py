"""Tests of the files of `convert`: two conversions at once, a kill, a full disk and broken links."""

import json
import subprocess
import sys

import pytest

from tests import runs
from tests.test_convert import VIT, written
from vit_jax import convert, importers
from vit_jax.schema import ConfigError


@pytest.mark.long
def test_second_of_two_conversions_into_one_file_fails(tmp_path):
  written(tmp_path / "a.npz")
  written(tmp_path / "b.npz", description=VIT.replace(classes=5), seed=1)
  (tmp_path / "out").mkdir()
  words = [sys.executable, "-c", _MEETING, *(str(tmp_path / name) for name in ("ready", "out/model.safetensors"))]
  both = [
    subprocess.Popen([*words, str(tmp_path / name)], cwd=runs.ROOT, stderr=subprocess.PIPE, text=True)
    for name in ("a.npz", "b.npz")
  ]
  outputs = [process.communicate()[1] for process in both]
  codes = [process.returncode for process in both]
  assert sorted(codes) == [0, 2], outputs
  assert "already exists" in outputs[codes.index(2)]
  names = ["config.json", "model.safetensors", "preprocessor_config.json"]
  assert sorted(file.name for file in (tmp_path / "out").iterdir()) == names
  (tmp_path / "out/model.safetensors").rename(tmp_path / "out/other.safetensors")
  labels = json.loads((tmp_path / "out/config.json").read_text())["id2label"]
  assert len(labels) == importers.load(tmp_path / "out/other.safetensors")[0].classes == (3, 5)[codes.index(0)]


# Converts, and waits after its writes until another process has also written everything.
_MEETING = """
import contextlib, pathlib, sys, time
from vit_jax import cli, convert
from vit_jax.storage import files
ready, target, source = map(pathlib.Path, sys.argv[1:])
replacing = files.atomic_write

@contextlib.contextmanager
def meeting(path, before=None):
  with replacing(path, before) as partial:
    yield partial
    ready.with_name(f"ready-{source.stem}").touch()
    while before and len(list(ready.parent.glob("ready-*"))) < 2:
      time.sleep(0.01)

files.atomic_write = meeting
sys.argv = ["convert", str(source), str(target), "--layout=hf"]
cli.run_verb(convert.main)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("target", ["out/model.safetensors", "out/model.npz", "out/workdir"])
def test_killed_conversion_is_completed_by_the_same_command(tmp_path, target):
  written(tmp_path / "a.npz")
  (tmp_path / "out").mkdir()
  killed = subprocess.run(
    [sys.executable, "-c", _KILLED, str(tmp_path / "a.npz"), str(tmp_path / target)], cwd=runs.ROOT, check=False
  )
  assert killed.returncode == -9
  assert not (tmp_path / target).is_file() and any((tmp_path / "out").iterdir())
  convert.convert(tmp_path / "a.npz", tmp_path / target, None, {})
  assert importers.load(tmp_path / target)[0].classes == 3
  assert not list((tmp_path / "out").glob(".*"))
  with pytest.raises(ConfigError, match="already exists"):
    convert.convert(tmp_path / "a.npz", tmp_path / target, None, {})


# Converts, and is killed before a file or a checkpoint folder gets its final name.
_KILLED = """
import os, pathlib, signal, sys
from vit_jax import convert
source, target = map(pathlib.Path, sys.argv[1:])

def dying(function):
  def call(old, new, **options):
    if pathlib.Path(new).name in ("0", target.name):
      os.kill(os.getpid(), signal.SIGKILL)
    return function(old, new, **options)
  return call

os.replace, os.rename = dying(os.replace), dying(os.rename)
convert.convert(source, target, None, {})
"""


def test_failed_write_of_a_json_file_leaves_no_file(tmp_path):
  written(tmp_path / "a.npz")
  (tmp_path / "out").mkdir()
  target = tmp_path / "out/model.safetensors"
  (tmp_path / "out/.preprocessor_config.json.partial").symlink_to("/dev/full")
  with pytest.raises(OSError, match="No space left"):
    convert.convert(tmp_path / "a.npz", target, "hf", {})
  assert not list((tmp_path / "out").iterdir())
  convert.convert(tmp_path / "a.npz", target, "hf", {})
  names = ["config.json", "model.safetensors", "preprocessor_config.json"]
  assert sorted(file.name for file in (tmp_path / "out").iterdir()) == names


@pytest.mark.parametrize("leads", ["nowhere", "link", "link.npz", "link.safetensors"])
@pytest.mark.parametrize("name", ["link", "link.npz", "link.safetensors"])
def test_broken_link_at_the_target_counts_as_existing(tmp_path, name, leads):
  written(tmp_path / "a.npz")
  (tmp_path / name).symlink_to(tmp_path / leads)
  with pytest.raises(ConfigError, match=f"{name} already exists"):
    convert.convert(tmp_path / "a.npz", tmp_path / name, None, {})
  assert (tmp_path / name).is_symlink() and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(("there", "target", "other"), [("x.npz", "x.stablehlo", "x_stablehlo.stablehlo"),
                                                        ("x.stablehlo", "x.npz", "x_npz.npz")])  # fmt: skip
def test_json_file_shared_by_two_outputs_is_an_error_if_it_differs(tmp_path, there, target, other):
  (tmp_path / there).write_bytes(b"weights")
  (tmp_path / "x.json").write_text('{"of": "the first"}\n')
  with pytest.raises(ConfigError) as error:
    convert.check_new(tmp_path / target, {tmp_path / "x.json": '{"of": "the second"}\n'})
  assert str(error.value) == (
    f"{tmp_path}/x.json already exists, and {target} needs a file of this name. Choose another name, such as "
    f"{other}, or another directory"
  )
  convert.check_new(tmp_path / target, {tmp_path / "x.json": '{"of": "the first"}\n'})
  convert.check_new(tmp_path / other, {(tmp_path / other).with_suffix(".json"): '{"of": "the second"}\n'})
