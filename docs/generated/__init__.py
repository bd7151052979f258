"""Generates pages of the documentation from the code: keys of configs, flags, exit codes and metrics."""
