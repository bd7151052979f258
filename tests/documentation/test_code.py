"""The page "From configs/digits.py to the gradient" lists the files that a short run really executes."""

import json
import re

import pytest

from tests import runs
from tests.documentation import extraction
from vit_jax.corpora.builders import prepare_dataset

PAGE = (extraction.ROOT / "docs/concepts/code.md").read_text()
_MAIN, _OTHERS = PAGE.split("## Other files that the step runs")
_STEP, _DATA, _SHARDING = _OTHERS.split("\n## ")[:3]
ITEMS = re.findall(r"^\d+\. (`.*(?:\n {3,4}\S.*)*)", _MAIN, re.M)
FILES = [re.match(r"`([^`]+)`", item)[1] for item in ITEMS]
OTHERS, DATA, SHARDING = (
  re.findall(r"`((?:vit_jax|configs)/[\w/]+(?:\.py|/))`", text) for text in (_STEP, _DATA, _SHARDING)
)
# Folders of which every executed file must be on the page, wherever the run executes it.
WHOLE = ("vit_jax/data/", "vit_jax/parallel/", "vit_jax/optim/", "vit_jax/tasks/", "vit_jax/losses.py")
LATER = (
  "vit_jax/training/steps.py",
  "vit_jax/tasks/classify.py",
  "vit_jax/data/augment.py",
  "vit_jax/models/functional.py",
)


def test_the_list_has_16_to_18_files_with_two_sentences_each():
  assert 16 <= len(FILES) <= 18 and len({*FILES, *OTHERS}) == len(FILES) + len(OTHERS)
  for item in ITEMS:
    words = re.sub(r"`[^`]*`", "X", re.sub(r"\s+", " ", item))
    assert len(re.findall(r"[.](?= [A-Z]|$)", words)) == 2, item


def test_the_listed_files_exist():
  assert [file for file in (*FILES, *OTHERS, *DATA, *SHARDING) if not (extraction.ROOT / file).exists()] == []


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
  """The files that a digits run of two steps executes, see `tests.documentation.tracing`."""
  prepare_dataset("digits")
  folder = tmp_path_factory.mktemp("traced")
  words = runs.words(folder / "run", total=2, evals__test__every=2, optim__accumulate=2)
  process = runs.start("tests.documentation.tracing", str(folder / "files.json"), "train", *words)
  printed, errors = process.communicate(timeout=600)
  assert process.returncode == 0, printed + errors
  return json.loads((folder / "files.json").read_text())


@pytest.mark.long
def test_a_run_executes_every_listed_file(traced):
  assert [file for file in FILES if file not in traced["run"]] == []


@pytest.mark.long
def test_the_page_names_every_file_that_the_train_step_executes(traced):
  folders = tuple(name for name in OTHERS if name.endswith("/"))
  inside = {file for file in traced["step"] if not file.startswith(folders)}
  assert inside - {*FILES, *OTHERS} == set()
  assert {file for file in OTHERS if not file.endswith("/")} - inside == set()


@pytest.mark.long
@pytest.mark.parametrize("folder", WHOLE)
def test_the_page_names_every_executed_file_of_data_optimizer_losses_and_sharding(traced, folder):
  executed = {file for file in traced["run"] if file.startswith(folder)}
  assert executed == {file for file in (*FILES, *OTHERS, *DATA, *SHARDING) if file.startswith(folder)}


@pytest.mark.long
def test_the_files_are_listed_in_the_order_of_a_run(traced):
  """The train step is traced once in `build`, before the loop; its files are compared among themselves."""
  order = {file: i for i, file in enumerate(traced["step"])}
  assert [order[file] for file in LATER] == sorted(order[file] for file in LATER)
  first = ("vit_jax/train.py", "configs/digits.py", "vit_jax/training/build.py", "vit_jax/training/loop.py")
  run = {file: i for i, file in enumerate(traced["run"])}
  assert [run[file] for file in first] == sorted(run[file] for file in first)
  assert traced["step"][0] == "vit_jax/training/steps.py" and traced["step"][-1].startswith("vit_jax/optim/")
