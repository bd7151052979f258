"""Policies by name: what changes a training image on the host after it is cropped and mirrored.

A policy is `(image [H, W, 3] uint8, draw) -> image`; `draw` is a `random.Random`, of which only `random()` is called.
"""

from vit_jax.data import autoaugment, colours, randaugment

POLICIES = {
  "none": randaugment.none,
  "randaugment": randaugment.randaugment,
  "randaugment_increasing": randaugment.randaugment_increasing,
  "autoaugment": autoaugment.autoaugment,
  "three_augment": colours.three_augment,
  "colour_jitter": colours.colour_jitter,
}
