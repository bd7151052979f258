"""Kernels in Pallas, and how they are tiled."""
