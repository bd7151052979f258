"""Tests of the command line of `prepare`: its output, and errors that name the flag."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests import runs
from tests.corpora import folders
from vit_jax import prepare, schema
from vit_jax.data import catalog


@pytest.mark.heavy
def test_unknown_dataset_exits_with_2_and_one_line(tmp_path):
  command = [sys.executable, "-m", "vit_jax.prepare", "digitz", f"--data_dir={tmp_path}"]
  result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
  assert result.returncode == 2
  assert result.stderr.startswith("error: unknown dataset 'digitz'. Did you mean 'digits'?")
  assert len(result.stderr.strip().splitlines()) == 1


# Makes an import of TensorFlow fail in processes with this file on their PYTHONPATH.
MISSING = """
import sys

class Missing:
  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] == "tensorflow":
      raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


@pytest.mark.long
def test_missing_tensorflow_is_an_error_with_the_install_command(tmp_path):
  (tmp_path / "sitecustomize.py").write_text(MISSING)
  data, photographs = tmp_path / "data", folders.folder(folders.folder(tmp_path / "photographs"), 4, split="test")
  for name in ("digits", "scenes", "mnist"):
    process = runs.command("prepare", name, f"--data_dir={data}", PYTHONPATH=str(tmp_path))
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 2
    assert errors == (
      f"error: {name}: TensorFlow is missing (No module named 'tensorflow'), but TensorFlow Datasets needs it to "
      "write data. Run: pip install -e . in the folder with setup.py\n"
    )
  assert not [file for file in data.rglob("*") if file.is_file() and file.name != ".prepare.lock"]
  words = ["photographs", "--data.name=folder", f"--data.path={photographs}", f"--data_dir={data}"]
  assert "is prepared at" in runs.finish(runs.command("prepare", *words, PYTHONPATH=str(tmp_path)))


@pytest.mark.long
def test_two_concurrent_preparations_succeed(tmp_path):
  processes = [runs.command("prepare", "digits", f"--data_dir={tmp_path}") for _ in range(2)]
  printed = [runs.finish(process) for process in processes]
  assert sorted("digits is already prepared" in text for text in printed) == [False, True]
  assert sum("digits is prepared" in text for text in printed) == 1


@pytest.mark.parametrize(
  ("words", "message"),
  [
    ("--data.name=foldr", r"data\.name: unknown name 'foldr'\. Did you mean 'folder'"),
    ("--data.path=/x", r"data\.name: missing\. Set --data\.name=READER .*: .*folder"),
    ("--data.name=folder", r"data\.path: missing\. .*--data\.path="),
    ("--data.name=folder --data.pth=/x", r"data\.pth: unknown key for 'folder'.*Did you mean 'path'"),
    ("--data.name=folder --data.path=/x --data.holdout=2", r"data\.holdout: 2.* out of range"),
    ("--data.name=folder --data.path=/nowhere", r"data\.path: no folder '/nowhere'"),
    ("--data.name=folder --data.path=/x --size=0", "--size: 0 is out of range"),
    ("--data.name=folder --data.path=/x --max-rejected=2", "--max-rejected: 2.* out of range"),
    ("--data_name=folder", "unknown flag '--data_name'"),
    ("--size=3", "--size: only for a corpus, with input from --data.name"),
  ],
)
def test_errors_of_a_corpus_name_the_flag(tmp_path, words, message):
  with pytest.raises(schema.ConfigError, match=message):
    prepare.main(["photos", f"--data_dir={tmp_path}", *words.split()])
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
  ("words", "message"),
  [
    ("", r"^name: missing\. Name a dataset, for example `python -m vit_jax\.prepare digits`, or use --check=FOLDER"),
    ("--show=configs/digitz.py", r"--config: no file 'configs/digitz\.py'.*Did you mean"),
    ("--show=configs/digits.py --config.data.crp.name=resize", r"config\.data\.crp: unknown key"),
    ("--show=configs/digits.py digits", "^NAME: --show can only be combined"),
    ("--show=configs/digits.py --data.name=folder", r"^--data\.name: --show can only be combined"),
    ("--show=configs/digits.py --dedup-against=x", "^--dedup-against: --show can only be combined"),
    ("--show=configs/digits.py --sample=0", "--sample: 0 is out of range"),
    ("--show=configs/digits.py --out=a.pdf", r"a\.pdf: \.pdf is not a format. End the name in \.png"),
    ("--show=configs/folder.py", r"config\.data\.path: missing"),
    ("--show=configs/folder.py --config.data.path=/nowhere", r"config\.data\.path: no folder '/nowhere'"),
    ("digits --config.seed=1", r"^--config\.seed: only valid with --show=CONFIG"),
    ("digits --out=a.png", "^--out: only valid with --show=CONFIG"),
    ("digits --move-bad=x", "^--move-bad: only valid with --check=PATH"),
    ("digits --check=x", r"^NAME: --check=PATH can only be combined with --move-bad=DIR"),
    ("--check=x --size=4", r"^--size: --check=PATH can only be combined"),
    ("--check=x --data.name=folder", r"^--data\.name: --check=PATH can only be combined"),
    ("--check=/nowhere", "^--check: no folder '/nowhere'"),
  ],
)
def test_errors_of_show_and_check_name_the_flag(monkeypatch, words, message):
  monkeypatch.chdir(runs.ROOT)
  with pytest.raises(schema.ConfigError, match=message):
    prepare.main(words.split())


def test_corpus_from_the_command_line_is_written_and_readable(tmp_path, capsys):
  photos = folders.folder(tmp_path / "photos", 5)
  words = (
    f"photos --data.name=folder --data.path={photos} --data.holdout 0.4 --size=30 --shards=2 --seed=3 --processes=1"
  )
  prepare.main([*words.split(), f"--data_dir={tmp_path}/data"])
  note = f"'{photos}': 10 images, 10 .jpg; ignored: nothing\n"
  assert capsys.readouterr().out.startswith(
    f"{note}photos is prepared at {tmp_path}/data/photos/1.0.0\ntrain: 10 images in 2"
  )
  assert len(folders.source(tmp_path / "data", name="photos")) == 10
  prepare.main([*words.split(), f"--data_dir={tmp_path}/data"])
  assert capsys.readouterr().out == f"{note}photos is already prepared at {tmp_path}/data/photos/1.0.0\n"


# The last report is never written in processes with this file on their PYTHONPATH.
WAITING = """
import sys, time

def wait(event, arguments):
  if event == "open" and "train-00079" in str(arguments[0]) and arguments[1] == "w":
    time.sleep(600)

sys.addaudithook(wait)
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT], ids=lambda number: number.name)
def test_signal_stops_preparation_with_one_line(tmp_path, number):
  photos = folders.folder(tmp_path / "photos", 400)
  (tmp_path / "sitecustomize.py").write_text(WAITING)
  words = [f"--data.path={photos}", f"--data_dir={tmp_path}/data", "--shards=80", "--processes=1"]
  process = runs.command("prepare", "photos", "--data.name=folder", *words, PYTHONPATH=str(tmp_path))
  work = tmp_path / "data/photos/.1.0.0.work"
  while not list(work.glob("train-*.json")) and process.poll() is None:
    time.sleep(0.01)
  process.send_signal(number)
  note, message = runs.finish(process, 42).splitlines()
  assert note.endswith("/photos': 800 images, 800 .jpg; ignored: nothing")
  assert message == f"stopped on request ({number.name}); the same command starts or continues it"


def test_corpus_accepts_the_keys_of_every_reader():
  for name, reader in catalog.READERS.items():
    keys = schema.read_keywords(reader)
    needed = {"path": "/x"} if "path" in keys else {}
    needed |= {"parts": "({'name': 'folder', 'path': '/x'},)"} if name == "mixture" else {}
    needed |= {"labelled.name": "digits"} if name == "pseudo_labelled" else {}
    needed |= {"classes": "('a', 'b')"} if name == "segmentation" else {}
    chosen = prepare.parse_data_choice({"name": name, **needed})
    assert chosen.keys() == {"name", *keys}


def test_check_fails_for_a_folder_that_no_run_can_read(tmp_path, capsys):
  (tmp_path / "1.jpg").write_bytes((folders.folder(tmp_path / "photos", 1) / "train/cat/0.jpg").read_bytes())
  (tmp_path / "photos").rename(tmp_path / ".hidden")
  message = r"^--check: a run with the default settings cannot read this folder: no images .* If it is a class"
  with pytest.raises(schema.ConfigError, match=message):
    prepare.main([f"--check={tmp_path}"])
  assert capsys.readouterr().out.endswith("no bad image\n")


def test_check_exits_with_1_exactly_if_bad_images_remain(tmp_path, capsys):
  photos, aside = folders.folder(tmp_path / "photos", 3), tmp_path / "aside"
  torn = photos / "train/cat/torn.jpg"
  torn.write_bytes(b"x")
  check, move = [f"--check={photos}"], [f"--check={photos}", f"--move-bad={aside}"]

  def run(words, code):
    if code:
      with pytest.raises(SystemExit) as ended:
        prepare.main(words)
      assert ended.value.code == code
    else:
      prepare.main(words)
    return capsys.readouterr().out

  assert run(check, 1).startswith("bad: train/cat/torn.jpg: not a complete image")
  assert "1 bad image, 1 moved to" in run(move, 0)
  assert run(check, 0).endswith(
    "\nno bad image\nnext: python -m vit_jax.train --config=folder:cct_2_3x2_32 --workdir=runs/a "
    f"--config.data.path={photos} --config.batch=4\n"
  )
  torn.write_bytes(b"x")  # the other folder already contains a file of this name
  assert "1 bad image, 0 moved to" in run(move, 1)
