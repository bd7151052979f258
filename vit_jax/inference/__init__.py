"""Weights in use: on images of anybody, by the verb and in Python."""
