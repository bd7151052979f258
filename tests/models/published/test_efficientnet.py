"""Tests of published EfficientNets: parameter counts, multiply-adds and widths."""

import jax
import numpy as np
import pytest

from tests import modules
from vit_jax import models, schema
from vit_jax.models import flops
from vit_jax.models.published import efficientnet as published
from vit_jax.schema import Choice

COUNTS = {
  "b0": 5_288_548,
  "b1": 7_794_184,
  "b2": 9_109_994,
  "b3": 12_233_232,
  "b4": 19_341_616,
  "b5": 30_389_784,
  "b6": 43_040_704,
  "b7": 66_347_960,
  "l2": 480_309_308,
}


@pytest.mark.heavy
@pytest.mark.parametrize("size", COUNTS)
def test_parameter_counts_match_the_published_counts(size):
  assert modules.count(f"efficientnet_{size}") == COUNTS[size]


@pytest.mark.heavy
@pytest.mark.parametrize(("size", "billions"), [("b0", 0.39), ("b3", 1.8)])
def test_multiply_adds_match_the_paper(size, billions):
  model = modules.abstract(f"efficientnet_{size}")
  side = published.SIZES[size].image_size
  image = jax.ShapeDtypeStruct((1, side, side, 3), np.float32)
  found = flops.count_flops(lambda params, image: model.outputs(params, image)[0].logits, model.shapes(), image) / 2
  assert found == pytest.approx(billions * 1e9, rel=0.03)


@pytest.mark.parametrize(
  ("base", "factor", "expected"),
  [(32, 1.0, 32), (32, 1.1, 32), (16, 1.1, 16), (24, 1.2, 32), (40, 1.4, 56), (16, 0.25, 8), (80, 0.25, 24)],
)
def test_widths_are_multiples_of_8_and_at_least_90_percent(base, factor, expected):
  assert published.round_channels(base, factor) == expected


def test_torch_and_tf_variants_differ_in_padding_and_eps():
  kinds = [models.find(f"{prefix}efficientnet_b3") for prefix in ("", "tf_")]
  bound = [schema.bind(Choice("x"), (kind.make,)).args for kind in kinds]
  assert [(b["padding"], b["eps"], b["dropout"]) for b in bound] == [("symmetric", 1e-5, 0.3), ("same", 1e-3, 0.3)]
  assert {b["stochastic_depth"] for b in bound} == {0.2}
