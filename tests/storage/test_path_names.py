"""Tests of every path option, with components that are special to shells, globs, URLs or formats.

A verb works with such a path. Otherwise it ends with exit code 2 and one line, and does not write anything.
"""

import contextlib
import importlib
import io
import json
import os
import pathlib
import shutil
import tempfile

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests import image_files, runs
from vit_jax import cli
from vit_jax.training import loop

pytestmark = pytest.mark.heavy

EXAMPLES = int(os.environ.get("VITJAX_EXAMPLES", "6"))
SPECIAL = "[]{}*?!\\ :'\"\n\r\t~$`;&|<>#%=,@-.()^+é\u0301日🙂\udce9\u202e\x1b\x7faZ0"
# Components that could be taken for a pattern, a scheme, an option, a shard or a format.
NAMES = (
  "a[1]", "[!a]", "*", "?", "{a,b}", "{000..002}", "a\\b", " a", "a ", "a:b", "gs:", "'q'", '"', "a\nb", "café",
  "cafe\u0301", "🙂", "~", "~root", "-x", "--out", "$HOME", "`id`", "%(asctime)s", "%s", "a=b", ",", ".hidden", "a.",
  "\udce9", "x" * 255, "x" * 256, "a@3", "a-00000-of-00001", "{SPLIT}", "a.npz",
)  # fmt: skip
component = st.sampled_from(NAMES) | st.text(SPECIAL, min_size=1, max_size=20).filter(lambda name: name.strip("."))


def every(test):
  """Draws components for a test, and always adds those of known defects: patterns, a scheme, invalid Unicode."""
  for name in ("a[1]", "a\\b", "gs:", "\udce9"):
    test = example(name=name)(test)
  checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
  return settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=checks)(given(name=component)(test))


def call(verb: str, *words: object) -> tuple[int, str]:
  """Runs a verb in this process, and returns (exit code, standard error)."""
  errors = io.StringIO()
  main = importlib.import_module(f"vit_jax.{verb}").main
  with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
    try:
      cli.run_verb(lambda: main([*map(str, words)]))
    except SystemExit as stop:
      return stop.code or 0, errors.getvalue()
  return 0, errors.getvalue()


@contextlib.contextmanager
def directory(name: str):
  """Yields a new directory of this name in a separate parent, or None if the file system refuses the name."""
  with tempfile.TemporaryDirectory() as outer:
    path = pathlib.Path(outer, name)
    try:
      path.mkdir()
    except OSError:
      path = None
    yield path


def check(verb: str, *words: object, made: pathlib.Path, allowed: tuple[int, ...] = (0,)) -> bool:
  """Runs a verb that must write the file `made`, or end with code 2, one short line and no file.

  Returns:
    Whether the file was written.
  """
  before = contents(made.parent)
  code, errors = call(verb, *words)
  if code == 2:
    lines = errors.strip().splitlines()
    assert lines[-1].startswith("error: ") and len(lines[-1]) < 2500, errors
    assert contents(made.parent) == before, "an error left files behind"
    return False
  assert code in allowed, f"{verb} ended with {code}: {errors}"
  assert os.path.lexists(made), f"{verb} did not write {made!a}: {os.listdir(made.parent)}"
  return True


def contents(folder: pathlib.Path) -> set[str]:
  """Returns the paths below a folder."""
  return {str(path) for path in folder.rglob("*")} if folder.is_dir() else set()


def works(name: str) -> bool:
  """Returns whether the component is valid Unicode, so that a verb must accept it."""
  return name.isascii() or not any("\udc80" <= letter <= "\udcff" for letter in name)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """Returns (workdir, file of weights, folder of photographs) of a short run."""
  root = tmp_path_factory.mktemp("names")
  loop.train(runs.parts(1, total=2, checkpoint__every=2), root / "run")
  assert call("convert", root / "run", root / "w.npz")[0] == 0
  for split in ("train", "val", "test"):
    for label in ("cat", "dog"):
      (root / "photos" / split / label).mkdir(parents=True)
      for number in range(4):
        seed = [number, len(split), len(label), ord(label[0])]
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        (root / "photos" / split / label / f"{number}.png").write_bytes(image_files.encode(pixels))
  return root / "run", root / "w.npz", root / "photos"


@pytest.mark.long
@every
def test_convert_accepts_any_name(name, trained):
  with directory(name) as path:
    if path is None:
      return
    shutil.copytree(trained[0], path / "run")
    shutil.copy(trained[1], path / "w.npz")
    assert check("convert", path / "w.npz", path / "out.safetensors", made=path / "out.safetensors")
    assert check("convert", path / "run", path / "run.npz", made=path / "run.npz") or not works(name)


@pytest.mark.long
@every
def test_predict_accepts_any_name_and_writes_it(name, trained):
  with directory(name) as path:
    if path is None:
      return
    image = path / f"{name[:40]}.png"
    shutil.copy(trained[2] / "test/cat/0.png", image)
    out = path / f"{name[:40]}.jsonl"
    assert check("predict", f"--weights={trained[1]}", image, f"--out={out}", made=out)
    assert json.loads(out.read_text())["file"] == str(image)
    shutil.copy(trained[1], path / "w.npz")
    assert check("predict", f"--weights={path}/w.npz", path, f"--out={path}/p.csv", made=path / "p.csv")


@pytest.mark.long
@every
def test_prepare_accepts_any_name(name, trained):
  with directory(name) as path:
    if path is None:
      return
    shutil.copytree(trained[2], path / "photos")
    (path / "photos/train/cat/bad.png").write_bytes(b"no image")
    moved = path / f"bad-{name[:40]}"
    words = (f"--check={path}/photos", f"--move-bad={moved}")
    assert check("prepare", *words, made=moved) or not works(name)
    words = ("--data.name=folder", f"--data.path={path}/photos", f"--data_dir={path}/data", "--processes=1")
    assert check("prepare", "photos", *words, made=path / "data/photos") or not works(name)


@pytest.mark.long
@pytest.mark.parametrize("name", ["a[1]*?{b}\\c\n'q' \"%s é~", "gs:", "\udce9"])
def test_train_evaluate_and_report_accept_any_name(name, trained, monkeypatch):
  with directory(name) as path:
    monkeypatch.chdir(runs.ROOT)
    shutil.copytree(trained[2], path / "photos")
    shutil.copy(runs.ROOT / "configs/folder.py", path / "mine.py")
    small = [f"--config.{key}={value}" for key, value in runs.SMALL.items() if key.startswith("model.")]
    keys = [f"--config.data.path={path}/photos", "--config.total=2", "--config.batch=8", *small]
    config = path / "mine.py" if works(name) else "configs/folder.py"
    words = [f"--config={config}:cct_2_3x2_32", *keys, f"--workdir={path}/run", "--no-report"]
    assert check("train", *words, made=path / "run/result.json") == works(name)
    if works(name):
      assert check("train", *words, made=path / "run/result.json")  # the same command has no remaining work
      words = [f"--workdir={path}/run", f"--write-predictions={path}/p.csv", f"--report={path}/figures"]
      assert check("evaluate", *words, made=path / "p.csv") and (path / "figures/figures.json").exists()
      assert check("report", path / "run", f"--out={path}/page.html", made=path / "page.html")
