"""Protection against the import of modules that the `features.json` of a prepared dataset names."""

from collections.abc import Callable
from typing import Any

from vit_jax.schema import ConfigError, show

TRUSTED = "tensorflow_datasets."  # prefix of modules of the installed package


_originals: dict[str, Callable[[Any, str], type]] = {}  # methods of TFDS that this module replaced


def refuse_imports() -> None:
  """Makes TFDS refuse feature classes that are neither its own nor already imported, for the rest of the process.

  A dataset is data: code next to it must not run because a file names it. A user's own class is available if the
  user's code has imported it before, for example with `--import`.
  """
  import tensorflow_datasets as tfds

  connector = tfds.features.FeatureConnector
  if getattr(connector.cls_from_name, "__func__", None) is not _find_trusted_class:
    _originals["cls_from_name"] = connector.cls_from_name.__func__
    connector.cls_from_name = classmethod(_find_trusted_class)


def _find_trusted_class(cls: Any, python_class_name: str) -> type:
  """Replaces TFDS's `cls_from_name`, without imports. Raises ConfigError for a class of another module."""
  if python_class_name not in cls._registered_features and not python_class_name.startswith(TRUSTED):
    raise ConfigError(
      f"features.json names the class {show(python_class_name)}, which is not part of tensorflow_datasets and is not "
      "imported. Data files cannot import modules. If you trust the module, import it with --import"
    )
  return _originals["cls_from_name"](cls, python_class_name)
