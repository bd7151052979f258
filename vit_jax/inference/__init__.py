"""Predictions and features from stored weights, for the command `predict` and for use in Python."""
