"""Pre-training recipes: what their papers and codes say, from other places than the recipes themselves."""

import math

import jax
import pytest

from tests import recipes
from vit_jax.parallel import hardware

# Batch, steps, peak rate, its decay, weight decay times the rate (of the head, where it differs), dropout, and 10^9
# FLOPs of a forward pass (Zhai et al. 2022, table 2: two for each multiply-add), where these are published.
ADAM = ("adamw", "bfloat16", 1.0)  # rule, type of its first moment, clipping
PAPER = ("adamw", "float32", None)
PUBLISHED = {
  "vit_s16_i1k": (1024, 111_477, 1e-3, "cosine", 0.1, 0.1, 0.0, 9.2, ADAM),
  "vit_s16_i1k:150ep": (1024, 185_794, 1e-3, "cosine", 0.1, 0.1, 0.0, 9.2, ADAM),
  "vit_s16_i1k:300ep": (1024, 371_588, 1e-3, "cosine", 0.1, 0.1, 0.0, 9.2, ADAM),
  "vit_i1k": (4096, 92_897, 1e-3, "cosine", 0.1, 0.1, 0.0, 9.2, ADAM),
  "vit_i1k:Ti/16": (4096, 92_897, 1e-3, "cosine", 0.1, 0.1, 0.0, 2.5, ADAM),
  "vit_i1k:B/32,strong1": (4096, 92_897, 1e-3, "cosine", 0.1, 0.1, 0.0, 8.7, ADAM),
  "vit_i21k": (4096, 310_887, 1e-3, "linear", 0.03, 0.03, 0.1, 122.9, PAPER),
  "vit_i21k:B/32": (4096, 310_887, 1e-3, "linear", 0.03, 0.03, 0.1, 8.7, PAPER),
  "vit_i21k:B/16,augreg": (4096, 1_036_289, 1e-3, "cosine", 0.1, 0.1, 0.0, 35.1, ADAM),
  "vit_i21k:S/32,augreg": (4096, 1_036_289, 1e-3, "cosine", 0.1, 0.1, 0.0, None, ADAM),
  "vit_jft": (4096, 1_035_474, 4e-4, "linear", 0.1, 0.1, 0.0, 122.9, PAPER),
  "vit_jft:L/16,7ep": (4096, 517_737, 4e-4, "linear", 0.1, 0.1, 0.0, 122.9, PAPER),
  "vit_jft:B/32": (4096, 517_737, 8e-4, "linear", 0.1, 0.1, 0.0, 8.7, PAPER),
  "vit_jft:L/32": (4096, 517_737, 6e-4, "linear", 0.1, 0.1, 0.0, None, PAPER),
  "vit_jft:H/14": (4096, 1_035_474, 3e-4, "linear", 0.1, 0.1, 0.0, None, PAPER),
  "vit_g_jft": (16384, 1_000_000, 8e-4, "rsqrt", 0.03, 3.0, 0.0, 533.1, ("adafactor", None, 1.0)),
  "vit_g_jft:G/14": (16384, 1_000_000, 8e-4, "rsqrt", 0.03, 3.0, 0.0, 965.3, ("adafactor", None, 1.0)),
  "vit_mpp": (4096, 1_000_000, 2e-4, "cosine", 0.0, 0.0, 0.0, None, PAPER),
  "vit_mpp:imagenet,L/16": (4096, 1_000_000, 2e-4, "cosine", 0.0, 0.0, 0.0, None, PAPER),
  "cct_cifar": (128, 121_094, 5.5e-4, "epoch_cosine", 0.06, 0.06, 0.0, 2 * 1.182, PAPER),
  "cct_cifar:cct_7_3x1_32,cifar100": (128, 121_094, 6e-4, "epoch_cosine", 0.06, 0.06, 0.0, 2 * 1.182, PAPER),
  "cct_cifar:cct_7_3x1_32_sine,cifar100,1500": (128, 589_844, 7e-4, "epoch_cosine", 0.05, 0.05, 0.0, 2.364, PAPER),
  "cct_cifar:cvt_7_4_32,cifar10,5000": (128, 1_957_031, 5e-4, "epoch_cosine", 0.05, 0.05, 0.0, 2 * 0.250, PAPER),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_is_what_was_published_and_needs_neither_data_nor_memory_to_plan(name, monkeypatch):
  batch, steps, lr, decay, weight_decay, on_head, dropout, gflops, (rule, moment, clip) = PUBLISHED[name]
  monkeypatch.setattr(hardware, "get_memory", lambda device: None)  # that of this machine is not the point
  monkeypatch.setenv("TFDS_DATA_DIR", "/nowhere")
  before = sum(array.nbytes for array in jax.live_arrays())
  parts = recipes.known(name, **({} if name == "vit_s16_i1k" else {"model__scan": True}))  # the same in less time
  assert sum(array.nbytes for array in jax.live_arrays()) - before < 1e6
  optim, model = parts.run.optim, parts.run.model.args
  assert (parts.run.batch, parts.total) == (batch, steps)
  assert (optim.name, optim.args.get("mu_dtype"), optim.args["clip"]) == (rule, moment, clip)
  assert (optim.args["schedule"].name, model["dropout"]) == (decay, dropout)
  rate = 1.0 if optim.args["decay"] == "times_lr" else 1 / lr
  decays = [optim.args["weight_decay"] * rate * share for _, share in optim.args["decay_on"]]
  assert (decays[-1], decays[0]) == pytest.approx((weight_decay, on_head))
  assert model["dtype"] == "bfloat16"
  if gflops:
    assert parts.forward_flops / 1e9 == pytest.approx(gflops, rel=0.02)  # theirs have no class token
  if ":" not in name:
    assert f"{steps:,} steps" in parts.format_overview()


@pytest.mark.sample(3)
@pytest.mark.heavy
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_rate_rises_to_what_was_published_and_ends_near_zero(name):
  _, steps, lr, decay, *_ = PUBLISHED[name]
  warm = {"cosine": 10_000, "linear": 10_000, "rsqrt": 10_000, "epoch_cosine": math.ceil(10 * 390.625)}[decay]
  rate = recipes.known(name, model__scan=True).schedule
  assert float(rate(warm)) == pytest.approx(lr, rel=3e-3)
  assert float(rate(steps)) <= 1e-5


@pytest.mark.parametrize(
  ("name", "layers", "magnitude", "alpha"),
  [
    ("vit_s16_i1k", 2, 10, 0.2),
    ("vit_i1k:Ti/16", 2, 0, None),
    ("vit_i1k:S/32", 2, 15, 0.2),
    ("vit_i1k:S/16", 2, 15, 0.5),
    ("vit_i1k:L/16", 2, 15, 0.5),
    ("vit_i1k:B/16,strong2", 2, 20, 0.8),
    ("vit_i1k:Ti/16,none", 0, 0, None),
    ("vit_i21k:Ti/16,augreg", 0, 0, None),
    ("vit_i21k:S/16,augreg", 2, 0, None),
    ("vit_i21k:B/32,augreg", 2, 10, 0.2),
    ("vit_i21k:L/16,augreg", 2, 15, 0.5),
  ],
)
def test_a_size_has_the_augmentation_of_augreg(name, layers, magnitude, alpha):
  data = recipes.run(name).data.args
  assert (data["policy"].args["layers"], data["policy"].args["magnitude"]) == (layers, magnitude)
  assert data["mixing"].args.get("alpha") == alpha
  if alpha:
    assert (data["mixing"].args["partner"], data["mixing"].args["share"]) == ("rolled", "larger")


def test_the_plain_baseline_has_the_published_number_of_parameters():
  parts = recipes.known("vit_s16_i1k", model__scan=True)
  assert sum(math.prod(leaf.shape) for leaf in parts.state_shapes.params.values()) == 22_122_472


@pytest.mark.heavy
def test_the_rates_of_cct_on_cifar_are_those_of_timm():
  rate = recipes.known("cct_cifar").schedule
  published = {0: 1e-5, 1: 6.4e-5, 9: 4.96e-4, 10: 5.485e-4, 150: 2.80e-4, 175: 2.10e-4, 299: 1.0015e-5, 309: 1e-5}
  for epoch, expected in published.items():
    assert float(rate(math.ceil(epoch * 50_000 / 128))) == pytest.approx(expected, rel=2e-3), epoch
