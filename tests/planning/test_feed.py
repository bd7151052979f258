"""The estimate of what a host makes: from cores, stored images, pixels and policies, against sums by hand."""

import pytest

from tests import runs
from vit_jax import hardware
from vit_jax.planning import feed

PLAIN, RANDAUGMENT = feed.PLAIN_SECONDS, feed.RANDAUGMENT_SECONDS


@pytest.mark.parametrize(
  ("changes", "seconds"),
  [
    # ImageNet's images are 115 kB, those that were measured 90 kB.
    (dict(data__image_size=224), PLAIN * 115 / 90 + (RANDAUGMENT - PLAIN)),
    (dict(data__image_size=224, data__policy__layers=0), PLAIN * 115 / 90),
    (dict(data__image_size=224, data__policy__layers=3), PLAIN * 115 / 90 + (RANDAUGMENT - PLAIN) * 3 / 2),
    (dict(data__image_size=448), PLAIN * 115 / 90 + (RANDAUGMENT - PLAIN) * 4),
  ],
)
def test_an_image_costs_its_bytes_and_its_operations(changes, seconds):
  assert feed.seconds_per_image(runs.imagenet(**changes)) == pytest.approx(seconds)


def test_timm_s_operations_are_left_out_half_of_the_time():
  some = dict(data__image_size=224, data__policy__name="randaugment_increasing", data__policy__layers=2)
  half, always = (feed.seconds_per_image(runs.imagenet(**some, data__policy__probability=p)) for p in (0.5, 1))
  plain = feed.seconds_per_image(runs.imagenet(data__image_size=224, data__policy__layers=0))
  assert half - plain == pytest.approx((always - plain) / 2)


def test_a_folder_s_images_are_the_photographs_that_were_measured():
  run = runs.run("configs/folder.py", {"data.path": "/photos"})
  assert feed.seconds_per_image(run) == pytest.approx(PLAIN)


def test_small_images_cost_what_is_not_decoding():
  assert 0 < feed.seconds_per_image(runs.run()) < PLAIN / 5


def test_a_host_s_rate_is_that_of_its_cores():
  run = runs.imagenet(data__image_size=224)
  v3, v6 = (feed.host_rate(run, hardware.topology(name)) for name in ("v3-8", "v6e-16"))
  assert v3 == pytest.approx(96 / (PLAIN * 115 / 90 + RANDAUGMENT - PLAIN))
  assert v6 / v3 == pytest.approx(180 / 96)


def test_a_host_of_96_cores_feeds_the_baseline():
  assert feed.host_rate(runs.imagenet(data__image_size=224), hardware.topology("v3-8")) > 5100
