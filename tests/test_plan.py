"""The plan command: its search, its words, its errors."""

import dataclasses

import pytest
import tiny

from vit_jax import config, estimate, hardware, plan


def test_a_search_ranks_what_fits(capsys, monkeypatch):
  slice_ = hardware.topology("v3-8")
  meshes = plan._meshes(slice_)
  assert [(m.data, m.fsdp, m.tensor) for m in meshes] == [(-1, 1, 1), (-1, 8, 1), (-1, 4, 2)]
  monkeypatch.setattr(plan, "_meshes", lambda _: meshes[:2])
  with estimate.compiler(kernels=True) as schedules:
    found = plan.search(tiny.imagenet(model__depth=1), slice_, schedules, None)
  assert len({p.mesh for p in found}) == len(found) == 2
  fitting = [p.step_seconds for p in found if p.fits]
  assert fitting and fitting == sorted(fitting)
  assert capsys.readouterr().out.count("\n") == len(found)


def test_the_table_has_the_reason_in_the_place_of_figures():
  good = estimate.Plan("v3:2x2", "v3-8", 8, 1, "data=8", fits=True, step_seconds=0.0125, core_days=0.37)
  bad = estimate.Plan("v3:4x4", "v3-32", 32, 4, "data=32", problem="does not fit")
  heading, row, reason = plan.table([good, bad]).splitlines()
  assert heading.split()[:2] == ["slice", "mesh"] and "cost" not in heading
  assert row.startswith("v3-8 ") and " 12.5 " in row and " 0.4 " in row
  assert reason == "v3-32, data=32: does not fit"
  assert plan.table([bad]) == reason
  priced = dataclasses.replace(good, cost=1234.5)
  assert plan.table([priced]).splitlines()[1].endswith(" 1,234")


@pytest.mark.parametrize(
  ("words", "message"),
  [
    (["--topology=v3:4y4"], "--topology: 'v3:4y4' is not a TPU slice. Did you mean 'v3:4x4'"),
    (["--topology=v3-8", "--price=-1"], "--price: -1.0 is not a price"),
    (["--topology=v3-8", "--config.model.nmae=x"], "config.model.nmae: unknown key"),
    (["--topology=v3-8", "--serch"], "unknown flag '--serch'. Did you mean '--search'"),
  ],
)
def test_a_mistake_is_one_line(words, message, monkeypatch):
  monkeypatch.setattr("sys.argv", ["plan", f"--config={tiny.ROOT}/configs/vit_s16_i1k.py", *words])
  with pytest.raises(config.ConfigError) as error:
    plan.main()
  assert message in str(error.value)
