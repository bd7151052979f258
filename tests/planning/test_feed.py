"""Tests of the estimated input rate of a host, against sums by hand.

The estimate uses cores, stored sizes, pixels and policies.
"""

import pytest

from tests import runs
from vit_jax import config
from vit_jax.config import flags
from vit_jax.data import policies
from vit_jax.data.views import Views
from vit_jax.parallel import hardware
from vit_jax.planning import feed
from vit_jax.schema import Choice
from vit_jax.training import build

PLAIN, RANDAUGMENT = feed.PLAIN_SECONDS, feed.RANDAUGMENT_SECONDS


@pytest.mark.parametrize(
  ("changes", "seconds"),
  [
    # ImageNet's images have 115 kB. The measured images have 90 kB.
    (dict(data__image_size=224), PLAIN * 115 / 90 + (RANDAUGMENT - PLAIN)),
    (dict(data__image_size=224, data__policy__layers=0), PLAIN * 115 / 90),
    (dict(data__image_size=224, data__policy__layers=3), PLAIN * 115 / 90 + (RANDAUGMENT - PLAIN) * 3 / 2),
    (dict(data__image_size=448), PLAIN * 115 / 90 + (RANDAUGMENT - PLAIN) * 4),
  ],
)
def test_cost_of_an_image_depends_on_its_bytes_and_operations(changes, seconds):
  assert feed.estimate_seconds_per_image(runs.imagenet(**changes)) == pytest.approx(seconds)


@pytest.mark.parametrize(
  ("changes", "seconds"),
  [
    (dict(data__crop__interpolation="bicubic"), 0.525 * 5.4e-3 * 115 / 90),
    (dict(data__crop__interpolation="bilinear", data__crop__area=(0.2, 1.0)), 0.6 * 3.7e-3 * 115 / 90),
    (dict(data__crop__name="random_crop", data__crop__interpolation="bicubic"), 5.4e-3 * 115 / 90),
    (dict(data__policy__name="three_augment"), 2.1e-3),
    (dict(data__policy__name="autoaugment"), 3.0e-3),
  ],
)
def test_antialiased_scaling_and_other_policies_have_a_cost(changes, seconds):
  plain = {"data__image_size": 224, "data__policy__layers": "default", "data__policy__magnitude": "default"}
  plain |= {"data__crop__name": "inception", "data__policy__name": "none"}
  more = feed.estimate_seconds_per_image(runs.imagenet(**plain | changes)) - feed.estimate_seconds_per_image(
    runs.imagenet(**plain)
  )
  assert more == pytest.approx(seconds)


def test_every_policy_has_a_cost():
  assert set(feed.POLICY_SECONDS) == set(policies.POLICIES) - {"none"}


def test_cost_of_a_policy_scales_with_its_probability():
  some = dict(data__image_size=224, data__policy__name="randaugment_increasing", data__policy__layers=2)
  half, always = (feed.estimate_seconds_per_image(runs.imagenet(**some, data__policy__probability=p)) for p in (0.5, 1))
  plain = feed.estimate_seconds_per_image(runs.imagenet(data__image_size=224, data__policy__layers=0))
  assert half - plain == pytest.approx((always - plain) / 2)


def test_images_of_a_folder_cost_as_much_as_the_measured_photographs():
  run = runs.run("configs/folder.py", {"data.path": "/photos"})
  assert feed.estimate_seconds_per_image(run) == pytest.approx(PLAIN)


def test_parts_of_a_mixture_count_by_their_weights():
  file = flags.load_config(
    str(runs.ROOT / "configs/vit_s16_i1k.py"), {"data.policy.layers": "0", "data.image_size": "224"}
  )
  file.data.update(name="mixture", parts=[dict(name="imagenet2012", weight=3), dict(name="cifar10")])
  run = build.complete(config.resolve(file))
  assert feed.get_image_bytes(run.data) == pytest.approx((3 * 115_000 + 2_500) / 4)
  assert feed.estimate_seconds_per_image(run) == pytest.approx(PLAIN * (3 * 115 + 2.5) / 4 / 90)
  file.data.parts += (dict(name="folder", path="/photos"),)
  assert feed.get_image_bytes(build.complete(config.resolve(file)).data) is None


def test_small_images_have_only_the_fixed_cost():
  assert 0 < feed.estimate_seconds_per_image(runs.run()) < PLAIN / 5


def test_rate_of_a_host_is_proportional_to_its_cores():
  run = runs.imagenet(data__image_size=224)
  v3, v6 = (feed.estimate_host_rate(run, hardware.parse_slice(name)) for name in ("v3-8", "v6e-16"))
  assert v3 == pytest.approx(96 / (PLAIN * 115 / 90 + RANDAUGMENT - PLAIN))
  assert v6 / v3 == pytest.approx(180 / 96)


def test_host_of_96_cores_feeds_the_baseline():
  assert feed.estimate_host_rate(runs.imagenet(data__image_size=224), hardware.parse_slice("v3-8")) > 5100


def test_views_of_an_image_are_decoded_once_and_augmented_separately():
  run = runs.imagenet(data__image_size=224)
  crop = Choice("inception", {"area": (0.2, 0.6), "interpolation": "bicubic"})
  views = (Views("global", 224, crop, (Choice("dino"),) * 2), Views("local", 112, crop, (Choice("none"),) * 4))
  expected = PLAIN * 115 / 90 + 6 * 0.4 * 5.4e-3 * 115 / 90 + 2 * 4.4e-3
  assert feed.estimate_seconds_per_image(run, views) == pytest.approx(expected)
