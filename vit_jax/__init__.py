"""Vision Transformers in JAX: from a config file to a trained, evaluated, restartable model."""

import os

# Read by libraries when they first meet a path of a bucket. By default etils asks TensorFlow for it, whose seconds of
# import nothing else needs, and whose requests are retried in ways that nobody can change.
os.environ.setdefault("EPATH_USE_TF", "false")
# TensorStore waits without end for a server that stands still; after this it tries again.
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", "20")
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
os.environ.setdefault("TENSORSTORE_CURL_CONNECT_TIMEOUT_SECONDS", "10")
