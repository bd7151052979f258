"""The evaluate verb: refusals; its figures are compared with training's in test_train."""

import json

import pytest
import tiny

from vit_jax import evaluate
from vit_jax.config import Choice


@pytest.mark.parametrize(
  ("flags", "says"),
  [(["--workdir={}"], "holds no run"), (["--workdir={}", "--spilt=test"], "Did you mean '--split'")],
)
def test_a_mistake_is_one_line_and_exits_with_2(tmp_path, flags, says):
  message = tiny.finish(tiny.command("evaluate", *(flag.format(tmp_path) for flag in flags)), 2)
  assert says in message
  assert "Traceback" not in message


def test_a_run_without_checkpoint_is_refused(tmp_path):
  from vit_jax import config

  (tmp_path / "config.json").write_text(config.dumps(tiny.run()))
  assert "no checkpoint yet" in tiny.finish(tiny.command("evaluate", f"--workdir={tmp_path}"), 2)


def test_a_split_that_is_not_there_is_refused(tmp_path):
  from vit_jax import config

  (tmp_path / "config.json").write_text(config.dumps(tiny.run()))
  message = tiny.finish(tiny.command("evaluate", f"--workdir={tmp_path}", "--split=tset"), 2)
  assert "Did you mean 'test'" in message
  assert json.loads((tmp_path / "config.json").read_text())


def test_another_split_changes_nothing_else():
  choice = Choice("accuracy", {"split": "test", "batch": 8})
  assert evaluate.on_split(choice, "train") == Choice("accuracy", {"split": "train", "batch": 8})
