"""Vision Transformers in JAX: from a config file to a trained, evaluated, restartable model.

`vit_jax.load("runs/a")` is a model to use; `python -m vit_jax` lists what else there is. Nothing large is imported
before it is asked for.
"""

import importlib
import os
import signal
import sys

from vit_jax import platforms, resources

if sys.argv[:1] == ["-m"]:  # `python -m vit_jax.VERB`, before its libraries are imported
  resources.check()
  if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
    # Ctrl-C during the imports ends the program without a traceback. `cli.main` restores Python's handler.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

platforms.select()
# Read by libraries when they first meet a path of a bucket. By default etils asks TensorFlow for it, whose seconds of
# import nothing else needs, and whose requests are retried in ways that nobody can change.
os.environ.setdefault("EPATH_USE_TF", "false")
# TensorStore waits without end for a server that stands still; after this it tries again.
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", "20")
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
os.environ.setdefault("TENSORSTORE_CURL_CONNECT_TIMEOUT_SECONDS", "10")
if sys.argv[:1] == ["-m"] and "." in sys.orig_argv[-len(sys.argv)]:  # a verb, and not the list of verbs
  platforms.import_jax()


def load(path: str | os.PathLike, ema: bool | None = None, image_size: int | None = None, prefix: str | None = None):
  """The model of a workdir or of any file of weights, with `predict`, `features`, `preprocess`, `classes`, `logits`.

  See `vit_jax.inference.predictor.load`, which this is.
  """
  return importlib.import_module("vit_jax.inference.predictor").load(path, ema, image_size, prefix)


def __getattr__(name: str):
  """`vit_jax.models`, imported when it is first asked for."""
  if name != "models":
    raise AttributeError(f"module 'vit_jax' has no attribute {name!r}")
  return importlib.import_module("vit_jax.models")
