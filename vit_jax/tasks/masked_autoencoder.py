"""Masked autoencoding (He et al. 2022): the encoder sees a quarter of the patches, a decoder tells the others' pixels.

    --config.task.name=masked_autoencoder [--config.task.depth=4]

No label is looked at, and the model has no head; evaluations are `masked` and `fewshot`.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from einops import rearrange

from vit_jax import models, rng
from vit_jax.models import decoder
from vit_jax.models.sizes import Depth, Width, sides
from vit_jax.schema import ConfigError, Range
from vit_jax.shapes import Array, Count, Float, PRNGKey, Tensor
from vit_jax.tasks import masking
from vit_jax.tasks.task import Labels, Objective, Params, Rows, Supplied


@dataclasses.dataclass(frozen=True)
class MaskedAutoencoder:
  """Mean squared error of the pixels of hidden patches.

  The decoder computes as the model does: its type, `scan` and `remat` are the model's.

  Args:
    share: of the patches of each image that are hidden.
    normalised: whether pixels are told as differences from the mean of their patch, in its standard deviations.
    width: of the decoder's tokens, a multiple of 4 for positions of sines.
    depth: of the decoder, in blocks.
    heads: of its attention.
  """

  supplied: Supplied
  _: dataclasses.KW_ONLY
  share: Annotated[float, Range(0, 1, open_low=True, open_high=True)] = 0.75
  normalised: bool = True
  width: Width = 512
  depth: Depth = 8
  heads: Width = 16

  headline: ClassVar[str] = "rmse"
  classes: ClassVar[bool] = False
  frozen: ClassVar[None] = None
  sharding: ClassVar[models.Rows] = decoder.SHARDING

  def __post_init__(self):
    masking.check(self.supplied.model)
    args = self.supplied.model.description.bound().model.args
    if "heads" not in args or args.get("position") == "relative":  # heads: tokens meet by attention, however many
      name = self.supplied.model.description.model.name
      raise ConfigError(f"{name} needs every patch to be there; take 'masked_patches', or another model", "name")
    if args.get("position_at", "input") != "input":
      raise ConfigError(
        f"positions in front of every block ({args['position_at']!r}) belong to all patches; take "
        "model.position_at='input', or 'masked_patches'",
        "name",
      )
    if self.width % 4 or self.width % self.heads:
      raise ConfigError(f"{self.width}; allowed: multiples of 4 and of heads={self.heads}", "width")
    if not 0 < self._visible < self._patches:
      raise ConfigError(f"{self.share} of {self._patches} patches leaves none to see, or none to tell", "share")

  @property
  def patch(self) -> int | None:
    """Images come cut where they may."""
    return self.supplied.patch

  @property
  def _patches(self):
    return masking.count(self.supplied.model)

  @property
  def _visible(self):
    return self._patches - round(self.share * self._patches)

  @functools.cached_property
  def decoder(self) -> decoder.Decoder:
    """What tells pixels of tokens."""
    model = self.supplied.model
    args, side = model.description.bound().model.args, model.patch
    grid = tuple(n // side for n in sides(model.description.image_size))
    outputs = side**2 * model.description.channels
    sizes = (masking.width(model), outputs, grid, self.width, self.depth, self.heads)
    return decoder.Decoder("task/decoder", *sizes, args["dtype"], args.get("scan", False), args.get("remat", "none"))

  def init(self, key: PRNGKey) -> Params:
    """The decoder's."""
    return self.decoder.init(key)

  def examples(self, batch: Rows, frozen: Params, key: PRNGKey, step: Count) -> Rows:
    """Augmented images, and "order" [B, N], the numbers of patches: first those that are seen."""
    none = jnp.zeros((len(batch["image"]), 1))
    images, _ = self.supplied.augment(self.patch)(key, batch["image"], none, batch["draw"], step)
    return {"image": images, "order": masking.orders(masking.drawn(key), len(images), self._patches)}

  def objective(self, params: Params, examples: Rows, key: PRNGKey | None) -> Objective:
    """Mean squared error over all hidden patches; the metric is the mean of their roots."""
    squared, statistics = self._squared(params, examples, key)
    return jnp.mean(squared), ({"rmse": jnp.mean(jnp.sqrt(squared))}, statistics)

  def predict(
    self, params: Params, images: Float[Tensor, "B ..."], labels: Labels, classes: Sequence[int] | None = None
  ) -> Rows:
    """Loss and metric of each image, of which the same patches are hidden."""
    order = masking.same(masking.orders(rng.key(0), 1, self._patches)[0], len(images))
    squared, _ = self._squared(params, {"image": images, "order": order}, None)
    return {"loss": squared.mean(1), "rmse": jnp.sqrt(squared).mean(1)}

  def _squared(self, params, examples, key):
    """(mean squared error of each hidden patch [B, N - M], statistics)."""
    images, order = examples["image"], examples["order"]
    visible, hidden = order[:, : self._visible], order[:, self._visible :]
    model = self.supplied.model
    outputs, statistics = model.outputs(params, images, key, visible=visible)
    with model.sharded():
      predicted = self.decoder(params, outputs.tokens, visible, jnp.argsort(order, axis=1))
    targets = self.targets(images)
    of_hidden = [jnp.take_along_axis(x, hidden[..., None], axis=1) for x in (predicted, targets)]
    return jnp.square(of_hidden[0].astype(jnp.float32) - of_hidden[1]).mean(-1), statistics

  def targets(self, images: Float[Tensor, "B ..."]) -> Float[Array, "B N PPC"]:
    """What is to be told of each patch: pixels as the model sees them, or normalised by patch (sample variance)."""
    patches = masking.patches(images.astype(jnp.float32), self.supplied.model.patch)
    values = rearrange(patches, "b n i j c -> b n (i j c)")
    if not self.normalised:
      return values
    mean, variance = values.mean(-1, keepdims=True), values.var(-1, ddof=1, keepdims=True)
    return (values - mean) * jax.lax.rsqrt(variance + 1e-6)
