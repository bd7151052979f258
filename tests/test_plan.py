"""The plan command: its search, its words, its errors."""

import dataclasses

import pytest

from tests import runs
from vit_jax import hardware, plan, schema
from vit_jax.planning import estimate


def planned(seconds, needed=1):
  """What the estimate would say of a run: `seconds` of a step, or None where it needs too many bytes."""
  known = estimate.Plan("v3:2x2", "v3-8", 8, 1, "data=8", hbm_bytes=needed)
  if seconds is None:
    return dataclasses.replace(known, problem="does not fit")
  return dataclasses.replace(known, fits=True, step_seconds=seconds)


def searched(monkeypatch, answer):
  """The search over two meshes, and what it asked for: (fsdp, scan, remat, micro-batches)."""
  slice_, asked = hardware.topology("v3-8"), []
  meshes = plan._meshes(slice_)
  assert [(m.data, m.fsdp, m.tensor) for m in meshes] == [(-1, 1, 1), (-1, 8, 1), (-1, 4, 2)]

  def of(run, *_):
    asked.append((run.mesh.fsdp, run.model.args["scan"], run.model.args["remat"], run.optim.args["accumulate"]))
    return answer(*asked[-1])

  monkeypatch.setattr(plan, "_meshes", lambda _: meshes[:2])
  monkeypatch.setattr(estimate, "of", of)
  return plan.search(runs.imagenet(), slice_, None, None), asked


def test_a_search_ranks_what_fits_and_doubles_micro_batches_while_that_helps(monkeypatch, capsys):
  seconds = {(1, 1): 3.0, (1, 2): 2.0, (1, 4): 2.5, (8, 1): 1.0, (8, 2): 1.5}
  found, asked = searched(monkeypatch, lambda fsdp, scan, remat, accumulate: planned(seconds[fsdp, accumulate]))
  assert asked == [(fsdp, False, "none", accumulate) for fsdp, accumulate in seconds]
  assert [p.step_seconds for p in found] == sorted(seconds.values())
  assert found[0].mesh == "data=8; unrolled, remat none, micro-batches 1"
  assert capsys.readouterr().out.count("\n") == len(found)


def test_a_search_saves_memory_step_by_step_until_a_run_fits(monkeypatch):
  def answer(fsdp, scan, remat, accumulate):
    return planned(1.0 if (fsdp, remat, accumulate) == (1, "mlp", 2) else None)

  found, asked = searched(monkeypatch, answer)
  assert found[0].fits and not any(p.fits for p in found[1:])
  saving = ["none", "projections", "attention", "mlp", "full"]
  assert [remat for *_, remat, _ in asked[:14]] == saving + saving[:4] + saving
  assert {scan for _, scan, remat, _ in asked if remat != "none"} == {True}


def test_a_search_goes_on_to_the_next_mesh_where_saving_memory_would_not_help(monkeypatch):
  found, asked = searched(monkeypatch, lambda *_: planned(None, needed=0))
  assert asked == [(1, False, "none", 1), (8, False, "none", 1)] and len(found) == 2


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
    (["--topology=v3-8", "--json=/no/such/plan.json"], "--json: there is no folder /no/such; make it first"),
    (["--topology=v3-8", "--config.model.nmae=x"], "config.model.nmae: unknown key"),
    (["--topology=v3-8", "--serch"], "unknown flag '--serch'. Did you mean '--search'"),
  ],
)
def test_a_mistake_is_one_line(words, message, monkeypatch):
  monkeypatch.setattr("sys.argv", ["plan", f"--config={runs.ROOT}/configs/vit_s16_i1k.py", *words])
  with pytest.raises(schema.ConfigError) as error:
    plan.main()
  assert message in str(error.value)
