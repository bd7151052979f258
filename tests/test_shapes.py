"""Tests of shapes in signatures: every public function has them, tests check them, and runs do not."""

import ast
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from vit_jax import losses
from vit_jax.evals import probes
from vit_jax.models import layers

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "vit_jax"
SHAPED = (
  *(file for part in ("models", "selfsup", "tasks") for file in sorted((PACKAGE / part).rglob("*.py"))),
  *(PACKAGE / "data" / f"{name}.py" for name in ("augment", "coordinates", "mixup", "warping", "erasing")),
  PACKAGE / "losses.py",
  PACKAGE / "evals" / "probes.py",
)
# Kernels contain references to memory, and vectors with sizes of the chip.
KERNELS = PACKAGE / "models" / "kernels" / "tiling.py"


def list_public(tree):
  """Yields the public functions of a module and methods of its classes. Constructors only take settings and modules."""
  for owner in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))):
    for node in owner.body:
      if isinstance(node, ast.FunctionDef) and (node.name == "__call__" or not node.name.startswith("_")):
        yield node


def lacks_shape(annotation):
  """Returns whether an annotation contains an array without a shape."""
  shaped = {
    part
    for node in ast.walk(annotation)
    if isinstance(node, ast.Subscript) and getattr(node.value, "id", None) in dir(jaxtyping)
    for part in ast.walk(node)
  }
  arrays = {"jax.Array", "np.ndarray", "Array", "Tensor"}
  return any(ast.unparse(node) in arrays for node in set(ast.walk(annotation)) - shaped if isinstance(node, ast.expr))


@pytest.mark.parametrize(
  ("annotation", "expected"),
  [
    ("jax.Array | None", True),
    ("dict[str, np.ndarray]", True),
    ('Float[Tensor, "B V"] | None', False),
    ('tuple[Float[np.ndarray, "B"], Array]', True),
    ("int", False),
  ],
)
def test_arrays_without_shapes_are_detected(annotation, expected):
  assert lacks_shape(ast.parse(annotation, mode="eval").body) is expected


@pytest.mark.parametrize("file", [file for file in SHAPED if file != KERNELS], ids=lambda file: file.stem)
def test_every_public_function_has_shapes(file):
  for node in list_public(ast.parse(file.read_text())):
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    annotations = [argument.annotation for argument in arguments if argument.arg not in ("self", "cls")] + [
      node.returns
    ]
    place = f"{file.name}:{node.lineno} {node.name}"
    assert None not in annotations, f"{place}: an argument or the result has no annotation"
    assert not any(map(lacks_shape, annotations)), f"{place}: an array has no shape"


@pytest.mark.heavy
def test_wrong_number_of_classes_is_an_error():
  with pytest.raises(jaxtyping.TypeCheckError, match="'targets'"):
    losses.softmax_cross_entropy(jnp.zeros((2, 3)), jnp.zeros((2, 4)))


@pytest.mark.heavy
def test_wrong_result_type_is_an_error():
  with pytest.raises(jaxtyping.TypeCheckError, match="return value"):
    layers.LayerNorm(3, eps=1e-6, dtype=jnp.int32)(jnp.zeros((2, 3)))


def test_inconsistent_shapes_of_fields_are_an_error():
  with pytest.raises(jaxtyping.TypeCheckError):
    probes.Probe(np.zeros(3), np.ones(3), np.zeros((3, 5), np.float32))  # the constant's row is missing


@pytest.mark.heavy
def test_shapes_are_checked_in_traces_too():
  with pytest.raises(jaxtyping.TypeCheckError):
    jax.eval_shape(losses.kl_divergence, jnp.zeros((2, 3)), jnp.zeros((3, 3)))


@pytest.mark.long
def test_runs_do_not_check_shapes():
  code = """
import sys
import jax.numpy as jnp
from vit_jax import losses
assert losses.softmax_cross_entropy(jnp.zeros((2, 3)), jnp.zeros((1, 3))).shape == (2,)
assert "beartype" not in sys.modules
"""
  subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=os.environ, check=True)
