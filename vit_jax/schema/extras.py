"""The version of this package, and installation advice for messages.

The advice concerns the optional dependencies in setup.py, and TensorFlow, which users may have uninstalled.
"""

import pathlib

from vit_jax.schema.errors import ConfigError

VERSION = "0.1.0"  # pyproject.toml reads it from here
EXTRAS = (
  "beam",
  "bench",
  "dedup",
  "docs",
  "gcs",
  "gpu",
  "hub",
  "mlflow",
  "onnx",
  "report",
  "sbom",
  "sign",
  "torch",
  "tpu",
  "trackio",
  "wandb",
)


def get_install_command(extra: str) -> str:
  """Returns the command that installs an extra: in the directory of a clone, or of the installed package.

  The second command does not download vit_jax, because pip keeps the installed distribution of this name.
  """
  assert extra in EXTRAS, extra
  return f"pip install -e '.[{extra}]'" if _is_clone() else f"pip install 'vit-jax-framework[{extra}]'"


def _is_clone() -> bool:
  """Returns whether this file belongs to a clone of the repository, which contains setup.py."""
  return (pathlib.Path(__file__).parents[2] / "setup.py").is_file()


def format_advice(extra: str) -> str:
  """Returns the name of an extra and the command that installs it."""
  return f"the extra {extra}: {get_install_command(extra)}"


def check_tensorflow(use: str) -> None:
  """Imports TensorFlow, which TensorFlow Datasets needs to write datasets.

  Args:
    use: the feature that needs TensorFlow, such as the name of a dataset. The message starts with this text.

  Raises:
    ConfigError: TensorFlow is not installed or cannot be imported.
  """
  try:
    import tensorflow  # noqa: F401
  except ImportError as error:
    command = "pip install -e . in the folder with setup.py" if _is_clone() else "pip install tensorflow"
    raise ConfigError(
      f"{use}: TensorFlow is missing ({error}), but TensorFlow Datasets needs it to write data. Run: {command}"
    ) from error
