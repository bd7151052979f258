"""Import and export of published weights, between the files of other code bases and parameters by path.

`recognise` determines the model of a set of tensors. `load` reads all parameters of a file. `export` renames parameters
for another code base.
"""

from vit_jax.importers.known import export, layout_of, layouts, layouts_of
from vit_jax.importers.processing import Beside
from vit_jax.importers.weights import Recognised, Weights, fitted, frozen, inspect, is_workdir, load, read, recognise
