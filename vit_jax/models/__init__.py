"""Image models: Vision Transformers, compact transformers, MLP-Mixer, Swin, EfficientNet and BiT.

`make_functional` converts a description to a model with pure functions. `create` returns a Flax module for
interactive use.

A model maps normalised images [B, H, W, C] and a random key to logits [B, V] in float32. A key of None selects
evaluation. A model without classes returns features instead of logits. Its state consists of `nnx.Param`, and of
`nnx.BatchStat` for running averages that the forward pass updates in training.

The modules in `published/` list the names of each family, and `table` looks them up. `capture` returns intermediates.
"""

from vit_jax.models.creation import create
from vit_jax.models.description import Description
from vit_jax.models.functional import Model, make_functional
from vit_jax.models.intermediates import capture
from vit_jax.models.output import Features, Output
from vit_jax.models.parameters import Keys, ShardingRules
from vit_jax.models.table import bind, find, find_sharding, lookup, names
