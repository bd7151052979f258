"""Vision Transformers in JAX: from a config file to a trained, evaluated, restartable model."""

import os

# Read by libraries when they first meet a path of a bucket. By default etils asks TensorFlow for it, whose seconds of
# import nothing else needs, and whose requests are retried in ways that nobody can change.
os.environ.setdefault("EPATH_USE_TF", "false")
