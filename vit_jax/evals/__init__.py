"""Evaluations: each measures the weights every so often during a run, and at its end."""

from vit_jax.evals.accuracy import accuracy

EVALS = {"accuracy": accuracy}
