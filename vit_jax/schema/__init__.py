"""Schema of configs: the types that a signature may use, choices by name, and the checks of values.

A choice in a config consists of a name and arguments: `dict(name="adamw", lr=1e-3)`. A table maps the name to
functions. The keyword-only parameters of these functions are the schema: they define the arguments with their types,
ranges and defaults. Positional parameters are supplied by the run. If an argument is a choice too, its annotation
contains the table: `crop: Annotated[Choice, CROPS]`. A second list of keys is therefore not needed.
"""

from vit_jax.schema.binding import bind, convert, make, preset
from vit_jax.schema.bound import Bound
from vit_jax.schema.errors import (
  ConfigError,
  UnknownKeyError,
  enter_key,
  escape_line,
  get_current_key,
  show,
  suggest_nearest,
)
from vit_jax.schema.signatures import read_keywords
from vit_jax.schema.tables import DerivedTable, Table, Variants, lookup
from vit_jax.schema.texts import Text, format_amount
from vit_jax.schema.types import (
  Choice,
  Count,
  Duration,
  Fraction,
  Momentum,
  NonNegative,
  Pattern,
  Positive,
  Probability,
  Range,
  Required,
  required,
)
from vit_jax.schema.values import (
  convert_to_group,
  flatten_choices,
  get_config_key,
  get_field_default,
  list_choices,
  nest_choices,
  to_plain,
)
