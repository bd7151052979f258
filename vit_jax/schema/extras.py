"""Installation advice for messages:

the optional dependencies in setup.py, and TensorFlow, which users may have uninstalled.
"""

from vit_jax.schema.errors import ConfigError

EXTRAS = (
  "beam",
  "bench",
  "dedup",
  "docs",
  "gcs",
  "gpu",
  "mlflow",
  "onnx",
  "report",
  "torch",
  "tpu",
  "trackio",
  "wandb",
)


def get_install_command(extra: str) -> str:
  """Returns the command that installs an extra, to be run in the directory with setup.py.

  The package is not on PyPI.
  """
  assert extra in EXTRAS, extra
  return f"pip install -e '.[{extra}]'"


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
    raise ConfigError(
      f"{use}: TensorFlow is missing ({error}), but TensorFlow Datasets needs it to write data. "
      "Run: pip install -e . in the folder with setup.py"
    ) from error
