"""The pure function from prepared images to classes, probabilities and features."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import losses, models
from vit_jax.data.bound_data import EvalData
from vit_jax.models import finite

BEST = 5  # maximum number of classes returned per image


def make_predict_function(
  model: models.Model, data: EvalData, loss: str, features: models.Features | None
) -> Callable[[dict[str, jax.Array], jax.Array], dict[str, jax.Array]]:
  """Builds the function that computes predictions for prepared images.

  Args:
    model: the model. A model without a head predicts no classes.
    data: preprocessing of the images. Only the mean and the standard deviation are used.
    loss: the loss that the model was trained with, which determines the probabilities.
    features: the features to return, in float32. None returns no features.

  Returns:
    A function (params, images uint8 (B, S, S, 3)) -> {"best" (B, K), "probability" (B, K), "features" (B, D)}. The
    result also contains the flags of `finite.compute_flags`.
  """
  dtype = np.dtype(model.description.model.args["dtype"])
  best_of = min(BEST, model.description.classes)
  of_image = features and model.select_features(features)

  def compute(params: Mapping[str, jax.Array], images: jax.Array) -> dict[str, jax.Array]:
    output, _ = model.outputs(params, data.normalise(images, dtype))
    result = {"features": of_image(output).astype(jnp.float32)} if of_image else {}
    if best_of:
      _, best = jax.lax.top_k(output.logits, best_of)
      probability = jnp.take_along_axis(losses.PROBABILITIES[loss](output.logits), best, axis=-1)
      result |= {"best": best, "probability": probability}
    flags = {"logits": output.logits, **result} if best_of else result
    return result | finite.compute_flags(flags)

  return compute
