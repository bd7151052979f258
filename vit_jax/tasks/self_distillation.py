"""Self-distillation: the parts that DINO and DINOv2 share.

The student learns to predict the teacher's output for other crops of the same image. The teacher is the moving average
of the student, or a frozen model. The teacher sees only the two global crops.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from einops import rearrange

from vit_jax import models
from vit_jax.data.crops import Size
from vit_jax.data.views import Fields, Views
from vit_jax.models import resizing
from vit_jax.models.sizes import Hidden, Width
from vit_jax.optim.value_schedules import VALUE_SCHEDULES, create_value_schedule
from vit_jax.schema import Choice, ConfigError, Fraction, Range, enter_key
from vit_jax.selfsup import heads
from vit_jax.selfsup.heads import ProjectionHead
from vit_jax.selfsup.paths import HEAD, PATCH_HEAD
from vit_jax.shapes import Array, Count, Float, PRNGKey, Scalar, Tensor
from vit_jax.tasks import masking
from vit_jax.tasks.task import Batch, Context, Labels, Params, Task, TaskContext

GLOBAL = 2  # number of global crops
COLDEST = 1e-4  # smallest temperature, because logits are divided by it in float32
UNIFORM = 0.998  # a teacher has collapsed if its entropy is above this share of the largest entropy, log K
PROTOTYPES = 1.5  # a teacher has collapsed if all images of a batch use fewer prototypes
RANK = 1.5  # features of a lower rank have collapsed

Crops = tuple[Fraction, Fraction, Fraction]  # values for the first and the second global crop, and for local crops
Area = tuple[Annotated[float, Range(0, 1, open_low=True)], Fraction]


@dataclasses.dataclass(frozen=True)
class SelfDistillation(Task):
  """The crops and the head of a self-distillation task.

  Args:
    supplied: the objects that the run supplies, such as the model.
    global_area: smallest and largest share of the image's area in a global crop. Global crops have the size of the
      model's images.
    local_area: smallest and largest share of the image's area in a local crop.
    local_crops: number of local crops.
    local_size: side of the local crops in pixels, a multiple of the model's patch.
    blur: probability of a blur in the first global crop, the second global crop, and local crops.
    solarize: probability of solarization in these crops.
    jitter: probability of colour jitter in each crop.
    gray: probability of a conversion to gray in each crop.
    prototypes: number K of outputs of the head.
    bottleneck: number of features in front of the last layer of the head.
    hidden: width of the layers of the head.
    head_layers: number of layers of the head in front of the last one.
    last_layer: "weight_norm" learns the length of each prototype, "fixed_norm" has prototypes of length one, and
      "plain" has no normalisation (DINOv3).
    temperature: temperature of the teacher's output as a function of the step, see `value_schedules`.
    student_temperature: temperature of the student's output.

  Raises:
    ConfigError: if the model cannot process local crops.
  """

  supplied: TaskContext
  _: dataclasses.KW_ONLY
  global_area: Area = (0.4, 1.0)
  local_area: Area = (0.05, 0.4)
  local_crops: Annotated[int, Range(0, 64)] = 8
  local_size: Size = 96
  blur: Crops = (1.0, 0.1, 0.5)
  solarize: Crops = (0.0, 0.2, 0.0)
  jitter: Fraction = 0.8
  gray: Fraction = 0.2
  prototypes: Annotated[int, Range(2, 2**20)] = 65536
  bottleneck: Width = 256
  hidden: Hidden = 2048
  head_layers: Annotated[int, Range(1, 16)] = 3
  last_layer: heads.LastLayer = "weight_norm"
  temperature: Annotated[Choice, VALUE_SCHEDULES] = Choice("ramp", {"start": 0.04, "end": 0.07, "length": "30ep"})
  student_temperature: Annotated[float, Range(COLDEST)] = 0.1

  headline: ClassVar[str] = "teacher_entropy"
  classes: ClassVar[bool] = False
  cuts_views: ClassVar[bool] = True

  @property
  def constants(self) -> Mapping[str, float]:
    """The scales of the last layers, if prototypes have length one."""
    fixed = self.last_layer == "fixed_norm"
    return dict.fromkeys((f"{HEAD}/last/scale", f"{PATCH_HEAD}/last/scale"), 1.0) if fixed else {}

  def __post_init__(self) -> None:
    patch = masking.require_patch(self.supplied.model)
    size = self.supplied.model.description.image_size
    if not isinstance(size, int):
      raise ConfigError(f"crops are squares, but the model takes images of {size[0]} x {size[1]} px", "name")
    for key in ("global_area", "local_area"):
      if (area := getattr(self, key))[0] > area[1]:
        raise ConfigError(f"{area} goes from high to low. Write (low, high)", key)
    for key in ("value", "start", "end"):
      if (value := self.temperature.args.get(key, 1.0)) < COLDEST:
        with enter_key("temperature"):
          raise ConfigError(f"{value}. Allowed: at least {COLDEST}", key)
    if not self.local_crops:
      return
    if self.local_size % patch:
      nearest = patch * max(1, round(self.local_size / patch))
      raise ConfigError(
        f"{self.local_size} is not a multiple of the model's patch {patch}. Use {nearest}", "local_size"
      )
    _ = self.local_model  # raises an error for a model that cannot process local crops

  def find_temperature(self, step: Count) -> Scalar:
    """Returns the temperature of the teacher at a step.

    Args:
      step: number of completed steps.
    """
    with enter_key("config.task.temperature"):
      return create_value_schedule(self.temperature, self.supplied.total, self.supplied.count_steps)(step)

  @functools.cached_property
  def local_model(self) -> resizing.ResizedModel:
    """The model for images of the size of local crops."""
    return resizing.resize(self.supplied.model, self.local_size)

  @property
  def width(self) -> int:
    """Returns the number of features of an image."""
    return masking.token_width(self.supplied.model)

  @functools.cached_property
  def head(self) -> ProjectionHead:
    """The head of the features of an image."""
    return ProjectionHead(self.width, self.prototypes, self.bottleneck, self.hidden, self.head_layers, self.last_layer)

  @property
  def dtype(self) -> str:
    """Returns the type in which the model computes."""
    return self.supplied.model.description.model.args["dtype"]

  @property
  def fields(self) -> Fields:
    """Returns the fields of a batch: "global" and "local" crops without labels."""
    return Fields(self.supplied.patch, label=False, views=self.views)

  @property
  def views(self) -> tuple[Views, ...]:
    """Returns the views of an image: two global crops, and the local crops if there are any."""
    size = self.supplied.model.description.image_size
    assert isinstance(size, int)
    policies = [self._policy(blur, solarize) for blur, solarize in zip(self.blur, self.solarize, strict=True)]
    views = (Views("global", size, _create_crop(self.global_area), tuple(policies[:GLOBAL])),)
    if not self.local_crops:
      return views
    return (*views, Views("local", self.local_size, _create_crop(self.local_area), (policies[2],) * self.local_crops))

  def _policy(self, blur: float, solarize: float) -> Choice:
    return Choice("dino", {"jitter": self.jitter, "gray": self.gray, "blur": blur, "solarize": solarize})

  def examples(self, batch: Batch, context: Context, key: PRNGKey) -> Batch:
    """Returns the normalised crops.

    Args:
      batch: the batch with uint8 crops "global" (B, 2, ...) and "local" (B, L, ...).
      context: unused.
      key: unused.
    """
    return {name: self.supplied.normalise(views) for name, views in batch.items()}

  def encode_local(self, params: Params, examples: Batch, key: PRNGKey | None) -> Float[Array, "B L D"]:
    """Returns the student's features of the local crops.

    Args:
      params: parameters by path.
      examples: the result of `examples`.
      key: random key of stochastic depth, or None.
    """
    if "local" not in examples:
      return jnp.zeros((len(examples["global"]), 0, self.width), self.dtype)
    outputs, _ = self.local_model.model.outputs(self.local_model.adapt(params), merge_crops(examples["local"]), key)
    return split_crops(select_features(self.supplied.model, outputs), self.local_crops)

  def predict(
    self, params: Params, images: Float[Tensor, "B ..."], labels: Labels, classes: Sequence[int] | None = None
  ) -> Batch:
    """Returns the entropy of the head's output for each image. The temperature is that of the student.

    Args:
      params: parameters by path.
      images: normalised images.
      labels: unused.
      classes: unused.

    Returns:
      {"entropy": (B,)} in nats. The largest possible value is log K.
    """
    outputs, _ = self.supplied.model.outputs(params, images, None)
    logits = self.head.apply(params, HEAD, select_features(self.supplied.model, outputs), self.dtype)
    return {"entropy": compute_entropy(jax.nn.softmax(logits / self.student_temperature))}

  def check_metrics(self, means: Mapping[str, float]) -> str | None:
    """Returns a warning if the teacher or the features have collapsed.

    Args:
      means: means of the metrics of `measure_collapse` over some steps.
    """
    return describe_collapse(means, self.prototypes)


def measure_collapse(
  probabilities: Float[Tensor, "B G K"], features: Float[Tensor, "B G D"]
) -> dict[str, Float[Array, ""]]:
  """Returns the metrics that show a collapse.

  Args:
    probabilities: targets from the teacher.
    features: features of the student.

  Returns:
    A dictionary with these entries. "teacher_entropy" is the mean entropy of a target in nats. "used_prototypes" is the
    exponential of the entropy of the mean target. "feature_rank" is the result of `compute_rank`.
  """
  mean = probabilities.mean((0, 1))
  return {
    "teacher_entropy": compute_entropy(probabilities).mean(),
    "used_prototypes": jnp.exp(compute_entropy(mean)),
    "feature_rank": compute_rank(jax.lax.stop_gradient(merge_crops(features))),
  }


def describe_collapse(means: Mapping[str, float], prototypes: int) -> str | None:
  """Returns a warning if the teacher or the features have collapsed, otherwise None.

  Args:
    means: means of the metrics of `measure_collapse` over some steps.
    prototypes: number K of outputs of the head.
  """
  entropy, largest = means["teacher_entropy"], math.log(prototypes)
  if entropy > UNIFORM * largest:
    return (
      f"the teacher's output has collapsed: its entropy {entropy:.3f} is close to that of a uniform output (log K = "
      f"{largest:.3f}). Use a lower config.task.temperature, or a larger batch"
    )
  if means["used_prototypes"] < PROTOTYPES:
    return (
      f"the teacher's output has collapsed: all images of a batch use {means['used_prototypes']:.2f} prototypes. Use "
      "a lower learning rate, or a higher config.task.temperature"
    )
  if means["feature_rank"] < RANK:
    return (
      f"the features have collapsed: their effective rank is {means['feature_rank']:.2f}. Use a lower learning rate, "
      "or a larger batch"
    )
  return None


def select_features(model: models.Model, output: models.Output) -> Float[Array, "B D"]:
  """Returns the features to compare: the class token, or the pooled patches of a model without one.

  Args:
    model: the model.
    output: its output.
  """
  return output.tokens[:, 0] if "cls" in model.prefix else output.features


def _create_crop(area: tuple[float, float]) -> Choice:
  return Choice("inception", {"area": area, "interpolation": "bicubic"})


def merge_crops(views: Float[Tensor, "B G *image"]) -> Float[Array, " BG *image"]:
  """Returns the crops of all images as one batch.

  Args:
    views: crops (B, G, ...).
  """
  return rearrange(jnp.asarray(views), "b g ... -> (b g) ...")


def split_crops(values: Float[Tensor, " BG *x"], crops: int) -> Float[Array, "B G *x"]:
  """Inverts `merge_crops`.

  Args:
    values: values of each crop (B * G, ...).
    crops: number G of crops of an image.
  """
  return rearrange(jnp.asarray(values), "(b g) ... -> b g ...", g=crops)


def compute_entropy(probabilities: Float[Tensor, "*B K"]) -> Float[Array, "*B"]:
  """Returns the entropy of each row in nats.

  Args:
    probabilities: rows that sum to one.
  """
  return -jax.scipy.special.xlogy(probabilities, probabilities).sum(-1)


def compute_rank(features: Float[Tensor, "B D"]) -> Float[Array, ""]:
  """Returns the effective rank of features: (sum of eigenvalues)^2 / (sum of squared eigenvalues) of their covariance.

  The rank is 1 if the features vary in only one direction, and D if their variance is equal in all directions. The sums
  are the trace and the squared norm of the covariance, so the eigenvalues are not computed.

  Args:
    features: features (B, D).
  """
  centred = features.astype(jnp.float32) - features.astype(jnp.float32).mean(0)
  covariance = centred.T @ centred / len(features)
  return jnp.square(jnp.trace(covariance)) / jnp.maximum(jnp.square(covariance).sum(), 1e-30)
