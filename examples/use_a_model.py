"""Uses a trained model: classes, features, attention maps, a gradient: python examples/use_a_model.py WEIGHTS PHOTO

WEIGHTS is the workdir of a run or a file of published weights. PHOTO is an image. The script writes no files.
"""

import sys

import jax
import jax.numpy as jnp

import vit_jax
from vit_jax.reports import inside


def main(weights: str, photo: str) -> None:
  """Prints five kinds of results for a photo.

  Args:
    weights: a workdir or a weight file.
    photo: an image file.
  """
  model = vit_jax.load(weights)
  print(model.description)

  # The five best classes. Lists of photos, Pillow images and uint8 arrays are supported too.
  prediction = model.predict(photo)
  for name, probability in zip(prediction.names, prediction.probabilities, strict=True):
    print(f"  {name:<24}{probability:7.2%}")

  # The input of the head, for similarity search, clustering, or a classifier of your own.
  features = model.features([photo, photo])
  print(f"features {features.shape}, {features.dtype}")

  # The model as a pure function of parameters and normalised images, for your own jit. Here it also returns attention.
  batch = jnp.asarray(model.preprocess(photo))[None]
  captured = jax.jit(vit_jax.models.capture(model.logits, "blocks/*/attention/weights"))
  logits, attention = captured(model.params, batch)
  for layer, maps in attention.items():
    print(f"{layer} {maps.shape}: images, heads, tokens, tokens")

  # The gradient shows how the best class depends on each pixel.
  best = int(jnp.argmax(logits[0]))
  saliency = jax.jit(jax.grad(lambda images: model.logits(model.params, images)[0, best]))(batch)
  print(f"gradient of {model.classes[best]!r}: {saliency.shape}, at most {float(jnp.abs(saliency).max()):.3g}")

  # Figures of the papers: filters, positions, attention distance, rollout. A figure that the model does not have is
  # None.
  looked = inside.inspect_model(model, [model.square(photo)])
  print(f"inside: {len(looked.filters)} filters of {looked.filters.shape[1:]}")
  if looked.rollout is not None:
    row, column = divmod(int(looked.rollout[0].argmax()), looked.rollout.shape[2])
    print(f"  attention distance {looked.distance.mean():.1f} pixels; most comes from patch ({row}, {column})")
  for reason in dict.fromkeys(looked.absent.values()):
    print(f"  {reason}")


if __name__ == "__main__":
  if len(sys.argv) != 3:
    sys.exit("usage: python examples/use_a_model.py WEIGHTS PHOTO")
  main(*sys.argv[1:])
