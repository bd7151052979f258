"""The optional dependencies of setup.py, and TensorFlow, which may be uninstalled, in messages for the user."""

from vit_jax.schema import ConfigError

EXTRAS = ("beam", "bench", "dedup", "gcs", "gpu", "mlflow", "onnx", "torch", "tpu", "trackio", "wandb")


def command(extra: str) -> str:
  """The command that installs an extra, to run in the folder with setup.py. The package is not on PyPI."""
  assert extra in EXTRAS, extra
  return f"pip install -e '.[{extra}]'"


def advice(extra: str) -> str:
  """Names an extra and the command that installs it."""
  return f"the extra {extra}: {command(extra)}"


def check_tensorflow(use: str) -> None:
  """Imports TensorFlow, with which TensorFlow Datasets writes datasets.

  Args:
    use: what needs TensorFlow, such as the name of a dataset, for the message.

  Raises:
    ConfigError: TensorFlow is not installed, or it cannot be imported.
  """
  try:
    import tensorflow  # noqa: F401
  except ImportError as error:
    raise ConfigError(
      f"{use}: TensorFlow is missing ({error}), and TensorFlow Datasets needs it to write. "
      "Run: pip install -e . in the folder with setup.py"
    ) from error
