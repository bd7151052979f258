"""Tests of the base class of DINO and DINOv2: crops, entropy, rank of features, warnings, and unsupported models."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import stages
from vit_jax import models
from vit_jax.schema import Choice, ConfigError
from vit_jax.tasks import self_distillation
from vit_jax.tasks.dino import Dino

pytestmark = pytest.mark.heavy

SMALL = {"depth": 1, "width": 16, "heads": 2, "hidden": 16}


def model(name="ViT-Ti/8", size=32, **arguments):
  return models.make_functional(models.Description(Choice(name, SMALL | arguments), size, 0))


def task(of=None, **arguments):
  return Dino(stages.supplied(of or model()), **{"local_size": 16, "prototypes": 64} | arguments)


def test_views_are_two_global_crops_and_the_local_crops():
  views = {view.name: view for view in task(local_crops=3, blur=(1.0, 0.1, 0.5), solarize=(0.0, 0.2, 0.0)).fields.views}
  assert [*views] == ["global", "local"] and views["global"].size == 32 and views["local"].size == 16
  policies = [[policy.args for policy in view.policies] for view in views.values()]
  assert [[args["blur"] for args in each] for each in policies] == [[1.0, 0.1], [0.5] * 3]
  assert [[args["solarize"] for args in each] for each in policies] == [[0.0, 0.2], [0.0] * 3]
  assert views["global"].crop.args["area"] == (0.4, 1.0) and views["local"].crop.args["area"] == (0.05, 0.4)
  assert [view.name for view in task(local_crops=0).fields.views] == ["global"]
  assert not task().fields.label


def test_crops_of_an_image_stay_together():
  crops = jnp.arange(24.0).reshape(3, 2, 4)
  merged = self_distillation.merge_crops(crops)
  np.testing.assert_array_equal(merged[3], crops[1, 1])
  np.testing.assert_array_equal(self_distillation.split_crops(merged, 2), crops)


def test_entropy_is_that_of_scipy():
  rows = np.random.default_rng(0).dirichlet(np.full(7, 0.3), 5).astype(np.float32)
  rows[0] = np.eye(7)[2]
  expected = [-sum(p * math.log(p) for p in row if p > 0) for row in rows.astype(float)]
  np.testing.assert_allclose(self_distillation.compute_entropy(rows), expected, rtol=1e-5, atol=1e-6)


def test_the_rank_of_features_follows_from_the_eigenvalues_of_their_covariance():
  draw = np.random.default_rng(0)
  features = (draw.normal(size=(50, 6)) * [5, 4, 3, 0.1, 0.1, 0]).astype(np.float32) + 100
  values = np.linalg.eigvalsh(np.cov(features.T.astype(float), bias=True))
  rank = float(self_distillation.compute_rank(features))
  assert rank == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=1e-3)
  line = np.outer(draw.normal(size=50), draw.normal(size=6)).astype(np.float32)
  assert float(self_distillation.compute_rank(line)) == pytest.approx(1, rel=1e-4)


def test_the_entropy_of_an_image_is_that_of_the_student():
  stage = task()
  params = stage.supplied.model.init(jax.random.key(0)) | dict(stage.init(jax.random.key(1)))
  images = jax.random.normal(jax.random.key(2), (3, 32, 32, 3))
  features = stage.supplied.model.outputs(params, images)[0].features
  logits = np.asarray(stage.head.apply(params, "task/head", features)) / 0.1
  p = np.exp(logits - logits.max(1, keepdims=True))
  p /= p.sum(1, keepdims=True)
  expected = -(p * np.log(p)).sum(1)
  np.testing.assert_allclose(stage.predict(params, images, np.zeros(3, np.int32))["entropy"], expected, rtol=1e-4)


@pytest.mark.parametrize(("entropy", "used", "rank", "expected"), [
  (math.log(64), 60.0, 8.0, "uniform output"),
  (0.001, 1.01, 8.0, "use 1.01 prototypes"),
  (0.001, 60.0, 8.0, None),  # sharp targets, but of many prototypes
  (2.0, 60.0, 1.2, "effective rank is 1.20"),
  (2.0, 60.0, 8.0, None),
])  # fmt: skip
def test_a_collapse_is_a_warning(entropy, used, rank, expected):
  means = {"loss": 1.0, "teacher_entropy": entropy, "used_prototypes": used, "feature_rank": rank}
  found = task().check_metrics(means)
  assert found is None if expected is None else expected in found


def test_used_prototypes_are_those_of_the_mean_target():
  targets = np.eye(8, dtype=np.float32)[np.array([[0, 1], [2, 3]])]
  metrics = self_distillation.measure_collapse(
    targets, np.random.default_rng(0).normal(size=(2, 2, 5)).astype("float32")
  )
  assert float(metrics["teacher_entropy"]) == 0 and float(metrics["used_prototypes"]) == pytest.approx(4)


@pytest.mark.parametrize(("of", "arguments", "expected"), [
  ({}, {"local_size": 12}, r"12 is not a multiple of the model's patch 8. Use 16"),
  ({"position": "relative"}, {}, "depends on the image size"),
  ({"name": "ViT-Ti/8", "size": (32, 64)}, {}, "images of 32 x 64 px"),
  ({}, {"local_area": (0.4, 0.1)}, r"local_area: \(0.4, 0.1\) goes from high to low"),
  ({}, {"temperature": Choice("constant", {"value": 0.0})}, r"temperature.value: 0.0. Allowed: at least 0.0001"),
], ids=str)  # fmt: skip
def test_a_model_that_cannot_process_the_crops_is_an_error(of, arguments, expected):
  with pytest.raises(ConfigError, match=expected):
    task(model(**of), **arguments)


def test_a_model_without_patches_is_an_error():
  compact = models.make_functional(models.Description(Choice("cct_2_3x2_32"), 32, 0))
  with pytest.raises(ConfigError, match="not patches of the image"):
    task(compact)
