"""Tests of the table of policies: each is a function of the image and of its random draws."""

import random

import numpy as np
import pytest

from tests import modules
from vit_jax.data.policies import POLICIES


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (32, 32)])
def test_policy_depends_only_on_its_draws_and_keeps_its_input(name, shape):
  image = modules.pictures(1, *shape)[0]
  before, policy = image.copy(), POLICIES[name]()
  for seed in range(25):
    one, two = (policy(image, random.Random(seed)) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert one.shape == image.shape and one.dtype == np.uint8 and one.flags.writeable
  np.testing.assert_array_equal(image, before)
