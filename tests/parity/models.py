"""Published models: the same weights and the same images give the same logits."""

import json
import pathlib
import zlib
from collections.abc import Iterator

import jax
import numpy as np
from flax import nnx

from tests.parity.compare import Result, compare
from vit_jax import importers, models
from vit_jax.models import positions


def tensors(described: dict) -> dict[str, np.ndarray]:
  """The arrays of a fixture by their published names, made by the rule of the fixtures."""
  return {t["name"]: _array(t) for t in described["tensors"]}


def _array(tensor):
  shape = tuple(tensor["shape"])
  if tensor.get("rule") == "sine_1d":
    return positions.compute_sine(*shape[1:])[None]
  if "rule" in tensor:
    raise ValueError(f"{tensor['name']}: unknown rule {tensor['rule']!r}")
  z = np.random.default_rng(zlib.crc32(tensor["name"].encode())).standard_normal(shape, dtype=np.float32)
  value = np.asarray(np.float32(tensor["mean"]) + np.float32(tensor["std"]) * z)
  return value.astype(tensor.get("dtype", "float32"))


def images(described: dict) -> np.ndarray:
  """The images of a fixture, [B, H, W, C]."""
  spec = described["input"]
  drawn = np.random.default_rng(spec["seed"]).standard_normal(tuple(spec["shape"]), dtype=np.float32)
  return drawn.transpose(0, 2, 3, 1) if spec["layout"] == "NCHW" else drawn


def hints(described: dict) -> dict:
  """What a fixture says beside its tensors, in the words of `importers.recognise`."""
  config = described.get("config", {})
  # Fixtures of timm are of one of its architectures at another size.
  return {"name": config.get("timm", described["name"]), "image_size": described["image_size"]} | config


def check(file: pathlib.Path) -> Iterator[Result]:
  """Recognises the tensors, builds the model they describe, and compares logits and what goes into the head."""
  described = json.loads(file.read_text())
  recognised = importers.recognise(tensors(described), hints(described))
  size = described["image_size"]
  expected = {"image_size": tuple(size) if isinstance(size, list) else size, "classes": described["num_classes"]}
  for key, value in expected.items():
    if getattr(recognised.description, key) != value:
      yield Result(
        file.stem, float("inf"), f"recognised {key} {getattr(recognised.description, key)} instead of {value}"
      )
      return
  model = models.functional(recognised.description).create(recognised.read())
  graph, params = nnx.split(model)
  function = models.capture(lambda params, x: nnx.merge(graph, params)(x), "pre_logits")
  logits, inside = jax.jit(function)(params, images(described))
  pairs = {"logits": logits, "pre_logits": inside["pre_logits"]}
  results = [compare(file.stem, pairs[key], described["output"][key], described["tolerance"]) for key in pairs]
  wrong = "; ".join(f"{key}: {r.wrong}" for key, r in zip(pairs, results, strict=True) if r.wrong)
  yield Result(file.stem, max(r.error for r in results), wrong)
