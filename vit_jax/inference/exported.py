"""A model as one file with its weights inside, for any number of images, that needs nothing of vit_jax.

.stablehlo is a program for CPUs, CUDA and TPUs, by `jax.export`; .onnx is what ONNX Runtime and many others run.
"""

import json
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from vit_jax import extras, files, models, schema
from vit_jax.data import augment
from vit_jax.inference import graph, operators
from vit_jax.inference.stored import Stored
from vit_jax.schema import Choice, ConfigError, arguments

PLATFORMS = ("cpu", "cuda", "tpu")
LARGEST = 2**31 - 2**20  # bytes of weights in an .onnx file, which Protocol Buffers end at 2 GiB
CLOSE = 1e-4  # of the largest logit: how far those of the file may be from the model's
COMPARED = (1, 3)  # images at a time


def write(use: Stored, path: pathlib.Path, check_new: Callable[[dict], None] = lambda documents: None) -> float:
  """Writes the model: uint8 images [B, S, S, 3] -> logits float32 [B, V], without a head features [B, D].

  The file is read again and compared with the model on this machine before it takes its name; how far they are apart,
  as a share of the largest value. `jax.export.deserialize(data).call(images)` runs a .stablehlo; what its squares are
  made of and the names of classes are in a JSON file of the same name. An .onnx has these as metadata, each as
  JSON. ConfigError where they differ by more than CLOSE; `check_new` raises it where one of the files may not be made,
  of which it gets {path: text} of the JSON.
  """
  make, run = FORMATS[path.suffix.lower()]
  described = beside(path)
  documents = {described: json.dumps(_about(use), indent=2) + "\n"} if described else {}
  check_new(documents)
  model, data = make(use)

  def place():
    check_new(documents)
    files.write_together(documents)

  with files.replacing(path, place) as partial:
    partial.write_bytes(data)
    apart = _apart(run(partial.read_bytes()), model, use.description.image_size)
    if np.isnan(apart):
      raise ConfigError(f"{path}: outputs are not finite, of the model or of the exported file; nothing is kept")
    if not apart <= CLOSE:
      raise ConfigError(
        f"{path}: the logits of what was exported differ by {apart:.2g} of the largest; nothing is kept"
      )
  return apart


def beside(path: pathlib.Path) -> pathlib.Path | None:
  """The JSON file of an exported model; None where the model's own file says it all."""
  return path.with_suffix(".json") if path.suffix.lower() == ".stablehlo" else None


def check(path: pathlib.Path) -> None:
  """ConfigError where what writes files of this ending is not installed."""
  if path.suffix.lower() == ".onnx":
    _onnx()


def _stablehlo(use):
  """(the model, its program as bytes)."""
  compute, size = _function(use), use.description.image_size
  (batch,) = export.symbolic_shape("b")
  images = jax.ShapeDtypeStruct((batch, size, size, 3), np.uint8)
  return compute, export.export(compute, platforms=PLATFORMS)(images).serialize()


def _run_stablehlo(data):
  """images -> logits, of a program's bytes."""
  return export.deserialize(bytearray(data)).call


def _onnx_graph(use):
  """(the model in float32, which all that run ONNX compute; its graph as bytes)."""
  onnx, _ = _onnx()
  if (weights := sum(array.nbytes for array in use.arrays.values())) > LARGEST:
    raise ConfigError(f"{weights:,} bytes of weights; an .onnx file holds {LARGEST:,}: write OUT.stablehlo instead")
  compute, size = _function(use, dtype="float32"), use.description.image_size
  made, inputs, outputs = graph.trace(compute, (size, size, 3), onnx, operators.OPERATORS)
  name = "logits" if use.description.classes else "features"
  about = {key: json.dumps(value, ensure_ascii=False) for key, value in _about(use).items()}
  model = made.model(inputs, {name: outputs[0]}, about)
  return compute, model.SerializeToString()


def _run_onnx(data):
  """images -> logits, of a graph's bytes."""
  _, runtime = _onnx()
  session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
  return lambda images: session.run(None, {graph.INPUT: images})[0]


def _onnx():
  """The packages of the extra; ConfigError without it."""
  try:
    import onnx
    import onnxruntime
  except ImportError:
    raise ConfigError(f"OUT.onnx needs {extras.advice('onnx')}; or write OUT.stablehlo") from None
  return onnx, onnxruntime


# Ending -> (model and bytes of weights to use, the function of images that bytes are).
FORMATS = {".stablehlo": (_stablehlo, _run_stablehlo), ".onnx": (_onnx_graph, _run_onnx)}


def _function(use, **changes) -> Callable:
  """images -> logits, compiled by JAX; a kernel that one platform has alone is not taken."""
  choice = use.description.model
  if "attention" in choice.args:
    changes["attention"] = "xla"
  choice = Choice(choice.name, {**choice.args, **changes})
  model = models.functional(use.description.replaced(model=choice))
  normalise = arguments(use.data, augment.normalise)
  params = {name: jnp.asarray(array) for name, array in use.arrays.items()}

  def logits(images):
    return model.outputs(params, augment.normalise(images, choice.args["dtype"], **normalise))[0].logits

  return jax.jit(logits)


def _apart(one, other, size) -> float:
  """The largest difference between two functions of random images, as a share of the largest value."""
  draw, largest, difference = np.random.default_rng(0), 1e-9, 0.0
  for count in COMPARED:
    images = draw.integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    a, b = np.asarray(one(images)), np.asarray(other(images))
    largest, difference = np.maximum(largest, np.abs(b).max()), np.maximum(difference, np.abs(a - b).max())
  return float(difference / largest)


def _about(use):
  """What is to be known of images and classes, as JSON values."""
  keys = ("image_size", "test_crop", "mean", "std")
  return {
    "model": use.description.to_json(),
    "classes": list(use.classes),
    "probabilities": use.loss,
    "input": "uint8 [B, S, S, 3], RGB, cropped as test_crop says; mean and std are applied inside",
    **{key: schema.plain(use.data.args[key]) for key in keys},
  }
