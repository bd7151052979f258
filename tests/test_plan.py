"""Tests of the plan command: its errors, and one plan from flags to the table."""

import json
import re

import pytest

from tests import runs
from vit_jax import plan, schema
from vit_jax.planning import progress

CONFIG = f"--config={runs.ROOT}/configs/vit_s16_i1k.py"


@pytest.mark.parametrize(
  ("flags", "place", "suggestion"),
  [
    (["--topology=v3:4y4"], "--topology: 'v3:4y4'", "'v3:4x4'"),
    (["--topology=v3-8", "--price=-1"], "--price: -1.0", "1.2"),
    (["--topology=v3-8", "--host-rate=0"], "--host-rate: 0.0", "5100"),
    (["--topology=v3-8", "--host-rate=nan"], "--host-rate: nan", "images per second"),
    (["--topology=v3-8", "--host-rate=inf"], "--host-rate: inf", "images per second"),
    (["--topology=v3-8", "--host-rate=fast"], "--host-rate: ", "'fast'"),
    (["--topology=v3-8", "--json=/no/such/plan.json"], "--json: the folder /no/such does not exist", "Create it"),
    (["--topology=v3-8", "--config.model.nmae=x"], "config.model.nmae", "Allowed: "),
    (["--topology=v3-8", "--serch"], "'--serch'", "Did you mean --search?"),
  ],
)
def test_invalid_flags_are_an_error_of_one_line(flags, place, suggestion):
  with pytest.raises(schema.ConfigError) as error:
    plan.main([CONFIG, *flags])
  assert place in str(error.value) and suggestion in str(error.value)
  assert "\n" not in str(error.value)


def test_plan_is_printed_and_written(tmp_path, capsys):
  small = [
    f"--config.{key}={text}" for key, text in (runs.IMAGENET | {"batch": "1023", "data.path": "gs://bkt/data"}).items()
  ]
  file = tmp_path / "plan.json"
  with pytest.raises(schema.ConfigError, match=r"no plan is possible on v3-8, v3-32\. See the reasons"):
    plan.main([CONFIG, *small, "--topology=v3-8,v3-32", f"--json={file}"])
  printed = capsys.readouterr().out
  plans = json.loads(file.read_text())
  assert [p["rented"] for p in plans] == ["v3-8", "v3-32"]
  assert {p["data_path"] for p in plans} == {"gs://bkt/data"}
  assert all("1023" in p["problem"] and p["problem"] in printed for p in plans)


def test_progress_lines_are_on_stderr(monkeypatch, capsys):
  small = [f"--config.{key}={text}" for key, text in (runs.IMAGENET | {"batch": "1023"}).items()]
  assert plan.INTERVAL == 15
  monkeypatch.setattr(plan, "INTERVAL", 0.001)
  activities, start = [], progress.Progress.start
  monkeypatch.setattr(progress.Progress, "start", lambda self, what: activities.append(what) or start(self, what))
  with pytest.raises(schema.ConfigError, match=r"^v3-8: .*1023"):
    plan.main([CONFIG, *small, "--topology=v3-8"])
  printed, lines = capsys.readouterr()
  assert "elapsed" not in printed and "1023" not in printed  # the error contains the reason
  assert activities[0] == "ViT-S/16: counting the parameters"
  assert re.search(r"^v3-8, ViT-S/16: [a-zT ][a-zAPTU ]+, 0:0\d elapsed$", lines, re.M)
