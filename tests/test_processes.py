"""Two processes with two devices each train what one process with four devices trains."""

import contextlib
import json
import signal
import socket

import jax
import numpy as np

from tests import runs
from vit_jax import checkpoints, loop, mesh
from vit_jax.prepare import prepare


def pair(workdir, **changes):
  """Two processes of one run, over loopback."""
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
  return [
      runs.command(
          "train", *runs.words(workdir, **changes), devices=2,
          VITJAX_COORDINATOR=f"127.0.0.1:{port}", VITJAX_PROCESSES="2", VITJAX_PROCESS=str(i),
      )
      for i in range(2)
  ]  # fmt: skip


def weights(workdir, **changes):
  """Parameters of the last checkpoint, read onto four devices."""
  parts = runs.parts(4, **changes)
  with contextlib.closing(checkpoints.Checkpoints(workdir, mesh.replicated(parts.mesh), read_only=True)) as store:
    return jax.device_get(store.restore(parts.state_shapes)[0].params)


def test_two_processes_equal_one_and_stop_together(tmp_path):
  axes = {"mesh.data": 2, "mesh.fsdp": 2}
  axes |= {"evals.shots.name": "fewshot", "evals.shots.shots": "(1, 3)", "evals.shots.every": "100%"}
  one = loop.train(runs.parts(4, **axes), tmp_path / "one")
  # Asked to stop by a signal to one of them, both save and go; the same commands finish.
  first, second = pair(tmp_path / "two", total="4000", **axes)
  for line in first.stdout:
    if line.lstrip().startswith("2/"):
      break
  second.send_signal(signal.SIGTERM)
  runs.finish(first, 42)
  runs.finish(second, 42)
  printed = [runs.finish(process) for process in pair(tmp_path / "three", **axes)]
  three = json.loads((tmp_path / "three" / "result.json").read_text())
  # Sums over the network are taken in another order than inside a process: the last bit may differ.
  expected, found = (weights(tmp_path / name, **axes) for name in ("one", "three"))
  for path, value in expected.items():
    np.testing.assert_allclose(found[path], value, atol=1e-6, err_msg=path)
  assert three["images"] == 360
  assert {k: v for k, v in three.items() if k.startswith(("top", "prec", "rec", "f1"))} == {
    k: v for k, v in one.items() if k.startswith(("top", "prec", "rec", "f1"))
  }
  for figure in ("shots/ridge_1shot", "shots/ridge_3shot", "shots/ridge_3shot_std"):
    assert abs(three[figure] - one[figure]) < 0.01, figure  # the same draws; an image may be on the border
  assert three["shots/images"] == 360
  assert "12/12" in printed[0]
  assert "12/12" not in printed[1]


def test_a_mistake_ends_all_processes_with_2(tmp_path):
  prepare("digits")
  for process in pair(tmp_path / "bad", batch="6"):
    assert "6 does not divide over 4 devices" in runs.finish(process, 2)
  assert not (tmp_path / "bad").exists()
