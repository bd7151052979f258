"""The optional dependencies of setup.py, in messages for the user."""

EXTRAS = ("beam", "bench", "dedup", "gcs", "gpu", "mlflow", "onnx", "torch", "tpu", "trackio", "wandb")


def command(extra: str) -> str:
  """The command that installs an extra, to run in the folder with setup.py. The package is not on PyPI."""
  assert extra in EXTRAS, extra
  return f"pip install -e '.[{extra}]'"


def advice(extra: str) -> str:
  """Names an extra and the command that installs it."""
  return f"the extra {extra}: {command(extra)}"
