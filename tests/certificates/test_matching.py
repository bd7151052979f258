"""vit_jax/certificates/matching.py: which published curve belongs to a run, and which differences count."""

import pytest

from tests import runs
from vit_jax import certificates, config
from vit_jax.config import flags
from vit_jax.schema import to_plain
from vit_jax.training import build, comparison


def find(file, **changes):
  overrides = {key.replace("__", "."): str(value) for key, value in changes.items()}
  run = build.complete(config.resolve(flags.load_config(str(runs.ROOT / file), overrides)), adopt=False)
  return comparison.find_certificate(run, 1000)


@pytest.mark.parametrize("curve", certificates.list_curves(), ids=lambda curve: curve.name)
def test_every_recipe_finds_its_own_curve(curve):
  changes = {"data.path": "/data"} if "i21k" in curve.name and curve.name.count(",") == 2 else {}
  if curve.name.endswith((",224", ",384")):  # fine-tuning
    changes["init.from"] = "weights.npz"
  match = find(curve.name, **changes).match
  assert match.curve.name == curve.name and not match.widened and not match.refused and match.evaluation


@pytest.mark.parametrize(
  "changes",
  [
    {"seed": 3},
    {"mesh__fsdp": 8},
    {"log__every": "1%"},
    {"checkpoint__every": "5%"},
    {"optim__accumulate": 2},
    {"optim__ema": 0.999},
    {"model__scan": True, "model__remat": "full"},
    {"model__attention__name": "fused"},
    {"data__workers": 4, "data__threads": 8, "data__on_error": "skip"},
    {"evals__validation__every": "10%"},
  ],
)
def test_settings_without_influence_are_ignored(changes):
  match = find("configs/algoperf_vit.py:2", **changes).match
  assert not match.widened and not match.refused


@pytest.mark.parametrize("changes", [{"model__dtype": "bfloat16"}, {"optim__mu_dtype": "bfloat16"}])
def test_other_types_make_the_range_wider(changes):
  certificate = find("configs/algoperf_vit.py:2", **changes)
  (key,) = changes
  assert certificate.match.widened == [line for line in certificate.match.widened if key.replace("__", ".") in line]
  assert not certificate.reason and "range times 2, because of" in certificate.format_start()
  plain = find("configs/algoperf_vit.py:2")
  wide, narrow = (each.add(100, {"validation/top1": 0.5}) for each in (certificate, plain))
  assert wide.half_width == pytest.approx(2 * narrow.half_width)


@pytest.mark.parametrize(
  ("changes", "reason"),
  [
    ({"optim__lr": 1e-3}, "optim.lr: 0.0008445074561975979 -> 0.001"),
    ({"optim__warmup": 0}, "optim.warmup: '5%' -> '0'"),
    ({"data__policy__magnitude": 15}, "data.policy.magnitude: 10.0 -> 15.0"),
    ({"data__train": "train[:10%]"}, "data.train: 'train' -> 'train[:10%]'"),
    ({"batch": 512}, "batch: 1024 -> 512"),
    (
      {"total": "90ep"},
      "total: '186666' -> '90ep'. Runs with different schedules cannot be compared at the same fraction",
    ),
    ({"model__attention__name": "differential"}, "model.attention.name: 'xla' -> 'differential'"),
  ],
)
def test_settings_with_influence_are_refused_with_both_values(changes, reason):
  certificate = find("configs/algoperf_vit.py:2", **changes)
  assert reason in certificate.reason
  assert certificate.add(100, {"validation/top1": 0.5}) is None and not certificate.verdicts
  assert certificate.format_start().startswith("not compared with the published curve of configs/algoperf_vit.py:2: ")


def test_every_differing_key_is_named_and_the_first_with_their_values():
  changes = {"optim__lr": 1e-3, "optim__b1": 0.8, "optim__b2": 0.9, "batch": 512, "task__label_smoothing": 0.0}
  certificate = find("configs/algoperf_vit.py:2", **changes)
  assert len(certificate.match.refused) == 5
  assert all(key.replace("__", ".") in certificate.reason for key in changes)
  assert certificate.to_json()["refused"] == certificate.match.refused


def test_nearest_curve_is_chosen():
  assert find("configs/algoperf_vit.py:2", optim__lr=1e-3).match.curve.name == "configs/algoperf_vit.py:2"
  assert find("configs/vit_s16_i1k.py:150ep").match.curve.name == "configs/vit_s16_i1k.py"


def test_run_without_an_evaluation_on_the_split_is_not_compared():
  assert "no evaluation measures the accuracy on the split 'validation'" in (
    find("configs/algoperf_vit.py:2", evals__validation__split="train[:1%]").reason
  )


def test_run_that_starts_from_weights_is_not_compared_with_one_from_scratch():
  assert find("configs/digits.py", init__from="runs/a").match.refused == ["init.from: None -> 'runs/a'"]
  assert not find("configs/deit3.py:B,i1k,800,224", init__from="runs/a").match.refused


def test_other_models_and_datasets_have_no_curve():
  assert find("configs/deit.py:S") is None
  assert find("configs/glyphs.py") is None


def test_off_makes_no_comparison():
  assert find("configs/digits.py", log__certificate="off") is None


def test_completed_config_is_compared():
  """A key that the recipe does not set has its default in both configs."""
  curve = certificates.list_curves()[0]
  run = to_plain(build.complete(config.resolve(flags.load_config(str(runs.ROOT / curve.name))), adopt=False))
  assert "eps" not in curve.config["optim"] and "eps" in run["optim"]
  assert not find(curve.name).match.refused
  assert find(curve.name, optim__eps=1e-6).match.refused == ["optim.eps: 1e-08 -> 1e-06"]
