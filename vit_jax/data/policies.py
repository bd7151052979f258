"""The table of policies, which change a training image on the host after crop and flip.

A policy is a function (image, draw) that returns an image, uint8 (H, W, 3). `draw` is a `random.Random`, and policies
call only its method `random`.
"""

from vit_jax.data import autoaugment, colours, randaugment

POLICIES = {
  "none": randaugment.none,
  "randaugment": randaugment.randaugment,
  "randaugment_increasing": randaugment.randaugment_increasing,
  "autoaugment": autoaugment.autoaugment,
  "three_augment": colours.three_augment,
  "colour_jitter": colours.colour_jitter,
  "dino": colours.dino,
}
