"""Tests of groups of processes: one process stops, fails, dies or hangs, and the others end as documented."""

import json
import re

import pytest

from tests import runs

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def group(tmp_path_factory):
  """Returns a function that returns the exit codes and the outputs of the processes of a group."""
  folder = tmp_path_factory.mktemp("groups")
  runs.finish(runs.start("tests.runtime.groups", str(folder)))
  codes = json.loads((folder / "codes.json").read_text())

  def ends(name):
    return [code for key, code in codes.items() if key.startswith(name)], [
      path.read_text() for path in sorted(folder.glob(f"{name}-*"))
    ]

  return ends


@pytest.mark.long
def test_different_configs_name_the_process_and_the_setting(group):
  assert all("process 2: config.lr: 0.1 -> 1.1" in text for text in group("talk")[1])


@pytest.mark.long
def test_missing_image_of_an_evaluation_is_an_error_of_all_processes(group):
  line = "split 'test' of config.evals.pets.data: process 0 reads 3 images from '/pets', and process 2 reads 4"
  assert all(line in text for text in group("talk")[1])


@pytest.mark.long
def test_sigterm_to_one_process_stops_all_at_the_same_poll(group):
  stops = [re.search(r"code 42: stopped on request.*at poll (\d+)", text)[1] for text in group("talk")[1]]
  assert len(set(stops)) == 1


@pytest.mark.long
def test_request_of_one_process_stops_all_with_its_code_and_message(group):
  stops = [re.search(r"code 2: a bad image; at poll (\d+)", text)[1] for text in group("talk")[1]]
  assert len(set(stops)) == 1


@pytest.mark.long
def test_bug_of_one_process_ends_the_others_with_exit_code_134(group):
  codes, texts = group("talk")
  assert codes == [134, 1, 134]
  assert "AssertionError: a bug" in texts[1]
  assert all("Traceback" not in texts[i] and "process 1 ended with code 1" in texts[i] for i in (0, 2))


def test_user_error_of_one_process_is_reported_by_all(group):
  codes, texts = group("mistake")
  assert codes == [2, 2]
  assert "error: mine alone" in texts[1].splitlines()
  assert "process 1 ended with code 2: error: mine alone" in texts[0]


@pytest.mark.long
def test_last_line_without_process_0_names_the_next_step(group):
  codes, texts = group("first")
  assert codes == [-9, 134]
  last = texts[1].splitlines()[-1]
  assert "the same command continues" in last
  # If JAX's C++ code ends the process, only that code knows which process failed.
  assert re.search("this process was aborted: if the lines above do not show an error|process 0 has been silent", last)


def test_silent_process_is_named(group):
  codes, texts = group("silent")
  assert codes == [134]
  assert "process 1 has been silent for 10 s" in texts[0]
  assert "quiet: 1\n" in texts[0]


@pytest.mark.long
def test_missing_process_is_reported(group):
  codes, texts = group("missing")
  assert codes == [43, 43]
  assert "process 0 waits at port" in texts[0]
  assert "process 0 answers at" in texts[1]
