"""A model as a value: pure functions of flat parameters {path: array}. Outside models/ nothing else of Flax is seen."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import numpy as np
from flax import nnx

from vit_jax import extensions, mesh, rng, trees
from vit_jax.models import activations, contract, parameters
from vit_jax.models.description import Description
from vit_jax.models.output import Features, Output, features_of
from vit_jax.models.published.model import Registered
from vit_jax.shapes import Array, Float, Integer, PRNGKey, Shaped, Tensor


@dataclasses.dataclass(frozen=True)
class Model:
  """A described model. `functional` makes it; its methods are pure and may be traced."""

  description: Description  # bound
  statistics: frozenset[str]  # paths that the model moves itself, among the parameters: running averages
  patch: int | None  # images may come cut into patches of this side
  prefix: Mapping[str, int]  # tokens in front of the patches, by name, in order
  _graph: nnx.GraphDef = dataclasses.field(repr=False)
  _abstract: nnx.State = dataclasses.field(repr=False)
  sharded: Callable = dataclasses.field(default=contextlib.nullcontext, repr=False)  # context of its tracing

  def init(self, key: PRNGKey) -> dict[str, Shaped[Array, "..."]]:
    """Initial parameters by path, statistics among them."""
    return trees.flatten(nnx.state(_make(self.description, key)))

  def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and types of the parameters by path."""
    return {path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in trees.flatten(self._abstract).items()}

  def layers_above(self) -> dict[str, int | Float[np.ndarray, "L ..."] | None] | None:
    """Returns the layers between each parameter and the logits, by path: see `parameters.layers_above`."""
    return parameters.layers_above(self.description.published.order, self.shapes())

  def create(self, params: Mapping[str, Shaped[Tensor | jax.ShapeDtypeStruct, "..."]]) -> nnx.Module:
    """The module with these parameters, for interactive use; others, of a task, are left out."""
    own = {path: params[path] for path in trees.flatten(self._abstract)}
    return nnx.merge(self._graph, trees.unflatten(self._abstract, own))

  def outputs(
    self,
    params: Mapping[str, Shaped[Tensor, "..."]],
    images: Float[Tensor, "B H W C"] | Float[Tensor, "B N PPC"],
    key: PRNGKey | None = None,
    **masks: Callable | Integer[Tensor, "B M"],
  ) -> tuple[Output, dict[str, Float[Array, "..."]]]:
    """(what the model computes of images, {path: statistic after these images}).

    Args:
      params: all parameters by path; others among them are ignored.
      images: normalised; where `patch` is not None, they may come cut into patches.
      key: of dropout and stochastic depth, for training; None means evaluation, which moves no statistic.
      **masks: of a Transformer whose tokens are patches: `corrupt`, a function [B, N, D] -> [B, N, D] of their
        embeddings before positions are added, and `visible` [B, M], the numbers of those that the blocks see.
    """
    module = self.create(params)
    with self.sharded():
      output = module.outputs(images, key, **masks)
    return output, trees.flatten(nnx.state(module, nnx.BatchStat))

  def features_of(self, kind: Features) -> Callable[[Output], Float[Array, "B F"]]:
    """What is taken of an image, of an output: see `output.features_of`."""
    return features_of(kind, self.prefix)

  def on(self, grid: jax.sharding.Mesh) -> "Model":
    """The same model, whose activations are sharded over a mesh wherever it is traced."""
    choice = self.description.model
    gather = mesh.gather(self.description.published.sharding, grid, np.dtype(choice.args["dtype"]))
    per_device = functools.partial(mesh.per_device, grid)
    return dataclasses.replace(
      self, sharded=functools.partial(activations.sharded, mesh.batch(grid), gather, per_device)
    )


def functional(description: Description) -> Model:
  """The described model; ConfigError for arguments that no model has."""
  row = description.published
  # A session may register a name again, with other code.
  return _functional(description.bound(), row.maker if isinstance(row, Registered) else None)


@functools.lru_cache(maxsize=64)
def _functional(description, registered):
  name = description.model.name
  file = extensions.registration("model", name).file if registered else ""
  call = functools.partial(extensions.called, file, flag=f"model {name}") if file else _call
  module = call(nnx.eval_shape, lambda: _make(description, rng.key(0)))
  graph, abstract = nnx.split(module)
  statistics = frozenset(trees.flatten(nnx.filter_state(abstract, nnx.BatchStat)))
  patch, prefix = contract.patch_of(module), contract.prefix_of(name, module)
  if registered:
    sizes = (description.image_size, description.channels, description.classes, description.model.args["dtype"])
    call(contract.check_outputs, name, module, *sizes, prefix)
  return Model(description, statistics, patch, prefix, graph, abstract)


def _call(function, *arguments):
  return function(*arguments)


def _make(description, key):
  sizes = (description.image_size, description.channels, description.classes)
  return description.published.make(*sizes, rng.Keys(key), **description.model.args)
