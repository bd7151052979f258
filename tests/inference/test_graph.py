"""Tests of traced functions as graphs: constants are computed once, and only the number of images is dynamic."""

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest

from vit_jax.inference import graph, operators
from vit_jax.schema import ConfigError

pytestmark = pytest.mark.heavy


def written(function):
  """Returns the graph of a function of images with 4 x 4 pixels, and a session that runs it."""
  made, inputs, outputs = graph.trace_graph(function, (4, 4, 3), onnx, operators.OPERATORS)
  model = made.model(inputs, {"out": outputs[0]}, {"said": "true"})
  onnx.checker.check_model(model, full_check=True)
  return made, onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_only_the_number_of_images_is_dynamic():
  _, session = written(lambda images: images.astype(jnp.float32).reshape(-1, 48))
  (given,), (taken,) = session.get_inputs(), session.get_outputs()
  assert (given.name, given.shape, given.type) == ("images", ["batch", 4, 4, 3], "tensor(uint8)")
  assert (taken.shape, taken.type) == (["batch", 48], "tensor(float)")
  assert session.get_modelmeta().custom_metadata_map == {"said": "true"}


def test_constant_expressions_are_computed_once():
  table = jnp.arange(48.0)
  made, _ = written(lambda images: images.astype(jnp.float32).reshape(-1, 48) + jnp.sin(table) * 2)
  assert [node.op_type for node in made.nodes] == ["Cast", "Reshape", "Add", "Identity"]


def test_token_is_repeated_for_every_image():
  token = np.arange(12, dtype=np.float32).reshape(1, 1, 12)

  def function(images):
    rows = images.astype(jnp.float32).reshape(-1, 4, 12)
    return jnp.concatenate([jnp.broadcast_to(token, (len(rows), 1, 12)), rows], 1)

  _, session = written(function)
  for count in (1, 5):
    images = np.random.default_rng(count).integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
    expected = np.concatenate([np.repeat(token, count, 0), images.reshape(count, 4, 12)], 1)
    np.testing.assert_array_equal(session.run(None, {"images": images})[0], expected)


def test_weight_used_twice_is_stored_once():
  weight = np.random.default_rng(0).standard_normal((48, 48)).astype(np.float32)
  made, _ = written(lambda images: images.astype(jnp.float32).reshape(-1, 48) @ weight @ weight)
  assert sum(len(each.dims) == 2 for each in made.initializers) == 1


def test_unsupported_primitive_is_named():
  with pytest.raises(ConfigError, match=r"'cumsum'.*OUT\.stablehlo"):
    written(lambda images: jax.lax.cumsum(images.astype(jnp.float32)))
