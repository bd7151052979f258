"""The catalog of datasets, with one row per dataset, and the functions that open a dataset.

A row names the reader of the dataset. It also contains the facts that are known before any file is opened. To add a
dataset, add a row to `CATALOG` or call `vit_jax.register`.
"""

from vit_jax.data.catalog.datasets import (
  CATALOG,
  DATA,
  EVAL_DATA,
  PARTS,
  READERS,
  describe_dataset,
  open_known_split,
  open_split,
  open_train_examples,
)
