"""Vision Transformers in JAX: from a config file to a trained, evaluated, restartable model.

`vit_jax.load("runs/a")` loads a trained model. `python -m vit_jax` lists the commands. Large libraries are imported
only when they are needed.
"""

import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from vit_jax import platforms, resources

if TYPE_CHECKING:
  from vit_jax.inference.predictor import Predictor

if sys.argv[:1] == ["-m"]:  # `python -m vit_jax.VERB`, before its libraries are imported
  resources.check_limits()
  if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
    # Ctrl-C during the imports ends the program without a traceback. `cli.run_verb` restores Python's handler.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

platforms.select_platform()
# Libraries read this variable when they first use the path of a bucket. By default etils calls TensorFlow, which takes
# seconds to import, is not needed for anything else, and has a retry policy that cannot be changed.
os.environ.setdefault("EPATH_USE_TF", "false")
# TensorStore has no timeout for a server that stops responding. With these variables it retries after 20 s.
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", "20")
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
os.environ.setdefault("TENSORSTORE_CURL_CONNECT_TIMEOUT_SECONDS", "10")
if sys.argv[:1] == ["-m"] and "." in sys.orig_argv[-len(sys.argv)]:  # a verb, not the list of verbs
  platforms.import_jax()


def load(
  path: str | os.PathLike[str], ema: bool | None = None, image_size: int | None = None, prefix: str | None = None
) -> "Predictor":
  """Loads the model of a workdir or of any supported weight file.

  The function is `vit_jax.inference.predictor.load`.

  Args:
    path: a workdir, a weight file, or a repository on the Hugging Face Hub, such as "hf:OWNER/NAME@REVISION".
    ema: if true, load the averaged weights. If false, load the raw weights. The default is the averaged weights of a
      file that contains them, and of a workdir with the average as teacher. Otherwise, it is the raw weights.
    image_size: image size in pixels. The default is the size with which the weights were trained. Position embeddings
      are resampled if the size differs.
    prefix: common prefix of the array names of one model, for a file that contains several models.

  Returns:
    A `Predictor`: `predict`, `features`, `preprocess`, `classes`, and the pure function `logits`.

  Raises:
    ConfigError: the path does not contain a model.

  Example:
    model = vit_jax.load("runs/a")
    best = model.predict("photo.jpg")  # the five best classes
    print(best.names[0], best.probabilities[0])
  """
  return importlib.import_module("vit_jax.inference.predictor").load(path, ema, image_size, prefix)


def push(
  path: str | os.PathLike[str],
  address: str,
  licence: str,
  layout: str | None = None,
  public: bool = False,
  ema: bool | None = None,
  prefix: str | None = None,
) -> str:
  """Uploads the weights of a workdir or file to a repository on the Hugging Face Hub, with a model card.

  The repository must be new or empty. The card contains the results of the run with intervals, the recipe, and how to
  load the weights. The function is `vit_jax.convert.push`.

  Args:
    path: a workdir, or a weight file.
    address: the repository, "hf:OWNER/NAME".
    licence: name of a licence on the Hub, such as "apache-2.0" or "other".
    layout: names and shapes of the tensors, such as "timm" or "hf". The default depends on the model.
    public: if true, a new repository becomes public. The default is private.
    ema: if true, upload the averaged weights. If false, upload the raw weights. The default is like that of `load`.
    prefix: common prefix of the array names of one model, for a file that contains several models.

  Returns:
    A description of the upload, with the address of its web page.

  Raises:
    ConfigError: the weights cannot be written in this layout, or the Hub refuses the upload.

  Example:
    vit_jax.push("runs/a", "hf:me/flowers", licence="apache-2.0")
  """
  return importlib.import_module("vit_jax.convert").push(path, address, licence, layout, public, ema, prefix)


def __getattr__(name: str) -> object:
  """Imports `vit_jax.models` and the version at their first use."""
  if name == "__version__":
    return importlib.import_module("vit_jax.schema.extras").VERSION
  if name != "models":
    raise AttributeError(f"module 'vit_jax' has no attribute {name!r}")
  return importlib.import_module("vit_jax.models")
