"""Export of a model with its weights to one file that runs without vit_jax, for any batch size.

A .stablehlo file is a program for CPUs, CUDA and TPUs, written by `jax.export`. An .onnx file runs in ONNX Runtime and
in many other programs.
"""

import json
import pathlib
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from vit_jax import models, schema
from vit_jax.importers.formats.lazy_tensors import count_bytes
from vit_jax.inference import graph, operators
from vit_jax.inference.stored import StoredWeights
from vit_jax.schema import ConfigError, extras
from vit_jax.storage import files

Logits = Callable[[np.ndarray], np.ndarray]  # images -> logits

PLATFORMS = ("cpu", "cuda", "tpu")
LARGEST = 2**31 - 2**20  # maximum bytes of weights in an .onnx file, because Protocol Buffers are limited to 2 GiB
CLOSE = 1e-4  # tolerance for the logits of the exported file, relative to the largest logit
COMPARED = (1, 3)  # batch sizes to compare


def export_model(
  use: StoredWeights, path: pathlib.Path, check_new: Callable[[dict[pathlib.Path, str]], None] = lambda documents: None
) -> float:
  """Writes a model to a file: uint8 images (B, S, S, 3) -> float32 logits (B, V), or features (B, D) without a head.

  The file is read again and compared with the model on this machine before it gets its final name.
  `jax.export.deserialize(data).call(images)` runs a .stablehlo file. The preprocessing and the class names are written
  to a JSON file of the same name. An .onnx file stores them as metadata instead, each as JSON.

  Args:
    use: the weights.
    path: the file to write. Its suffix selects the format.
    check_new: function that receives {path: text} of the JSON files to write. It raises ConfigError if one of the files
      must not be written.

  Returns:
    The largest difference of the logits between the file and the model, relative to the largest logit.

  Raises:
    ConfigError: if the outputs are not finite, or differ by more than CLOSE.

  Example:
    import pathlib

    from vit_jax.inference import exported, stored

    use = stored.load("model.npz")
    difference = exported.export_model(use, pathlib.Path("model.stablehlo"))
  """
  make, run = FORMATS[path.suffix.lower()]
  described = get_sidecar_path(path)
  documents = {described: json.dumps(_describe_images(use), indent=2) + "\n"} if described else {}
  check_new(documents)
  model, data = make(use)

  def place() -> None:
    check_new(documents)
    files.write_texts(documents)

  with files.atomic_write(path, place) as partial:
    partial.write_bytes(data)
    apart = _measure_difference(run(partial.read_bytes()), model, _get_side(use))
    if np.isnan(apart):
      raise ConfigError(
        f"{path}: outputs of the model or of the exported file are not finite. The file was not written"
      )
    if not apart <= CLOSE:
      raise ConfigError(
        f"{path}: the logits of the exported file differ by {apart:.2g} times the largest logit. The file was not "
        "written"
      )
  return apart


def get_sidecar_path(path: pathlib.Path) -> pathlib.Path | None:
  """Returns the path of the JSON file of an exported model, or None if the model file contains the metadata itself."""
  return path.with_suffix(".json") if path.suffix.lower() == ".stablehlo" else None


def check_packages(path: pathlib.Path) -> None:
  """Raises ConfigError if the packages that write files with this suffix are not installed."""
  if path.suffix.lower() == ".onnx":
    _import_onnx()


def _convert_to_stablehlo(use: StoredWeights) -> tuple[Logits, bytes]:
  """Returns (the model, its program as bytes)."""
  compute, size = _compile_logits(use), _get_side(use)
  (batch,) = export.symbolic_shape("b")
  images = jax.ShapeDtypeStruct((batch, size, size, 3), np.uint8)
  return compute, bytes(export.export(compute, platforms=PLATFORMS)(images).serialize())


def _run_stablehlo(data: bytes) -> Logits:
  """Returns the function from images to logits that a serialised program contains."""
  return export.deserialize(bytearray(data)).call


def _convert_to_onnx(use: StoredWeights) -> tuple[Logits, bytes]:
  """Returns (the model in float32, its graph as bytes). All ONNX runtimes support float32."""
  onnx, _ = _import_onnx()
  if (weights := count_bytes(use.arrays)) > LARGEST:
    raise ConfigError(
      f"{weights:,} bytes of weights are too many for an .onnx file. Allowed: {LARGEST:,}. Write OUT.stablehlo instead"
    )
  compute, size = _compile_logits(use, dtype="float32"), _get_side(use)
  made, inputs, outputs = graph.trace_graph(compute, (size, size, 3), onnx, operators.OPERATORS)
  name = "logits" if use.description.classes else "features"
  about = {key: json.dumps(value, ensure_ascii=False) for key, value in _describe_images(use).items()}
  model = made.model(inputs, {name: outputs[0]}, about)
  return compute, model.SerializeToString()


def _run_onnx(data: bytes) -> Logits:
  """Returns the function from images to logits that a serialised graph contains."""
  _, runtime = _import_onnx()
  session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
  return lambda images: session.run(None, {graph.INPUT: images})[0]


def _import_onnx() -> tuple[types.ModuleType, types.ModuleType]:
  """Returns the packages of the extra, or raises ConfigError if they are not installed."""
  try:
    import onnx
    import onnxruntime
  except ImportError:
    raise ConfigError(f"OUT.onnx needs {extras.format_advice('onnx')}. Alternatively, write OUT.stablehlo") from None
  return onnx, onnxruntime


# Suffix -> (function from weights to model and bytes, function from bytes to a function of images).
FORMATS = {".stablehlo": (_convert_to_stablehlo, _run_stablehlo), ".onnx": (_convert_to_onnx, _run_onnx)}


def _get_side(use: StoredWeights) -> int:
  """Returns the side of the square images for which weights were loaded."""
  assert isinstance(use.description.image_size, int)
  return use.description.image_size


def _compile_logits(use: StoredWeights, **changes: object) -> jax.stages.Wrapped:
  """Returns the compiled function from images to logits. It avoids kernels that exist for a single platform only."""
  description = use.description.bind()
  if description.settings().get("attention") == "fused":
    changes["attention"] = "xla"
  description = description.change(changes).bind()
  model = models.make_functional(description)
  params = {name: jnp.asarray(array) for name, array in use.arrays.items()}

  def logits(images: jax.Array) -> jax.Array:
    return model.outputs(params, use.data.normalise(images, description.model.args["dtype"]))[0].logits

  return jax.jit(logits)


def _measure_difference(one: Logits, other: Logits, size: int) -> float:
  """Returns the largest difference between two functions on random images, relative to the largest value."""
  draw, largest, difference = np.random.default_rng(0), 1e-9, 0.0
  for count in COMPARED:
    images = draw.integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    a, b = np.asarray(one(images)), np.asarray(other(images))
    largest, difference = np.maximum(largest, np.abs(b).max()), np.maximum(difference, np.abs(a - b).max())
  return float(difference / largest)


def _describe_images(use: StoredWeights) -> dict[str, Any]:
  """Returns the metadata of images and classes as JSON values."""
  keys = ("image_size", "test_crop", "mean", "std")
  return {
    "model": use.description.to_json(),
    "classes": list(use.classes),
    "probabilities": use.loss,
    "input": "uint8 [B, S, S, 3], RGB, cropped as in test_crop; mean and std are applied inside",
    **{key: schema.to_plain(use.data.args[key]) for key in keys},
  }
