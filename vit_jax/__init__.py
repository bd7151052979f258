"""Vision Transformers in JAX: from a config file to a trained, evaluated, restartable model."""
