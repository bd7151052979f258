"""Masked autoencoding (He et al. 2022): the encoder gets a quarter of the patches, and a decoder predicts the others.

    --config.task.name=masked_autoencoder [--config.task.depth=4]

The task ignores labels, and the model has no head. Use the evaluations `masked` and `fewshot`.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from einops import rearrange

from vit_jax import models, rng
from vit_jax.data.views import Fields
from vit_jax.models import decoder
from vit_jax.models.sizes import Depth, Width, sides
from vit_jax.schema import ConfigError, Range, format_amount
from vit_jax.shapes import Array, Float, PRNGKey, Shaped, Tensor
from vit_jax.tasks import masking
from vit_jax.tasks.task import Batch, Context, Labels, Objective, Params, Task, TaskContext


@dataclasses.dataclass(frozen=True)
class MaskedAutoencoder(Task):
  """A masked autoencoding task: mean squared error of the pixels of hidden patches.

  The decoder uses the dtype, `scan` and `remat` of the model.

  Args:
    supplied: the objects that the run supplies, such as the model.
    share: share of the patches of each image that are hidden.
    normalised: whether the pixels of each patch are normalised by the mean and standard deviation of the patch.
    width: width of the decoder's tokens. It must be a multiple of `heads`, and of 4 for sinusoidal positions.
    depth: number of blocks of the decoder.
    heads: number of attention heads of the decoder.

  Raises:
    ConfigError: if the model cannot encode a subset of the patches, or if an argument is out of range.
  """

  supplied: TaskContext
  _: dataclasses.KW_ONLY
  share: Annotated[float, Range(0, 1, open_low=True, open_high=True)] = 0.75
  normalised: bool = True
  width: Width = 512
  depth: Depth = 8
  heads: Width = 16

  headline: ClassVar[str] = "rmse"
  classes: ClassVar[bool] = False
  sharding: ClassVar[models.ShardingRules] = decoder.SHARDING

  def __post_init__(self) -> None:
    masking.require_patch(self.supplied.model)
    args = self.supplied.model.description.settings()
    if "heads" not in args or args.get("position") == "relative":  # only attention accepts any number of tokens
      name = self.supplied.model.description.model.name
      raise ConfigError(f"{name} requires all patches. Use 'masked_patches', or another model", "name")
    if args.get("position.at", "input") != "input":
      raise ConfigError(
        f"positions in front of every block ({args['position.at']!r}) belong to all patches. Use "
        "model.position.at='input', or 'masked_patches'",
        "name",
      )
    if self.width % 4 or self.width % self.heads:
      raise ConfigError(f"{self.width}. Allowed: multiples of 4 and of heads={self.heads}", "width")
    if not 0 < self._visible < self._patches:
      raise ConfigError(
        f"{self.share} of {format_amount(self._patches, 'patch', 'patches')} leaves no visible patch or no hidden "
        "patch",
        "share",
      )

  @property
  def fields(self) -> Fields:
    """Returns the fields of a batch: images without labels."""
    return Fields(self.supplied.patch, label=False)

  @property
  def _patches(self) -> int:
    return masking.count_patches(self.supplied.model)

  @property
  def _visible(self) -> int:
    return self._patches - round(self.share * self._patches)

  @functools.cached_property
  def decoder(self) -> decoder.Decoder:
    """The decoder that predicts pixels from tokens."""
    model = self.supplied.model
    args, side = model.description.bind().model.args, masking.require_patch(model)
    height, width = sides(model.description.image_size)
    return decoder.Decoder(
      "task/decoder",
      inputs=masking.token_width(model),
      outputs=side**2 * model.description.channels,
      grid=(height // side, width // side),
      width=self.width,
      depth=self.depth,
      heads=self.heads,
      dtype=args["dtype"],
      scan=args.get("scan", False),
      remat=args.get("remat", "none"),
    )

  def init(self, key: PRNGKey) -> dict[str, Shaped[Array, "..."]]:
    """Returns the initial parameters of the decoder."""
    return self.decoder.init(key)

  def examples(self, batch: Batch, context: Context, key: PRNGKey) -> Batch:
    """Returns augmented images and a random order of the patches of each image.

    Args:
      batch: the batch with "image" (uint8) and "draw".
      context: values of the step.
      key: random key of the step.

    Returns:
      {"image": augmented images, "order": patch numbers (B, N)}. The visible patches come first.
    """
    none = jnp.zeros((len(batch["image"]), 1))
    images, _ = self.supplied.augment(self.fields.patch)(key, batch["image"], none, batch["draw"], context.step)
    return {"image": images, "order": masking.draw_orders(masking.derive_mask_key(key), len(images), self._patches)}

  def objective(self, params: Params, context: Context, examples: Batch, key: PRNGKey | None) -> Objective:
    """Returns the mean squared error over all hidden patches.

    Args:
      params: parameters by path, including those of the decoder.
      context: unused.
      examples: the result of `examples`.
      key: random key of dropout and stochastic depth, or None for evaluation.

    Returns:
      The loss, and a pair of {"rmse": mean over patches of the root of the error} and the updated statistics of the
      model.
    """
    squared, statistics = self._compute_errors(params, examples, key)
    return jnp.mean(squared), ({"rmse": jnp.mean(jnp.sqrt(squared))}, statistics)

  def predict(
    self, params: Params, images: Float[Tensor, "B ..."], labels: Labels, classes: Sequence[int] | None = None
  ) -> Batch:
    """Returns the loss and the metric of each image, with the same hidden patches for all images.

    Args:
      params: parameters by path, including those of the decoder.
      images: normalised images.
      labels: unused.
      classes: unused.

    Returns:
      {"loss": (B,), "rmse": (B,)}.
    """
    order = masking.repeat_order(masking.draw_orders(rng.make_key(0), 1, self._patches)[0], len(images))
    squared, _ = self._compute_errors(params, {"image": images, "order": order}, None)
    return {"loss": squared.mean(1), "rmse": jnp.sqrt(squared).mean(1)}

  def _compute_errors(self, params: Params, examples: Batch, key: PRNGKey | None) -> tuple[Array, dict[str, Array]]:
    """Returns (mean squared error of each hidden patch (B, hidden), statistics of the model)."""
    images, order = examples["image"], examples["order"]
    visible, hidden = order[:, : self._visible], order[:, self._visible :]
    model = self.supplied.model
    outputs, statistics = model.outputs(params, images, key, visible=visible)
    with model.sharded():
      predicted = self.decoder(params, outputs.tokens, visible, jnp.argsort(order, axis=1))
    targets = self.targets(images)
    of_hidden = [jnp.take_along_axis(x, hidden[..., None], axis=1) for x in (predicted, targets)]
    return jnp.square(of_hidden[0].astype(jnp.float32) - of_hidden[1]).mean(-1), statistics

  def targets(self, images: Float[Tensor, "B ..."]) -> Float[Tensor, "B N PPC"]:
    """Returns the values to predict for each patch: its pixels, normalised as in the input of the model.

    With `normalised`, the pixels are normalised by the mean and sample variance of the patch.

    Args:
      images: normalised images (B, H, W, C), or patches (B, N, P*P*C).
    """
    patches = masking.cut_patches(images.astype(jnp.float32), masking.require_patch(self.supplied.model))
    values = rearrange(patches, "b n i j c -> b n (i j c)")
    if not self.normalised:
      return values
    mean, variance = values.mean(-1, keepdims=True), values.var(-1, ddof=1, keepdims=True)
    return (values - mean) * jax.lax.rsqrt(variance + 1e-6)
