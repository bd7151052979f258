"""DINOv2: self-distillation with class tokens and masked patches (Oquab et al. 2023; iBOT, Zhou et al. 2022).

    --config.task.name=dinov2 --config.optim.ema=0.992 \
        --config.optim.ema_schedule.name=cosine --config.optim.ema_schedule.end=1.0

The loss is a sum of DINO's loss of class tokens, iBOT's loss of masked patches, KoLeo, and optionally Gram anchoring
(DINOv3). The model has no head for classes. Use the evaluation `fewshot`.
"""

import dataclasses
import functools
import math
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from einops import rearrange

from vit_jax import models, rng
from vit_jax.data import augment
from vit_jax.data.views import Views
from vit_jax.models import resizing
from vit_jax.models.sizes import Hidden, Width, sides
from vit_jax.schema import Choice, ConfigError, Momentum, NonNegative, Range, enter_key, make
from vit_jax.selfsup import losses, patch_masks, targets
from vit_jax.selfsup.head_pairs import Sharing, find_heads, get_patch_paths, init_heads
from vit_jax.selfsup.heads import ProjectionHead
from vit_jax.selfsup.patch_masks import PatchMasks
from vit_jax.selfsup.paths import CENTER, HEAD, PATCH_CENTER, PATCH_HEAD, TOKEN
from vit_jax.selfsup.resize import resize_patches
from vit_jax.shapes import Array, Float, PRNGKey, Shaped, Tensor
from vit_jax.tasks import masking, step_parts
from vit_jax.tasks.dinov2_choices import GRAMS, MASKS, Gram
from vit_jax.tasks.self_distillation import (
  GLOBAL,
  Area,
  Crops,
  SelfDistillation,
  measure_collapse,
  merge_crops,
  select_features,
  split_crops,
)
from vit_jax.tasks.task import Batch, Context, FrozenModel, Objective, Params


class Tokens(NamedTuple):
  """Outputs of a model for the global crops.

  Attributes:
    features: features of each crop (B, 2, D).
    patches: patches of each crop (B, 2, N, D).
  """

  features: Float[Array, "B G D"]
  patches: Float[Array, "B G N D"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dinov2(SelfDistillation):
  """A task with the losses of DINOv2. The defaults are those of its long recipes.

  Args:
    centering: "sinkhorn" uses all prototypes equally often in each micro-batch. "mean" subtracts a moving average from
      the teacher's output.
    center_momentum: factor of the old centre when a centre is updated, for centering="mean".
    sharing: layers that the heads for images and for patches share: "none", "mlp" for all but the last layer (iBOT), or
      "all".
    patch_prototypes: number of outputs of the head for patches.
    patch_bottleneck: number of features in front of the last layer of this head.
    patch_hidden: width of the layers of this head.
    masks: choice of the masked patches, see `MASKS`.
    group: number of images in a group of neighbouring images of a batch. The ratios of block masks are spread evenly
      over the masked crops of a group. KoLeo searches nearest neighbours within a group. A micro-batch must be a
      multiple of this number, or smaller than one group.
    image_weight: weight of the loss of class tokens.
    patch_weight: weight of the loss of masked patches.
    koleo_weight: weight of KoLeo, the sum over both global crops.
    gram: Gram anchoring, see `GRAMS`: "none", or "anchor" with the weights of an earlier teacher.
    teacher: workdir of a `dinov2` run, or weight file with heads. Its frozen teacher is distilled into a smaller
      student. None: the teacher is the moving average of the student.
    ema: true selects averaged weights of the teacher's file, false raw weights. None: as for `init.ema`.
    prefix: common prefix of the teacher's parameter names, for a file that contains several models.

  Raises:
    ConfigError: if the model or the teacher does not support the losses.
  """

  global_area: Area = (0.32, 1.0)
  local_area: Area = (0.05, 0.32)
  blur: Crops = (0.0, 0.9, 0.5)
  prototypes: Annotated[int, Range(2, 2**20)] = 131072
  bottleneck: Width = 384
  centering: Literal["sinkhorn", "mean"] = "sinkhorn"
  center_momentum: Momentum = 0.9
  sharing: Sharing = "none"
  patch_prototypes: Annotated[int, Range(2, 2**20)] = 131072
  patch_bottleneck: Width = 256
  patch_hidden: Hidden = 2048
  masks: Annotated[Choice, MASKS] = Choice("blocks")
  group: Annotated[int, Range(2, 2**16)] = 32
  image_weight: NonNegative = 1.0
  patch_weight: NonNegative = 1.0
  koleo_weight: NonNegative = 0.1
  gram: Annotated[Choice, GRAMS] = Choice("none")
  teacher: str | None = None
  ema: bool | None = None
  prefix: str | None = None

  @property
  def grid(self) -> tuple[int, int]:
    """Returns the numbers of rows and columns of patches of a global crop."""
    height, width = sides(self.supplied.model.description.image_size)
    patch = masking.require_patch(self.supplied.model)
    return height // patch, width // patch

  @functools.cached_property
  def patch_head(self) -> ProjectionHead:
    """The head for patches. With sharing="all" it is the head of the features of an image."""
    if self.sharing == "all":
      return self.head
    if self.sharing == "mlp":
      return dataclasses.replace(self.head, prototypes=self.patch_prototypes)
    return dataclasses.replace(
      self.head, prototypes=self.patch_prototypes, bottleneck=self.patch_bottleneck, hidden=self.patch_hidden
    )

  @functools.cached_property
  def anchor(self) -> Gram | None:
    """The settings of Gram anchoring, or None."""
    with enter_key("gram"):
      return make(self.gram, GRAMS)

  @property
  def uses_average(self) -> bool:
    """Returns true if the teacher is the moving average of the student."""
    return self.teacher is None

  @functools.cached_property
  def frozen_models(self) -> dict[str, FrozenModel]:
    """The frozen teacher as "teacher", and the teacher of Gram anchoring as "gram", if there are any."""
    frozen_models = {}
    if self.teacher is not None:
      rules = ProjectionHead.sharding(f"(?:{HEAD}|{PATCH_HEAD})")
      frozen_models["teacher"] = self.supplied.open_frozen_model(
        "task.teacher", self.teacher, self.ema, self.prefix, rules
      )
    if self.anchor is not None:
      frozen_models["gram"] = self.supplied.open_frozen_model(
        "task.gram.teacher", self.anchor.path, self.anchor.ema, self.anchor.prefix, ()
      )
    for model in frozen_models.values():
      if flags := augment.find_normalisation_flags(model.normalised, self.supplied.normalised):
        raise ConfigError(
          f"the images for {model.path} are normalised differently from those of this run. Use {flags}",
          f"config.{model.key}",
        )
    return frozen_models

  @functools.cached_property
  def teacher_heads(self) -> tuple[ProjectionHead, ProjectionHead]:
    """The heads of the teacher for images and for patches.

    Raises:
      ConfigError: if a frozen teacher has no heads, or if its patches or prototypes differ from the student's.
    """
    if self.teacher is None:
      return self.head, self.patch_head
    with enter_key("config.task"):
      teacher, patch = self.frozen_models["teacher"], self.supplied.model.patch
      if teacher.model.patch != patch:
        raise ConfigError(
          f"{self.teacher} has patches of {teacher.model.patch} px, but the student has {patch}. Use models with equal "
          "patches",
          "teacher",
        )
      shapes = {path: leaf.shape for path, leaf in teacher.shapes.items()}
      with enter_key("teacher"):
        heads = find_heads(shapes, masking.token_width(teacher.model), self.sharing, self.teacher)
      for key, head, own in zip(("prototypes", "patch_prototypes"), heads, (self.head, self.patch_head), strict=True):
        if head.prototypes != own.prototypes:
          raise ConfigError(
            f"a head in {self.teacher} has {head.prototypes:,} prototypes, but that of the student has "
            f"{own.prototypes:,}. Set config.task.{key}={head.prototypes}",
            "teacher",
          )
    return heads

  @functools.cached_property
  def gram_model(self) -> resizing.ResizedModel:
    """The teacher of Gram anchoring, resized to the size of its crops.

    Raises:
      ConfigError: if the teacher has no patch tokens, or if the size of its crops is not a multiple of its patch.
    """
    assert self.anchor is not None
    with enter_key("config.task.gram"):
      model = self.frozen_models["gram"].model
      patch = masking.require_patch(model)
      if self.gram_size % patch:
        raise ConfigError(f"{self.gram_size} is not a multiple of the teacher's patch {patch}", "size")
      return resizing.resize(model, self.gram_size)

  @property
  def gram_size(self) -> int:
    """Returns the side of the crops of the Gram teacher in pixels."""
    assert self.anchor is not None
    return self.anchor.size or 2 * sides(self.supplied.model.description.image_size)[0]

  @property
  def views(self) -> tuple[Views, ...]:
    """Returns the views of an image: global crops, local crops, and for Gram anchoring global crops without changes."""
    views = super().views
    if self.anchor is None:
      return views
    unchanged = (Choice("none"),) * GLOBAL
    return (*views, Views("gram", self.gram_size, views[0].crop, unchanged, boxes_of="global"))

  @property
  def statistics(self) -> frozenset[str]:
    """Returns the paths of the centres."""
    return frozenset({CENTER, PATCH_CENTER}) if self.centering == "mean" else frozenset()

  @property
  def sharding(self) -> models.ShardingRules:
    """Returns the rows of the sharding table for heads, centres and the mask token."""
    rows = (*ProjectionHead.sharding(HEAD), (TOKEN, (None,)))
    if self.sharing != "all":
      rows += tuple(row for row in ProjectionHead.sharding(PATCH_HEAD) if self.sharing == "none" or "last" in row[0])
    return (*rows, *((path, (None,)) for path in sorted(self.statistics)))

  def init(self, key: PRNGKey) -> dict[str, Shaped[Array, "..."]]:
    """Returns the initial heads, and centres and a mask token of zeros."""
    params = init_heads((self.head, self.patch_head), self.sharing, key)
    params |= {TOKEN: jnp.zeros(masking.token_width(self.supplied.model))}
    if self.centering == "mean":
      params |= {CENTER: jnp.zeros(self.prototypes), PATCH_CENTER: jnp.zeros(self.patch_head.prototypes)}
    return params

  def objective(self, params: Params, context: Context, examples: Batch, key: PRNGKey | None) -> Objective:
    """Returns the weighted sum of all losses.

    Args:
      params: parameters of the student and the task by path.
      context: values of the step, with the weights of the teacher: the average of the parameters, or frozen weights.
      examples: the result of `examples`.
      key: random key of masks and stochastic depth, or None for evaluation.

    Returns:
      The loss, and a pair of metrics and {path: new centre}. The metrics "local_loss", "global_loss", "patch_loss",
      "koleo" and, with Gram anchoring, "gram" are not multiplied by their weights. The others are those of
      `measure_collapse`.
    """
    drawn, *keys = (rng.make_key(0), None, None) if key is None else jax.random.split(key, 3)
    crops = merge_crops(examples["global"])
    masks = self.draw_masks(drawn, len(examples["global"]))

    taught, teaching = (
      (self.supplied.model, context.average)
      if self.teacher is None
      else (self.frozen_models["teacher"].model, context.frozen_weights["teacher"])
    )
    with step_parts.name_part("teacher"):
      teacher = self.encode(taught, teaching, crops, None, None)
    with step_parts.name_part("student"):
      student = self.encode(self.supplied.model, params, crops, keys[0], masks)
      features = jnp.concatenate([student.features, self.encode_local(params, examples, keys[1])], axis=1)
    with step_parts.name_part("heads and losses"):
      return self._compute_losses(params, teaching, context, examples, student, teacher, features, masks)

  def _compute_losses(
    self,
    params: Params,
    teaching: Params,
    context: Context,
    examples: Batch,
    student: Tokens,
    teacher: Tokens,
    features: Float[Array, "B G D"],
    masks: PatchMasks,
  ) -> Objective:
    """Returns the losses. `features` contains the student's features of all global and local crops."""
    probabilities, patch_probabilities, centers = self.compute_targets(params, teaching, context, teacher, masks)
    dino = losses.dino_loss(
      self.head.apply(params, HEAD, features, self.dtype), probabilities, self.student_temperature
    )
    patches = self.apply_patch_head(self.patch_head, params, patch_masks.take_patches(student.patches, masks.indices))
    crops = GLOBAL * len(examples["global"])
    patch = losses.patch_loss(patches, patch_probabilities, masks.weights, crops, self.student_temperature)
    together = self._count_together(len(examples["global"]))
    koleo = jnp.zeros(())
    if self.koleo_weight and together > 1:  # a single image has no neighbour
      koleo = losses.koleo(rearrange(student.features, "(n i) g d -> g n i d", i=together)).mean(1).sum()
    loss = self.image_weight * dino.total + self.patch_weight * patch + self.koleo_weight * koleo
    metrics = {
      "local_loss": dino.local_part,
      "global_loss": dino.global_part,
      "patch_loss": patch,
      "koleo": koleo,
    } | measure_collapse(probabilities, student.features)
    if self.anchor is not None:
      metrics |= {"gram": self.compute_gram(context, examples, student.patches)}
      loss += self.anchor.weight * metrics["gram"]
    return loss, (metrics, centers)

  def _count_together(self, images: int) -> int:
    """Returns the number of images of a group. Raises ConfigError if a micro-batch is not a multiple of it."""
    size = min(self.group, images)
    if images % size:
      allowed = [number for number in range(2, size) if images % number == 0]
      fix = f"Use {max(allowed)}" if allowed else "Use another config.batch or config.optim.accumulate"
      raise ConfigError(f"config.task.group: {size} does not divide a micro-batch of {images} images. {fix}")
    return size

  def draw_masks(self, key: PRNGKey, images: int) -> PatchMasks:
    """Draws the masked patches of the global crops.

    Args:
      key: random key.
      images: number of images.
    """
    size = self._count_together(images)
    with enter_key("config.task.masks"):
      draw = make(self.masks, MASKS)
      try:
        return draw(key, images // size, GLOBAL * size, self.grid)
      except ValueError as error:
        raise ConfigError(str(error)) from error

  def encode(
    self,
    model: models.Model,
    params: Params,
    crops: Float[Tensor, " BG *image"],
    key: PRNGKey | None,
    masks: PatchMasks | None,
  ) -> Tokens:
    """Returns features and patches of the global crops.

    Args:
      model: the student or the teacher.
      params: parameters by path.
      crops: normalised global crops (B * 2, ...).
      key: random key of stochastic depth, or None.
      masks: patches that the mask token replaces, or None.
    """
    replace = {}
    if masks is not None:
      hidden = masks.masks.reshape(len(crops), -1, 1)
      replace["corrupt"] = lambda embeddings: jnp.where(hidden, params[TOKEN].astype(embeddings.dtype), embeddings)
    outputs, _ = model.outputs(params, crops, key, **replace)
    patches = outputs.tokens[:, -math.prod(self.grid) :]
    return Tokens(split_crops(select_features(model, outputs), GLOBAL), split_crops(patches, GLOBAL))

  def apply_patch_head(
    self, head: ProjectionHead, params: Params, patches: Float[Tensor, "*B D"]
  ) -> Float[Array, "*B K"]:
    """Returns the logits of patches.

    Args:
      head: the head for patches of the student or the teacher.
      params: parameters by path.
      patches: patches (..., D).
    """
    mlp, last = get_patch_paths(self.sharing)
    return head.apply_last(params, last, head.apply_mlp(params, mlp, patches, self.dtype), self.dtype)

  def compute_targets(
    self, params: Params, teaching: Params, context: Context, teacher: Tokens, masks: PatchMasks
  ) -> tuple[Float[Array, "B G K"], Float[Array, "groups M K2"], dict[str, Float[Array, "..."]]]:
    """Returns the targets of global crops and masked patches, and the new centres by path.

    Args:
      params: parameters by path, with the centres.
      teaching: parameters of the teacher by path.
      context: values of the step.
      teacher: outputs of the teacher.
      masks: the masked patches.
    """
    head, patch_head = self.teacher_heads
    logits = head.apply(teaching, HEAD, teacher.features, self.dtype)
    patches = self.apply_patch_head(patch_head, teaching, patch_masks.take_patches(teacher.patches, masks.indices))
    temperature = self.find_temperature(context.step)
    if self.centering == "sinkhorn":
      return targets.sinkhorn(logits, temperature), targets.sinkhorn(patches, temperature, valid=masks.valid), {}
    found = (
      targets.center_softmax(logits, params[CENTER], temperature),
      targets.center_softmax(patches, params[PATCH_CENTER], temperature),
    )
    return *found, {
      CENTER: targets.update_center(params[CENTER], logits, self.center_momentum),
      PATCH_CENTER: targets.update_center(params[PATCH_CENTER], patches, self.center_momentum, masks.valid),
    }

  def compute_gram(self, context: Context, examples: Batch, patches: Float[Tensor, "B G N D"]) -> Float[Array, ""]:
    """Returns the loss of Gram anchoring.

    Args:
      context: values of the step, with the weights of the Gram teacher.
      examples: the result of `examples`.
      patches: patches of the student.
    """
    assert self.anchor is not None
    params = self.gram_model.adapt(context.frozen_weights["gram"])
    outputs, _ = self.gram_model.model.outputs(params, merge_crops(examples["gram"]), None)
    side = self.gram_size // masking.require_patch(self.gram_model.model)
    tokens = resize_patches(outputs.tokens[:, -(side**2) :], (side, side), self.grid)
    student = merge_crops(patches)
    if self.anchor.across:
      together = GLOBAL * self._count_together(len(patches))
      student, tokens = (rearrange(x, "(n i) p d -> n (i p) d", i=together) for x in (student, tokens))
    return losses.gram_loss(student, tokens, self.anchor.negatives)
