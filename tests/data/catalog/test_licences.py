"""Tests of the licences of datasets, listed by builder."""

import pytest

from vit_jax.data import catalog
from vit_jax.data.catalog import licences


def test_every_licence_belongs_to_a_builder_of_the_catalog():
  names = {row.builder.partition(":")[0].partition("/")[0] for row in catalog.CATALOG.values() if row.builder}
  assert licences.LICENCES.keys() <= names


@pytest.mark.parametrize(
  ("name", "output"),
  [
    ("clevr_count", "licence: CC BY 4.0"),
    ("imagenet2012_1pct", "licence: image-net.org's terms"),
    ("imagenet_v2", "licence: MIT"),
    ("svhn_cropped", "licence: unknown"),
    ("jft300m", "licence: see the terms of your copy"),
  ],
)
def test_description_of_a_dataset_contains_its_licence(name, output):
  assert output in catalog.describe_dataset(name)
