"""Tests that two processes with two devices each train the same weights as one process with four devices."""

import contextlib
import json
import signal

import jax
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests import ports, runs, self_distillation
from vit_jax import checkpoints
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.parallel import sharding
from vit_jax.training import loop

pytestmark = pytest.mark.heavy

AXES = {
  "mesh.data": 2, "mesh.fsdp": 2,
  "evals.shots.name": "fewshot", "evals.shots.shots": "(1, 3)", "evals.shots.every": "100%",
}  # fmt: skip


def start_pair(*commands):
  """Starts two processes over loopback that run the same verbs in turn."""
  return placed_pair("tests.several", json.dumps(commands))


def placed_pair(module, *words):
  """Starts two processes over loopback, with two devices each, that run a module."""
  placed = {"VITJAX_COORDINATOR": f"127.0.0.1:{ports.find_free_port()}", "VITJAX_PROCESSES": "2"}
  return [runs.start(module, *words, devices=2, VITJAX_PROCESS=str(i), **placed) for i in range(2)]


def read_weights(workdir):
  """Returns the parameters of the last checkpoint, read onto four devices."""
  parts = runs.parts(4, **AXES)
  with contextlib.closing(
    checkpoints.Checkpoints(workdir, sharding.make_replicated_sharding(parts.mesh), read_only=True)
  ) as store:
    return jax.device_get(store.restore(parts.state_shapes)[0].params)


@pytest.fixture(scope="module")
def complete_run(tmp_path_factory):
  """The workdir of a run of two processes, and the output of each process."""
  prepare_dataset("digits")
  workdir = tmp_path_factory.mktemp("pair") / "whole"
  return workdir, [
    runs.finish(process) for process in start_pair(["train", *runs.words(workdir, **AXES | {"log.images": True})])
  ]


def test_first_process_draws_the_first_batch(complete_run):
  events = EventAccumulator(str(complete_run[0] / "tensorboard"), size_guidance={"images": 0})
  events.Reload()
  assert [image.step for image in events.Images("first batch")] == [0]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
  """The folder of two runs of two processes, and the output of each process, split at its exit codes.

  The batch of the first run cannot be divided. The second run is long, and its second process receives SIGTERM.
  """
  prepare_dataset("digits")
  folder = tmp_path_factory.mktemp("pair")
  first, second = start_pair(
    ["train", *runs.words(folder / "bad", batch="6")],
    ["train", *runs.words(folder / "long", **AXES, total="4000", log__every=1, checkpoint__every="100%")],
  )
  heard = []
  for line in first.stdout:
    heard.append(line)
    if line.lstrip().startswith("2/4000"):
      break
  second.send_signal(signal.SIGTERM)
  texts = ["".join(heard) + runs.finish(first, 42), runs.finish(second, 42)]
  return folder, [text.split("exit ") for text in texts]


@pytest.mark.long
def test_user_error_ends_all_processes_with_exit_code_2(printed):
  folder, texts = printed
  for bad, long, _ in texts:
    assert "6 cannot be divided over 4 devices" in bad
    assert long.startswith("2\n")
  assert not (folder / "bad").exists()


@pytest.mark.long
def test_two_processes_train_and_measure_the_same_as_one(complete_run, tmp_path):
  workdir, _ = complete_run
  one = loop.train(runs.parts(4, **AXES), tmp_path)
  two = json.loads((workdir / "result.json").read_text())
  # Sums over the network use another order than sums inside a process, so the last bit may differ.
  ours = read_weights(workdir)
  for path, value in read_weights(tmp_path).items():
    np.testing.assert_allclose(ours[path], value, atol=1e-6, err_msg=path)
  assert two["images"] == two["shots/images"] == 360
  assert {k: v for k, v in two.items() if k.startswith(("top", "prec", "rec", "f1"))} == {
    k: v for k, v in one.items() if k.startswith(("top", "prec", "rec", "f1"))
  }
  for figure in ("shots/ridge_1shot", "shots/ridge_3shot", "shots/ridge_3shot_std"):
    assert abs(two[figure] - one[figure]) < 0.01, (
      figure
    )  # the draws are the same, but one image may be on the decision border


@pytest.mark.long
def test_evaluations_of_processes_with_other_settings_end_with_exit_code_2(complete_run):
  """The processes would otherwise compute a figure from parts of two different measurements."""
  workdir, _ = complete_run
  probe = ["fewshot", "--config=configs/probes.py:knn,digits", f"--weights={workdir}"]
  measured = ["evaluate", f"--config={runs.ROOT}/configs/digits.py", f"--weights={workdir}", "--split=test"]
  placed = {"VITJAX_COORDINATOR": f"127.0.0.1:{ports.find_free_port()}", "VITJAX_PROCESSES": "2"}
  started = []
  for number, mean in enumerate(("0.5", "0.2")):
    changed = f"data.mean=({mean},{mean},{mean})"
    commands = [[*measured, f"--config.{changed}"], [*probe, f"--config.evals.digits.{changed}"]]
    words = ("tests.several", json.dumps(commands))
    started.append(runs.start(*words, devices=2, VITJAX_PROCESS=str(number), **placed))
  for text in [runs.finish(process, 2) for process in started]:
    assert text.count("exit 2\n") == text.count("the processes of this run were started differently") == 2
    assert "data.mean" in text


@pytest.mark.long
@pytest.mark.full
def test_two_processes_train_the_same_student_and_teacher_as_one(tmp_path):
  grid, tasks = {"mesh__data": 2, "mesh__fsdp": 2}, ("dino", "dinov2")
  prepare_dataset("digits")
  commands = [["train", *self_distillation.words(task, tmp_path / f"two/{task}", **grid)] for task in tasks]
  for process in start_pair(*commands):
    runs.finish(process)
  for task in tasks:
    one, two = tmp_path / f"one/{task}", tmp_path / f"two/{task}"
    loop.train(self_distillation.parts(task, 4, **grid), one)
    for averaged in (False, True):  # the student and the teacher
      theirs, ours = (checkpoints.read_weights(workdir, averaged)[0] for workdir in (one, two))
      assert theirs.keys() == ours.keys()
      for path, value in theirs.items():
        np.testing.assert_allclose(ours[path], value, atol=1e-6, err_msg=f"{task}: {path}")


@pytest.mark.long
def test_only_the_first_process_prints(complete_run):
  first, second = complete_run[1]
  assert "12/12" in first
  assert "12/12" not in second


@pytest.mark.long
def test_checkpoint_unreadable_on_one_host_is_skipped_by_all(tmp_path):
  texts = [runs.finish(process) for process in placed_pair("tests.damaged", str(tmp_path))]
  for text, where in zip(texts, ("in process 1: ", ""), strict=True):
    for step, why in ((3, "JSONDecodeError"), (2, "Exception: Encountered error while reading")):
      assert f"checkpoint {step} cannot be read ({where}{why}" in text
    assert "restored {'step': 1}" in text


@pytest.mark.long
def test_signal_to_one_process_stops_both_at_the_same_step(printed):
  folder, texts = printed
  (saved,) = {int(path.name) for path in (folder / "long" / "checkpoints").iterdir()}
  assert saved >= 2
  assert all(last.startswith("42\n") for _, _, last in texts)
  assert f"Step {saved} is saved" in texts[0][1]
