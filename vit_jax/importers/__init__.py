"""Import and export of published weights, between the files of other code bases and parameters by path.

`recognise` determines the model of a set of tensors. `load` reads all parameters of a file. `export_tensors` renames
parameters for another code base.
"""

from vit_jax.importers.hub.preprocessing import ImageMetadata
from vit_jax.importers.known import export_tensors, find_layout, find_layouts, load_layouts
from vit_jax.importers.weights import (
  RecognisedModel,
  Weights,
  inspect,
  is_workdir,
  load,
  load_fitted,
  open_weights,
  read,
  recognise,
)
